"""The Python process that Spark has started for us, as far as we must know it.

Spark plans, reads and writes in processes whose main module is one of PySpark's (`python -m pyspark.daemon`); `load()`
and tests run in the user's own. Imports only the standard library, because pyspark_pykafka.py needs it where
all else is missing.

In such a process it exempts what Spark has imported from garbage collection. Otherwise our imports, which make many
objects that stay, would have the collector look through all of Spark's, too.
"""

from __future__ import annotations

import gc
import os
import sys

_HIDE = "SPARK_HIDE_TRACEBACK"
_hidden = False
_COMMITTER = "pyspark.sql.worker.python_streaming_sink_runner"


def in_spark_worker() -> bool:
    """Whether Spark has started this process."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")


def in_stream_committer() -> bool:
    """Whether Spark has started this process to commit or abort micro-batches: it writes no rows with its writer."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return in_spark_worker() and (_COMMITTER in sys.modules or getattr(spec, "name", "") == _COMMITTER)


def hide_traceback() -> None:
    """Have PySpark write the next exception to the JVM without its traceback, and then end this process."""
    global _hidden
    if in_spark_worker() and not os.environ.get(_HIDE):
        _hidden = True
        os.environ[_HIDE] = "1"


def show_traceback() -> None:
    """Undo `hide_traceback`; a setting of the user stays."""
    if _hidden:
        os.environ.pop(_HIDE, None)


if in_spark_worker():
    gc.freeze()

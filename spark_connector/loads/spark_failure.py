"""The cause in Spark's long error texts, in one line. Pure.

The cause may be in one of our own tasks, which are Python, or in Spark's writer: then it is the last of the JVM's
causes. Whether a retry may succeed is told by spark_connector/outages.py from that line.
"""

from __future__ import annotations

import re

_OURS = re.compile(r"(?:^|: )(?:broker|spark_connector)(?:\.\w+)*\.(\w+: .+)$", re.MULTILINE)
"""An error that we raise on purpose: Spark shows it without a traceback (entry_point.py), behind words of its own."""
_PYTHON_ERROR = re.compile(
    r"^(?:\w+\.)*((?:\w*(?:Error|Exception|DataLoss|CorruptBatch|Failed|TimedOut|Unavailable|Interrupted|UnknownTopic)"
    r"|(?<=\.errors\.)\w+): .+)$",  # psycopg's errors are named after PostgreSQL's conditions: AdminShutdown
    re.MULTILINE,
)
_JVM_CAUSE = re.compile(r"^(?:Caused by)?: (?:\w+\.)*([\w$]+: .+)$", re.MULTILINE)
"""A cause, or the exception itself, which py4j's text has behind a colon."""
_NO_SOURCE = re.compile(r"\[DATA_SOURCE_NOT_FOUND\] Failed to find the data source: pykafka\b")
_SET_PYTHON = (
    "ConfigError: the Python that Spark starts its workers with has no pykafka: set PYSPARK_PYTHON to the one that "
    "has it before Spark starts; `pykafka doctor` shows both"
)


def summary(text: str) -> str:
    """One line: the last error of ours, or of Python, or else the last cause, or else the first line."""
    if _NO_SOURCE.search(text):
        return _SET_PYTHON
    ours = _OURS.findall(text)
    if ours:
        return str(ours[-1])
    python, causes = _PYTHON_ERROR.findall(text), _JVM_CAUSE.findall(text)
    if causes and "Traceback (most recent call last)" not in text:
        return str(causes[-1])
    return str(python[-1]) if python else text.strip().partition("\n")[0]

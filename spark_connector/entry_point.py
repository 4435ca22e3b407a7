"""What Spark calls of ours: an error that we raise on purpose reaches the user as one sentence.

Spark shows what a data source raises with its whole traceback, so that the sentence that helps is the last of thirty
lines. PySpark leaves the traceback out if SPARK_HIDE_TRACEBACK is set where the exception is written to the JVM
(`pyspark.util.handle_worker_exception`), after which that process ends. So it is set there, for our own errors only:
the traceback of a bug is always shown. `pykafka.spark` logs the traceback that is left out at level DEBUG.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar, cast

from broker.errors import PykafkaError
from spark_connector.spark_worker import hide_traceback, in_spark_worker, show_traceback

logger = logging.getLogger("pykafka.spark")

P = ParamSpec("P")
R = TypeVar("R")


def entry_point(method: Callable[P, R]) -> Callable[P, R]:
    """Decorates a method that Spark calls. An iterator that it returns is covered, too."""

    @functools.wraps(method)  # Spark looks at the parameters
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            result = method(*args, **kwargs)
        except Exception as error:
            _prepare(error)
            raise
        return cast(R, _covered(result)) if isinstance(result, Iterator) else result

    return called


def _covered(items: Iterator[Any]) -> Iterator[Any]:
    try:
        yield from items
    except Exception as error:
        _prepare(error)
        raise


def _prepare(error: Exception) -> None:
    if not in_spark_worker():
        return
    if isinstance(error, PykafkaError):
        logger.debug("raised to Spark", exc_info=error)
        hide_traceback()
    else:
        show_traceback()

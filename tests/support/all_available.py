"""A streaming query that takes all there is and ends: `availableNow`, or what comes closest on older Sparks.

Spark 4.0 and 4.1 run one batch with a Python source under that trigger: no more than the limits of the options allow,
and after a crash only the batch that was cut short.
"""

from __future__ import annotations

from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from spark_connector.spark_versions import ADMISSION_CONTROL


def take_all(writer: DataStreamWriter, path: str | None = None, *, timeout: int = 300) -> StreamingQuery:
    """The query after its end. Raises StreamingQueryException."""
    query = start(writer, path)
    try:
        if ADMISSION_CONTROL:
            assert query.awaitTermination(timeout)
        else:
            query.processAllAvailable()
    finally:
        query.stop()
    return query


def start(writer: DataStreamWriter, path: str | None = None) -> StreamingQuery:
    """The query as it begins; ask `has_taken_all`."""
    if ADMISSION_CONTROL:
        return writer.trigger(availableNow=True).start(path)
    return writer.trigger(processingTime="0 seconds").start(path)


def has_taken_all(query: StreamingQuery) -> bool:
    """Whether it is at the end; it is stopped then, if it has not ended by itself."""
    if not ADMISSION_CONTROL and query.status["message"] == "Waiting for data to arrive":
        query.stop()
    return not query.isActive

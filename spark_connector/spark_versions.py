"""What the installed PySpark has: the one place that knows how Spark 4.0, 4.1, 4.2 and 4.3 differ for a data source.

PySpark is asked for what it has, not for its number: distributions of Spark carry features back and forth. Imported
by everything that makes a reader or a writer, so it imports what those import anyway.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import datasource

__all__ = ["ADMISSION_CONTROL", "StreamArrowWriter"]

ADMISSION_CONTROL = hasattr(datasource.DataSourceStreamReader, "getDefaultReadLimit")
"""Spark 4.2: the engine says where a batch starts and how much it may take, runs `Trigger.AvailableNow` of Python
sources in several batches, and asks for the latest offset. Without it read/older_stream_reader.py reads."""

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter as StreamArrowWriter
elif hasattr(datasource, "DataSourceStreamArrowWriter"):
    StreamArrowWriter = datasource.DataSourceStreamArrowWriter
else:

    class StreamArrowWriter(datasource.DataSourceStreamWriter, datasource.DataSourceArrowWriter):
        """Spark 4.1's `DataSourceStreamArrowWriter` for Spark 4.0, which hands Arrow batches to whatever writer is a
        `DataSourceArrowWriter`, in a stream too, and calls `commit` and `abort` as it does for any stream."""

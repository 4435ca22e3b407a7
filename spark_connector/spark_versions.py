"""The features of the installed PySpark: the one place that knows how Spark 4.0 to 4.3 differ for a data source.

It checks for features, not for version numbers, because distributions of Spark backport them. Everything that makes a
reader or a writer imports this module, so it imports only what they import anyway.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from pyspark.sql import datasource
from pyspark.sql.types import StructType

from broker.errors import ConfigError

__all__ = ["ADMISSION_CONTROL", "StreamArrowWriter", "arrow_schema"]

ADMISSION_CONTROL = hasattr(datasource.DataSourceStreamReader, "getDefaultReadLimit")
"""Spark 4.2: the engine passes the start and the limit of a batch, runs `Trigger.AvailableNow` of Python sources in
several batches, and asks for the latest offset. Without it read/readers.py uses OlderStreamReader."""

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter as StreamArrowWriter
elif hasattr(datasource, "DataSourceStreamArrowWriter"):
    StreamArrowWriter = datasource.DataSourceStreamArrowWriter
else:

    class StreamArrowWriter(datasource.DataSourceStreamWriter, datasource.DataSourceArrowWriter):
        """Spark 4.1's `DataSourceStreamArrowWriter` for Spark 4.0, which passes Arrow batches to every writer that is a
        `DataSourceArrowWriter`, also in a stream, and calls `commit` and `abort` as for any stream."""


def arrow_schema(schema: StructType) -> Any:
    """The `pyarrow.Schema` of rows of `schema`, with times in UTC, as older Sparks make it. Raises
    ConfigError for a type that Spark does not hand to Python."""
    from pyspark.sql.pandas.types import to_arrow_schema

    zone: dict[str, Any] = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
    try:
        return to_arrow_schema(schema, **zone)
    except TypeError as error:  # also PySparkTypeError
        raise ConfigError(f"columns of the DataFrame cannot be encoded, cast them or leave them out: {error}") from None

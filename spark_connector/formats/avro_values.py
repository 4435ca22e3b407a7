"""Avro data to a typed column: fastavro for every value, Arrow for what comes out of it.

Made by decoders.py for `avro`. Without a registry a value is nothing but data of the schema. With one it is in
Confluent's wire format: a zero byte, the id of the writer's schema in four bytes, the data; the writer's schema comes
from the registry once per worker process, and is resolved to ours by Avro's rules. An id the registry does not know
makes a bad record; a registry that does not answer fails the task, whatever the mode.

Avro is decoded record by record (docs/decisions.md says what was tried): some microseconds per field, not a fraction.
"""

from __future__ import annotations

import io
from typing import Any, Final

import fastavro
import pyarrow as pa

from broker.errors import ConfigError
from spark_connector.formats.avro_schema import PreparedSchema, prepare, prepare_writer
from spark_connector.formats.decoding import BadValue, Decoded, one_by_one
from spark_connector.formats.registry import SchemaRegistry, UnknownSchema
from spark_connector.formats.value_format import AvroSchema

__all__ = ["AvroDecoder"]

_PREFIX: Final = 5  # magic byte and id


class AvroDecoder:
    """Reads values of `schema`, or written by any schema of `registry` that can be read as it."""

    def __init__(self, schema: AvroSchema, registry: SchemaRegistry | None = None) -> None:
        """Raises ConfigError for a schema that Spark has no type for."""
        self._schema = schema
        self._reader = prepare(schema)
        self._registry = registry

    @property
    def type(self) -> pa.DataType:
        return self._reader.type

    def decode(self, values: pa.Array) -> Decoded:
        """See ValueDecoder. Raises ConnectorError when the registry does not answer."""
        decoded = one_by_one(values, self._reader.raw, self._plain if self._registry is None else self._framed)
        if self._reader.raw == self._reader.type:
            return decoded
        try:
            return Decoded(decoded.column.cast(self._reader.type), decoded.bad)
        except pa.ArrowInvalid:
            return self._cast_each(decoded)

    def _cast_each(self, decoded: Decoded) -> Decoded:
        """Some time does not fit into microseconds."""
        parts, bad = [], dict(decoded.bad)
        for row in range(len(decoded.column)):
            try:
                parts.append(decoded.column[row : row + 1].cast(self._reader.type))
            except pa.ArrowInvalid as error:
                parts.append(pa.nulls(1, self._reader.type))
                bad[row] = str(error)
        return Decoded(pa.concat_arrays(parts), dict(sorted(bad.items())))

    def _plain(self, raw: bytes) -> Any:
        return _read(raw, 0, self._reader.parsed, None)

    def _framed(self, raw: bytes) -> Any:
        if len(raw) < _PREFIX or raw[0]:
            raise BadValue("not in the wire format of a schema registry: a zero byte and the schema's id come first")
        writer = self._writer(int.from_bytes(raw[1:_PREFIX]))
        return _read(raw, _PREFIX, writer.parsed, None if writer is self._reader else self._reader.parsed)

    def _writer(self, schema_id: int) -> PreparedSchema:
        assert self._registry is not None
        try:
            schema = self._registry.schema(schema_id)
            return self._reader if schema == self._schema else prepare_writer(schema, self._schema)
        except (UnknownSchema, ConfigError) as error:
            raise BadValue(f"schema id {schema_id}: {error}") from None


def _read(raw: bytes, begin: int, writer: Any, reader: Any) -> Any:
    stream = io.BytesIO(raw)
    stream.seek(begin)
    try:
        value = fastavro.schemaless_reader(stream, writer, reader)
    except Exception as error:  # fastavro lets through whatever its readers meet in bytes that are no Avro
        raise BadValue(f"not Avro of the schema: {type(error).__name__} {error}"[:300]) from None
    if stream.tell() != len(raw):
        raise BadValue(f"{len(raw) - stream.tell()} bytes are left behind the Avro data")
    return value

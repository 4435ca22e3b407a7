"""Avro data to a typed column.

Without a registry a value is plain data of the schema. With a registry it is in Confluent's wire format: a zero byte,
the id of the writer's schema in four bytes, the data. The registry is asked once per worker process for a writer's
schema, which is resolved to ours by Avro's rules (avro_resolver.py). An id that the registry does not know makes a bad
record; a registry that does not answer fails the task in every mode. Records are decoded one by one, at some
microseconds each (docs/decisions/formats.md lists the alternatives that were tried).
"""

from __future__ import annotations

import functools
from typing import Any

import pyarrow as pa

from broker.errors import ConfigError
from spark_connector.formats.avro_columns import column_of
from spark_connector.formats.avro_program import Program
from spark_connector.formats.avro_resolver import resolve
from spark_connector.formats.avro_schema import parse_avro
from spark_connector.formats.schema_registry import UNASKED, SchemaRegistry, UnknownSchema, unframed
from spark_connector.formats.value_decoder import BadValue, Decoded, one_by_one
from spark_connector.formats.value_format import AvroSchema


class AvroDecoder:
    """Decodes values of `schema`, or of any writer's schema in `registry` that resolves to it.

    `most_levels`: how many levels of a record that contains itself to keep; -1 refuses such a schema."""

    def __init__(self, schema: AvroSchema, registry: SchemaRegistry | None = None, most_levels: int = -1) -> None:
        """Raises ConfigError for a schema without a Spark type."""
        self._schema = schema
        self._registry = registry
        self._most_levels = most_levels
        self.type = _column(schema, most_levels)
        self._own = _program(schema, schema, most_levels)
        self._programs: dict[int, Program | str] = {}
        """By the writer's id; why not, if there is none."""

    def decode(self, values: pa.Array) -> Decoded:
        """Raises ConnectorError if the registry does not answer."""
        return one_by_one(values, self.type, self._plain if self._registry is None else self._framed)

    def _plain(self, raw: bytes) -> Any:
        try:
            return self._own.read(raw, 0)
        except BadValue as error:
            raise BadValue(f"{error}{UNASKED}" if raw.startswith(b"\0") else str(error)) from None

    def _framed(self, raw: bytes) -> Any:
        schema_id, begin = unframed(raw)
        program = self._programs.get(schema_id)
        if program is None:
            program = self._programs[schema_id] = self._of_writer(schema_id)
        if isinstance(program, str):
            raise BadValue(program)
        return program.read(raw, begin)

    def _of_writer(self, schema_id: int) -> Program | str:
        assert self._registry is not None
        try:
            schema = self._registry.schema(schema_id)
        except UnknownSchema as error:  # a later value may find it
            raise BadValue(f"schema id {schema_id}: {error}") from None
        try:
            return _program(schema, self._schema, self._most_levels)
        except ConfigError as error:
            return f"schema id {schema_id}: {error}"


@functools.lru_cache(maxsize=512)
def _column(schema: AvroSchema, most_levels: int) -> pa.DataType:
    return column_of(parse_avro(schema), most_levels)


@functools.lru_cache(maxsize=512)
def _program(writer: AvroSchema, reader: AvroSchema, most_levels: int) -> Program:
    return Program(resolve(parse_avro(writer), parse_avro(reader)), _column(reader, most_levels))

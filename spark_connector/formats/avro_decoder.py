"""Avro data to a typed column.

Without a registry a value is plain data of the schema. With a registry it says which one wrote it (frames.py).
The registry is asked once per worker process for a writer's schema, which is resolved to ours by Avro's rules
(avro_resolver.py). An id that the registry does not know makes bad records; a registry that does not answer fails the
task in every mode.

The C kernel decodes the values of one writer's schema together (avro_batches.py). Those that it refuses, and all of
them where there is no kernel or no program for it, are decoded one by one (avro_program.py), a hundred times slower.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import pyarrow as pa

from broker.errors import ConfigError
from broker.records import native
from spark_connector.formats.avro_batches import BatchProgram
from spark_connector.formats.avro_columns import column_of
from spark_connector.formats.avro_program import Program
from spark_connector.formats.avro_resolver import resolve
from spark_connector.formats.avro_schema import Field, parse_avro
from spark_connector.formats.frames import Group, Key, SchemaId, decoded_by_schema
from spark_connector.formats.kernel_columns import NotByColumns, with_refused
from spark_connector.formats.schema_registry import UNASKED, AvroSchemas, UnknownSchema
from spark_connector.formats.value_decoder import BadValue, Decoded, one_by_one
from spark_connector.formats.value_format import AvroSchema

_MOST_WRITERS: Final = 1000
_TOO_LARGE: Final = "it is short for the memory that the nulls in its arrays and maps take"


class _Programs(NamedTuple):
    """For values of one writer's schema."""

    single: Program
    batch: BatchProgram | None


class AvroDecoder:
    """Decodes values of `schema`, or of any writer's schema in `registry` that resolves to it.

    `most_levels`: how many levels of a record that contains itself to keep; -1 refuses such a schema."""

    def __init__(
        self,
        schema: AvroSchema,
        registry: AvroSchemas | None = None,
        most_levels: int = -1,
        column: str = "value",
    ) -> None:
        """Raises ConfigError for a schema without a Spark type."""
        self._frames = None if registry is None else registry.framing(column, "avro")
        self.reads_headers = self._frames is not None and self._frames.reads_headers
        self._schema = schema
        self._registry = registry
        self._most_levels = most_levels
        self.type = _column(schema, most_levels)
        self._own = _programs(schema, schema, most_levels)
        self._programs: dict[Key, _Programs | str] = {}
        """By the writer's id; why not, if there is none."""
        self._own_names = {one.name: {one.name, *one.aliases} for one in _top_fields(schema)}
        self._written: set[str] = set()
        """Those names of our fields that a writer had."""

    def decode(self, values: pa.Array, headers: pa.Array | None = None) -> Decoded:
        """Raises ConnectorError if the registry does not answer."""
        if self._frames is None:
            return self._decoded(values, self._own.batch, 0, self._plain)
        return decoded_by_schema(self._frames.split(values, headers), len(values), self.type, self._group)

    def was_written(self, field: str) -> bool:
        """Whether the schema of a writer whose values were decoded has this field, maybe under an alias of ours.

        A column of a union of several types has a field for each of them, which is no field of a writer's: it is had.
        """
        return field not in self._own_names or not self._written.isdisjoint(self._own_names[field])

    def _plain(self, raw: bytes) -> Any:
        try:
            return self._own.single.read(raw, 0)
        except BadValue as error:
            raise BadValue(f"{error}{UNASKED}" if raw.startswith(b"\0") else str(error)) from None

    def _group(self, group: Group) -> Decoded | str:
        found = group.schema
        assert found is not None
        programs = self._programs.get(found.key)
        if programs is None:
            if len(self._programs) == _MOST_WRITERS:  # of files, each may have a schema of its own
                self._programs.clear()
            try:
                programs = self._programs[found.key] = self._of_writer(found)
            except UnknownSchema as error:  # a later value may find it
                return f"{found.name}: {error}"
        if isinstance(programs, str):
            return programs
        single = programs.single
        return self._decoded(group.values, programs.batch, found.begin, lambda raw: single.read(raw, found.begin))

    def _of_writer(self, found: SchemaId) -> _Programs | str:
        """Raises UnknownSchema."""
        assert self._registry is not None
        schema = self._registry.schema(found.key)
        try:
            self._written |= {one.name for one in _top_fields(schema)} & set().union(*self._own_names.values())
            return _programs(schema, self._schema, self._most_levels)
        except ConfigError as error:
            return f"{found.name}: {error}"

    def _decoded(
        self, values: pa.Array, batch: BatchProgram | None, begin: int, one: Callable[[bytes], Any]
    ) -> Decoded:
        """`begin`: of the data in each value. `one` decodes a value that `batch` refuses."""
        if batch is None or native.kernel is None:
            return one_by_one(values, self.type, one)
        column, refused = batch.decode(native.kernel, values, begin)
        return with_refused(column, refused, values, one, _TOO_LARGE)


@functools.lru_cache(maxsize=512)
def _column(schema: AvroSchema, most_levels: int) -> pa.DataType:
    return column_of(parse_avro(schema), most_levels)


@functools.lru_cache(maxsize=512)
def _programs(writer: AvroSchema, reader: AvroSchema, most_levels: int) -> _Programs:
    step, kind = resolve(parse_avro(writer), parse_avro(reader)), _column(reader, most_levels)
    single = Program(step, kind)
    try:
        return _Programs(single, BatchProgram(step, kind))
    except NotByColumns:
        return _Programs(single, None)


def _top_fields(schema: AvroSchema) -> list[Field]:
    """Those of the record that a value is, or of each one that it may be."""
    top = parse_avro(schema)
    return [field for one in (top, *top.branches) for field in one.fields]

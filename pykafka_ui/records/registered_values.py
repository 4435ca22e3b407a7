"""Values in Confluent's wire format as data, by their writer's schema: Avro, Protobuf and JSON with a JSON Schema.

The registry says of which kind a schema is. Values may be hostile, schemas are taken as the registry's.
"""

from __future__ import annotations

import contextlib
import io
import json
import time
from collections.abc import Callable, Hashable
from typing import Any, Final, NamedTuple

import fastavro
import pyarrow as pa

from broker.errors import ConfigError
from spark_connector.errors import ConnectorError
from spark_connector.formats.avro_columns import column_of
from spark_connector.formats.avro_program import Program
from spark_connector.formats.avro_resolver import resolve
from spark_connector.formats.avro_schema import AvroType, parse_avro, takes_no_bytes
from spark_connector.formats.frames import confluents
from spark_connector.formats.protobuf_descriptors import message_at, message_of, schema_of_registry
from spark_connector.formats.protobuf_rows import as_json
from spark_connector.formats.schema_registry import SchemaRegistry, UnknownSchema
from spark_connector.formats.value_decoder import BadValue
from spark_connector.formats.value_format import FRAME, MOST_LEVELS, AvroSchema, ProtobufFiles, ProtobufSchema

_ASK_AGAIN_S: Final = 30.0
"""After a schema registry did not answer. Each question takes a second or more then."""
Read = Callable[[bytes], Any]


class Decoded(NamedTuple):
    """`kind`: avro, protobuf or json. `why`: why there is no data; "" if there is."""

    data: Any
    kind: str = ""
    why: str = ""


def schema_id(value: bytes) -> int | None:
    """What the first bytes say in Confluent's wire format: a zero byte, and an id in four."""
    return int.from_bytes(value[1:FRAME]) if len(value) >= FRAME and value[0] == 0 else None


class RegisteredValues:
    """Those of one registry. What has been asked for is kept."""

    def __init__(self, registry: SchemaRegistry, clock: Callable[[], float] = time.monotonic) -> None:
        self._registry = registry
        self._clock = clock
        self._readers: dict[int, tuple[str, Read]] = {}
        self._down_until = 0.0

    def decode(self, value: bytes) -> Decoded:
        """Never raises."""
        key = schema_id(value)
        if key is None:
            return Decoded(None, why="it has not the wire format of a schema registry")
        if key not in self._readers and self._clock() < self._down_until:
            return Decoded(None, why="the schema registry does not answer")
        try:
            if key not in self._readers:
                self._readers[key] = self._reader(key)
            kind, read = self._readers[key]
            return Decoded(read(value), kind)
        except (UnknownSchema, ConfigError, BadValue) as error:
            return Decoded(None, why=str(error))
        except ConnectorError as error:
            self._down_until = self._clock() + _ASK_AGAIN_S
            return Decoded(None, why=str(error).partition("\n")[0])
        except Exception as error:  # the libraries raise what they like for bytes that are not of the schema
            return Decoded(None, why=f"not a value of schema {key}: {type(error).__name__}: {str(error)[:200]}")

    def _reader(self, key: int) -> tuple[str, Read]:
        kind = self._registry.kind(key)
        if kind == "AVRO":
            return "avro", _avro_reader(self._registry.schema(key))
        if kind == "PROTOBUF":
            return "protobuf", _protobuf_reader(self._registry.protobuf(key))
        if kind == "JSON":
            return "json", lambda value: json.loads(value[FRAME:])
        raise UnknownSchema(f"its schema {key} is of type {kind}, which is not known here")


def _avro_reader(schema: AvroSchema) -> Read:
    """fastavro shows dates, times and numbers as such. It must not read all schemas (`_is_flat`), and a logical type
    that is invalid is no reason to show nothing (`Program`)."""
    own = parse_avro(schema)
    if _is_flat(own, {}):
        with contextlib.suppress(Exception):  # it refuses what Avro says to ignore
            named: dict[str, Any] = {}
            for reference in schema.references:
                fastavro.parse_schema(json.loads(reference), named_schemas=named)
            parsed = fastavro.parse_schema(json.loads(schema.text), named_schemas=named)
            return lambda value: fastavro.schemaless_reader(io.BytesIO(value[FRAME:]), parsed, None)
    program = Program(resolve(own, own), _deep_column(own))
    return lambda value: program.read(value, FRAME)


def _is_flat(one: AvroType, known: dict[AvroType, bool]) -> bool:
    """Whether no type is within itself, where a value can be nested so deep that fastavro's C code ends the process,
    and no array has items that take no bytes, of which a few bytes announce any number."""
    if one not in known:
        known[one] = False  # while it is open
        within = [*one.branches, *(field.type for field in one.fields)]
        if one.item is not None:
            within.append(one.item)
        is_endless = one.kind == "array" and takes_no_bytes(within[-1])
        known[one] = not is_endless and all(_is_flat(inner, known) for inner in within)
    return known[one]


def _deep_column(own: AvroType) -> pa.DataType:
    """With as many levels of what is recursive as make no column of too many fields."""
    with contextlib.suppress(ConfigError):
        return column_of(own, MOST_LEVELS)
    found = column_of(own, 1)
    with contextlib.suppress(ConfigError):
        for levels in range(2, MOST_LEVELS):
            found = column_of(own, levels)
    return found


def _protobuf_reader(files: ProtobufFiles) -> Read:
    schema, framing = schema_of_registry(files, None), confluents("value", "protobuf")
    messages: dict[Hashable, Any] = {}

    def read(value: bytes) -> Any:
        place, begin = framing.message(value, FRAME)
        if place not in messages:
            messages[place] = message_of(ProtobufSchema(schema.descriptors, message_at(schema, place)))
        return as_json(messages[place], value, begin)

    return read

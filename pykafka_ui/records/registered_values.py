"""Values in Confluent's wire format as data, by their writer's schema: Avro, Protobuf and JSON with a JSON Schema; and
of other bytes what they look like.

The registry says of which kind a schema is. Values may be hostile, schemas are taken as the registry's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import Any, Final, NamedTuple

from broker.errors import ConfigError
from pykafka_ui.records.json_text import parsed
from spark_connector.errors import ConnectorError
from spark_connector.formats.avro_values import Read, avro_reader
from spark_connector.formats.frames import confluents
from spark_connector.formats.protobuf_descriptors import message_at, message_of, schema_of_registry
from spark_connector.formats.protobuf_rows import as_json, field_numbers
from spark_connector.formats.schema_registry import SchemaRegistry, UnknownSchema
from spark_connector.formats.value_decoder import BadValue
from spark_connector.formats.value_format import FRAME, ProtobufFiles, ProtobufSchema

_ASK_AGAIN_S: Final = 30.0
"""After a schema registry did not answer. Each question takes a second or more then."""


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
            return "avro", avro_reader(self._registry.schema(key))
        if kind == "PROTOBUF":
            return "protobuf", _protobuf_reader(self._registry.protobuf(key))
        if kind == "JSON":
            return "json", lambda value: parsed(value[FRAME:], whole=True)
        raise UnknownSchema(f"its schema {key} is of type {kind}, which is not known here")


def _protobuf_reader(files: ProtobufFiles) -> Read:
    schema, framing = schema_of_registry(files, None), confluents("value", "protobuf")
    messages: dict[Hashable, Any] = {}

    def read(value: bytes) -> Any:
        place, begin = framing.message(value, FRAME)
        if place not in messages:
            messages[place] = message_of(ProtobufSchema(schema.descriptors, message_at(schema, place)))
        return as_json(messages[place], value, begin)

    return read


_BEGINNINGS: Final = {
    b"Obj\x01": "an Avro file with its schema in it",
    b"\xc3\x01": "Avro's single-object encoding",
    b"PAR1": "a Parquet file",
    b"ARROW1": "an Arrow file",
    b"ORC": "an ORC file",
    b"\x1f\x8b": "data that is compressed with gzip",
    b"\x28\xb5\x2f\xfd": "data that is compressed with zstd",
    b"\x04\x22\x4d\x18": "data that is compressed with LZ4",
    b"\x82SNAPPY\x00": "data that is compressed with Snappy",
    b"BZh": "data that is compressed with bzip2",
    b"PK\x03\x04": "a ZIP archive",
    b"\xac\xed\x00\x05": "a serialized Java object",
}
_LARGEST_ID: Final = 10_000_000
"""Of a schema: registries count from 1."""
_FEWEST_FIELDS, _LARGEST_FIELD, _LARGEST = 2, 2_000, 64 << 10
"""Of what may be Protobuf, in which almost any two bytes are a field."""


def looks_like(value: bytes) -> str:
    """What a sentence names, "a Parquet file"; "" if it looks like nothing that is known here."""
    for beginning, what in _BEGINNINGS.items():
        if value.startswith(beginning):
            return what
    key = schema_id(value)
    if key is not None and 0 < key < _LARGEST_ID:
        return f"Confluent's wire format, with schema {key} of a registry"
    return "Protobuf, whose fields only its schema can name" if _may_be_protobuf(value) else ""


def _may_be_protobuf(value: bytes) -> bool:
    fields = field_numbers(value) if len(value) <= _LARGEST else []
    return len(fields) >= _FEWEST_FIELDS and max(fields) <= _LARGEST_FIELD

"""One message at a time by protobuf's own runtime: bytes to the Python objects that Arrow takes, and back.

protobuf_program.py and protobuf_writer.py do the same by columns, in the kernel. They come here where there is no
kernel, and for the few values that need more than it does. Both ways read and write alike; the tests compare them.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final

from google.protobuf.empty_pb2 import Empty
from google.protobuf.json_format import Error as JsonError
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.unknown_fields import UnknownFieldSet

from spark_connector.formats.protobuf_columns import EMPTY, Field, Message, Proto, is_zero
from spark_connector.formats.protobuf_descriptors import without_maps
from spark_connector.formats.value_decoder import BadValue

MOST_SECONDS: Final = 9_223_372_036_851
"""Beyond it a Timestamp or a Duration is no microseconds in 64 bits; the same in the kernel."""
_OF_ENTRY: Final = (1, 2)


class RowReader:
    """Reads values of a message type."""

    def __init__(self, message: Message) -> None:
        self._message = message
        self._class = GetMessageClass(message.proto)
        self._numbers = {field.number for field in message.proto.fields}

    @cached_property
    def _listed(self) -> Any:
        """The class that shows a map's entries in their order, where only the last one with a key counts."""
        return GetMessageClass(without_maps(self._message.proto))

    def read(self, raw: bytes, begin: int = 0) -> dict[str, Any]:
        """The message in `raw` from `begin` on. Raises BadValue."""
        whole, read = self._class(), self._listed()
        try:
            whole.ParseFromString(raw[begin:])
            _check_required(whole)
            read.ParseFromString(raw[begin:])
            for one in UnknownFieldSet(read):
                if one.field_number in self._numbers:  # a nested one is let pass, as by Spark
                    raise BadValue(other_type(self._message, one.field_number))
            return _shown(read, self._message)
        except BadValue:
            raise
        except (DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadValue(f"no message {self._message.proto.full_name}: {error}") from None


def as_json(message: Proto, raw: bytes, begin: int = 0) -> Any:
    """The message in `raw` from `begin` on as Protobuf's JSON, for people: fields by the names of the .proto file,
    those without presence also with their default. Raises BadValue."""
    try:
        read = GetMessageClass(message).FromString(raw[begin:])
        return MessageToDict(read, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    except (DecodeError, UnicodeDecodeError, RecursionError, JsonError, TypeError, ValueError) as error:
        raise BadValue(f"no message {message.full_name}: {str(error)[:200]}") from None


def field_numbers(raw: bytes) -> list[int]:
    """Of a message of whatever type; none if the bytes are no message."""
    try:
        return [one.field_number for one in UnknownFieldSet(Empty.FromString(raw))]
    except DecodeError:
        return []


def _check_required(read: Any) -> None:
    if not read.IsInitialized():
        raise BadValue(f"required fields are missing: {', '.join(read.FindInitializationErrors())[:200]}")


def other_type(message: Message, number: int) -> str:
    """Why a value is bad whose field `number` is not of the type that it has in the schema."""
    name = next((one.name for one in message.proto.fields if one.number == number), "")
    return f"field {name} (number {number}) is not of the type that it has in {message.proto.full_name}"


def _shown(read: Any, message: Message) -> dict[str, Any]:
    return {field.name: _value(read, field) for field in message.fields} or {EMPTY: None}


def _value(read: Any, field: Field) -> Any:
    if field.is_map:
        assert field.message is not None
        key, item = field.message.fields
        return [(key.shown(name), _one(one, item)) for name, one in _entries(read, field).items()]
    value = getattr(read, field.name)
    if field.is_list:
        return [_one(one, field) for one in value]
    if not (read.HasField(field.name) if field.proto.has_presence else not is_zero(value)):
        return field.default
    return _one(value, field)


def _entries(read: Any, field: Field) -> dict[Any, Any]:
    """Of entries with one key the last, also if it has fields that its schema lacks: so Java's runtime and
    Python's own. upb alone takes such an entry out of a map. Raises BadValue where it cannot be told what the map
    has."""
    assert field.message is not None
    made = {}
    for entry in getattr(read, field.name):
        if any(unknown.field_number in _OF_ENTRY for unknown in UnknownFieldSet(entry)):
            raise BadValue(f"field {field.name}: an entry of the map has a key or a value that its schema lacks")
        made[entry.key] = entry.value
    if field.message.fields[1].message is not None:
        for value in made.values():
            _check_required(value)
    return made


def _one(value: Any, field: Field) -> Any:
    if field.message is None:
        return field.shown(value)
    if field.kind == "wrapper":
        return _value(value, field.message.fields[0])
    if field.kind == "message":
        return _shown(value, field.message)
    if not -MOST_SECONDS <= value.seconds <= MOST_SECONDS:
        raise BadValue(f"field {field.name}: {value.seconds} s is beyond all timestamps")
    return value.seconds * 1_000_000 + int(value.nanos / 1000)

"""Protobuf schemas: from a file of protoc or from a registry to a message's descriptor.

A `ProtobufSchema` is a FileDescriptorSet and the name of a message; it is made on the driver and pickled. Files that
every Protobuf has (google/protobuf/*.proto) need not be among those of a registry. There is no parser for .proto text
here: a registry that has nothing else needs a file of `protoc --include_imports --descriptor_set_out`.
"""

from __future__ import annotations

import base64
import binascii
import functools
import importlib
import re
from collections.abc import Hashable
from typing import Any, Final

from google.protobuf.descriptor_pb2 import FeatureSet, FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import Default, DescriptorPool
from google.protobuf.message import DecodeError

from broker.errors import ConfigError
from spark_connector.formats.protobuf_columns import Proto
from spark_connector.formats.value_format import ProtobufFiles, ProtobufSchema

TEXT_ONLY: Final = (
    "the registry gives the schema only as .proto text: set it to a file of protoc --include_imports "
    "--descriptor_set_out, and valueMessage to the message"
)
_EVERYWHERE: Final = re.compile(r"google/protobuf/([a-z_]+)\.proto")
_IN_REGISTRIES: Final = ("google/protobuf/", "google/type/", "confluent/")
_UNNAMED: Final = "schema.proto"


ProtoFile = Any
"""A FileDescriptor."""


class OnlyText(ConfigError):
    """A registry has a schema as .proto text alone."""


def schema_of_file(data: bytes, message: str | None) -> ProtobufSchema:
    """The schema in a FileDescriptorSet, as protoc writes it. Raises ConfigError."""
    try:
        files = list(FileDescriptorSet.FromString(data).file)
    except DecodeError as error:
        raise ConfigError(f"not a file of protoc --descriptor_set_out: {error}") from None
    if not files:
        raise ConfigError("not a file of protoc --descriptor_set_out: it has no .proto file in it")
    if not message:
        raise ConfigError("name the message: set the option valueMessage (of keys: keyMessage)")
    return _checked(files, message)


def schema_of_registry(found: ProtobufFiles, message: str | None) -> ProtobufSchema:
    """The schema that a registry gave; the first message of its file if none is named. Raises ConfigError."""
    files: list[Any] = []
    for name, text in found.files:
        try:
            one = FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
        except (binascii.Error, DecodeError, ValueError):
            raise OnlyText(TEXT_ONLY) from None
        one.name = name or one.name or _UNNAMED
        if one.name in {other.name for other in files}:
            one.name = f"{len(files)}/{one.name}"
        files.append(one)
    return _checked(files, message)


def _checked(files: list[Any], message: str | None) -> ProtobufSchema:
    schema = ProtobufSchema(FileDescriptorSet(file=_in_order(files)).SerializeToString(deterministic=True), message)
    return ProtobufSchema(schema.descriptors, message_of(schema).full_name)


def _in_order(files: list[Any]) -> list[Any]:
    """Each file behind its imports, with those that every Protobuf has; the last stays the last of its own."""
    known = {one.name: one for one in files}
    made: dict[str, Any] = {}

    def add(name: str, importer: str, depth: int) -> None:
        if name in made:
            return
        if name not in known or depth > 100:
            known[name] = _of_everybody(name, importer)
        for other in known[name].dependency:
            add(other, name, depth + 1)
        made[name] = known[name]

    for one in files:
        add(one.name, "", 0)
    last = files[-1].name
    return [one for name, one in made.items() if name != last] + [made[last]]


def _of_everybody(name: str, importer: str) -> Any:
    match = _EVERYWHERE.fullmatch(name)
    try:
        if match is None:
            raise KeyError(name)
        importlib.import_module(f"google.protobuf.{match[1]}_pb2")
        made = FileDescriptorProto()
        Default().FindFileByName(name).CopyToProto(made)
    except (ImportError, KeyError):
        raise ConfigError(f"{importer or 'the schema'} imports {name}, which is not among its files") from None
    return made


@functools.lru_cache(maxsize=64)
def _pool(descriptors: bytes) -> tuple[DescriptorPool, tuple[str, ...]]:
    """(the pool of a FileDescriptorSet, the names of its files)."""
    pool = DescriptorPool()
    names = []
    for one in FileDescriptorSet.FromString(descriptors).file:
        try:
            pool.AddSerializedFile(one.SerializeToString())
            pool.FindFileByName(one.name)
        except (TypeError, KeyError, ValueError) as error:
            raise ConfigError(f"Protobuf file {one.name} cannot be used: {error}") from None
        names.append(one.name)
    return pool, tuple(names)


def message_of(schema: ProtobufSchema) -> Proto:
    """The message's descriptor. Its name is full, or short where no other message has it. Raises ConfigError."""
    pool, names = _pool(schema.descriptors)
    files = [pool.FindFileByName(name) for name in names]
    if schema.message is None:
        first = next(iter(files[-1].message_types_by_name.values()), None)
        if first is None:
            raise ConfigError("Protobuf schema has no message")
        return first
    messages = [one for file in files for top in file.message_types_by_name.values() for one in _with_nested(top)]
    found = [one for one in messages if one.full_name == schema.message] or [
        one for one in messages if one.name == schema.message
    ]
    if len(found) == 1:
        return found[0]
    if found:
        names_found = ", ".join(one.full_name for one in found)
        raise ConfigError(f"several Protobuf messages are called '{schema.message}': {names_found}. Name one in full")
    own = ", ".join(one.full_name for one in messages if one.file.name == names[-1])
    raise ConfigError(f"Protobuf schema has no message '{schema.message}'. There are: {own[:500]}")


def _with_nested(message: Proto) -> list[Proto]:
    if message.GetOptions().map_entry:
        return []
    return [message, *(one for inner in message.nested_types for one in _with_nested(inner))]


def without_maps(message: Proto) -> Proto:
    """The message in a pool where a map is what it is in bytes: a list of entries, in their order."""
    pool = DescriptorPool()
    added = set()

    def add(file: ProtoFile) -> None:
        if file.name in added:
            return
        added.add(file.name)
        for other in file.dependencies:
            add(other)
        made = FileDescriptorProto.FromString(bytes_of(file))
        for one in made.message_type:
            _unmap(one, has_features=made.syntax == "editions")
        pool.AddSerializedFile(made.SerializeToString())

    add(message.file)
    return pool.FindMessageTypeByName(message.full_name)


def _unmap(message: Any, *, has_features: bool) -> None:
    """`has_features`: where lists of messages may be groups, which maps never are."""
    entries = [one for one in message.nested_type if one.options.map_entry]
    names = tuple(f".{message.name}.{one.name}" for one in entries)
    fields = [one for one in message.field if one.type_name.endswith(names)]
    for field in (*fields, *(one for entry in entries for one in entry.field if one.type_name)):
        if has_features:
            field.options.features.message_encoding = FeatureSet.LENGTH_PREFIXED
    for one in message.nested_type:
        one.options.ClearField("map_entry")
        _unmap(one, has_features=has_features)


def file_of(schema: ProtobufSchema) -> bytes:
    """The FileDescriptorProto of the file that has the message."""
    return bytes_of(message_of(schema).file)


def bytes_of(file: ProtoFile) -> bytes:
    """A FileDescriptorProto."""
    made = FileDescriptorProto()
    file.CopyToProto(made)
    return bytes(made.SerializeToString(deterministic=True))


def imports_of(file: ProtoFile) -> list[ProtoFile]:
    """What a file imports, beside what every registry has."""
    return [one for one in file.dependencies if not one.name.startswith(_IN_REGISTRIES)]


def indexes_of(message: Proto) -> tuple[int, ...]:
    """The message's place in its file, as Confluent's wire format has it: (1, 0) is the first message in the second."""
    within = message.containing_type
    same = list(message.file.message_types_by_name.values()) if within is None else list(within.nested_types)
    outer = () if within is None else indexes_of(within)
    return (*outer, [one.full_name for one in same].index(message.full_name))


def place_of(message: Proto, like: Hashable) -> Hashable:
    """The message's place in its file, as `like` says one: indexes, or as Glue counts, its number among the names of
    all messages, in order."""
    if isinstance(like, tuple):
        return indexes_of(message)
    tops = message.file.message_types_by_name.values()
    return sorted(one.full_name for top in tops for one in _every(top)).index(message.full_name)


def _every(message: Proto) -> list[Proto]:
    """It and what is in it, with the entries of maps."""
    return [message, *(one for inner in message.nested_types for one in _every(inner))]


def message_at(schema: ProtobufSchema, place: Hashable) -> str:
    """The full name of the message at a place of the schema's own file, as `place_of` has it. Raises ConfigError."""
    pool, names = _pool(schema.descriptors)
    same = list(pool.FindFileByName(names[-1]).message_types_by_name.values())
    if not isinstance(place, tuple):
        ordered = sorted(str(one.full_name) for top in same for one in _every(top))
        if not isinstance(place, int) or place >= len(ordered):
            raise ConfigError(f"the schema has no message {place}")
        return ordered[place]
    indexes: tuple[int, ...] = place
    found = None
    for index in indexes:
        if not 0 <= index < len(same):
            raise ConfigError(f"the schema has no message at {list(indexes)}")
        found = same[index]
        same = list(found.nested_types)
    if found is None:
        raise ConfigError("it names no message")
    return str(found.full_name)

"""The Protobuf schema of a write, from a file or in the registry, and the prefix of its values.

As registered_schema.py for Avro: on the driver, once per query. The files that a schema imports are its references.
Raises ConfigError, and
ConnectorError if the registry does not answer.
"""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any

from broker.errors import ConfigError
from spark_connector.formats.frames import Key
from spark_connector.formats.protobuf_descriptors import (
    ProtoFile,
    bytes_of,
    imports_of,
    indexes_of,
    message_of,
    schema_of_file,
    schema_of_registry,
)
from spark_connector.formats.registered_schema import SchemaKind, SinkColumn, found_or_registered, schema_id, stamped
from spark_connector.formats.schema_registry import SchemaRegistry
from spark_connector.formats.schema_text import read_file
from spark_connector.formats.value_format import ProtobufSchema, SchemaFile
from spark_connector.formats.write_format import ColumnWrite


def registered_protobuf(one: ColumnWrite, registry: SchemaRegistry | None, written: SinkColumn) -> ColumnWrite:
    """`one` with its message type, and with what tells the schema's id if there is a registry."""
    if isinstance(one.schema, SchemaFile):
        one = replace(one, schema=schema_of_file(read_file(one.schema.url), one.message))
    if registry is None:
        return one

    def by_id(key: Key) -> ProtobufSchema:
        return schema_of_registry(registry.protobuf(key), one.message)

    def by_version(subject: str, version: str) -> tuple[Key, ProtobufSchema]:
        key, files = registry.protobuf_version(subject, version)
        return key, schema_of_registry(files, one.message)

    def request(schema: ProtobufSchema) -> dict[str, Any]:
        return _request(registry, message_of(schema).file, auto_register=one.auto_register)

    def made() -> ProtobufSchema:
        raise ConfigError(f"'autoRegister' needs '{written.column}Schema': a file of protoc --descriptor_set_out")

    kind = SchemaKind(by_id, by_version, lambda schema: message_of(schema).full_name, request, made, one.message)
    key, schema = found_or_registered(one, registry, written, kind)
    return stamped(one, registry, written, key, schema, indexes_prefix(indexes_of(message_of(schema))))


def _request(registry: SchemaRegistry, file: ProtoFile, *, auto_register: bool) -> dict[str, Any]:
    """A .proto file as requests have it. What it imports is registered first, each file under its name and with what it
    imports itself, as Confluent's serializer does; and once, however many files import it."""
    made: dict[str, dict[str, Any]] = {}

    def reference(imported: ProtoFile) -> dict[str, Any]:
        if imported.name not in made:
            asked = request(imported)
            schema_id(registry, imported.name, asked, auto_register=auto_register)
            version = registry.version_of(imported.name, asked)
            made[imported.name] = {"name": imported.name, "subject": imported.name, "version": version}
        return made[imported.name]

    def request(one: ProtoFile) -> dict[str, Any]:
        references = [reference(imported) for imported in imports_of(one)]
        asked = {"schemaType": "PROTOBUF", "schema": base64.b64encode(bytes_of(one)).decode()}
        return {**asked, "references": references} if references else asked

    return request(file)


def indexes_prefix(indexes: tuple[int, ...]) -> bytes:
    """The place of a message in its file, as Confluent's wire format writes it: zigzag varints, and a zero byte for
    the first message."""
    if indexes == (0,):
        return b"\0"
    return b"".join(_varint(2 * number) for number in (len(indexes), *indexes))


def _varint(number: int) -> bytes:
    made = bytearray()
    while number >= 0x80:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*made, number])

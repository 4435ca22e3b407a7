"""The Protobuf schema of a write, from a file or in the registry, and the prefix of its values.

As registered_schema.py for Avro: on the driver, once per query. A schema that imports others (beside google/protobuf/)
is registered by its owner, with its references; here it is found by its id or by its subject. Raises ConfigError, and
ConnectorError if the registry does not answer.
"""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any

from broker.errors import ConfigError
from spark_connector.formats.protobuf_descriptors import (
    file_of,
    imports_of,
    indexes_of,
    message_of,
    schema_of_file,
    schema_of_registry,
)
from spark_connector.formats.registered_schema import Place, prefix, schema_id
from spark_connector.formats.schema_registry import SchemaRegistry, UnknownSchema
from spark_connector.formats.schema_text import read_file
from spark_connector.formats.value_format import ProtobufSchema, SchemaFile, SchemaSubject
from spark_connector.formats.write_format import ColumnWrite


def registered_protobuf(one: ColumnWrite, registry: SchemaRegistry | None, place: Place) -> ColumnWrite:
    """`one` with its message type, and with the prefix of the schema's id if there is a registry."""
    if isinstance(one.schema, SchemaFile):
        one = replace(one, schema=schema_of_file(read_file(one.schema.url), one.message))
    if registry is None:
        return one
    try:
        return _in_registry(one, registry, place)
    except UnknownSchema as error:
        raise ConfigError(f"the schema registry says: {error}") from None


def _in_registry(one: ColumnWrite, registry: SchemaRegistry, place: Place) -> ColumnWrite:
    schema, found = one.schema, one.schema_id
    if found is not None:
        if schema is not None:
            raise ConfigError(f"set one of '{place.column}Schema' and '{place.column}SchemaId', not both")
        schema = schema_of_registry(registry.protobuf(found), one.message)
    elif isinstance(schema, ProtobufSchema):
        subject = place.subject(one.strategy, schema.message)
        found = schema_id(registry, subject, _request(schema, place), auto_register=one.auto_register)
    else:
        if schema is None:
            if one.auto_register:
                raise ConfigError(f"'autoRegister' needs '{place.column}Schema': a file of protoc --descriptor_set_out")
            schema = SchemaSubject(place.subject(one.strategy, one.message))
        assert schema.subject is not None
        found, files = registry.protobuf_version(schema.subject, schema.version)
        schema = schema_of_registry(files, one.message)
    return replace(one, schema=schema, prefix=prefix(found) + indexes_prefix(indexes_of(message_of(schema))))


def _request(schema: ProtobufSchema, place: Place) -> dict[str, Any]:
    """The file of the message, as requests have it."""
    imports = imports_of(schema)
    if imports:
        raise ConfigError(
            f"the schema imports {', '.join(imports)}: register it with its references, and set "
            f"'{place.column}SchemaId', or '{place.column}Schema' to http(s)://registry/subjects/NAME/versions/latest"
        )
    return {"schemaType": "PROTOBUF", "schema": base64.b64encode(file_of(schema)).decode()}


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

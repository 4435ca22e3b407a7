"""The schema of a write in the registry, and its id: found, looked up or registered before any task runs.

record_encoder.py calls it on the driver, once per query; executors get the schema and what tells its id, and never ask.
What a user can choose is what Confluent's serializers can: a schema's id, the latest version of a subject, or a schema
that is looked up under a subject. It is registered only with `autoRegister`, if the registry finds it compatible; when
it does not, its own words are shown. Raises ConfigError, and ConnectorError if the registry does not answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import pyarrow as pa

from broker.errors import ConfigError
from spark_connector.formats.avro_derived import derived_schema
from spark_connector.formats.avro_schema import parse_avro
from spark_connector.formats.frames import Key
from spark_connector.formats.json_schema import title
from spark_connector.formats.schema_registry import SchemaRegistry, UnknownSchema
from spark_connector.formats.schema_text import read_json_schema, read_schema
from spark_connector.formats.single_object import single_object_prefix
from spark_connector.formats.value_format import SINGLE_OBJECT, AvroSchema, JsonSchema, SchemaFile, SchemaSubject
from spark_connector.formats.write_format import ColumnWrite, SubjectStrategy

_MOST_WORDS: Final = 2000
"""Characters of what a registry says."""


class SinkColumn(NamedTuple):
    """The column that is written, `key` or `value`, and the topic of all rows, if there is one."""

    column: str
    topic: str | None

    def subject(self, registry: SchemaRegistry, strategy: SubjectStrategy, record: str | None) -> str:
        """As by Confluent's TopicNameStrategy, RecordNameStrategy and TopicRecordNameStrategy. `record`: the full name
        of the schema's record; None if the schema is none, or is not known yet."""
        option = f"'{self.column}SubjectStrategy'={strategy.value}"
        if self.topic is None and strategy is not SubjectStrategy.RECORD:
            raise ConfigError(
                f"{option} needs the option 'topic': rows with topics of their own take the strategy record, or the "
                f"option '{self.column}SchemaId'"
            )
        if strategy is SubjectStrategy.TOPIC:
            assert self.topic is not None
            return registry.topic_subject(self.topic, self.column)
        if record is None:
            raise ConfigError(
                f"{option} needs '{self.column}Schema' to be a record, or a JSON Schema with a title: its name is part "
                "of the subject"
            )
        return record if strategy is SubjectStrategy.RECORD else f"{self.topic}-{record}"


@dataclass(frozen=True)
class SchemaKind:
    """What the schemas of a format have for themselves. They raise UnknownSchema, ConfigError, ConnectorError."""

    by_id: Callable[[Key], Any]
    by_version: Callable[[str, str], tuple[Key, Any]]
    """(subject, version) → (id, schema)"""
    record: Callable[[Any], str | None]
    """The name that a subject has of a schema."""
    request: Callable[[Any], dict[str, Any]]
    """A schema as requests have it."""
    made: Callable[[], Any]
    """The schema to register where the user has given none."""
    named: str | None = None
    """The name that a subject has where the user has given no schema."""


def found_or_registered(
    one: ColumnWrite, registry: SchemaRegistry, written: SinkColumn, kind: SchemaKind
) -> tuple[Key, Any]:
    """(id, schema) of a write, of which `one` says what the user has chosen."""
    schema, chosen = one.schema, one.schema_id
    try:
        if chosen is not None:
            if schema is not None:
                raise ConfigError(f"set one of '{written.column}Schema' and '{written.column}SchemaId', not both")
            key = registry.key_of(chosen)
            return key, kind.by_id(key)
        if isinstance(schema, SchemaSubject):
            assert schema.subject is not None
            return kind.by_version(schema.subject, schema.version)
        if schema is None and not one.auto_register:
            return kind.by_version(written.subject(registry, one.strategy, kind.named), "latest")
        schema = kind.made() if schema is None else schema
        subject = written.subject(registry, one.strategy, kind.record(schema))
        return schema_id(registry, subject, kind.request(schema), auto_register=one.auto_register), schema
    except UnknownSchema as error:
        raise ConfigError(f"the schema registry says: {error}") from None


def registered_avro(
    one: ColumnWrite, registry: SchemaRegistry | None, written: SinkColumn, columns: pa.StructType
) -> ColumnWrite:
    """`one` with its Avro schema, and with what tells its id if there is a registry."""
    if isinstance(one.schema, SchemaFile):
        one = replace(one, schema=read_schema(one.schema, avro=True, registry=None))
    if registry is None:
        return replace(one, prefix=single_object_prefix(one.schema)) if one.encoding == SINGLE_OBJECT else one

    def record(schema: AvroSchema) -> str | None:
        root = parse_avro(schema)
        return root.name if root.kind == "record" else None

    def request(schema: AvroSchema) -> dict[str, Any]:
        return {"schema": schema.text}

    kind = SchemaKind(registry.schema, registry.avro_version, record, request, lambda: derived_schema(columns))
    found, schema = found_or_registered(one, registry, written, kind)
    return stamped(one, registry, written, found, schema)


def registered_json(one: ColumnWrite, registry: SchemaRegistry, written: SinkColumn) -> ColumnWrite:
    """`one` with its JSON Schema, and with what tells its id. What Avro calls the name of a record is the
    title of a JSON Schema, as for Confluent's serializer."""
    if isinstance(one.schema, SchemaFile):
        one = replace(one, schema=read_json_schema(one.schema))

    def request(schema: JsonSchema) -> dict[str, Any]:
        return {"schema": schema.text, "schemaType": "JSON"}

    def made() -> JsonSchema:
        raise ConfigError(f"'autoRegister' needs '{written.column}Schema': a JSON Schema")

    kind = SchemaKind(registry.json_schema, registry.json_version, title, request, made)
    found, schema = found_or_registered(one, registry, written, kind)
    return stamped(one, registry, written, found, schema)


def stamped(
    one: ColumnWrite, registry: SchemaRegistry, written: SinkColumn, key: Key, schema: Any, message: bytes = b""
) -> ColumnWrite:
    """`one` with its schema and what says so. `message`: of Protobuf, its place in the schema."""
    try:
        stamp = registry.stamp(key, written.column, in_header=one.id_in_header, message=message)
    except UnknownSchema as error:
        raise ConfigError(f"the schema registry says: {error}") from None
    return replace(one, schema=schema, prefix=stamp.prefix, header=stamp.header)


def schema_id(registry: SchemaRegistry, subject: str, schema: dict[str, Any], *, auto_register: bool) -> Key:
    """The id of a schema under a subject. `schema`: as requests have it: schema, schemaType, references.
    Raises UnknownSchema if it is no schema to the registry."""
    found = registry.look_up(subject, schema)
    if found is not None:
        return found
    if not auto_register:
        raise ConfigError(
            f"the schema is not registered under subject '{subject}': register it, or set option 'autoRegister' to true"
        )
    complaints = registry.complaints(subject, schema)
    if complaints:
        raise ConfigError(
            f"the schema is not registered under subject '{subject}', because the schema registry says that it is "
            f"incompatible: {' '.join(complaints)[:_MOST_WORDS]}"
        )
    return registry.register(subject, schema)

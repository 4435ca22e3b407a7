"""What becomes of columns by their formats: decoders, the schema of a read, and schemas that lie elsewhere.

The driver asks for the schema of a read (read/schema.py) and loads what lies elsewhere (source.py); on executors
record_decoder.py takes the decoders.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from broker.errors import ConfigError
from spark_connector.formats.avro_values import AvroDecoder
from spark_connector.formats.csv_values import CsvDecoder
from spark_connector.formats.decoding import ValueDecoder
from spark_connector.formats.json_values import JsonDecoder
from spark_connector.formats.registry import SchemaRegistry, registry_of
from spark_connector.formats.schema_text import read_schema
from spark_connector.formats.string_values import StringDecoder
from spark_connector.formats.value_format import (
    AvroSchema,
    ColumnFormat,
    ReadFormats,
    RegistrySettings,
    SchemaFile,
    SchemaSubject,
)

__all__ = ["column_decoder", "decoded_schema", "decoders", "loaded"]


def column_decoder(one: ColumnFormat, registry: SchemaRegistry | None = None) -> ValueDecoder:
    """Of a format other than binary. Raises ConfigError for a schema that the format has no use for."""
    if one.name == "string":
        return StringDecoder()
    if isinstance(one.schema, AvroSchema):
        return AvroDecoder(one.schema, registry)
    return CsvDecoder(one.schema, one.separator) if one.name == "csv" else JsonDecoder(one.schema)


def decoders(formats: ReadFormats) -> dict[str, ValueDecoder]:
    """By column; made once per task. Raises ConfigError."""
    registry = _registry(formats.registry)
    return {name: column_decoder(one, registry) for name, one in formats.columns.items()}


def decoded_schema(formats: ReadFormats, source: pa.Schema) -> pa.Schema:
    """What a read of the columns `source` gives. Raises ConfigError."""
    types = {name: decoder.type for name, decoder in decoders(formats).items()}
    fields = [pa.field(one.name, types.get(one.name, one.type)) for one in source]
    return pa.schema([*fields, *(pa.field(name, pa.binary()) for name in formats.corrupt_columns.values())])


def loaded(formats: ReadFormats, topics: Sequence[str] | None) -> ReadFormats:
    """With the schemas themselves where options say where they lie. Driver only; asks files and the registry.

    `topics`: those of the read, None when they are not known before it runs. Raises ConfigError, ConnectorError.
    """
    registry = _registry(formats.registry)
    key, value = (
        _loaded(column, one, topics, registry) for column, one in (("key", formats.key), ("value", formats.value))
    )
    return replace(formats, key=key, value=value)


def _registry(settings: RegistrySettings | None) -> SchemaRegistry | None:
    return None if settings is None else registry_of(settings)


def _loaded(
    column: str, one: ColumnFormat, topics: Sequence[str] | None, registry: SchemaRegistry | None
) -> ColumnFormat:
    place = one.schema
    if not isinstance(place, SchemaFile | SchemaSubject):
        return one
    if isinstance(place, SchemaSubject) and place.subject is None:
        if topics is None or len(topics) != 1:
            raise ConfigError(
                f"Option '{column}Schema' must be set where a read has not exactly one topic: to a schema, or to "
                "<schema.registry.url>/subjects/NAME/versions/latest"
            )
        place = SchemaSubject(f"{topics[0]}-{column}")
    made = replace(one, schema=read_schema(place, avro=one.name == "avro", registry=registry))
    column_decoder(made, registry)
    return made

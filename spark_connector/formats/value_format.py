"""The formats a read was asked for: what options/format_options.py parses, and what becomes of columns by it.

The driver asks for the schema of the read (read/schema.py) and loads what lies elsewhere; it all travels to the
executors, where record_decoder.py applies it.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from broker.errors import ConfigError
from spark_connector.formats.avro_schema import AvroSchema
from spark_connector.formats.avro_values import AvroDecoder
from spark_connector.formats.csv_values import CsvDecoder
from spark_connector.formats.decoding import ValueDecoder
from spark_connector.formats.json_values import JsonDecoder
from spark_connector.formats.registry import RegistrySettings, SchemaRegistry, registry_of
from spark_connector.formats.schema_text import Schema, SchemaFile, SchemaSubject, read_schema
from spark_connector.formats.string_values import StringDecoder

__all__ = ["BINARY", "FORMATS", "ColumnFormat", "ParseMode", "ReadFormats"]

FORMATS = ("binary", "string", "json", "avro", "csv")


class ParseMode(enum.Enum):
    """What becomes of a bad record; Spark's names."""

    PERMISSIVE = "permissive"
    DROPMALFORMED = "dropmalformed"
    FAILFAST = "failfast"


@dataclass(frozen=True)
class ColumnFormat:
    """The format of keys or values; `schema` None for binary and string."""

    name: str = "binary"
    schema: Schema = None
    separator: str = ","

    def decoder(self, registry: SchemaRegistry | None) -> ValueDecoder | None:
        """None for binary. Raises ConfigError for a schema the format has no use for."""
        if self.name == "binary":
            return None
        if self.name == "string":
            return StringDecoder()
        if isinstance(self.schema, SchemaFile | SchemaSubject):
            raise ConfigError("the schema was not loaded")
        if isinstance(self.schema, AvroSchema):
            return AvroDecoder(self.schema, registry)
        return CsvDecoder(self.schema, self.separator) if self.name == "csv" else JsonDecoder(self.schema)


BINARY = ColumnFormat()


@dataclass(frozen=True)
class ReadFormats:
    """Of one read; small and picklable."""

    key: ColumnFormat = BINARY
    value: ColumnFormat = BINARY
    mode: ParseMode = ParseMode.PERMISSIVE
    corrupt_column: str = "_corrupt_record"
    bad_records_topic: str | None = None
    registry: RegistrySettings | None = field(default=None, repr=False)

    @property
    def columns(self) -> dict[str, ColumnFormat]:
        """Those that are not left as they are, by name."""
        both = {"key": self.key, "value": self.value}
        return {name: one for name, one in both.items() if one.name != "binary"}

    @property
    def corrupt_columns(self) -> dict[str, str]:
        """Name of the column for the raw bytes of bad ones, by the name of the source column."""
        if self.mode is not ParseMode.PERMISSIVE:
            return {}
        suffix = {"key": "_key", "value": ""}
        return {name: self.corrupt_column + suffix[name] for name in self.columns}

    def decoders(self) -> dict[str, ValueDecoder]:
        """Made once per task. Raises ConfigError."""
        registry = None if self.registry is None else registry_of(self.registry)
        made = {name: one.decoder(registry) for name, one in self.columns.items()}
        return {name: decoder for name, decoder in made.items() if decoder is not None}

    def schema(self, source: pa.Schema) -> pa.Schema:
        """What a read of the columns `source` gives. Raises ConfigError."""
        types = {name: decoder.type for name, decoder in self.decoders().items()}
        fields = [pa.field(one.name, types.get(one.name, one.type)) for one in source]
        return pa.schema([*fields, *(pa.field(name, pa.binary()) for name in self.corrupt_columns.values())])

    def loaded(self, topics: Sequence[str] | None) -> ReadFormats:
        """With the schemas themselves where options say where they lie. Driver only; asks files and the registry.

        `topics`: those of the read, None when they are not known before it runs. Raises ConfigError, ConnectorError.
        """
        return replace(self, key=self._loaded("key", self.key, topics), value=self._loaded("value", self.value, topics))

    def _loaded(self, column: str, one: ColumnFormat, topics: Sequence[str] | None) -> ColumnFormat:
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
        registry = None if self.registry is None else registry_of(self.registry)
        loaded = replace(one, schema=read_schema(place, avro=one.name == "avro", registry=registry))
        loaded.decoder(registry)
        return loaded

"""The formats of a write: made by options/typed_write_options.py, completed on the driver, sent to executors.

Plain values that are cheap to import. record_encoder.py, which uses them, is loaded only by writes with formats.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Final

from spark_connector.formats.value_format import RegistrySettings, Schema

ALL_COLUMNS: Final = ("*",)
"""The `columns` of a ColumnWrite before the driver has seen the DataFrame."""

ROLES: Final = ("topic", "partition", "headers", "timestamp")
"""Columns that say where a record goes and what goes with it, unless `valueColumns` names them."""


class WriteMode(enum.Enum):
    """How rows that cannot be encoded are treated; Spark's names."""

    FAILFAST = "failfast"
    DROPMALFORMED = "dropmalformed"


class SubjectStrategy(enum.Enum):
    """How the subject of a schema in the registry is called, as Confluent's serializers do."""

    TOPIC = "topic"
    RECORD = "record"
    TOPIC_RECORD = "topic-record"


@dataclass(frozen=True)
class JsonText:
    """How JSON is written; the options of Spark's to_json, and its defaults."""

    ignore_null_fields: bool = True
    timestamp_format: str = "yyyy-MM-dd'T'HH:mm:ss[.SSS][XXXXX]"
    timestamp_ntz_format: str = "yyyy-MM-dd'T'HH:mm:ss[.SSS]"
    date_format: str = "yyyy-MM-dd"


TO_JSON: Final = JsonText()


@dataclass(frozen=True)
class ColumnWrite:
    """How keys or values are made: the format and its columns, in order."""

    name: str = "binary"
    columns: tuple[str, ...] = ()
    """Columns of the DataFrame. Empty, with format binary: the column `key` or `value` as it is, if there is one."""
    schema: Schema = None
    """Of avro and protobuf, as in ColumnFormat: a Schema, or where it is stored; None: in the registry, by subject."""
    message: str | None = None
    """Of protobuf: the full name of the message."""
    schema_id: str | None = None
    """The id in the registry that the user has asked for."""
    strategy: SubjectStrategy = SubjectStrategy.TOPIC
    auto_register: bool = False
    json: JsonText = TO_JSON
    id_in_header: bool = False
    """Whether the id of the schema goes into a header of the record, not before the value."""
    encoding: str = "binary"
    """Of avro without a registry: one of AVRO_ENCODINGS."""
    prefix: bytes = b""
    """What each value begins with, to say of which schema it is: the driver gets it from the registry."""
    header: tuple[str, bytes] | None = None
    """The header of each record that says so."""

    @property
    def is_plain(self) -> bool:
        """Whether the column is written as it is."""
        return self.name == "binary" and not self.columns


@dataclass(frozen=True)
class WriteFormats:
    """The formats of one write; small, hashable and picklable."""

    key: ColumnWrite = field(default_factory=ColumnWrite)
    value: ColumnWrite = field(default_factory=ColumnWrite)
    mode: WriteMode = WriteMode.FAILFAST
    bad_rows_topic: str | None = None
    registry: RegistrySettings | None = None

    @property
    def columns(self) -> dict[str, ColumnWrite]:
        """`key` and `value`, where they are encoded."""
        return {name: one for name, one in self.columns_of_both.items() if not one.is_plain}

    @property
    def columns_of_both(self) -> dict[str, ColumnWrite]:
        return {"key": self.key, "value": self.value}

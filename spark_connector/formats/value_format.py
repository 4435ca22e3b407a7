"""The formats a read was asked for: what options/format_options.py parses and executors are sent.

Plain values, cheap to import: decoders.py does something with them, and is loaded by reads that have formats only.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "BINARY",
    "FORMATS",
    "AvroSchema",
    "ColumnFormat",
    "ParseMode",
    "ReadFormats",
    "RegistrySettings",
    "Schema",
    "SchemaFile",
    "SchemaSubject",
]

FORMATS = ("binary", "string", "json", "avro", "csv")


class ParseMode(enum.Enum):
    """What becomes of a bad record; Spark's names."""

    PERMISSIVE = "permissive"
    DROPMALFORMED = "dropmalformed"
    FAILFAST = "failfast"


@dataclass(frozen=True)
class AvroSchema:
    """A schema as text, with those it refers to in the order of definition; small and picklable."""

    text: str
    references: tuple[str, ...] = ()


@dataclass(frozen=True)
class RegistrySettings:
    """`urls` without user and password; who asks is kept out of reprs."""

    urls: tuple[str, ...]
    user_info: str | None = field(default=None, repr=False)
    bearer_token: str | None = field(default=None, repr=False)
    ca_location: str | None = None
    timeout_ms: int = 10_000


@dataclass(frozen=True)
class SchemaFile:
    """A file with the schema in it, DDL or JSON."""

    url: str


@dataclass(frozen=True)
class SchemaSubject:
    """What a registry has under this name; None for the one of the topic (`<topic>-value`)."""

    subject: str | None = None
    version: str = "latest"


Schema = Any
"""What decoders need: an Arrow type, which has no type information, or an AvroSchema."""


@dataclass(frozen=True)
class ColumnFormat:
    """The format of keys or values; `schema` is a Schema, or where it lies, None for binary and string."""

    name: str = "binary"
    schema: Schema = None
    separator: str = ","


BINARY = ColumnFormat()


@dataclass(frozen=True)
class ReadFormats:
    """Of one read; small and picklable."""

    key: ColumnFormat = BINARY
    value: ColumnFormat = BINARY
    mode: ParseMode = ParseMode.PERMISSIVE
    corrupt_column: str = "_corrupt_record"
    bad_records_topic: str | None = None
    registry: RegistrySettings | None = None

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

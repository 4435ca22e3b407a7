"""The formats of a read: made by options/read_options.py and sent to executors.

Plain values that are cheap to import. record_decoder.py, which uses them, is loaded only by reads with formats.
"""

from __future__ import annotations

import enum
import urllib.parse
from dataclasses import dataclass, field
from typing import Any, Final

from broker.errors import ConfigError

MOST_LEVELS = 15
"""The largest `recursiveFieldMaxDepth`, as in Spark."""
FORMATS = ("binary", "string", "json", "avro", "csv")
FRAME: Final = 5
"""Bytes before the data of a client of a schema registry: a zero byte and the id of the writer's schema."""


class ParseMode(enum.Enum):
    """How bad records are treated; Spark's names."""

    PERMISSIVE = "permissive"
    DROPMALFORMED = "dropmalformed"
    FAILFAST = "failfast"


@dataclass(frozen=True)
class AvroSchema:
    """A schema as text, and the schemas it refers to in order of definition; small and picklable."""

    text: str
    references: tuple[str, ...] = ()


@dataclass(frozen=True)
class JsonSchema:
    """A JSON Schema as text, and the schemas it refers to: (name that a $ref says, text)."""

    text: str
    references: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class RegistrySettings:
    """`urls` have no user and password, and reprs show no credentials."""

    urls: tuple[str, ...]
    user_info: str | None = field(default=None, repr=False)
    bearer_token: str | None = field(default=None, repr=False)
    ca_location: str | None = None
    timeout_ms: int = 10_000


@dataclass(frozen=True)
class SchemaFile:
    """The file that holds a schema, DDL or JSON."""

    url: str


@dataclass(frozen=True)
class SchemaSubject:
    """The subject of a registry that holds a schema; None for the topic's subject (`<topic>-value`)."""

    subject: str | None = None
    version: str = "latest"


Schema = Any
"""What decoders need: an Arrow type, for which mypy has no types, or an AvroSchema."""


@dataclass(frozen=True)
class ColumnFormat:
    """The format of keys or values; `schema` is a Schema, or where it is stored; None for binary and string."""

    name: str = "binary"
    schema: Schema = None
    separator: str = ","
    most_levels: int = -1
    """Of avro: recursiveFieldMaxDepth."""
    is_plain_too: bool = False
    """Of json with a registry: whether values without its prefix are read as well."""


BINARY = ColumnFormat()


@dataclass(frozen=True)
class ReadFormats:
    """The formats of one read; small and picklable."""

    key: ColumnFormat = BINARY
    value: ColumnFormat = BINARY
    mode: ParseMode = ParseMode.PERMISSIVE
    corrupt_column: str = "_corrupt_record"
    bad_records_topic: str | None = None
    registry: RegistrySettings | None = None

    @property
    def columns(self) -> dict[str, ColumnFormat]:
        """The columns with a format other than binary, by name."""
        both = {"key": self.key, "value": self.value}
        return {name: one for name, one in both.items() if one.name != "binary"}

    @property
    def corrupt_columns(self) -> dict[str, str]:
        """Source column → column for the raw bytes of its bad records."""
        if self.mode is not ParseMode.PERMISSIVE:
            return {}
        suffix = {"key": "_key", "value": ""}
        return {name: self.corrupt_column + suffix[name] for name in self.columns}


def registry_address(url: str) -> tuple[str, str | None]:
    """(the URL of a schema registry without user and password, `user:password`). Raises ConfigError."""
    try:
        parts = urllib.parse.urlsplit(url)
        host = parts.hostname
        _ = parts.port
    except ValueError:
        host = None
    if not host or parts.scheme.lower() not in {"http", "https"}:
        raise ConfigError(
            "Option 'schema.registry.url' must be http(s)://host:port, several of one registry separated by commas"
        )
    credentials, at, place = parts.netloc.rpartition("@")
    user_info = urllib.parse.unquote(credentials) if at else None
    return f"{parts.scheme.lower()}://{place}{parts.path.rstrip('/')}", user_info

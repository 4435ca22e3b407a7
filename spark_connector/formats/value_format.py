"""The formats of a read: made by options/read_options.py and sent to executors.

Plain values that are cheap to import. record_decoder.py, which uses them, is loaded only by reads with formats.
"""

from __future__ import annotations

import enum
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from broker.errors import ConfigError
from spark_connector.formats.placeholder import Placeholder

MOST_LEVELS = 15
"""The largest `recursiveFieldMaxDepth`, as in Spark."""
MOST_PROTOBUF_LEVELS = 10
"""The largest `recursive.fields.max.depth`, as in Spark."""


class ValueFormat(NamedTuple):
    """What one format of keys and values is like."""

    name: str
    schema: str = ""
    """What the option `valueSchema` of a read must say; empty: it has none."""
    registered: bool = False
    """Whether a registry may hold its schemas: its values have Confluent's prefix then."""
    opaque: bool = False
    """Whether a value cannot be read, or written, without its schema."""
    written: bool = True


_DDL: Final = "Spark's DDL, e.g. 'id BIGINT, name STRING', or a file with it"
_REGISTRY: Final = "or a registry (schema.registry.url)"
_ALL = (
    ValueFormat("binary"),
    ValueFormat("string"),
    ValueFormat("json", f"{_DDL}; or a JSON Schema, a file with it, {_REGISTRY}", registered=True),
    ValueFormat("avro", f"an Avro schema, a file, {_REGISTRY}", registered=True, opaque=True),
    ValueFormat("protobuf", f"a file of protoc --descriptor_set_out, {_REGISTRY}", registered=True, opaque=True),
    ValueFormat("csv", _DDL, written=False),
)
REGISTRY_TYPES: Final = ("confluent", "glue", "apicurio", "azure")
VALUE_FORMATS: Final = {one.name: one for one in _ALL}
FORMATS: Final = tuple(VALUE_FORMATS)
WRITE_FORMATS: Final = tuple(one.name for one in _ALL if one.written)
SCHEMA_FORMATS: Final = tuple(one.name for one in _ALL if one.schema)
REGISTERED: Final = tuple(one.name for one in _ALL if one.registered)
SINGLE_OBJECT, CONTAINER = "single-object", "container"
AVRO_ENCODINGS: Final = ("binary", SINGLE_OBJECT, CONTAINER)
"""Of Avro without a registry: data alone; behind the fingerprint of its schema; a file of one record."""
FRAME: Final = 5
"""Bytes before the data of a client of a schema registry: a zero byte and the id of the writer's schema."""
NO_FRAME: Final = "not in the wire format of a schema registry, which begins with a zero byte and the schema's id"


def framed_id(raw: bytes) -> int | None:
    """The id of the writer's schema before the data; None if `raw` does not begin with one."""
    return int.from_bytes(raw[1:FRAME]) if len(raw) >= FRAME and not raw[0] else None


UnfitRows = Callable[[Any], Mapping[int, str]]
"""Of a batch of decoded records those that whoever reads them cannot take, by row, and why: bad records, too."""


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
class ProtobufSchema:
    """A message type; small and picklable."""

    descriptors: bytes = field(repr=False)
    """A FileDescriptorSet, each file behind those that it imports; the last one is the schema's own."""
    message: str | None = None
    """The full name of the message, or as the user says it; None: the first of the last file."""


@dataclass(frozen=True)
class ProtobufFiles:
    """A schema as a registry gives it: (the name by which it is imported, its text), each behind those that it imports.
    The text is a FileDescriptorProto in base64, or a .proto file where the registry knows no other form."""

    files: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class ProtobufRules:
    """What Spark's options of from_protobuf say."""

    most_levels: int = -1
    """recursive.fields.max.depth"""
    enums_as_ints: bool = False
    emits_defaults: bool = False
    """emit.default.values"""
    upcasts_unsigned: bool = False
    """upcast.unsigned.ints"""
    unwraps_wrappers: bool = False
    """unwrap.primitive.wrapper.types"""
    keeps_empty: bool = False
    """retain.empty.message.types"""


PLAIN_RULES: Final = ProtobufRules()


@dataclass(frozen=True)
class RegistrySettings:
    """`urls` have no user and password, and reprs show no credentials. `user_info` is for all of
    them or, when it stood in some URLs (`login_urls`), for these: as with Confluent's client, no other sees it."""

    urls: tuple[str, ...]
    user_info: str | None = field(default=None, repr=False)
    bearer_token: str | None = field(default=None, repr=False)
    ca_location: str | None = None
    timeout_ms: int = 10_000
    login_urls: tuple[str, ...] = ()
    tokens: tuple[str, tuple[tuple[str, str], ...]] | None = field(default=None, repr=False)
    """The provider of the tokens for requests, a name as in sasl.oauthbearer.token.provider, and its options."""
    inherited: Any = field(default=None, repr=False)
    """The ClientSettings whose tokens are those for requests, too."""
    headers: tuple[tuple[str, str], ...] = ()
    """Of each request."""
    type: str = "confluent"
    """One of REGISTRY_TYPES."""
    group: str | None = None
    """What the registry calls the set of its schemas: of Glue the registry's name."""
    region: str | None = None
    profile: str | None = None
    """Of Glue: that of the shared configuration of AWS."""
    use_id: str = "contentid"
    id_bytes: int = 4
    """Of Apicurio: which of its ids a prefix has, in so many bytes."""

    def login(self, url: str) -> str | None:
        """`user:password` for one of the URLs."""
        return self.user_info if not self.login_urls or url in self.login_urls else None


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
"""What decoders need: an Arrow type, for which mypy has no types, an AvroSchema or a ProtobufSchema."""


@dataclass(frozen=True)
class ColumnFormat:
    """The format of keys or values; `schema` is a Schema, or where it is stored; None for binary and string."""

    name: str = "binary"
    schema: Schema = None
    separator: str = ","
    most_levels: int = -1
    """Of avro: recursiveFieldMaxDepth."""
    encoding: str = "binary"
    """Of avro without a registry: one of AVRO_ENCODINGS."""
    writers: tuple[Schema, ...] = ()
    """Of single-object encoding: AvroSchemas beside `schema` that values may be of, or SchemaFiles with them."""
    is_plain_too: bool = False
    """Of json with a registry: whether values without the id of a schema are read as well."""
    message: str | None = None
    """Of protobuf: valueMessage."""
    rules: ProtobufRules = PLAIN_RULES


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
    unavailable: Placeholder | None = None
    """The placeholder that makes a record bad; None takes it for a value."""

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

"""`valueSchema` and `keySchema` as the user writes them: a schema (Spark's DDL or JSON, JSON Schema, or Avro), or where
it is stored.

Called by options/read_options.py, and by record_decoder.py on the driver to load a schema from a file, on any file
system of fsspec, or from a subject of a schema registry. Executors get the schema itself.

DDL is parsed here without Spark, because PySpark needs a SparkContext for it, which a data source does not have; and so
a wrong schema fails at `load()` with a clear reason. Every field is nullable, whatever the text says, because as in
Spark's from_json a record may lack it. Raises ConfigError.
"""

from __future__ import annotations

import json
import re
import urllib.parse
from typing import Any, Final

import fsspec
import pyarrow as pa

from broker.errors import ConfigError
from broker.storage.url_secrets import text_without_secrets, without_secrets
from spark_connector.formats.avro_schema import parse_avro
from spark_connector.formats.json_schema import json_column, parse_json_schema
from spark_connector.formats.schema_registry import SchemaRegistry, UnknownSchema
from spark_connector.formats.value_format import AvroSchema, JsonSchema, Schema, SchemaFile, SchemaSubject

_PLACE = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://\S+|\S+\.(avsc|json|ddl|sql)", re.IGNORECASE)
_SUBJECT = re.compile(r"(?P<base>.*)/subjects/(?P<subject>[^/]+)/versions/(?P<version>\d+|latest)/?(schema/?)?")
_LARGEST: Final = 4 << 20
_SPARKS: Final = frozenset({"fields", "elementType", "keyType", "valueType"})
"""Keys of a type as Spark writes it in JSON, which are none of JSON Schema's."""


def parse_schema_text(text: str, *, avro: bool) -> Schema:
    """A schema, or the file that holds it. Raises ConfigError for other text."""
    if _PLACE.fullmatch(text):
        return SchemaFile(text)
    if avro:
        schema = AvroSchema(text if text[:1] in '{["' else json.dumps(text))
        parse_avro(schema)
        return schema
    if not text.startswith("{"):
        return parse_ddl(text)
    try:
        document = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"Schema begins with {{ but is not JSON: {error}") from None
    if _SPARKS & document.keys() or document.get("type") == "struct":
        return parse_spark_json(document, text)
    return json_column(JsonSchema(text))


def parse_json_text(text: str) -> JsonSchema | SchemaFile:
    """The JSON Schema of a write, or the file that holds it. Raises ConfigError."""
    if not text.startswith("{"):
        return SchemaFile(text)
    parse_json_schema(JsonSchema(text))
    return JsonSchema(text)


def parse_registry_url(text: str) -> tuple[str, SchemaSubject] | None:
    """(address of the registry, subject) of `http://host:8081/subjects/NAME/versions/latest`; None if not http(s).

    Raises ConfigError for any other http(s) URL.
    """
    if not re.match(r"https?://", text, re.IGNORECASE):
        return None
    match = _SUBJECT.fullmatch(text)
    if match is None:
        raise ConfigError(
            f"A schema at an http(s) URL must be in a schema registry: http(s)://host:port/subjects/NAME/versions/"
            f"latest (or a number), not '{without_secrets(text)}'"
        )
    return match["base"], SchemaSubject(urllib.parse.unquote(match["subject"]), match["version"])


def read_json_schema(place: SchemaFile) -> JsonSchema:
    """Load the JSON Schema of a write. Raises ConfigError."""
    schema = JsonSchema(_text_in(place))
    parse_json_schema(schema)
    return schema


def _text_in(place: SchemaFile) -> str:
    try:
        return read_file(place.url).decode("utf-8").strip()
    except ValueError as error:
        raise _unreadable(place.url, error) from None


def read_schema(place: SchemaFile | SchemaSubject, *, avro: bool, registry: SchemaRegistry | None) -> Schema:
    """Load the schema at `place`. Raises ConfigError, ConnectorError."""
    if isinstance(place, SchemaFile):
        text = _text_in(place)
        schema = parse_schema_text(text, avro=avro)
        if isinstance(schema, SchemaFile):
            raise ConfigError(f"'{without_secrets(place.url)}' names another file: '{without_secrets(text)[:200]}'")
        return schema
    assert registry is not None
    assert place.subject is not None
    try:
        if not avro:
            return json_column(registry.json_version(place.subject, place.version)[1])
        found = registry.subject(place.subject, place.version)
    except UnknownSchema as error:
        where = f"schema {place.subject}, version {place.version}"
        raise ConfigError(f"Schema registry has no {where}, that can be used: {error}") from None
    parse_avro(found)
    return found


def read_file(url: str) -> bytes:
    """The file of a schema, on any file system of fsspec. Raises ConfigError."""
    try:
        with fsspec.open(url, "rb") as file:
            return bytes(file.read(_LARGEST))
    except (OSError, ValueError, ImportError) as error:
        raise _unreadable(url, error) from None


def _unreadable(url: str, error: Exception) -> ConfigError:
    return ConfigError(f"Cannot read the schema in '{without_secrets(url)}': {text_without_secrets(str(error))}")


_TOKEN = re.compile(r"\s*(?:(`(?:[^`]|``)+`)|('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|(\w+)|([<>(),:]))", re.DOTALL)
_ATOMIC: Final[dict[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ltz": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_DECIMAL: Final = ("decimal", "dec", "numeric")
_TEXT: Final = ("varchar", "char", "character")
_DEEPEST: Final = 64
_EXAMPLE: Final = "e.g. 'id BIGINT, name STRING, tags ARRAY<STRING>'"


def parse_ddl(text: str) -> pa.StructType:
    """Parse `a INT, b STRUCT<c: STRING>`, or the same within `STRUCT<…>`."""
    reader = _Reader(text)
    if reader.is_struct():
        kind = reader.type(0)
    else:
        kind = pa.struct(reader.fields("", 0))
    reader.end()
    return kind


def parse_spark_json(document: Any, text: str, depth: int = 0) -> pa.DataType:
    """Parse a type as `df.schema.json()` writes it; `text` is for messages."""
    if depth > _DEEPEST:
        raise ConfigError(f"Schema is nested more than {_DEEPEST} deep: {_short(text)}")
    try:
        if isinstance(document, str):
            reader = _Reader(document)
            atomic = reader.type(0)
            reader.end()
            if not pa.types.is_nested(atomic):
                return atomic
        kind = document["type"] if isinstance(document, dict) else None
        if kind == "struct":
            fields = document["fields"]
            return pa.struct(
                _distinct([(one["name"], parse_spark_json(one["type"], text, depth + 1)) for one in fields], text)
            )
        if kind == "array":
            return pa.list_(parse_spark_json(document["elementType"], text, depth + 1))
        if kind == "map":
            key, value = (parse_spark_json(document[f"{part}Type"], text, depth + 1) for part in ("key", "value"))
            return pa.map_(key, value)
    except (KeyError, TypeError, IndexError):
        pass
    raise ConfigError(f"Not a schema as Spark writes it in JSON: {_short(str(document))}")


class _Reader:
    """A recursive-descent parser of DDL with one token of lookahead."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._quoted = False
        self._token = ""
        self._begin = 0
        self._advance()

    def is_struct(self) -> bool:
        return self._token.lower() == "struct" and not self._quoted and self._text[self._at :].lstrip()[:1] == "<"

    def fields(self, close: str, depth: int) -> list[tuple[str, pa.DataType]]:
        """Parse fields up to the token `close`, which is not consumed; "" is the end of the text."""
        fields: list[tuple[str, pa.DataType]] = []
        while True:
            name = self._name()
            if self._token == ":":
                self._advance()
            fields.append((name, self.type(depth + 1)))
            self._rest_of_field()
            if self._token == close:
                return _distinct(fields, self._text)
            self._expect(",")

    def type(self, depth: int) -> pa.DataType:
        if depth > _DEEPEST:
            raise self._wrong(f"nested more than {_DEEPEST} deep")
        name = self._name().lower()
        if name == "struct":
            return pa.struct(self._inside(lambda: self.fields(">", depth)))
        if name == "array":
            return pa.list_(self._inside(lambda: self.type(depth + 1)))
        if name == "map":
            return self._inside(lambda: self._map(depth))
        numbers = self._numbers()
        if name in _DECIMAL:
            precision, scale = (*numbers, *(10, 0)[len(numbers) :])[:2]
            if len(numbers) > 2 or not (0 < precision <= 38 and 0 <= scale <= precision):
                raise self._wrong(
                    f"decimal{tuple(numbers)} needs a precision of 1 to 38, and a scale from 0 to the precision"
                )
            return pa.decimal128(precision, scale)
        if name in _TEXT and len(numbers) == 1:
            return pa.string()
        if name not in _ATOMIC or numbers:
            raise self._wrong(f"'{name}' is not a type; types are {', '.join((*_ATOMIC, 'decimal(p,s)'))}, array<…>, …")
        return _ATOMIC[name]

    def end(self) -> None:
        if self._token:
            raise self._wrong(f"'{self._token}' is unexpected")

    def _map(self, depth: int) -> pa.DataType:
        key = self.type(depth + 1)
        self._expect(",")
        return pa.map_(key, self.type(depth + 1))

    def _inside(self, read: Any) -> Any:
        self._expect("<")
        kind = read()
        self._expect(">")
        return kind

    def _numbers(self) -> list[int]:
        numbers: list[int] = []
        if self._token != "(":
            return numbers
        while self._token != ")":
            self._advance()
            if not self._token.isdecimal():
                raise self._wrong("a number is missing")
            numbers.append(int(self._token[:9]))
            self._advance()
            if self._token not in {",", ")"}:
                raise self._wrong("a closing ) is missing")
        self._advance()
        return numbers

    def _rest_of_field(self) -> None:
        """Skip NOT NULL and COMMENT."""
        if self._token.lower() == "not":
            self._advance()
            if self._token.lower() != "null":
                raise self._wrong("NOT without NULL")
            self._advance()
        if self._token.lower() == "comment":
            self._advance()
            if self._token[:1] not in {"'", '"'}:
                raise self._wrong("COMMENT without a text in quotes")
            self._advance()

    def _name(self) -> str:
        if not self._token or not (self._quoted or re.fullmatch(r"\w+", self._token)):
            raise self._wrong(f"a name is missing before '{self._token}'" if self._token else "it ends too early")
        name = self._token
        self._advance()
        return name

    def _expect(self, token: str) -> None:
        if self._token != token or self._quoted:
            raise self._wrong(f"'{token}' is missing" + (f" before '{self._token}'" if self._token else ""))
        self._advance()

    def _advance(self) -> None:
        self._begin = self._at
        match = _TOKEN.match(self._text, self._at)
        if match is None:
            rest = self._text[self._at :].strip()
            self._quoted, self._token = False, ""
            if rest:
                raise self._wrong(f"'{rest[:1]}' is out of place")
            return
        self._at = match.end()
        self._quoted = match[1] is not None
        self._token = match[1][1:-1].replace("``", "`") if match[1] is not None else match[0].strip()

    def _wrong(self, what: str) -> ConfigError:
        return ConfigError(f"Schema is not Spark's DDL ({_EXAMPLE}): {what}, at {self._begin} of: {_short(self._text)}")


def _distinct(fields: list[tuple[str, pa.DataType]], text: str) -> list[tuple[str, pa.DataType]]:
    names = [name for name, _ in fields]
    twice = {name for name in names if names.count(name) > 1}
    if twice or not fields:
        raise ConfigError(
            f"Schema names {', '.join(sorted(twice))} twice: {_short(text)}" if twice else "Schema has no fields"
        )
    return fields


def _short(text: str) -> str:
    return text if len(text) <= 200 else text[:200] + "…"

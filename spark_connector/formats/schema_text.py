"""`valueSchema` and `keySchema` as the user gives them: a schema, or the place where it lies.

Called by options/format_options.py, and by decoders.py on the driver to read what lies elsewhere: a file on any
file system that fsspec knows, or a subject of a schema registry. Executors get the schema itself.
"""

from __future__ import annotations

import json
import re
import urllib.parse
from typing import Final

import fsspec

from broker.errors import ConfigError
from spark_connector.formats.avro_schema import prepare
from spark_connector.formats.ddl import parse_ddl, parse_spark_json
from spark_connector.formats.registry import SchemaRegistry, UnknownSchema
from spark_connector.formats.value_format import AvroSchema, Schema, SchemaFile, SchemaSubject

__all__ = ["parse_registry_url", "parse_schema_text", "read_schema"]

_PLACE = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://\S+|\S+\.(avsc|json|ddl|sql)", re.IGNORECASE)
_SUBJECT = re.compile(r"(?P<base>.*)/subjects/(?P<subject>[^/]+)/versions/(?P<version>\d+|latest)/?(schema/?)?")
_LARGEST: Final = 4 << 20


def parse_schema_text(text: str, *, avro: bool) -> Schema:
    """A schema, or the file it lies in. Raises ConfigError for what is neither."""
    if _PLACE.fullmatch(text):
        return SchemaFile(text)
    if avro:
        schema = AvroSchema(text if text[:1] in '{["' else json.dumps(text))
        prepare(schema)
        return schema
    if not text.startswith("{"):
        return parse_ddl(text)
    try:
        document = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"Schema begins with {{ and is no JSON: {error}") from None
    return parse_spark_json(document, text)


def parse_registry_url(text: str) -> tuple[str, SchemaSubject] | None:
    """(address of the registry, subject) of `http://host:8081/subjects/NAME/versions/latest`; None for other texts.

    Raises ConfigError for another address on the web.
    """
    if not re.match(r"https?://", text, re.IGNORECASE):
        return None
    match = _SUBJECT.fullmatch(text)
    if match is None:
        raise ConfigError(
            f"A schema on the web must lie in a schema registry: http(s)://host:port/subjects/NAME/versions/latest (or "
            f"a number), not '{without_credentials(text)}'"
        )
    return match["base"], SchemaSubject(urllib.parse.unquote(match["subject"]), match["version"])


def without_credentials(url: str) -> str:
    """`url` for people to read."""
    return re.sub(r"//[^/@]*@", "//", url)


def read_schema(place: SchemaFile | SchemaSubject, *, avro: bool, registry: SchemaRegistry | None) -> Schema:
    """The schema that lies at `place`. Raises ConfigError, ConnectorError."""
    if isinstance(place, SchemaFile):
        try:
            with fsspec.open(place.url, "rb") as file:
                text = file.read(_LARGEST).decode("utf-8").strip()
        except (OSError, ValueError, ImportError) as error:
            raise ConfigError(f"Cannot read the schema in '{without_credentials(place.url)}': {error}") from None
        schema = parse_schema_text(text, avro=avro)
        if isinstance(schema, SchemaFile):
            raise ConfigError(f"'{without_credentials(place.url)}' names another file: '{text[:200]}'")
        return schema
    assert registry is not None
    assert place.subject is not None
    try:
        found = registry.subject(place.subject, place.version)
    except UnknownSchema as error:
        raise ConfigError(f"Schema registry has no schema {place.subject}, version {place.version}: {error}") from None
    prepare(found)
    return found

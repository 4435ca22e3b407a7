"""Azure Schema Registry, a part of Event Hubs: Avro with the id of its schema in the header `content-type` of a record.

The header is `avro/binary+<id>`, as Azure's serializers for Kafka write it; their values have nothing before the data.
Each process has a token of its own, as azure-identity finds it, unless `schema.registry.bearer.auth.token` is set.
Paths and headers: Azure's REST API of 2022-10, as its client for Python has it (azure-schemaregistry 1.3).
"""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Mapping
from typing import Any, Final

from broker.errors import ConfigError
from spark_connector.formats.frames import Framing, Key, Place, SchemaId
from spark_connector.formats.schema_registry import Reply, SchemaRegistry, Stamp, UnknownSchema
from spark_connector.formats.value_decoder import BadValue

_HEADER: Final = "content-type"
_TYPE: Final = "avro/binary+"
_CONTENT: Final = "application/json; serialization=Avro"
_VERSION: Final = "api-version=2022-10"
_ID: Final = "Schema-Id"
_LONGEST: Final = 64
_NOT_FOUND: Final = 404
_MISSING: Final = f"its record has no header {_HEADER} that begins with {_TYPE}"


class AzureRegistry(SchemaRegistry):
    """The schemas of one group."""

    _accept = "*/*"

    def framing(self, column: str, format: str) -> Framing:
        """As SchemaRegistry."""
        if format != "avro" or column != "value":
            raise ConfigError("schema.registry.type=azure is for values of format avro only")
        return Framing((Place(_parse, header=_HEADER),), _MISSING)

    def stamp(self, key: Key, column: str, *, in_header: bool, message: bytes = b"") -> Stamp:
        """As SchemaRegistry: always in the header."""
        return Stamp(header=(_HEADER, f"{_TYPE}{key}".encode()))

    def key_of(self, text: str) -> Key:
        """As SchemaRegistry."""
        return text

    def look_up(self, subject: str, schema: Mapping[str, Any]) -> Key | None:
        """As SchemaRegistry."""
        try:
            return self._sent(f"{self._place(subject)}:get-id", schema, "POST")
        except UnknownSchema as error:
            if error.status == _NOT_FOUND:
                return None
            raise

    def complaints(self, subject: str, schema: Mapping[str, Any]) -> list[str]:
        """As SchemaRegistry: none, because Azure compares when it registers."""
        return []

    def register(self, subject: str, schema: Mapping[str, Any]) -> Key:
        """As SchemaRegistry."""
        return self._sent(self._place(subject), schema, "PUT")

    def _sent(self, path: str, schema: Mapping[str, Any], method: str) -> Key:
        """The id that is answered to a schema."""
        text = str(schema["schema"])
        found = self._send(
            f"{path}?{_VERSION}", lambda reply: reply.headers.get(_ID), text, method=method, content=_CONTENT
        )
        if found is None:
            raise UnknownSchema(f"the registry answered without the header {_ID}")
        return str(found)

    def _answer(self, key: Key, query: str = "") -> Any:
        return self._send(f"/$schemaGroups/$schemas/{urllib.parse.quote(str(key), safe='')}?{_VERSION}", _schema)

    def _version(self, subject: str, version: str, query: str = "") -> Any:
        place = f"{self._place(subject)}/versions"
        if version == "latest":
            version = str(self._send(f"{place}?{_VERSION}", _latest))
        return self._send(f"{place}/{version}?{_VERSION}", _schema)

    def _id_in(self, answer: Any) -> Key:
        return str(answer["id"])

    def _place(self, subject: str) -> str:
        return f"/$schemaGroups/{self._settings.group}/schemas/{urllib.parse.quote(subject, safe='')}"


def _parse(head: bytes) -> SchemaId | None:
    try:
        kind, _, key = head.decode("ascii").partition("+")
    except UnicodeDecodeError:
        return None
    if f"{kind}+" != _TYPE:
        return None
    if not 0 < len(key) <= _LONGEST:
        raise BadValue(f"its header {_HEADER} has no id of a schema: {head[:80].decode('ascii')}")
    return SchemaId(key)


def _latest(reply: Reply) -> int:
    found = json.loads(reply.data)
    if found.get("NextLink"):
        raise UnknownSchema("the schema has too many versions for one answer: say which by its id")
    return max(map(int, found["Value"]), default=1)


def _schema(reply: Reply) -> dict[str, Any]:
    """As Confluent's registry answers."""
    kind = (reply.headers.get("Content-Type") or "").partition("serialization=")[2].strip()
    return {"schema": reply.data.decode("utf-8"), "schemaType": kind.upper() or "AVRO", "id": reply.headers.get(_ID)}

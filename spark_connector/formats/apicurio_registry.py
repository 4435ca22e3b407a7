"""Apicurio Registry by its own API, version 3, and what its own serializers write.

A value begins with a zero byte and an id, of four bytes or (serializers before version 3) of eight, or the id is in a
header of the record. It is the id of a content, or of an artifact's version (`globalId`). Of version 2 of the API only
the schemas of ids are read. What Confluent's serializers wrote with Apicurio's other API (`/apis/ccompat/v7`) is read
with schema.registry.type=confluent. Paths and headers: Apicurio's OpenAPI document and KafkaSerdeHeaders, 3.3.
"""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Callable, Mapping
from typing import Any, Final

from broker.errors import ConfigError
from spark_connector.formats.avro_schema import parse_avro
from spark_connector.formats.frames import Framing, Key, Place, SchemaId
from spark_connector.formats.schema_registry import Reply, SchemaRegistry, Stamp, UnknownSchema
from spark_connector.formats.value_decoder import BadValue
from spark_connector.formats.value_format import AvroSchema

_NAMES: Final = {"globalid": "globalId", "contentid": "contentId"}
_LONG: Final = 8
_CONTENT: Final = "application/json"
_NOT_FOUND: Final = 404
_MISSING: Final = (
    "not in the wire format of Apicurio's serializers: neither a header apicurio.….contentId or globalId, nor a zero "
    "byte and an id before the data"
)
_WHOLE: Final = "references=DEREFERENCE&dereference=true&returnArtifactType=true"
"""As versions 3 and 2 ask for a schema with all that it refers to."""


class ApicurioRegistry(SchemaRegistry):
    """A key is `contentIds/7` or `globalIds/7`."""

    _accept = "*/*"

    def framing(self, column: str, format: str) -> Framing:
        """As SchemaRegistry."""
        if format == "protobuf":
            raise ConfigError("schema.registry.type=apicurio has no format protobuf: use /apis/ccompat/v7 of Apicurio")
        length = 1 + self._settings.id_bytes

        def prefix(head: bytes) -> SchemaId | None:
            if head[:1] != b"\0":
                return None
            if len(head) < length:
                raise BadValue(_MISSING)
            return SchemaId(f"{_NAMES[self._settings.use_id]}s/{int.from_bytes(head[1:])}", length)

        headers = [Place(_in_header(name), header=f"apicurio.{column}.{name}") for name in _NAMES.values()]
        encoding = Place(_encoding, header=f"apicurio.{column}.encoding")
        return Framing((encoding, *headers, Place(prefix, length)), _MISSING)

    def stamp(self, key: Key, column: str, *, in_header: bool, message: bytes = b"") -> Stamp:
        """As SchemaRegistry."""
        number = int(str(key).partition("/")[2])
        if in_header:
            return Stamp(header=(f"apicurio.{column}.{_NAMES[self._settings.use_id]}", number.to_bytes(_LONG)))
        if number >> (8 * self._settings.id_bytes - 1):
            raise ConfigError(f"the schema's id {key} needs 'schema.registry.id.bytes'=8")
        return Stamp(b"\0" + number.to_bytes(self._settings.id_bytes))

    def key_of(self, text: str) -> Key:
        """As SchemaRegistry: an id of the kind of `schema.registry.use.id`."""
        return self._key(super().key_of(text))

    def look_up(self, subject: str, schema: Mapping[str, Any]) -> Key | None:
        """As SchemaRegistry."""
        place = {"groupId": self._group, "artifactId": subject, "artifactType": schema.get("schemaType", "AVRO")}
        path = f"/search/versions?{urllib.parse.urlencode({**place, 'canonical': 'true'})}"
        try:
            found = self._send(self._v3(path), _json, str(schema["schema"]), content=_CONTENT)["versions"]
            return self._id_in(found[0]) if found else None
        except UnknownSchema as error:
            if error.status == _NOT_FOUND:
                return None
            raise
        except (KeyError, TypeError, IndexError):
            raise _strange() from None

    def complaints(self, subject: str, schema: Mapping[str, Any]) -> list[str]:
        """As SchemaRegistry: none, because Apicurio applies its rules when it registers."""
        return []

    def register(self, subject: str, schema: Mapping[str, Any]) -> Key:
        """As SchemaRegistry."""
        first = {"content": {"content": schema["schema"], "contentType": _CONTENT}}
        body = {"artifactId": subject, "artifactType": schema.get("schemaType", "AVRO"), "firstVersion": first}
        path = self._v3(f"/groups/{_quoted(self._group)}/artifacts?ifExists=FIND_OR_CREATE_VERSION")
        made = self._send(path, _json, json.dumps(body), content=_CONTENT)
        try:
            return self._id_in(made["version"])
        except (KeyError, TypeError):
            raise _strange() from None

    @property
    def _group(self) -> str:
        return self._settings.group or "default"

    def _answer(self, key: Key, query: str = "") -> Any:
        return self._send(f"/ids/{key}?{_WHOLE}", _schema)

    def _version(self, subject: str, version: str, query: str = "") -> Any:
        place = "branch=latest" if version == "latest" else version
        found = self._get(self._v3(f"/groups/{_quoted(self._group)}/artifacts/{_quoted(subject)}/versions/{place}"))
        return {**self._answer(key := self._id_in(found)), "id": key}

    def _id_in(self, answer: Any) -> Key:
        if isinstance(answer, dict) and isinstance(answer.get("id"), str):
            return str(answer["id"])
        try:
            return self._key(int(answer[_NAMES[self._settings.use_id]]))
        except (KeyError, TypeError, ValueError):
            raise _strange() from None

    def _key(self, number: Key) -> Key:
        return f"{_NAMES[self._settings.use_id]}s/{number}"

    def _v3(self, path: str) -> str:
        if any(url.endswith("/v2") for url in self._settings.urls):
            raise ConfigError("of Apicurio's API version 2 only ids are read: set 'schema.registry.url' to …/v3")
        return path


def _in_header(name: str) -> Callable[[bytes], SchemaId]:
    def parse(head: bytes) -> SchemaId:
        if len(head) != _LONG:
            raise BadValue(f"its header {name} has not {_LONG} bytes but {len(head)}")
        return SchemaId(f"{name}s/{int.from_bytes(head)}")

    return parse


def _encoding(head: bytes) -> None:
    if head != b"BINARY":
        raise BadValue(f"its header says that it is encoded as {head[:20].decode('ascii', 'replace')}; BINARY is read")


def _schema(reply: Reply) -> dict[str, Any]:
    """As Confluent's registry answers. Apicurio tells the type of a version, but not of a content."""
    text = reply.data.decode("utf-8")
    kind = reply.headers.get("X-Registry-ArtifactType")
    if kind is None:
        try:
            parse_avro(AvroSchema(text))
            kind = "AVRO"
        except ConfigError:
            kind = "JSON" if text.lstrip().startswith("{") else "PROTOBUF"
    return {"schema": text, "schemaType": kind}


def _json(reply: Reply) -> Any:
    return json.loads(reply.data)


def _quoted(name: str) -> str:
    return urllib.parse.quote(name, safe="")


def _strange() -> UnknownSchema:
    return UnknownSchema("the registry did not answer as Apicurio's API does, with the ids of a version")

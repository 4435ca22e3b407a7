"""A client of schema registries: the part of Confluent's REST API that reads and writes need.

The driver uses it to find or to register the schema of a column (registered_schema.py), executors to find the schemas
that values were written with. Registries of other kinds (registries.py) do some of it in their own way. Executors send
only GET requests. Redirects are not followed, because they could send the password to another host. `5xx`, `429` and
failed connections are retried at every URL before ConnectorError (condition SCHEMA_REGISTRY_UNAVAILABLE) is raised,
which is not a bad record in any mode.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol

from broker.client.client_settings import ClientSettings
from broker.client.logins import login_of
from broker.errors import ConfigError, PykafkaError
from broker.security.oauthbearer import TokenLogin
from broker.security.token_source import token_source
from spark_connector.errors import ConnectorError
from spark_connector.formats.frames import Framing, Key, Splits, confluents, id_header
from spark_connector.formats.value_format import FRAME, AvroSchema, JsonSchema, ProtobufFiles, RegistrySettings

UNASKED: Final = (
    "; it begins with a zero byte, as what a schema registry's serializer writes: if one did, set the option "
    "'schema.registry.url'"
)
"""For values that are read without a registry and cannot be decoded."""
_ACCEPT: Final = "application/vnd.schemaregistry.v1+json, application/json"
_CONTENT: Final = "application/vnd.schemaregistry.v1+json"
_NOT_FOUND: Final = 404
_TRIES: Final = 3
_BACK_OFF_S: Final = 0.2
_SERIALIZED: Final = "?format=serialized"
"""Asks for a FileDescriptorProto instead of a .proto file, and is no matter to schemas of other kinds."""
_LARGEST: Final = 16 << 20
_MOST_SCHEMAS: Final = 1000
_MOST_REFERENCES: Final = 500
_MOST_LEVELS: Final = 16
_DIGITS: Final = 18
_ASK_AGAIN_S: Final = 30.0
"""How long an unknown id is cached."""


class UnknownSchema(Exception):
    """The registry has no such schema, or it is of another type, or it refuses it. `status`: of HTTP, if it says so."""

    def __init__(self, text: str, status: int | None = None) -> None:
        super().__init__(text)
        self.status = status


class Stamp(NamedTuple):
    """What a value is written with that says of which schema it is: bytes before it, or a header of its record."""

    prefix: bytes = b""
    header: tuple[str, bytes] | None = None


class AvroSchemas(Protocol):
    """Where the schemas are that Avro values were written with."""

    def framing(self, column: str, format: str) -> Splits:
        """Where a value says of which schema it is."""

    def schema(self, key: Key) -> AvroSchema:
        """Raises UnknownSchema, ConnectorError."""


class Reply(NamedTuple):
    """What a registry answers: headers by name in any case, and the body."""

    headers: Any
    data: bytes


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


class SchemaRegistry:
    """One registry. Schemas never change, so they are cached for good; unknown ids for half a minute."""

    _accept = _ACCEPT

    def __init__(self, settings: RegistrySettings, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._schemas: OrderedDict[str, AvroSchema | ProtobufFiles | str | tuple[str, float]] = OrderedDict()
        """By id and query: the schema; the type of one of another kind; or why it is unknown, and until when."""
        self._opener = urllib.request.build_opener(
            _NoRedirect(), urllib.request.HTTPSHandler(context=_tls(settings.ca_location))
        )

    def framing(self, column: str, format: str) -> Framing:
        """Where keys or values (`column`) of a format say which schema they are of. Raises ConfigError."""
        return confluents(column, format)

    def kind(self, key: Key) -> str:
        """The type of the schema of that id: AVRO, PROTOBUF, JSON. Raises UnknownSchema, ConnectorError."""
        return _kind(self._known(key))

    def schema(self, key: Key) -> AvroSchema:
        """The Avro schema of that id. Raises UnknownSchema, ConnectorError."""
        return _of_avro(self._known(key))

    def protobuf(self, key: Key) -> ProtobufFiles:
        """The Protobuf schema of that id. Raises UnknownSchema, ConnectorError."""
        return _of_protobuf(self._known(key, _SERIALIZED))

    def protobuf_version(self, subject: str, version: str = "latest") -> tuple[Key, ProtobufFiles]:
        """(id, Protobuf schema) of a subject's version. Raises UnknownSchema, ConnectorError."""
        answer = self._version(subject, version, _SERIALIZED)
        found = _of_protobuf(self._found(answer))
        return self._id_in(answer), found

    def check_json(self, key: Key) -> None:
        """Raises UnknownSchema if the id is not that of a JSON schema, ConnectorError."""
        if (found := self._known(key)) != "JSON":
            raise _no_json(found)

    def stamp(self, key: Key, column: str, *, in_header: bool, message: bytes = b"") -> Stamp:
        """How keys or values (`column`) say that they are of the schema `key`. `message`: of Protobuf, its place.
        Raises UnknownSchema, ConfigError, ConnectorError."""
        if in_header:
            try:
                guid = uuid.UUID(self._answer(key)["guid"])
            except (KeyError, TypeError, ValueError, AttributeError):
                raise ConfigError(
                    "the schema registry gives no GUIDs, as Confluent Platform 8 and later do: leave out the option "
                    "'schemaIdLocation'"
                ) from None
            return Stamp(header=(id_header(column), b"\1" + guid.bytes + message))
        if not isinstance(key, int) or not 0 <= key < 1 << 31:
            raise ConfigError(f"the schema's id {key} does not fit into Confluent's wire format, which has 4 bytes")
        return Stamp(key.to_bytes(FRAME) + message)

    def key_of(self, text: str) -> Key:
        """The id of a schema as a user writes it. Raises ConfigError."""
        if not text.isascii() or not text.isdecimal() or len(text) > _DIGITS or int(text) < 1:
            raise ConfigError(f"the id of a schema is a positive number, not '{text}'")
        return int(text)

    def topic_subject(self, topic: str, column: str) -> str:
        """The subject of the keys or values of a topic."""
        return f"{topic}-{column}"

    def _known(self, key: Key, query: str = "") -> AvroSchema | ProtobufFiles | str:
        asked = f"{key}{query}"
        known = self._schemas.get(asked)
        if isinstance(known, tuple):
            if known[1] > self._clock():
                raise UnknownSchema(known[0])
        elif known is not None:
            return known
        while len(self._schemas) >= _MOST_SCHEMAS:
            self._schemas.popitem(last=False)
        try:
            found = self._found(self._answer(key, query))
        except UnknownSchema as error:
            self._schemas[asked] = str(error), self._clock() + _ASK_AGAIN_S
            raise
        self._schemas[asked] = found
        return found

    def subject(self, name: str, version: str = "latest") -> AvroSchema:
        """The Avro schema of a subject's version. Raises UnknownSchema, ConnectorError."""
        return _of_avro(self._found(self._version(name, version)))

    def json_version(self, name: str, version: str = "latest") -> tuple[Key, JsonSchema]:
        """(id, JSON Schema) of a subject's version. Raises UnknownSchema, ConnectorError."""
        answer = self._version(name, version)
        found = self._json_schema(answer)
        return self._id_in(answer), found

    def json_schema(self, key: Key) -> JsonSchema:
        """The JSON Schema of that id. Raises UnknownSchema, ConnectorError."""
        return self._json_schema(self._answer(key))

    # ---- what registries of other kinds do in their own way; an answer has schema, schemaType, references, id

    def _answer(self, key: Key, query: str = "") -> Any:
        """The schema of an id or a GUID."""
        return self._get(f"/schemas/{'ids' if isinstance(key, int) else 'guids'}/{key}{query}")

    def _version(self, subject: str, version: str, query: str = "") -> Any:
        return self._get(_version(subject, version) + query)

    def _id_in(self, answer: Any) -> Key:
        return _id_in(answer)

    def _found(self, answer: Any) -> AvroSchema | ProtobufFiles | str:
        """The schema in an answer, or its type if that is another one."""
        kind = _type_in(answer)
        if kind == "PROTOBUF":
            files = {name: one["schema"] for (name, _), one in self._referred(answer, _SERIALIZED).items()}
            return ProtobufFiles((*files.items(), ("", answer["schema"])))
        if kind == "AVRO":
            referred = dict.fromkeys(one["schema"] for one in self._referred(answer).values())
            return AvroSchema(answer["schema"], tuple(referred))
        return kind

    def _json_schema(self, answer: Any) -> JsonSchema:
        if _type_in(answer) != "JSON":
            raise _no_json(self._found(answer))
        referred = self._referred(answer)
        own = {place: referred[place] for place in _references(answer)}  # of two with one name its own counts
        named = {name: one["schema"] for (name, _), one in (*referred.items(), *own.items())}
        return JsonSchema(answer["schema"], tuple(named.items()))

    def _referred(self, answer: Any, query: str = "") -> dict[tuple[str, str], Any]:
        """(name, path) → the answer, of each schema that one refers to, directly or not; each behind those that it
        refers to. Whoever may register schemas decides how many there are: each is asked for once, whatever refers to
        it. Raises UnknownSchema beyond _MOST_REFERENCES, ConnectorError."""
        kind = _type_in(answer)
        answers: dict[str, Any] = {}
        made: dict[tuple[str, str], Any] = {}

        def add(one: Any, depth: int) -> None:
            if depth > _MOST_LEVELS:
                raise UnknownSchema(f"its references are nested deeper than {_MOST_LEVELS} levels, or in a circle")
            for name, path in _references(one):
                if (name, path) in made:
                    continue
                if path not in answers:
                    if len(answers) == _MOST_REFERENCES:
                        raise UnknownSchema(f"it refers to more than {_MOST_REFERENCES} schemas, directly or not")
                    answers[path] = self._get(path + query)
                    if (found := _type_in(answers[path])) != kind:
                        raise UnknownSchema(f"it is of type {kind}, and refers to '{name}' of type {found}")
                    if sum(len(other["schema"]) for other in answers.values()) > _LARGEST:
                        raise UnknownSchema(f"the schemas that it refers to have more than {_LARGEST >> 20} MiB")
                add(answers[path], depth + 1)
                made[name, path] = answers[path]

        add(answer, 0)
        return made

    def avro_version(self, subject: str, version: str = "latest") -> tuple[Key, AvroSchema]:
        """(id, schema) of a subject's version. Raises UnknownSchema, ConnectorError."""
        answer = self._version(subject, version)
        found = _of_avro(self._found(answer))
        return self._id_in(answer), found

    def look_up(self, subject: str, schema: Mapping[str, Any]) -> Key | None:
        """The id of a schema (as requests have it: schema, schemaType, references) under a subject; None if it is not
        registered there. Raises UnknownSchema for what is no schema, ConnectorError."""
        try:
            return _id_in(self._get(_subject(subject), schema))
        except UnknownSchema as error:
            if error.status == _NOT_FOUND:
                return None
            raise

    def version_of(self, subject: str, schema: Mapping[str, Any]) -> int:
        """The version of a subject that is a schema, as `look_up` takes it. Raises UnknownSchema, ConnectorError."""
        answer = self._get(_subject(subject), schema)
        try:
            return int(answer["version"])
        except (KeyError, TypeError, ValueError):
            raise UnknownSchema("the registry did not answer with the version of a schema") from None

    def complaints(self, subject: str, schema: Mapping[str, Any]) -> list[str]:
        """Why the registry finds a schema incompatible with the latest one of a subject; empty if it does not.
        Raises UnknownSchema, ConnectorError."""
        path = f"/compatibility{_version(subject, 'latest')}?verbose=true"
        try:
            answer = self._get(path, schema)
        except UnknownSchema as error:
            if error.status == _NOT_FOUND:  # the first one of the subject
                return []
            raise
        if isinstance(answer, dict) and answer.get("is_compatible") is True:
            return []
        said = answer.get("messages") if isinstance(answer, dict) else None
        return [str(one) for one in said or ("it is incompatible with an earlier schema",)]

    def register(self, subject: str, schema: Mapping[str, Any]) -> Key:
        """The id of a schema, which is registered unless it was. Raises UnknownSchema if the registry refuses,
        ConnectorError."""
        return _id_in(self._get(f"{_subject(subject)}/versions", schema))

    def _get(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The JSON at `path`, or the answer to a POST of `body`. Raises as `_send`."""
        return self._send(path, lambda reply: json.loads(reply.data), None if body is None else json.dumps(body))

    def _send(
        self,
        path: str,
        read: Callable[[Reply], Any],
        body: str | None = None,
        *,
        method: str | None = None,
        content: str = _CONTENT,
    ) -> Any:
        """What `read` makes of the answer: at a ValueError it is asked for again. Raises UnknownSchema for 404, 409 and
        422, ConnectorError."""
        failure = ""
        for attempt in range(_TRIES):
            if attempt:
                time.sleep(_BACK_OFF_S * 2**attempt)
            for url in self._settings.urls:
                data = None if body is None else body.encode()
                request = urllib.request.Request(url + path, data, {"Accept": self._accept}, method=method)
                if data is not None:
                    request.add_header("Content-Type", content)
                try:
                    for name, value in self._login(url).items():
                        request.add_unredirected_header(name, value)
                    with self._opener.open(request, timeout=self._settings.timeout_ms / 1000) as response:
                        return read(Reply(response.headers, response.read(_LARGEST)))
                except urllib.error.HTTPError as error:
                    failure = _complaint(error)
                    if error.code in {_NOT_FOUND, 409, 422}:
                        raise UnknownSchema(failure, error.code) from None
                    if error.code != 429 and error.code < 500:
                        raise unavailable(url, path, failure) from None
                except (OSError, ValueError, http.client.HTTPException) as error:  # refused, timed out, no TLS, no JSON
                    failure = f"{type(error).__name__} {error}"
        raise unavailable(", ".join(self._settings.urls), path, failure)

    def _login(self, url: str) -> dict[str, str]:
        """The headers of a request that say who asks. Raises ConnectorError where there is no token."""
        headers, token = dict(self._settings.headers), self._settings.bearer_token
        if (login := self._settings.login(url)) is not None:
            return {**headers, "Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"}
        host = urllib.parse.urlsplit(url).hostname or ""
        try:
            if self._settings.tokens is not None:
                provider, options = self._settings.tokens
                token = token_source(provider, dict(options), host).token()
            elif self._settings.inherited is not None:
                token = _token_of(self._settings.inherited, host)
        except PykafkaError as error:
            raise unavailable(url, "without a token", str(error)) from None
        return headers if token is None else {**headers, "Authorization": f"Bearer {token}"}


def _token_of(settings: ClientSettings, host: str) -> str:
    """The token with which a client of these settings logs in to brokers."""
    login = login_of(settings, host)
    assert isinstance(login, TokenLogin)  # registry_options.py has seen to it
    return login.tokens.token()


def _id_in(answer: Any) -> int:
    try:
        return int(answer["id"])
    except (KeyError, TypeError, ValueError):
        raise UnknownSchema("the registry did not answer with the id of a schema") from None


def _subject(name: str) -> str:
    return f"/subjects/{urllib.parse.quote(name, safe='')}"


def _version(subject: str, version: str) -> str:
    return f"{_subject(subject)}/versions/{urllib.parse.quote(version, safe='')}"


def _kind(found: AvroSchema | ProtobufFiles | str) -> str:
    return "AVRO" if isinstance(found, AvroSchema) else "PROTOBUF" if isinstance(found, ProtobufFiles) else found


_HINTS: Final = {
    "JSON": ": the format json reads it",
    "PROTOBUF": ": the format protobuf reads it",
    "AVRO": ": the format avro reads it",
}


def _of_avro(found: AvroSchema | ProtobufFiles | str) -> AvroSchema:
    if isinstance(found, AvroSchema):
        return found
    raise UnknownSchema(f"it is of type {_kind(found)}, not AVRO{_HINTS.get(_kind(found), '')}")


def _of_protobuf(found: AvroSchema | ProtobufFiles | str) -> ProtobufFiles:
    if isinstance(found, ProtobufFiles):
        return found
    raise UnknownSchema(f"it is of type {_kind(found)}, not PROTOBUF{_HINTS.get(_kind(found), '')}")


def _no_json(found: AvroSchema | ProtobufFiles | str) -> UnknownSchema:
    hint = ": the format avro reads it" if isinstance(found, AvroSchema) else ""
    return UnknownSchema(f"it is of type {_kind(found)}, not JSON{hint}")


def _type_in(answer: Any) -> str:
    """Raises UnknownSchema unless it has a schema."""
    if not isinstance(answer, dict) or not isinstance(answer.get("schema"), str):
        raise UnknownSchema("the registry did not answer with a schema")
    return str(answer.get("schemaType", "AVRO"))


def _references(answer: Any) -> list[tuple[str, str]]:
    """What an answer refers to: (name, path)."""
    try:
        return [
            (str(one.get("name")), _version(str(one["subject"]), str(int(one["version"]))))
            for one in answer.get("references") or ()
        ]
    except (AttributeError, KeyError, TypeError, ValueError):
        raise UnknownSchema("the registry answered with references without subject and version") from None


def _tls(ca_location: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_location)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"Option 'schema.registry.ssl.ca.location': cannot read '{ca_location}': {error}") from None


def _complaint(error: urllib.error.HTTPError) -> str:
    """The status and the registry's message, without credentials."""
    try:
        with error:
            said = json.loads(error.read(2000))["message"]
    except (OSError, ValueError, KeyError, TypeError, http.client.HTTPException):
        said = error.reason
    return f"HTTP {error.code} {said}"


def unavailable(url: str, path: str, why: str) -> ConnectorError:
    return ConnectorError("SCHEMA_REGISTRY_UNAVAILABLE", f"Schema registry {url} does not answer {path}: {why}")

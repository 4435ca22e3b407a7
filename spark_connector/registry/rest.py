"""The part of Confluent's REST API that clients, serializers and `format("pykafka")` use, and its server.

`Api.answer` is the API without HTTP. `serving` serves it on a loopback port, one thread a request. It has no login, so
it takes no request of a page of another site (broker/security/http_access.py).
"""

from __future__ import annotations

import json
import re
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from broker.errors import ConfigError, PykafkaError
from broker.security.http_access import HttpRequest, refused
from spark_connector.registry.subjects import KINDS, Check, Entry, Record, Refusal, Schema, Subjects

_ROUTES: Final = tuple(
    (method, re.compile(path.replace("{s}", "(?P<subject>[^/]+)").replace("{v}", r"(?P<version>-?\w+)")), name)
    for method, path, name in (
        ("GET", r"/subjects", "names"),
        ("GET", r"/subjects/{s}/versions", "versions"),
        ("POST", r"/subjects/{s}/versions", "register"),
        ("POST", r"/subjects/{s}", "look_up"),
        ("GET", r"/subjects/{s}/versions/{v}", "version"),
        ("GET", r"/subjects/{s}/versions/{v}/schema", "version_text"),
        ("GET", r"/schemas/ids/(?P<id>\d{1,10})", "schema"),
        ("GET", r"/schemas/guids/(?P<guid>[0-9a-fA-F-]{36})", "schema_of_guid"),
        ("GET", r"/schemas/ids/(?P<id>\d{1,10})/schema", "text"),
        ("GET", r"/schemas/ids/(?P<id>\d{1,10})/versions", "uses"),
        ("GET", r"/schemas/types", "types"),
        ("GET", r"/config(?:/{s})?", "level"),
        ("PUT", r"/config(?:/{s})?", "set_level"),
        ("POST", r"/compatibility/subjects/{s}/versions(?:/{v})?", "is_compatible"),
    )
)
_LARGEST: Final = 16 << 20
"""Bytes of a request."""
_DIGITS: Final = 20
_PATIENCE_S: Final = 60.0
"""For a request to come."""
_BY_THEMSELVES: Final = ("register", "is_compatible")
"""What takes the lock itself, because it looks at schemas for long."""


class Api:
    """The API over `subjects`. `write` keeps a record, and has applied it when it returns; `read` applies what others
    have written, before each answer; `turn` runs a change while nobody else writes. Thread-safe: schemas are parsed and
    compared without the lock, so one that takes long keeps nobody waiting."""

    def __init__(
        self,
        subjects: Subjects,
        write: Callable[[Record], None],
        read: Callable[[], None] = lambda: None,
        turn: Callable[[Callable[[], int]], int] = lambda change: change(),
    ) -> None:
        self._subjects = subjects
        self._write = write
        self._read = read
        self._turn = turn
        self._lock = threading.RLock()

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        """The status and the document of a request."""
        place = path.partition("?")[0]
        for wanted, route, name in _ROUTES:
            match = route.fullmatch(place)
            if match is not None and wanted == method:
                named = {key: urllib.parse.unquote(value) for key, value in match.groupdict().items() if value}
                return self._asked(name, named, body)
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}

    def register(self, subject: str, schema: Schema) -> int:
        """The id. Raises Refusal, PykafkaError."""
        with self._lock:
            self._read()
            known = self._subjects.id_under(subject, schema)
            if known is not None:
                return known
            check = self._subjects.check_of(subject, schema)
        check.refuse_incompatible()
        with self._lock:
            return self._turn(lambda: self._registered(subject, schema, check))

    def _registered(self, subject: str, schema: Schema, check: Check) -> int:
        schema_id, record = self._subjects.register(subject, schema, check)
        if record is not None:
            self._write(record)
        return schema_id

    def _asked(self, name: str, named: dict[str, str], body: bytes) -> tuple[int, Any]:
        try:
            given = json.loads(body) if body else {}
            if not isinstance(given, dict):
                raise Refusal(422, "The body of the request is no JSON object")
            handler = getattr(self, f"_{name}")
            if name in _BY_THEMSELVES:
                return 200, handler(named, given)
            with self._lock:
                self._read()
                return 200, handler(named, given)
        except Refusal as refusal:
            return refusal.status, {"error_code": refusal.code, "message": refusal.message}
        except PykafkaError as error:
            return 500, {"error_code": 50001, "message": f"Error in the backend data store: {error}"}
        except (ValueError, RecursionError):
            return 400, {"error_code": 400, "message": "The body of the request is not JSON"}

    def _names(self, _: dict[str, str], __: Any) -> Any:
        return self._subjects.names()

    def _versions(self, named: dict[str, str], _: Any) -> Any:
        return [entry.version for entry in self._subjects.versions(named["subject"])]

    def _version(self, named: dict[str, str], _: Any) -> Any:
        return self._shown(self._subjects.version(named["subject"], named["version"]))

    def _version_text(self, named: dict[str, str], _: Any) -> Any:
        return self._subjects.version(named["subject"], named["version"]).schema.text

    def _schema(self, named: dict[str, str], _: Any) -> Any:
        schema_id = int(named["id"])
        return {**self._subjects.schema(schema_id).fields, "guid": self._subjects.guid(schema_id)}

    def _schema_of_guid(self, named: dict[str, str], _: Any) -> Any:
        _, schema = self._subjects.by_guid(named["guid"])
        return {**schema.fields, "guid": named["guid"].lower()}

    def _shown(self, entry: Entry) -> Any:
        return {**entry.fields, "guid": self._subjects.guid(entry.id)}

    def _text(self, named: dict[str, str], _: Any) -> Any:
        return self._subjects.schema(int(named["id"])).text

    def _uses(self, named: dict[str, str], _: Any) -> Any:
        return [{"subject": one.subject, "version": one.version} for one in self._subjects.uses(int(named["id"]))]

    def _types(self, _: dict[str, str], __: Any) -> Any:
        return KINDS

    def _register(self, named: dict[str, str], given: Any) -> Any:
        schema_id = self.register(named["subject"], Schema.of(given))
        with self._lock:
            return {"id": schema_id, "guid": self._subjects.guid(schema_id)}

    def _look_up(self, named: dict[str, str], given: Any) -> Any:
        return self._shown(self._subjects.look_up(named["subject"], Schema.of(given)))

    def _level(self, named: dict[str, str], _: Any) -> Any:
        return {"compatibilityLevel": self._subjects.level(named.get("subject"))}

    def _set_level(self, named: dict[str, str], given: Any) -> Any:
        record = self._subjects.set_level(named.get("subject"), given.get("compatibility"))

        def change() -> int:
            self._write(record)
            return 0

        self._turn(change)
        return {"compatibility": given["compatibility"]}

    def _is_compatible(self, named: dict[str, str], given: Any) -> Any:
        subject, version, schema = named["subject"], named.get("version"), Schema.of(given)
        with self._lock:
            self._read()
            entries = self._subjects.versions(subject)
            others = entries if version is None else [self._subjects.version(subject, version)]
            check = self._subjects.check_of(subject, schema, others)
        found = check.complaints()
        return {"is_compatible": not found, **({"messages": found} if found else {})}


class Handler(BaseHTTPRequestHandler):
    """A connection to a server of `serving`."""

    timeout = _PATIENCE_S
    api: Api

    def do_GET(self) -> None:
        status, document = self._refused_or_answered()
        reply = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    do_POST = do_PUT = do_GET  # noqa: N815

    def _refused_or_answered(self) -> tuple[int, Any]:
        headers = {name.lower(): value for name, value in self.headers.items()}
        found = refused(HttpRequest(self.command, self.path.partition("?")[2], headers), loopback_only=True)
        if found is not None:
            return found.status, {"error_code": found.status, "message": found.why}
        length = headers.get("content-length") or "0"
        if not (length.isascii() and length.isdecimal()) or len(length) > _DIGITS or int(length) > _LARGEST:
            return 413, {"error_code": 413, "message": f"at most {_LARGEST} bytes at once"}
        return self.answered(self.rfile.read(int(length)))

    def answered(self, body: bytes) -> tuple[int, Any]:
        """The status and the document for a request that may be answered."""
        return self.api.answer(self.command, self.path, body)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serving(api: Api, port: int = 0, handler: type[Handler] = Handler) -> Iterator[str]:
    """Serve `api` on a loopback port until the block ends; the value is its address. Raises ConfigError."""
    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), type("Handler", (handler,), {"api": api}))
    except OSError as error:
        raise ConfigError(f"the registry cannot listen on port {port}: {error.strerror}") from None
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.01}, name="pykafka-registry", daemon=True
    )
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

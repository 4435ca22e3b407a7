"""A schema registry for tests: Confluent's REST API, as far as its own client asks, in memory.

Karapace, which would keep its schemas in our broker, is not on PyPI. Confluent's client registers and serializes
against this one in the tests, so it speaks what that speaks.
"""

from __future__ import annotations

import base64
import json
import re
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ROUTE = re.compile(
    r"(?P<compatibility>/compatibility)?/subjects/(?P<subject>[^/]+)(?P<versions>/versions(?:/(?P<version>\w+))?)?"
    r"|/schemas/ids/(?P<id>\d+)"
)


class Registry:
    """What it holds, and how it is to behave."""

    def __init__(self) -> None:
        self.schemas: list[dict[str, Any]] = []
        """By id - 1, as registered."""
        self.subjects: dict[str, list[int]] = {}
        self.complaints: dict[str, list[str]] = {}
        """What it says of new schemas of a subject that has some."""
        self.asked: list[str] = []
        """Paths, in order."""
        self.user_info: str | None = None
        self.token: str | None = None
        self.failures: list[int] = []
        """Statuses to answer the next requests with."""
        self.url = ""

    def register(self, subject: str, schema: str, **more: Any) -> int:
        """The id, the same for the same schema."""
        entry = {"schema": schema, **more}
        if entry not in self.schemas:
            self.schemas.append(entry)
        number = self.schemas.index(entry) + 1
        versions = self.subjects.setdefault(subject, [])
        if number not in versions:
            versions.append(number)
        return number

    def answer(self, method: str, path: str, authorization: str, body: bytes) -> tuple[int, Any]:
        """(status, JSON)."""
        path = path.partition("?")[0]
        self.asked.append(path)
        if self.failures:
            return self.failures.pop(0), {"error_code": 50001, "message": "Error in the backend data store"}
        if not self._may(authorization):
            return 401, {"error_code": 40101, "message": "Unauthorized"}
        match = ROUTE.fullmatch(path)
        if match is None:
            return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}
        if method == "POST":
            given = json.loads(body)
            known = {key: given[key] for key in ("references", "schemaType") if given.get(key)}
            if known.get("schemaType") == "AVRO":
                del known["schemaType"]
            return self._posted(match, {"schema": given["schema"], **known})
        if match["id"]:
            number = int(match["id"])
            if not 0 < number <= len(self.schemas):
                return 404, {"error_code": 40403, "message": f"Schema {number} not found"}
            return 200, self.schemas[number - 1]
        return self._version(urllib.parse.unquote(match["subject"]), match["version"])

    def _posted(self, match: re.Match[str], entry: dict[str, Any]) -> tuple[int, Any]:
        """A schema to look up, to compare or to register."""
        subject = urllib.parse.unquote(match["subject"])
        versions = self.subjects.get(subject, [])
        number = self.schemas.index(entry) + 1 if entry in self.schemas else 0
        complaints = self.complaints.get(subject, []) if number not in versions else []
        if match["compatibility"]:
            if not versions:
                return 404, {"error_code": 40401, "message": f"Subject '{subject}' not found."}
            return 200, {"is_compatible": not complaints, "messages": complaints}
        if match["versions"]:
            if complaints:
                return 409, {"error_code": 409, "message": f"Schema being registered is incompatible: {complaints}"}
            return 200, {"id": self.register(subject, **entry)}
        if number not in versions:
            return 404, {"error_code": 40403, "message": "Schema not found"}
        return 200, {"subject": subject, "version": versions.index(number) + 1, "id": number, **entry}

    def _version(self, subject: str, version: str) -> tuple[int, Any]:
        versions = self.subjects.get(subject)
        if versions is None:
            return 404, {"error_code": 40401, "message": f"Subject '{subject}' not found."}
        place = len(versions) if version == "latest" else int(version)
        if not 0 < place <= len(versions):
            return 404, {"error_code": 40402, "message": f"Version {version} not found."}
        number = versions[place - 1]
        return 200, {"subject": subject, "version": place, "id": number, **self.schemas[number - 1]}

    def _may(self, authorization: str) -> bool:
        if self.user_info is not None:
            return authorization == "Basic " + base64.b64encode(self.user_info.encode()).decode()
        return self.token is None or authorization == f"Bearer {self.token}"


@contextmanager
def schema_registry() -> Iterator[Registry]:
    """One that listens; it ends with the block."""
    registry = Registry()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(registry.answer))
    registry.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _handler(answer: Callable[[str, str, str, bytes], tuple[int, Any]]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, document = answer(self.command, self.path, self.headers.get("Authorization") or "", body)
            reply = json.dumps(document).encode()
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("Location", "/elsewhere")
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        do_POST = do_GET  # noqa: N815

        def log_message(self, *_: Any) -> None:
            pass

    return Handler

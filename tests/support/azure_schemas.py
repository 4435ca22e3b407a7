"""An Azure Schema Registry for tests: a real HTTP server with the operations of its REST API.

Azure's own client works with it, as a test shows: register, get-id, and schemas by id and by version.
"""

from __future__ import annotations

import json
import re
import threading
import urllib.parse
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, str, dict[str, str]]
"""Status, body, headers."""


@dataclass
class AzureSchemas:
    url: str = ""
    versions: dict[tuple[str, str], list[tuple[str, str]]] = field(default_factory=dict)
    """(group, name) → (id, schema)"""
    is_paged: bool = False
    """Whether its list of versions goes on elsewhere."""
    tokens: list[str | None] = field(default_factory=list)
    """The header Authorization of each request."""

    def add(self, name: str, text: str, group: str = "shop") -> str:
        """The id."""
        key = uuid.uuid4().hex
        self.versions.setdefault((group, name), []).append((key, text))
        return key

    def answer(self, method: str, path: str, body: str) -> Answer:
        if match := re.fullmatch(r"/\$schemaGroups/\$schemas/(\w+)", path):
            found = [one for versions in self.versions.values() for one in versions if one[0] == match[1]]
            return self._shown(found[0]) if found else _missing(path)
        match = re.fullmatch(r"/\$schemaGroups/([^/]+)/schemas/([^/:]+)(:get-id|/versions|/versions/\d+)?", path)
        if match is None:
            return _missing(path)
        group, name, rest = match[1], urllib.parse.unquote(match[2]), match[3]
        versions = self.versions.get((group, name), [])
        if method == "PUT":
            same = [key for key, text in versions if text == body]
            return 204, "", self._named(same[0] if same else self.add(name, body, group))
        if rest == ":get-id":
            same = [key for key, text in versions if text == body]
            return (204, "", self._named(same[0])) if same else _missing(path)
        if rest == "/versions" and versions:
            more = {"NextLink": "/another"} if self.is_paged else {}
            return 200, json.dumps({"Value": list(range(1, len(versions) + 1)), **more}), {}
        number = int(rest.rpartition("/")[2]) if rest and rest[-1].isdigit() else 0
        return self._shown(versions[number - 1]) if 0 < number <= len(versions) else _missing(path)

    def _shown(self, one: tuple[str, str]) -> Answer:
        return 200, one[1], {**self._named(one[0]), "Content-Type": "application/json; serialization=Avro"}

    def _named(self, key: str) -> dict[str, str]:
        """What the headers tell of the schema with this id."""
        (group, name), number = next(
            (place, number)
            for place, versions in self.versions.items()
            for number, one in enumerate(versions, 1)
            if one[0] == key
        )
        return {
            "Schema-Id": key,
            "Schema-Group-Name": group,
            "Schema-Name": name,
            "Schema-Version": str(number),
        }


def _missing(path: str) -> Answer:
    return 404, json.dumps({"error": {"code": "ItemNotFound", "message": f"{path} does not exist"}}), {}


@contextmanager
def azure_schemas() -> Iterator[AzureSchemas]:
    """One that listens; it ends with the block."""
    state = AzureSchemas()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.tokens.append(self.headers.get("Authorization"))
            path, _, query = self.path.partition("?")
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            found = state.answer(self.command, path, body) if query == "api-version=2022-10" else (400, "", {})
            status, text, headers = found
            data = text.encode()
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_POST = do_PUT = do_GET  # noqa: N815

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield state
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

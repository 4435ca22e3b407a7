"""An Apicurio Registry for tests: a real HTTP server with the paths of its API that clients of schemas use.

Compared with the OpenAPI document of Apicurio Registry 3.3 (common/src/main/resources/META-INF/openapi.json, August
2026): ids, versions, searches by content, and artifacts. A version has another global id than its content.
"""

from __future__ import annotations

import json
import re
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Apicurio:
    url: str = ""
    contents: list[str] = field(default_factory=list)
    """The content id is the place in it, and 1."""
    versions: list[tuple[str, str, int, str]] = field(default_factory=list)
    """(group, artifact, content id, type); the global id is the place in it, and 101."""
    asked: list[str] = field(default_factory=list)

    def add(self, artifact: str, text: str, kind: str = "AVRO", group: str = "default") -> int:
        """The global id."""
        if text not in self.contents:
            self.contents.append(text)
        self.versions.append((group, artifact, self.contents.index(text) + 1, kind))
        return len(self.versions) + 100

    def _shown(self, place: int) -> dict[str, Any]:
        group, artifact, content, kind = self.versions[place]
        ids = {"groupId": group, "artifactId": artifact, "globalId": place + 101, "contentId": content}
        return {**ids, "artifactType": kind, "version": "1"}

    def _places(self, group: str, artifact: str) -> list[int]:
        return [place for place, one in enumerate(self.versions) if one[:2] == (group, artifact)]

    def answer(self, method: str, path: str, query: dict[str, str], body: str) -> tuple[int, Any, str | None]:
        """(status, document or text, artifact type)."""
        self.asked.append(path)
        if match := re.fullmatch(r"/ids/(globalId|contentId)s/(\d+)", path):
            number = int(match[2])
            if match[1] == "contentId" and 0 < number <= len(self.contents):
                return 200, self.contents[number - 1], None
            if match[1] == "globalId" and 100 < number <= 100 + len(self.versions):
                *_, content, kind = self.versions[number - 101]
                return 200, self.contents[content - 1], kind
        elif match := re.fullmatch(r"/groups/([^/]+)/artifacts/([^/]+)/versions/(branch=latest|\d+)", path):
            places = self._places(*map(urllib.parse.unquote, match.groups()[:2]))
            number = len(places) if match[3] == "branch=latest" else int(match[3])
            if 0 < number <= len(places):
                return 200, self._shown(places[number - 1]), None
        elif method == "POST" and path == "/search/versions":
            places = self._places(query["groupId"], query["artifactId"])
            found = [self._shown(place) for place in places if self.contents[self.versions[place][2] - 1] == body]
            return 200, {"count": len(found), "versions": found}, None
        elif method == "POST" and (match := re.fullmatch(r"/groups/([^/]+)/artifacts", path)):
            given = json.loads(body)
            text = given["firstVersion"]["content"]["content"]
            self.add(given["artifactId"], text, given["artifactType"], urllib.parse.unquote(match[1]))
            return 200, {"artifact": {}, "version": self._shown(len(self.versions) - 1)}, None
        return 404, {"status": 404, "title": f"No content for {path}", "name": "NotFound"}, None


@contextmanager
def apicurio() -> Iterator[Apicurio]:
    """One that listens; it ends with the block."""
    state = Apicurio()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            place = path.removeprefix("/apis/registry/v3").removeprefix("/apis/registry/v2")
            status, found, kind = state.answer(self.command, place, dict(urllib.parse.parse_qsl(query)), body)
            data = (found if isinstance(found, str) else json.dumps(found)).encode()
            self.send_response(status)
            if kind is not None:
                self.send_header("X-Registry-ArtifactType", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_POST = do_GET  # noqa: N815

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_port}/apis/registry/v3"
    try:
        yield state
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

"""What the machines of two clouds answer to a process that asks who it is: Google's metadata server, and Azure's
endpoint of managed identities. One small HTTP server on this machine."""

from __future__ import annotations

import json
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

ACCOUNT = "loader@project.iam.gserviceaccount.com"


class IdentityEndpoints:
    """`with IdentityEndpoints() as endpoints:`."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str]]] = []
        """Paths and queries of the requests for tokens."""
        self.access_token = "a-token-s3cret"
        self.lifetime_s = 3600
        self.status = 200

    def __enter__(self) -> Self:
        endpoints = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                found = json.dumps(endpoints._answer(self.path)).encode()
                self.send_response(endpoints.status)
                for name, value in (("Metadata-Flavor", "Google"), ("Content-Type", "application/json")):
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(found)))
                self.end_headers()
                self.wfile.write(found)

            def log_message(self, *args: Any) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, target: str) -> dict[str, Any]:
        path, _, query = target.partition("?")
        asked = dict(urllib.parse.parse_qsl(query))
        if path.endswith("/token"):
            self.requests.append((path, asked))
        if self.status != 200:
            return {"error": "invalid_scope", "error_description": "no identity here"}
        answer = {"access_token": self.access_token, "token_type": "Bearer"}
        if "resource" in asked:
            return {**answer, "expires_on": str(int(time.time()) + self.lifetime_s), "resource": asked["resource"]}
        if path.endswith("/token"):
            return {**answer, "expires_in": self.lifetime_s}
        return {"email": ACCOUNT, "scopes": ["https://www.googleapis.com/auth/cloud-platform"], "aliases": ["default"]}

"""An identity provider for tests: a real HTTP server on this machine with a token endpoint and a key set (JWKS).

Its keys can be rotated, and it can refuse, fail or fall silent. Tokens are signed by PyJWT; hostile ones are put
together by hand.
"""

from __future__ import annotations

import base64
import functools
import json
import ssl
import threading
import time
import urllib.parse
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

CLIENT_ID, CLIENT_SECRET = "loader", "loader-s3cret"
ISSUER, AUDIENCE = "https://issuer.example", "kafka"


@functools.cache
def private_key(kind: str, number: int) -> Any:
    """One of a few keys, which are slow to make: `RSA`, `RSA-1024`, `P-256`, `P-384` or `Ed25519`."""
    if kind.startswith("RSA"):
        return rsa.generate_private_key(65537, int(kind.partition("-")[2] or 2048))
    if kind == "Ed25519":
        return ed25519.Ed25519PrivateKey.generate()
    return ec.generate_private_key({"P-256": ec.SECP256R1(), "P-384": ec.SECP384R1()}[kind])


def public_jwk(kind: str, number: int = 0, **more: Any) -> dict[str, Any]:
    algorithm = {"RSA": "RS256", "P-256": "ES256", "P-384": "ES384", "Ed25519": "EdDSA"}[kind.partition("-1024")[0]]
    made = jwt.get_algorithm_by_name(algorithm).to_jwk(private_key(kind, number).public_key(), as_dict=True)
    made.pop("key_ops", None)
    return {**made, "kid": f"{kind}/{number}", "use": "sig", **more}


def claims(subject: str = "ann", lifetime_s: float = 3600, now_s: float | None = None, **more: Any) -> dict[str, Any]:
    """Those of a token that is in order; None removes one."""
    now_s = time.time() if now_s is None else now_s
    found = {"sub": subject, "iss": ISSUER, "aud": AUDIENCE, "iat": now_s, "exp": now_s + lifetime_s, **more}
    return {name: value for name, value in found.items() if value is not None}


def signed(
    payload: Mapping[str, Any], kind: str = "RSA", number: int = 0, algorithm: str = "RS256", **header: Any
) -> str:
    headers = {name: value for name, value in {"kid": f"{kind}/{number}", **header}.items() if value is not None}
    return jwt.encode(dict(payload), private_key(kind, number), algorithm, headers=headers)


def by_hand(header: Any, payload: Any, signature: bytes = b"") -> str:
    """A token with any header, payload and signature; bytes are taken as they are."""
    parts = [part if isinstance(part, bytes) else json.dumps(part).encode() for part in (header, payload)]
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in (*parts, signature))


class IdentityProvider:
    """`with IdentityProvider() as provider:`; a closed one can be opened again on the same port."""

    def __init__(self, certificate: Path | None = None) -> None:
        """`certificate`: PEM of a key and its certificate, for https."""
        self._certificate = certificate
        self.keys: list[dict[str, Any]] = [public_jwk("RSA")]
        self.number = 0
        """Of the key that signs."""
        self.lifetime_s = 3600.0
        self.key_requests = 0
        self.token_requests: list[dict[str, str]] = []
        self.status = 200
        """Of every answer."""
        self.document: bytes | None = None
        """Instead of the keys."""
        self._port = 0
        self._server: ThreadingHTTPServer

    def __enter__(self) -> Self:
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider._answer(self, "GET")

            def do_POST(self) -> None:
                provider._answer(self, "POST")

            def log_message(self, *args: Any) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        self._port = self._server.server_address[1]
        if self._certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self._certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
            self._server.handle_error = lambda *_: None  # type: ignore[method-assign]  # a client that does not trust it
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http{'s' if self._certificate else ''}://127.0.0.1:{self._port}"

    @property
    def keys_url(self) -> str:
        return f"{self.url}/keys"

    @property
    def token_url(self) -> str:
        return f"{self.url}/token"

    def token(self, subject: str = CLIENT_ID, **more: Any) -> str:
        payload = claims(subject, **{"lifetime_s": self.lifetime_s, **more})
        return signed(payload, number=self.number)

    def listener_settings(self) -> dict[str, str]:
        """Of a broker that takes this provider's tokens."""
        return {
            "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
            "listener.name.sasl_plaintext.sasl.enabled.mechanisms": "OAUTHBEARER,PLAIN",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": "a.PlainLoginModule required user_ann=plain-s3cret;",
            "sasl.oauthbearer.jwks.endpoint.url": self.keys_url,
            "sasl.oauthbearer.expected.audience": AUDIENCE,
            "sasl.oauthbearer.expected.issuer": ISSUER,
            "super.users": f"User:{CLIENT_ID}",
        }

    def rotate(self) -> None:
        """Sign with a new key, and list no other."""
        self.number += 1
        self.keys = [public_jwk("RSA", self.number)]

    def _answer(self, request: BaseHTTPRequestHandler, method: str) -> None:
        status, found = self.status, b""
        if request.path == "/keys":
            self.key_requests += 1
            found = self.document or json.dumps({"keys": self.keys}).encode()
        elif request.path.startswith("/moved"):
            status = 302
        elif request.path == "/token" and method == "POST":
            status, found = self._token_answer(request)
        else:
            status = 404
        request.send_response(status)
        if status == 302:
            request.send_header("Location", self.keys_url)
        request.send_header("Content-Type", "application/json")
        request.send_header("Content-Length", str(len(found)))
        request.end_headers()
        request.wfile.write(found)

    def _token_answer(self, request: BaseHTTPRequestHandler) -> tuple[int, bytes]:
        body = request.rfile.read(int(request.headers.get("Content-Length", "0"))).decode()
        self.token_requests.append(dict(urllib.parse.parse_qsl(body)))
        expected = "Basic " + base64.b64encode(f"{CLIENT_ID}:{CLIENT_SECRET}".encode()).decode()
        if request.headers.get("Authorization") != expected:
            return 401, b'{"error": "invalid_client", "error_description": "s3cret"}'
        answer = {"access_token": self.token(), "token_type": "Bearer", "expires_in": int(self.lifetime_s)}
        return self.status, json.dumps(answer).encode()

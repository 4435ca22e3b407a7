"""A schema registry for tests: the embedded one in memory, without compatibility, and with failures on demand.

Confluent's client registers and serializes against it in the tests, so it speaks what that speaks.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from spark_connector.registry import rest
from spark_connector.registry.subjects import Schema, Subjects

Answer = Callable[[str, str, str, bytes], tuple[int, Any]]
"""(method, path, value of Authorization, body) → (status, document)."""


class Registry:
    """How it is to behave, and what it was asked."""

    def __init__(self) -> None:
        self._state = Subjects()
        self._api = rest.Api(self._state, lambda record: self._state.apply(*record))
        self.set_level("NONE")
        self.asked: list[str] = []
        """Paths, in order."""
        self.user_info: str | None = None
        self.token: str | None = None
        self.failures: list[int] = []
        """Statuses to answer the next requests with."""
        self.url = ""

    def set_level(self, level: str) -> None:
        """Of the compatibility that it asks for."""
        assert self._api.answer("PUT", "/config", b'{"compatibility":"%s"}' % level.encode())[0] == 200

    @property
    def subjects(self) -> dict[str, list[int]]:
        """The ids of the versions of each."""
        return {name: [entry.id for entry in self._state.versions(name)] for name in self._state.names()}

    def text(self, schema_id: int) -> str:
        """The schema of that id."""
        return self._state.schema(schema_id).text

    def register(self, subject: str, schema: str, **more: Any) -> int:
        """The id, the same for the same schema."""
        return self._api.register(subject, Schema.of({"schema": schema, **more}))

    def answer(self, method: str, path: str, authorization: str, body: bytes) -> tuple[int, Any]:
        """(status, JSON)."""
        self.asked.append(path.partition("?")[0])
        if self.failures:
            return self.failures.pop(0), {"error_code": 50001, "message": "Error in the backend data store"}
        if not self._may(authorization):
            return 401, {"error_code": 40101, "message": "Unauthorized"}
        return self._api.answer(method, path, body)

    def _may(self, authorization: str) -> bool:
        if self.user_info is not None:
            return authorization == "Basic " + base64.b64encode(self.user_info.encode()).decode()
        return self.token is None or authorization == f"Bearer {self.token}"


@contextmanager
def serving(answer: Answer) -> Iterator[str]:
    """Its address: the embedded registry's server, with a login and redirects, which that does not have."""

    class Handler(rest.Handler):
        def answered(self, body: bytes) -> tuple[int, Any]:
            return answer(self.command, self.path, self.headers.get("authorization", ""), body)

        def send_response(self, code: int, message: str | None = None) -> None:
            super().send_response(code, message)
            if 300 <= code < 400:
                self.send_header("Location", "/elsewhere")

    subjects = Subjects()
    with rest.serving(rest.Api(subjects, lambda record: subjects.apply(*record)), handler=Handler) as url:
        yield url


@contextmanager
def schema_registry() -> Iterator[Registry]:
    """One that listens; it ends with the block."""
    registry = Registry()
    with serving(registry.answer) as registry.url:
        yield registry

"""Who may make HTTP requests, by the header as an ASGI server gives it."""

from __future__ import annotations

import base64

import pytest

from broker.security.http_credentials import Credentials

BOTH = Credentials("ü", "pä:ss", "tök")


def header(text: str) -> str:
    """As it arrives from a client that sends UTF-8, which curl does."""
    return text.encode().decode("latin-1")


def basic(user_and_password: str) -> str:
    return base64.b64encode(user_and_password.encode()).decode()


@pytest.mark.parametrize(
    "given", ["Bearer tök", "bearer  tök ", f"Basic {basic('ü:pä:ss')}", f"BASIC  {basic('ü:pä:ss')}"]
)
def test_a_token_or_a_password_is_taken(given: str) -> None:
    assert BOTH.allow(header(given))


@pytest.mark.parametrize(
    "given",
    [
        "",
        "Bearer",
        "Bearer tok",
        "Bearer t\u20ack",
        "Basic",
        "Basic \xff",
        "Basic ???",
        f"Basic {basic(':pä:ss')}",
        f"Basic {basic('ü:')}",
        f"Digest {basic('ü:pä:ss')}",
        basic("ü:pä:ss"),
    ],
)
def test_anything_else_is_refused(given: str) -> None:
    assert not BOTH.allow(header(given))
    assert not Credentials().allow(header(given))

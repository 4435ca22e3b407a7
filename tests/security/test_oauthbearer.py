"""OAUTHBEARER's messages (RFC 7628) without sockets: what is taken, what is refused, and hostile bytes."""

from __future__ import annotations

import json
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import ConfigError
from broker.security.access_token import AccessToken, TokenRefused
from broker.security.login import LoginRefused
from broker.security.oauthbearer import ACKNOWLEDGED, ClientFirst, OAuthBearerServer, client_first, error_status

FIRST = b"n,,\x01auth=Bearer t0ken\x01\x01"


async def verify(token: str) -> AccessToken:
    if token != "t0ken":
        raise TokenRefused("the token has expired")
    return AccessToken("ann", 5000)


def run(work: Coroutine[Any, Any, bytes]) -> bytes:
    """The result of a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as end:
        return bytes(end.value)
    raise AssertionError("it waits")


class TestTheClientsMessage:
    @pytest.mark.parametrize(
        ("message", "expected"),
        [
            (FIRST, ClientFirst("t0ken")),
            (b"n,a=ann,\x01auth=bearer  a.b-c_~+/==\x01\x01", ClientFirst("a.b-c_~+/==", "ann")),
            (b"n,a=a=2Cb=3Dc\xc3\xa4,\x01auth=BEARER t\x01\x01", ClientFirst("t", "a,b=cä")),
            (
                b"n,,\x01host=h\x01auth=Bearer t\x01pool=a b\t=\r\n\x01\x01",
                ClientFirst("t", "", {"host": "h", "pool": "a b\t=\r\n"}),
            ),
        ],
    )
    def test_is_read(self, message: bytes, expected: ClientFirst) -> None:
        assert ClientFirst.parse(message) == expected

    @pytest.mark.parametrize(
        "message",
        [
            b"",
            b"\x01",
            b"n,,",
            b"n,,\x01\x01",
            b"n,,\x01auth=Bearer t\x01",
            b"n,,\x01auth=Bearer t\x01\x01\x01",
            b"n,,\x01auth=Bearer t\x01\x01x",
            b"y,,\x01auth=Bearer t\x01\x01",
            b"p=tls-unique,,\x01auth=Bearer t\x01\x01",
            b"n,ann,\x01auth=Bearer t\x01\x01",
            b"n,a=,\x01auth=Bearer t\x01\x01",
            b"n,a=a=b,\x01auth=Bearer t\x01\x01",
            b"n,a=a,b,\x01auth=Bearer t\x01\x01",
            b"n,a=\0,\x01auth=Bearer t\x01\x01",
            b"n,,\x01auth=Basic t\x01\x01",
            b"n,,\x01auth=Bearer\x01\x01",
            b"n,,\x01auth=Bearer \x01\x01",
            b"n,,\x01auth=Bearer t u\x01\x01",
            b"n,,\x01auth=Bearer =t\x01\x01",
            b"n,,\x01auth=Bearert\x01\x01",
            b"n,,\x01AUTH=Bearer t\x01\x01",
            b"n,,\x01auth=Bearer t\x01auth=Bearer u\x01\x01",
            b"n,,\x01auth=Bearer t\x01k=v\x01k=v\x01\x01",
            b"n,,\x01auth=Bearer t\x01k2=v\x01\x01",
            b"n,,\x01auth=Bearer t\x01k=\x01\x01",
            b"n,,\x01auth=Bearer t\x01k=\x7f\x01\x01",
            b"n,,\x01auth=Bearer t\x01k=\xc3\xa4\x01\x01",
            b"n,,\x01auth=Bearer \xff\x01\x01",
            b"n,,\x01auth=Bearer t\n\x01\x01",
            b"n,,\n\x01auth=Bearer t\x01\x01",
        ],
    )
    def test_is_refused(self, message: bytes) -> None:
        with pytest.raises(LoginRefused, match="^the message of OAUTHBEARER cannot be read$"):
            ClientFirst.parse(message)

    def test_has_a_repr_without_the_token(self) -> None:
        assert "t0ken" not in repr(ClientFirst.parse(FIRST))

    @given(
        st.text("abcXYZ019-._~+/", min_size=1),
        st.dictionaries(st.from_regex("[A-Za-z]+", fullmatch=True), st.text("az =,;\t")),
    )
    def test_is_read_as_it_was_made(self, token: str, extensions: dict[str, str]) -> None:
        extensions = {name: value for name, value in extensions.items() if value and name != "auth"}
        assert ClientFirst.parse(client_first(token, extensions)) == ClientFirst(token, "", extensions)

    @pytest.mark.parametrize(
        ("token", "extensions"),
        [
            ("", {}),
            ("a b", {}),
            ("a\x01", {}),
            ("ä", {}),
            ("t", {"auth": "x"}),
            ("t", {"a1": "x"}),
            ("t", {"a": "\x01"}),
        ],
    )
    def test_cannot_be_made_of_anything(self, token: str, extensions: dict[str, str]) -> None:
        with pytest.raises(ConfigError):
            client_first(token, extensions)


class TestTheBroker:
    def test_accepts_a_token(self) -> None:
        server = OAuthBearerServer(verify)
        assert run(server.step(FIRST)) == b""
        assert (server.complete, server.user, server.lifetime_ms) == (True, "ann", 5000)

    def test_says_why_in_json_and_ends_when_that_is_acknowledged(self) -> None:
        server = OAuthBearerServer(verify)
        answer = run(server.step(b"n,,\x01auth=Bearer other\x01\x01"))
        assert json.loads(answer) == {"status": "invalid_token"}
        assert error_status(answer) == "invalid_token"
        with pytest.raises(LoginRefused, match="^the token has expired$"):
            run(server.step(ACKNOWLEDGED))
        assert not server.complete

    def test_gives_no_second_try(self) -> None:
        server = OAuthBearerServer(verify)
        run(server.step(b"n,,\x01auth=Bearer other\x01\x01"))
        with pytest.raises(LoginRefused):
            run(server.step(FIRST))
        assert not server.complete

    @pytest.mark.parametrize(("name", "right"), [("ann", True), ("Ann", False), ("ann ", False), ("bob", False)])
    def test_lets_nobody_be_somebody_else(self, name: str, right: bool) -> None:
        server = OAuthBearerServer(verify)
        message = f"n,a={name},\x01auth=Bearer t0ken\x01\x01".encode()
        if not right:
            with pytest.raises(LoginRefused, match="as another user"):
                run(server.step(message))
        else:
            run(server.step(message))
        assert server.complete is right


@pytest.mark.parametrize(
    "answer", [b"", b"\xff", b"[]", b"1", b"{}", b'{"status": 1}', b'{"status": "a\\nb"}', b"[" * 99999]
)
def test_an_error_that_cannot_be_read_is_told_as_that(answer: bytes) -> None:
    assert error_status(answer) == "an error that cannot be read"

"""OAUTHBEARER, request by request: both message formats, refusals in JSON, sessions that end with the token."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from broker.client.admin import Admin, ResourceType
from broker.client.cluster import Cluster
from broker.config.broker_config import BrokerConfig
from broker.errors import AuthenticationFailed, ErrorCode
from broker.net.peer_connection import PeerConnection
from broker.net.peer_security import PeerSecurity
from broker.protocol.api_keys import ApiKey
from broker.security.access_token import make_unsigned
from tests.support.broker_process import BrokerProcess
from tests.support.identity_provider import (
    CLIENT_ID,
    CLIENT_SECRET,
    IdentityProvider,
    by_hand,
    claims,
    public_jwk,
    signed,
)
from tests.support.raw_requests import Requests
from tests.support.waiting import eventually

GENERIC = "Authentication failed: invalid credentials with SASL mechanism OAUTHBEARER"


@pytest.fixture(scope="module")
def provider() -> Iterator[IdentityProvider]:
    with IdentityProvider() as found:
        found.keys.append(public_jwk("P-256"))
        yield found


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, provider: IdentityProvider) -> Iterator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("oauthbearer")
    settings = provider.listener_settings()
    settings |= {
        "listeners": f"{settings['listeners']},BRIEF://127.0.0.1:0",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,BRIEF:SASL_PLAINTEXT",
        "listener.name.brief.sasl.enabled.mechanisms": "OAUTHBEARER",
        "listener.name.brief.connections.max.reauth.ms": "60000",
    }
    with BrokerProcess(directory / "data", settings, standalone=True) as process:
        yield process
    assert "Traceback" not in process.output
    assert "eyJ" not in process.output, "a token"
    assert "s3cret" not in process.output


@pytest.fixture
def ask(broker: BrokerProcess) -> Iterator[Requests]:
    with Requests(broker.listeners["SASL_PLAINTEXT"]) as requests:
        yield requests


def handshake(ask: Requests, mechanism: str = "OAUTHBEARER", version: int = 1) -> Any:
    return ask.ask(ApiKey.SASL_HANDSHAKE, {"mechanism": mechanism}, version)


def authenticate(ask: Requests, message: bytes, version: int = 2) -> Any:
    return ask.ask(ApiKey.SASL_AUTHENTICATE, {"auth_bytes": message}, version)


def first(token: str) -> bytes:
    return f"n,,\x01auth=Bearer {token}\x01\x01".encode()


def log_in(ask: Requests, token: str) -> float:
    """The session's lifetime in seconds."""
    assert handshake(ask).error_code is ErrorCode.none
    done = authenticate(ask, first(token))
    assert (done.error_code, done.auth_bytes) == (ErrorCode.none, b"")
    return float(done.session_lifetime.total_seconds())


def test_a_token_logs_in_until_it_expires(ask: Requests) -> None:
    lifetime_s = log_in(ask, signed(claims(lifetime_s=600)))
    assert 500 < lifetime_s <= 600
    assert ask.metadata().cluster_id


def test_a_token_of_an_elliptic_curve_logs_in(ask: Requests) -> None:
    log_in(ask, signed(claims(), "P-256", algorithm="ES256"))


@pytest.mark.parametrize(
    "token",
    [
        signed(claims(lifetime_s=-60)),
        signed(claims(aud="elsewhere")),
        signed(claims(iss="https://eve.example")),
        signed(claims(sub=None)),
        signed(claims(), kid="P-256/0"),
        make_unsigned(claims()),
        by_hand({"alg": "HS256", "kid": "RSA/0"}, claims(), b"x" * 32),
        "garbage",
    ],
)
def test_a_bad_token_is_refused_in_json_and_then_for_good(ask: Requests, token: str) -> None:
    handshake(ask)
    answer = authenticate(ask, first(token))
    assert answer.error_code is ErrorCode.none
    assert json.loads(answer.auth_bytes) == {"status": "invalid_token"}
    refused = authenticate(ask, b"\x01")
    assert (refused.error_code, refused.error_message) == (ErrorCode.sasl_authentication_failed, GENERIC)
    assert ask.is_hung_up()


def test_nothing_is_served_between_the_refusal_and_its_acknowledgement(ask: Requests) -> None:
    handshake(ask)
    authenticate(ask, first("garbage"))
    ask.send(ApiKey.METADATA, {"topics": []})
    assert ask.is_hung_up()


@pytest.mark.parametrize(
    "message", [b"", b"\x01", b"\xff" * 1000, b"n,,\x01auth=Bearer\x01\x01", b"\0ann\0plain-s3cret"]
)
def test_a_message_that_cannot_be_read_ends_the_login(ask: Requests, message: bytes) -> None:
    handshake(ask)
    assert authenticate(ask, message).error_message == GENERIC
    assert ask.is_hung_up()


def test_a_token_cannot_log_in_as_somebody_else(ask: Requests) -> None:
    handshake(ask)
    message = first(signed(claims())).replace(b"n,,", b"n,a=admin,")
    assert authenticate(ask, message).error_code is ErrorCode.sasl_authentication_failed
    assert ask.is_hung_up()


def test_a_token_that_is_too_long_is_not_read(ask: Requests) -> None:
    handshake(ask)
    ask.socket.sendall(struct.pack(">i", 600_000))
    assert ask.is_hung_up()


class TestBareTokens:
    """After SaslHandshake version 0."""

    def send(self, ask: Requests, message: bytes) -> bytes:
        ask.socket.sendall(struct.pack(">i", len(message)) + message)
        return ask.read(struct.unpack(">i", ask.read(4))[0])

    def test_log_in(self, ask: Requests) -> None:
        handshake(ask, version=0)
        assert self.send(ask, first(signed(claims()))) == b""
        assert ask.metadata().cluster_id

    def test_that_are_wrong_are_refused_in_json(self, ask: Requests) -> None:
        handshake(ask, version=0)
        assert json.loads(self.send(ask, first("garbage"))) == {"status": "invalid_token"}
        ask.socket.sendall(b"\0\0\0\x01\x01")
        assert ask.is_hung_up()


class TestAnExpiringSession:
    def test_is_renewed_by_a_new_token_of_the_same_user(self, ask: Requests) -> None:
        log_in(ask, signed(claims(lifetime_s=60)))
        assert log_in(ask, signed(claims(lifetime_s=900))) > 800
        assert ask.metadata().cluster_id

    def test_is_not_renewed_by_another_user(self, ask: Requests) -> None:
        log_in(ask, signed(claims("ann")))
        handshake(ask)
        assert authenticate(ask, first(signed(claims("bob")))).error_code is ErrorCode.sasl_authentication_failed
        assert ask.is_hung_up()

    def test_is_not_renewed_by_another_mechanism(self, ask: Requests) -> None:
        log_in(ask, signed(claims("ann")))
        assert handshake(ask, "PLAIN").error_code is ErrorCode.illegal_sasl_state

    def test_ends_with_the_token_or_sooner(self, broker: BrokerProcess) -> None:
        for lifetime_s, least_s, most_s in ((3600, 60, 60), (30, 20, 30)):
            with Requests(broker.listeners["BRIEF"]) as ask:
                assert least_s <= log_in(ask, signed(claims(lifetime_s=lifetime_s))) <= most_s

    def test_ends_with_the_token(self, ask: Requests) -> None:
        assert log_in(ask, signed(claims(lifetime_s=1))) <= 1
        with pytest.raises(ConnectionError):
            eventually(lambda: ask.metadata() is None)

    def test_of_a_password_does_not_expire(self, ask: Requests) -> None:
        handshake(ask, "PLAIN")
        assert authenticate(ask, b"\0ann\0plain-s3cret").session_lifetime.total_seconds() == 0
        assert handshake(ask, "PLAIN").error_code is ErrorCode.illegal_sasl_state


def test_the_log_says_why_and_shows_no_token(broker: BrokerProcess, ask: Requests) -> None:
    handshake(ask)
    authenticate(ask, first(signed(claims("eve", aud="elsewhere"))))
    authenticate(ask, b"\x01")
    eventually(lambda: "login by OAUTHBEARER failed: the token is for somebody else" in broker.output)


def test_another_broker_logs_in_with_a_token_of_its_own(broker: BrokerProcess, provider: IdentityProvider) -> None:
    jaas = "listener.name.sasl_plaintext.oauthbearer.sasl.jaas.config"
    settings = provider.listener_settings() | {
        "inter.broker.listener.name": "SASL_PLAINTEXT",
        "sasl.oauthbearer.token.endpoint.url": provider.token_url,
        jaas: f'a.OAuthBearerLoginModule required clientId="{CLIENT_ID}" clientSecret="{CLIENT_SECRET}";',
    }
    port = int(broker.listeners["SASL_PLAINTEXT"].rpartition(":")[2])

    async def ask_with(security: PeerSecurity) -> Any:
        peer = PeerConnection("127.0.0.1", port, client_id="test", security=security)
        try:
            return await peer.request(ApiKey.METADATA, 12, {"topics": []})
        finally:
            peer.close()

    assert asyncio.run(ask_with(PeerSecurity.of(BrokerConfig.load(None, settings)))).brokers
    settings[jaas] = settings[jaas].replace(CLIENT_SECRET, "wrong-s3cret")
    with pytest.raises(AuthenticationFailed, match="invalid_client") as caught:
        asyncio.run(ask_with(PeerSecurity.of(BrokerConfig.load(None, settings))))
    assert "s3cret" not in str(caught.value)


def test_described_settings_hold_no_secret(broker: BrokerProcess) -> None:
    with Cluster(broker.listeners["PLAINTEXT"]) as cluster:
        entries = Admin(cluster).describe_configs(ResourceType.BROKER, "0")
    assert entries["sasl.oauthbearer.expected.audience"].value == "kafka"
    assert "s3cret" not in repr(entries)

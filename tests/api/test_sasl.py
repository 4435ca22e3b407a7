"""SASL logins, request by request: what is allowed when, both message formats, failures, re-authentication."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from typing import Any

import pytest

from broker.client.admin import Admin, ResourceType
from broker.client.cluster import Cluster
from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.security.scram import ScramClient, ScramMechanism
from tests.support.console import answer_of
from tests.support.raw_requests import Requests, versions
from tests.support.scrape import Scrape
from tests.support.secured import (
    MECHANISMS,
    PLAIN_PASSWORD,
    PLAIN_USER,
    SCRAM_PASSWORD,
    SCRAM_USER,
    SIMPLE_USER,
    Certificates,
    SecuredBroker,
)
from tests.support.waiting import eventually

RIGHT = f"\0{PLAIN_USER}\0{PLAIN_PASSWORD}".encode()
LOGIN_APIS = (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE, ApiKey.API_VERSIONS)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, zookeeper: str) -> Iterator[SecuredBroker]:
    directory = tmp_path_factory.mktemp("sasl")
    certificates = Certificates.make(directory)
    with SecuredBroker(
        directory / "data",
        certificates,
        f"{zookeeper}/sasl",
        {
            "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0,BRIEF://127.0.0.1:0",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,BRIEF:SASL_PLAINTEXT",
            "metrics.listener": "HTTP://127.0.0.1:0",
            "listener.name.brief.connections.max.reauth.ms": "2000",
            "listener.name.brief.sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
        },
    ) as process:
        yield process
    assert "Traceback" not in process.output


@pytest.fixture
def ask(secured: SecuredBroker) -> Iterator[Requests]:
    with Requests(secured.listeners["SASL_PLAINTEXT"]) as requests:
        yield requests


def handshake(ask: Requests, mechanism: str = "PLAIN", version: int = 1) -> Any:
    return ask.ask(ApiKey.SASL_HANDSHAKE, {"mechanism": mechanism}, version)


def authenticate(ask: Requests, token: bytes, version: int = 2) -> Any:
    return ask.ask(ApiKey.SASL_AUTHENTICATE, {"auth_bytes": token}, version)


def scram_login(ask: Requests, mechanism: str, user: str, password: str) -> Any:
    client = ScramClient(ScramMechanism(mechanism), user, password)
    first = authenticate(ask, client.first())
    assert first.error_code is ErrorCode.none
    return authenticate(ask, client.final(first.auth_bytes))


@pytest.mark.parametrize("version", versions(ApiKey.SASL_AUTHENTICATE))
def test_after_a_login_everything_is_served(ask: Requests, version: int) -> None:
    assert handshake(ask).mechanisms == MECHANISMS
    done = authenticate(ask, RIGHT, version)
    assert (done.error_code, done.auth_bytes) == (ErrorCode.none, b"")
    assert ask.metadata().cluster_id


@pytest.mark.parametrize("api", [api for api in ApiKey if api not in LOGIN_APIS])
def test_before_a_login_nothing_else_is_served(secured: SecuredBroker, api: ApiKey) -> None:
    """In every state of the login the connection is closed before the request's body is read."""
    for begun in (False, True):
        with Requests(secured.listeners["SASL_PLAINTEXT"]) as ask:
            ask.ask(ApiKey.API_VERSIONS, {"client_software_name": "t", "client_software_version": "1"}, 0)
            if begun:
                assert handshake(ask).error_code is ErrorCode.none
            ask.socket.sendall(struct.pack(">ihhih", 10, api, 1, 7, -1))
            assert ask.is_hung_up()


def test_nothing_that_was_sent_behind_a_failed_login_is_served(ask: Requests, topic: str) -> None:
    ask.send(ApiKey.SASL_HANDSHAKE, {"mechanism": "PLAIN"})
    ask.send(ApiKey.SASL_AUTHENTICATE, {"auth_bytes": b"\0alice\0wrong"})
    ask.send(ApiKey.METADATA, {"topics": [{"name": topic}], "allow_auto_topic_creation": True})
    ask.receive(ApiKey.SASL_HANDSHAKE)
    assert ask.receive(ApiKey.SASL_AUTHENTICATE).error_code is ErrorCode.sasl_authentication_failed
    assert ask.is_hung_up()


class TestAFailedLogin:
    @pytest.mark.parametrize(
        "token",
        [b"\0alice\0wrong", b"\0eve\0x", b"\0alice\0", b"eve\0alice\0" + PLAIN_PASSWORD.encode(), b"", b"\xff\0\0"],
    )
    def test_by_plain_takes_its_time_says_nothing_and_ends(self, ask: Requests, token: bytes) -> None:
        handshake(ask)
        started = time.monotonic()
        refused = authenticate(ask, token)
        assert time.monotonic() - started >= 0.095
        assert refused.error_code is ErrorCode.sasl_authentication_failed
        assert refused.error_message == "Authentication failed: invalid credentials with SASL mechanism PLAIN"
        assert refused.auth_bytes == b""
        assert ask.is_hung_up()

    @pytest.mark.parametrize("mechanism", MECHANISMS[1:])
    def test_by_a_proof_that_is_not_ascii_is_one_as_any_other(
        self, ask: Requests, secured: SecuredBroker, mechanism: str
    ) -> None:
        handshake(ask, mechanism)
        client = ScramClient(ScramMechanism(mechanism), SIMPLE_USER, SCRAM_PASSWORD)
        begin, mark, _ = client.final(authenticate(ask, client.first()).auth_bytes).rpartition(b",p=")
        started = time.monotonic()
        refused = authenticate(ask, begin + mark + "ü".encode() * 44)
        assert time.monotonic() - started >= 0.095
        assert refused.error_code is ErrorCode.sasl_authentication_failed
        assert ask.is_hung_up()
        assert "Traceback" not in secured.output

    @pytest.mark.parametrize(("user", "password"), [(SIMPLE_USER, "wrong"), ("nobody", SCRAM_PASSWORD)])
    @pytest.mark.parametrize("mechanism", MECHANISMS[1:])
    def test_by_scram_is_the_same_for_a_wrong_password_and_no_user(
        self, ask: Requests, mechanism: str, user: str, password: str
    ) -> None:
        handshake(ask, mechanism)
        refused = scram_login(ask, mechanism, user, password)
        assert refused.error_code is ErrorCode.sasl_authentication_failed
        assert refused.error_message == f"Authentication failed: invalid credentials with SASL mechanism {mechanism}"
        assert ask.is_hung_up()

    @pytest.mark.parametrize("mechanism", ["GSSAPI", "", "SCRAM-SHA-1", "plain"])
    def test_by_a_mechanism_that_is_not_enabled_names_those_that_are(self, ask: Requests, mechanism: str) -> None:
        refused = handshake(ask, mechanism)
        assert refused.error_code is ErrorCode.unsupported_sasl_mechanism
        assert refused.mechanisms == MECHANISMS
        assert ask.is_hung_up()

    def test_out_of_order_is_no_login(self, ask: Requests) -> None:
        assert authenticate(ask, RIGHT).error_code is ErrorCode.illegal_sasl_state
        ask.send(ApiKey.METADATA, {"topics": []})
        assert ask.is_hung_up()


class TestBareTokens:
    """After SaslHandshake version 0 the client sends tokens with a length, not requests."""

    def test_log_in(self, ask: Requests) -> None:
        assert handshake(ask, version=0).error_code is ErrorCode.none
        ask.socket.sendall(struct.pack(">i", len(RIGHT)) + RIGHT)
        assert ask.read(4) == bytes(4)
        assert ask.metadata().cluster_id

    def test_log_in_by_scram(self, ask: Requests) -> None:
        handshake(ask, "SCRAM-SHA-512", version=0)
        client = ScramClient(ScramMechanism.SCRAM_SHA_512, SIMPLE_USER, SCRAM_PASSWORD)
        first = client.first()
        ask.socket.sendall(struct.pack(">i", len(first)) + first)
        last = client.final(ask.read(struct.unpack(">i", ask.read(4))[0]))
        ask.socket.sendall(struct.pack(">i", len(last)) + last)
        client.verify(ask.read(struct.unpack(">i", ask.read(4))[0]))
        assert ask.metadata().cluster_id

    def test_that_are_wrong_end_without_a_word(self, ask: Requests) -> None:
        handshake(ask, version=0)
        ask.socket.sendall(struct.pack(">i", 13) + b"\0alice\0wrong!")
        assert ask.is_hung_up()


def test_a_request_too_large_for_a_login_is_refused(ask: Requests) -> None:
    handshake(ask)
    ask.socket.sendall(struct.pack(">i", 600_000))
    assert ask.is_hung_up()


def test_after_a_login_a_large_request_is_taken(ask: Requests, topic: str) -> None:
    handshake(ask)
    authenticate(ask, RIGHT)
    ask.create(topic)
    assert ask.put(topic, bytes(900_000)) == 0


def test_a_second_login_is_refused_where_logins_hold_for_ever(ask: Requests) -> None:
    handshake(ask)
    assert authenticate(ask, RIGHT).session_lifetime.total_seconds() == 0
    assert handshake(ask).error_code is ErrorCode.illegal_sasl_state
    assert authenticate(ask, RIGHT).error_code is ErrorCode.illegal_sasl_state
    assert ask.metadata().cluster_id, "the first one holds"


def test_a_listener_without_sasl_says_so(secured: SecuredBroker) -> None:
    with Requests(secured.listeners["PLAINTEXT"]) as ask:
        assert handshake(ask).error_code is ErrorCode.illegal_sasl_state
        assert authenticate(ask, RIGHT).error_code is ErrorCode.illegal_sasl_state
        assert ask.metadata().cluster_id


class TestLoginsThatExpire:
    """`connections.max.reauth.ms` (KIP-368)."""

    def test_are_renewed_on_the_same_connection(self, secured: SecuredBroker) -> None:
        with Requests(secured.listeners["BRIEF"]) as ask:
            for _ in range(4):
                assert handshake(ask, "SCRAM-SHA-256").error_code is ErrorCode.none
                done = scram_login(ask, "SCRAM-SHA-256", SIMPLE_USER, SCRAM_PASSWORD)
                assert done.session_lifetime.total_seconds() == 2
                until = time.monotonic() + 0.7
                eventually(lambda until=until: bool(ask.metadata().cluster_id) and time.monotonic() > until)  # type: ignore[misc]

    def test_close_the_connection_at_the_first_request_after_it(self, secured: SecuredBroker) -> None:
        with Requests(secured.listeners["BRIEF"]) as ask:
            handshake(ask, "SCRAM-SHA-256")
            scram_login(ask, "SCRAM-SHA-256", SIMPLE_USER, SCRAM_PASSWORD)
            assert ask.metadata().cluster_id

            with pytest.raises(ConnectionError):
                eventually(lambda: ask.metadata() is None)

    def test_must_be_renewed_by_the_same_user_and_mechanism(self, secured: SecuredBroker) -> None:
        with Requests(secured.listeners["BRIEF"]) as ask:
            handshake(ask, "SCRAM-SHA-256")
            scram_login(ask, "SCRAM-SHA-256", SIMPLE_USER, SCRAM_PASSWORD)
            assert handshake(ask, "SCRAM-SHA-512").error_code is ErrorCode.illegal_sasl_state
            handshake(ask, "SCRAM-SHA-256")
            refused = scram_login(ask, "SCRAM-SHA-256", SCRAM_USER, SCRAM_PASSWORD)
            assert refused.error_code is ErrorCode.sasl_authentication_failed
            assert ask.is_hung_up()


def test_a_user_made_or_taken_away_in_zookeeper_is_known_at_once(secured: SecuredBroker) -> None:
    def may_log_in() -> bool:
        with Requests(secured.listeners["BRIEF"]) as ask:
            handshake(ask, "SCRAM-SHA-256")
            return scram_login(ask, "SCRAM-SHA-256", "frank", "frank-s3cret").error_code is ErrorCode.none

    assert not may_log_in()
    at = ("--zookeeper", secured.zookeeper)
    answer_of("users", "create", "--user", "frank", "--password-stdin", *at, stdin=b"frank-s3cret\n")
    eventually(may_log_in)
    answer_of("users", "delete", "--user", "frank", *at)
    eventually(lambda: not may_log_in())


def test_logins_are_counted(secured: SecuredBroker) -> None:
    def counted() -> tuple[float, float]:
        scrape = Scrape(secured.metrics_url)
        prefix = "kafka_server_socketservermetrics_"
        names = (f"{prefix}successful_authentication_total", f"{prefix}failed_authentication_total")
        succeeded, failed = (scrape.total(name, listener="BRIEF") for name in names)
        return succeeded, failed

    succeeded, failed = counted()
    for password in (SCRAM_PASSWORD, "wrong"):
        with Requests(secured.listeners["BRIEF"]) as ask:
            handshake(ask, "SCRAM-SHA-256")
            scram_login(ask, "SCRAM-SHA-256", SIMPLE_USER, password)
    eventually(lambda: counted() == (succeeded + 1, failed + 1))


def test_the_log_tells_of_failures_and_of_no_secret(secured: SecuredBroker) -> None:
    with Requests(secured.listeners["SASL_PLAINTEXT"]) as ask:
        handshake(ask)
        authenticate(ask, b"\0alice\0my-s3cret-typo")
    with Requests(secured.listeners["SASL_PLAINTEXT"]) as ask:
        ask.send(ApiKey.METADATA, {"topics": []})
        assert ask.is_hung_up()
    assert "login by PLAIN failed: wrong user or password" in secured.output
    assert "a request (API key 3) without a login, or after it expired" in secured.output
    assert "s3cret" not in secured.output


def test_described_settings_hold_no_secret(secured: SecuredBroker) -> None:
    with Cluster(secured.listeners["PLAINTEXT"]) as cluster:
        entries = Admin(cluster).describe_configs(ResourceType.BROKER, "0")
    hidden = [name for name, entry in entries.items() if name.endswith(("password", "keystore.key"))]
    assert len(hidden) == 5
    assert [entries[name].value for name in hidden] == [None] * 5
    assert entries["ssl.keystore.location"].value == str(secured.certificates.server)
    assert "s3cret" not in repr(entries)

"""Delegation tokens on the wire: who gets one, who may change and see it, and logins by it. One broker with PLAIN."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker.client.admin import Admin
from broker.client.client_settings import ClientSettings
from broker.client.delegation_tokens import settings_with_token
from broker.errors import AuthenticationFailed, BrokerError, ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import to_ms
from broker.security.acl_types import AccessControlEntry, Acl, AclOperation, AclResourceType, ResourcePattern
from broker.security.delegation_token_state import IssuedToken, hmac_of
from broker.security.scram import ScramClient, ScramMechanism
from tests.support.broker_process import BrokerProcess
from tests.support.raw_requests import Requests, versions
from tests.support.token_broker import TOKEN_SETTINGS, Users
from tests.support.waiting import eventually

DAY_MS = 86_400_000


@pytest.fixture(scope="module")
def issuing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("tokens"), TOKEN_SETTINGS, standalone=True) as process:
        yield process
    assert "Traceback" not in process.output


@pytest.fixture
def users(issuing: BrokerProcess) -> Iterator[Users]:
    with contextlib.ExitStack() as opened:
        yield Users(issuing, opened)


@contextlib.contextmanager
def refused(code: ErrorCode) -> Iterator[None]:
    with pytest.raises(BrokerError) as caught:
        yield
    assert caught.value.code is code


@pytest.mark.parametrize("mechanism", [one.value for one in ScramMechanism])
def test_who_has_a_token_logs_in_as_its_owner(users: Users, issuing: BrokerProcess, mechanism: str) -> None:
    issued = users("alice").create_delegation_token()
    token = issued.token
    assert (token.owner, token.requester, token.renewers) == ("User:alice", "User:alice", ())
    assert issued.hmac == hmac_of(token.token_id, "of the brokers")
    assert token.expires_ms - token.issued_ms == 60_000
    assert token.max_ms - token.issued_ms == 600_000
    allow(users("admin"), "User:alice", AclOperation.CREATE, AclResourceType.TOPIC, f"of-alice-{mechanism}")
    users.with_token(issued, mechanism).create_topic(f"of-alice-{mechanism}")
    assert issued.password not in issuing.output


def allow(admin: Admin, principal: str, operation: AclOperation, kind: AclResourceType, name: str) -> None:
    admin.create_acls([Acl(ResourcePattern(kind, name), AccessControlEntry(principal, operation))])


def test_a_wrong_hmac_an_unknown_id_and_a_password_without_tokenauth_are_refused(users: Users) -> None:
    issued = users("alice").create_delegation_token()
    for wrong in (
        replace(issued, hmac=b"\0" * 64),
        replace(issued, token=replace(issued.token, token_id="nobody")),
    ):
        with pytest.raises(AuthenticationFailed):
            users.with_token(wrong).list_topics()
    settings = settings_with_token(users("alice").cluster.settings, issued, "SCRAM-SHA-256")
    jaas = (settings.sasl_jaas_config or "").replace('tokenauth="true"', 'tokenauth="false"')
    by = replace(users("alice").cluster.settings, sasl_mechanism="SCRAM-SHA-256", sasl_jaas_config=jaas)
    with pytest.raises(AuthenticationFailed):
        users.by(by).list_topics()


def test_a_token_gives_no_token_and_nobody_unknown_gets_one(users: Users, issuing: BrokerProcess) -> None:
    issued = users("alice").create_delegation_token()
    anonymous = users.by(ClientSettings(bootstrap_servers=(issuing.listeners["PLAINTEXT"],)))
    for admin in (users.with_token(issued), anonymous):
        for ask in (
            admin.create_delegation_token,
            lambda admin=admin: admin.renew_delegation_token(issued.hmac),
            lambda admin=admin: admin.expire_delegation_token(issued.hmac),
            admin.describe_delegation_tokens,
        ):
            with refused(ErrorCode.delegation_token_request_not_allowed):
                ask()


def test_only_owner_and_renewers_change_a_token(users: Users) -> None:
    issued = users("alice").create_delegation_token(renewers=["User:bob"])
    for ask in (users("carol").renew_delegation_token, users("carol").expire_delegation_token):
        with refused(ErrorCode.delegation_token_owner_mismatch):
            ask(issued.hmac)
    for user in ("alice", "bob"):
        expires_ms = users(user).renew_delegation_token(issued.hmac, 30_000)
        (found,) = [one.token for one in users("alice").describe_delegation_tokens() if one.hmac == issued.hmac]
        assert found.expires_ms == expires_ms < issued.token.expires_ms
    assert users("bob").renew_delegation_token(issued.hmac, DAY_MS) <= issued.token.max_ms
    users("bob").expire_delegation_token(issued.hmac)
    with refused(ErrorCode.delegation_token_not_found):
        users("alice").renew_delegation_token(issued.hmac)


def test_an_expired_token_logs_nobody_in_and_is_removed(users: Users) -> None:
    issued = users("alice").create_delegation_token()
    users("alice").expire_delegation_token(issued.hmac, 1)

    def is_refused() -> bool:
        try:
            users.with_token(issued).list_topics()
        except AuthenticationFailed:
            return True
        return False

    eventually(is_refused)
    eventually(lambda: issued.hmac not in {one.hmac for one in users("alice").describe_delegation_tokens()})


class LoginFailed(Exception):
    pass


def session_ms(issued: IssuedToken, broker: BrokerProcess) -> int:
    """How long the broker says that a login by the token is valid."""
    client = ScramClient(ScramMechanism.SCRAM_SHA_256, issued.token.token_id, issued.password, by_token=True)
    with Requests(broker.listeners["SASL_PLAINTEXT"]) as raw:
        raw.ask(ApiKey.SASL_HANDSHAKE, {"mechanism": "SCRAM-SHA-256"}, 1)
        first = raw.ask(ApiKey.SASL_AUTHENTICATE, {"auth_bytes": client.first()}, 1)
        last = raw.ask(ApiKey.SASL_AUTHENTICATE, {"auth_bytes": client.final(first.auth_bytes)}, 1)
        if last.error_code is not ErrorCode.none:
            raise LoginFailed
        return to_ms(last.session_lifetime)


def test_a_session_ends_with_its_token(users: Users, issuing: BrokerProcess) -> None:
    issued = users("alice").create_delegation_token()
    left_ms = session_ms(issued, issuing)
    assert 0 < left_ms <= 60_000


def test_a_token_of_another_owner_needs_a_right_and_that_of_a_super_user_a_super_user(users: Users) -> None:
    with refused(ErrorCode.delegation_token_authorization_failed):
        users("carol").create_delegation_token(owner="User:bob")
    allow(users("admin"), "User:carol", AclOperation.CREATE_TOKENS, AclResourceType.USER, "User:bob")
    allow(users("admin"), "User:carol", AclOperation.CREATE_TOKENS, AclResourceType.USER, "User:admin")
    issued = users("carol").create_delegation_token(owner="User:bob")
    assert (issued.token.owner, issued.token.requester) == ("User:bob", "User:carol")
    with pytest.raises(BrokerError, match="lacks CreateTokens on user principal User:admin"):
        users("carol").create_delegation_token(owner="User:admin")
    assert users("admin").create_delegation_token(owner="User:bob").token.owner == "User:bob"


def test_others_see_a_token_by_rights_on_it_or_on_its_owner(users: Users) -> None:
    admin, bob = users("admin"), users("bob")
    issued = users("carol").create_delegation_token()
    of_admin = admin.create_delegation_token()

    def seen(owners: list[str] | None = None) -> set[str]:
        return {one.token.token_id for one in bob.describe_delegation_tokens(owners)}

    assert issued.token.token_id not in seen()
    allow(admin, "User:bob", AclOperation.DESCRIBE, AclResourceType.DELEGATION_TOKEN, issued.token.token_id)
    assert issued.token.token_id in seen()
    assert issued.token.token_id in seen(["User:carol"])
    assert not seen(["User:alice"]) & {issued.token.token_id}
    assert not seen([])
    second = users("carol").create_delegation_token()
    assert second.token.token_id not in seen()
    allow(admin, "User:bob", AclOperation.DESCRIBE_TOKENS, AclResourceType.USER, "User:carol")
    allow(admin, "User:bob", AclOperation.DESCRIBE_TOKENS, AclResourceType.USER, "User:admin")
    assert second.token.token_id in seen()
    assert of_admin.token.token_id not in seen()
    assert {issued.token.token_id, of_admin.token.token_id} <= {
        one.token.token_id for one in admin.describe_delegation_tokens()
    }


def test_only_users_renew(users: Users) -> None:
    with refused(ErrorCode.invalid_principal_type):
        users("alice").create_delegation_token(renewers=["Group:ops"])


@pytest.fixture
def ask(issuing: BrokerProcess) -> Iterator[Requests]:
    with Requests(issuing.listeners["SASL_PLAINTEXT"]) as requests:
        requests.ask(ApiKey.SASL_HANDSHAKE, {"mechanism": "PLAIN"}, 1)
        requests.ask(ApiKey.SASL_AUTHENTICATE, {"auth_bytes": b"\0alice\0alice-secret"}, 1)
        yield requests


@pytest.mark.parametrize("version", versions(ApiKey.CREATE_DELEGATION_TOKEN))
def test_every_version(ask: Requests, version: int) -> None:
    body: dict[str, Any] = {
        "owner_principal_type": None,
        "owner_principal_name": None,
        "renewers": (),
        "max_lifetime": 1000,
    }
    made = ask.ask(ApiKey.CREATE_DELEGATION_TOKEN, body, version)
    assert (made.error_code, made.principal_name) == (ErrorCode.none, "alice")
    low = min(version, 2)
    renewed = ask.ask(ApiKey.RENEW_DELEGATION_TOKEN, {"hmac": made.hmac, "renew_period": -1}, low)
    assert renewed.expiry_timestamp == made.max_timestamp
    shown = ask.ask(ApiKey.DESCRIBE_DELEGATION_TOKEN, {"owners": None}, version)
    assert made.token_id in {one.token_id for one in shown.tokens}
    gone = ask.ask(ApiKey.EXPIRE_DELEGATION_TOKEN, {"hmac": made.hmac, "expiry_time_period": -1}, low)
    assert gone.error_code is ErrorCode.none


def test_tokens_outlive_a_restart(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, TOKEN_SETTINGS, standalone=True) as broker, contextlib.ExitStack() as opened:
        issued = Users(broker, opened)("alice").create_delegation_token()
    with BrokerProcess(tmp_path, TOKEN_SETTINGS, standalone=True) as broker, contextlib.ExitStack() as opened:
        users = Users(broker, opened)
        users.with_token(issued).list_topics()
        assert [one.token for one in users("alice").describe_delegation_tokens()] == [issued.token]
    without = {name: value for name, value in TOKEN_SETTINGS.items() if name != "delegation.token.secret.key"}
    with BrokerProcess(tmp_path, without, standalone=True) as broker, contextlib.ExitStack() as opened:
        users = Users(broker, opened)
        with pytest.raises(AuthenticationFailed):
            users.with_token(issued).list_topics()
        with pytest.raises(BrokerError, match=r"the brokers have no delegation\.token\.secret\.key"):
            users("alice").create_delegation_token()
    assert issued.password.encode() not in b"".join(one.read_bytes() for one in tmp_path.rglob("*") if one.is_file())


def test_three_brokers_know_a_token_and_its_end(tmp_path: Path, zookeeper: str) -> None:
    settings = {name: value for name, value in TOKEN_SETTINGS.items() if not name.startswith("authorizer")}
    with contextlib.ExitStack() as opened:
        brokers = [
            opened.enter_context(
                BrokerProcess(tmp_path / str(n), {**settings, "broker.id": str(n)}, zookeeper=f"{zookeeper}/tokens")
            )
            for n in range(3)
        ]
        first, second, third = brokers

        def knows(broker: BrokerProcess, issued: IssuedToken) -> bool:
            try:
                session_ms(issued, broker)
            except LoginFailed:
                return False
            return True

        issued = Users(first, opened)("alice").create_delegation_token()
        eventually(lambda: all(knows(broker, issued) for broker in brokers))
        Users(second, opened)("alice").expire_delegation_token(issued.hmac)
        eventually(lambda: not any(knows(broker, issued) for broker in brokers))
        first.stop()  # the controller
        left = Users(second, opened)("alice").create_delegation_token(max_lifetime_ms=100)
        eventually(lambda: f"delegation token {left.token.token_id} has expired" in second.output + third.output)

"""Delegation tokens without brokers: what each event makes of one, at every time, and what it logs in with."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import BrokerError, ErrorCode
from broker.security.delegation_token_state import (
    Create,
    DelegationToken,
    Expire,
    IssuedToken,
    Limits,
    Renew,
    changed,
    created,
    credential_of,
    hmac_of,
)
from broker.security.login import LoginRefused
from broker.security.scram import ScramClient, ScramMechanism, ScramServer, TokenCredential

ALICE, BOB, CAROL = "User:alice", "User:bob", "User:carol"
LIMITS = Limits(max_lifetime_ms=1000, expiry_time_ms=100)


def token_of(lifetime_ms: int = -1, now_ms: int = 0) -> DelegationToken:
    return created(Create("t", ALICE, ALICE, (BOB,), lifetime_ms), now_ms, LIMITS)


@pytest.mark.parametrize(
    ("lifetime_ms", "max_ms", "expires_ms"), [(-1, 1007, 107), (0, 1007, 107), (50, 57, 57), (9999, 1007, 107)]
)
def test_a_token_lives_as_long_as_was_asked_for_and_no_longer_than_allowed(
    lifetime_ms: int, max_ms: int, expires_ms: int
) -> None:
    assert token_of(lifetime_ms, 7) == DelegationToken("t", ALICE, ALICE, (BOB,), 7, max_ms, expires_ms)


def test_only_users_renew() -> None:
    with pytest.raises(BrokerError) as refused:
        created(Create("t", ALICE, ALICE, (BOB, "Group:ops"), -1), 0, LIMITS)
    assert refused.value.code is ErrorCode.invalid_principal_type


@pytest.mark.parametrize(
    ("event", "now_ms", "expires_ms"),
    [
        (Renew(ALICE, -1), 50, 150),
        (Renew(BOB, 30), 50, 80),  # earlier than before, as in Kafka
        (Renew(BOB, 5000), 50, 150),
        (Renew(ALICE, -1), 100, 200),
        (Expire(ALICE, 0), 50, 50),
        (Expire(BOB, 400), 50, 450),
        (Expire(ALICE, 5000), 50, 1000),
    ],
)
def test_a_change(event: Renew | Expire, now_ms: int, expires_ms: int) -> None:
    token = token_of()
    assert changed(token, event, now_ms, LIMITS) == dataclasses.replace(token, expires_ms=expires_ms)


@pytest.mark.parametrize("now_ms", [50, 5000])
def test_a_token_ends_at_once_also_when_it_has_expired(now_ms: int) -> None:
    assert changed(token_of(), Expire(BOB, -1), now_ms, LIMITS) is None


@pytest.mark.parametrize(
    ("event", "now_ms", "code"),
    [
        (Renew(CAROL, -1), 50, ErrorCode.delegation_token_owner_mismatch),
        (Expire(CAROL, -1), 50, ErrorCode.delegation_token_owner_mismatch),
        (Renew(ALICE, -1), 101, ErrorCode.delegation_token_expired),
        (Renew(CAROL, -1), 101, ErrorCode.delegation_token_expired),
        (Expire(ALICE, 5), 101, ErrorCode.delegation_token_expired),
        (Expire(CAROL, 5), 101, ErrorCode.delegation_token_owner_mismatch),
    ],
)
def test_what_is_refused(event: Renew | Expire, now_ms: int, code: ErrorCode) -> None:
    with pytest.raises(BrokerError) as refused:
        changed(token_of(), event, now_ms, LIMITS)
    assert refused.value.code is code


def test_there_is_no_token_to_change() -> None:
    with pytest.raises(BrokerError) as refused:
        changed(None, Expire(ALICE, -1), 0, LIMITS)
    assert refused.value.code is ErrorCode.delegation_token_not_found


def test_who_asked_for_a_token_of_another_sees_it_and_does_not_change_it() -> None:
    token = created(Create("t", ALICE, CAROL, (), -1), 0, LIMITS)
    assert token.is_of(CAROL)
    with pytest.raises(BrokerError):
        changed(token, Renew(CAROL, -1), 1, LIMITS)


periods = st.integers(-(2**63), 2**63 - 1)
events = st.one_of(
    st.builds(Renew, st.sampled_from([ALICE, BOB, CAROL]), periods),
    st.builds(Expire, st.sampled_from([ALICE, BOB, CAROL]), periods),
)


@given(st.lists(st.tuples(events, st.integers(0, 400)), max_size=12), periods)
def test_no_events_keep_a_token_beyond_its_age_or_bring_it_back(
    steps: list[tuple[Renew | Expire, int]], lifetime_ms: int
) -> None:
    token: DelegationToken | None = token_of(lifetime_ms)
    first, now_ms = token, 0
    assert first is not None
    for event, pause_ms in steps:
        now_ms += pause_ms
        was_alive = token is not None and not token.is_expired(now_ms)
        try:
            after = changed(token, event, now_ms, LIMITS)
        except BrokerError:
            after = token
        is_alive = after is not None and not after.is_expired(now_ms)
        assert was_alive or not is_alive
        assert event.requester != CAROL or after == token
        if after is not None:
            assert dataclasses.replace(after, expires_ms=0) == dataclasses.replace(first, expires_ms=0)
            assert after.expires_ms <= first.max_ms <= 1000
        token = after


def test_the_hmac_is_kafkas() -> None:
    """HmacSHA512 of the id with the secret, as in `DelegationTokenManager.createHmac`."""
    assert hmac_of("id", "key") == hmac.new(b"key", b"id", hashlib.sha512).digest()


@pytest.mark.parametrize("mechanism", list(ScramMechanism))
def test_a_login_is_the_owners_for_as_long_as_the_token_lives(mechanism: ScramMechanism) -> None:
    issued = IssuedToken(token_of(), hmac_of("t", "key"))
    found = TokenCredential(credential_of(issued, "key", mechanism), "alice", 100)
    client = ScramClient(mechanism, "t", issued.password, by_token=True)
    server = ScramServer(mechanism, lambda user: None, {"t": found}.get)
    client.verify(server.step(client.final(server.step(client.first()))))
    assert (server.complete, server.user, server.lifetime_ms, server.by_token) == (True, "alice", 100, True)


@pytest.mark.parametrize("by_token", [True, False])
def test_a_token_is_no_user_and_a_user_no_token(by_token: bool) -> None:
    issued = IssuedToken(token_of(), hmac_of("t", "key"))
    credential = credential_of(issued, "key", ScramMechanism.SCRAM_SHA_256)
    found = TokenCredential(credential, "alice", 100)
    user, tokens = ({"t": credential}, {}) if by_token else ({}, {"t": found})
    client = ScramClient(ScramMechanism.SCRAM_SHA_256, "t", issued.password, by_token=by_token)
    server = ScramServer(ScramMechanism.SCRAM_SHA_256, user.get, tokens.get)
    with pytest.raises(LoginRefused):
        server.step(client.final(server.step(client.first())))


def test_nothing_that_is_shown_of_a_token_is_secret() -> None:
    issued = IssuedToken(token_of(), hmac_of("t", "key"))
    assert issued.password not in repr(issued)
    assert repr(issued.hmac) not in repr(issued)

"""Delegation tokens in ZooKeeper: Kafka's nodes, what every broker hears of, and secrets that are stored nowhere."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

import pytest

from broker.clock import ManualClock
from broker.cluster.delegation_tokens import DelegationTokens
from broker.config.broker_config import BrokerConfig
from broker.errors import BrokerError, ErrorCode
from broker.security.delegation_token_state import Expire, Renew
from broker.security.scram import ScramMechanism
from broker.zookeeper.client import ZooKeeper
from broker.zookeeper.cluster_store import ClusterStore
from broker.zookeeper.delegation_token_nodes import CHANGES, TOKENS
from broker.zookeeper.metadata_store import Watch

SHA_256, SHA_512 = ScramMechanism
SECRET = "of the brokers"
CONFIG = BrokerConfig.load(overrides={"delegation.token.secret.key": SECRET})
DAY_MS = 86_400_000
_TIMES = {"issueTimestamp": 1, "maxTimestamp": 2**50, "expiryTimestamp": 2**49}
OLD = {"version": 1, "owner": "User%3Aalice", "renewers": [], **_TIMES, "tokenId": "old"}
"""As Kafka before 3.3 wrote a token."""


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def tokens(zk: ZooKeeper, store: ClusterStore, clock: ManualClock) -> DelegationTokens:
    made = DelegationTokens(zk, store, CONFIG, clock)
    await made.load()
    return made


@pytest.fixture
async def other(zk: ZooKeeper, store: ClusterStore, clock: ManualClock, tokens: DelegationTokens) -> DelegationTokens:
    """What another broker knows."""
    made = DelegationTokens(zk, store, CONFIG, clock)
    await made.load()
    return made


class Followed:
    """Stands for the ClusterWatch of a broker: reads at once what it is told."""

    def __init__(self) -> None:
        self.listeners: dict[str, Callable[[str], Any]] = {}
        self.altered: asyncio.Queue[str] = asyncio.Queue()

    def add_config_listener(self, kind: str, on_change: Callable[[str], Any]) -> None:
        self.listeners[kind] = on_change

    def note_altered(self, entities: Any) -> None:
        for entity in entities:
            self.altered.put_nowait(entity)

    async def follow(self, until: Callable[[], bool]) -> None:
        while not until():
            kind, _, name = (await asyncio.wait_for(self.altered.get(), 30)).partition("/")
            await self.listeners[kind](name)


async def test_a_token_is_kept_as_kafka_keeps_it_without_its_hmac(zk: ZooKeeper, tokens: DelegationTokens) -> None:
    issued = await tokens.create("User:CN=a, O=b", "User:root", ("User:x y",), -1)
    token = issued.token
    data = zk.get(f"{TOKENS}/{token.token_id}")[0]
    assert json.loads(data) == {
        "version": 3,
        "owner": "User%3ACN%3Da%2C%20O%3Db",
        "tokenRequester": "User%3Aroot",
        "renewers": ["User%3Ax%20y"],
        "issueTimestamp": token.issued_ms,
        "maxTimestamp": token.issued_ms + 7 * DAY_MS,
        "expiryTimestamp": token.issued_ms + DAY_MS,
        "tokenId": token.token_id,
    }
    (change,) = zk.children(CHANGES)
    assert change == "token_change_0000000000"
    assert zk.get(f"{CHANGES}/{change}")[0] == token.token_id.encode()


async def test_every_broker_hears_of_each_change(tokens: DelegationTokens, other: DelegationTokens) -> None:
    followed = Followed()
    watches: list[Watch] = other.watch(followed)  # type: ignore[arg-type]
    issued = await tokens.create("User:alice", "User:alice", (), -1)
    token_id = issued.token.token_id
    await followed.follow(lambda: token_id in other.tokens)
    assert other.login(SHA_256, token_id) == tokens.login(SHA_256, token_id)
    assert await other.change(issued.hmac, Expire("User:alice", 5000)) == issued.token.issued_ms + 5000
    assert await tokens.change(issued.hmac, Expire("User:alice", -1)) == issued.token.issued_ms
    await followed.follow(lambda: token_id not in other.tokens)
    assert other.login(SHA_512, token_id) is None
    for watch in watches:
        watch.cancel()


async def test_a_renewal_through_another_broker_is_no_lost_update(
    tokens: DelegationTokens, other: DelegationTokens, clock: ManualClock
) -> None:
    issued = await tokens.create("User:alice", "User:alice", (), -1)
    await other.refresh()
    clock.advance(DAY_MS // 2)
    await other.change(issued.hmac, Renew("User:alice", -1))
    clock.advance(DAY_MS // 2 + 1)
    await tokens.remove_expired()  # this broker has not heard of the renewal
    assert tokens.tokens[issued.token.token_id].expires_ms == clock.now_ms() + DAY_MS // 2 - 1


async def test_an_expired_token_logs_nobody_in_before_it_is_removed(
    zk: ZooKeeper, tokens: DelegationTokens, clock: ManualClock
) -> None:
    issued = await tokens.create("User:alice", "User:alice", (), -1)
    token_id = issued.token.token_id
    clock.advance(DAY_MS - 5)
    found = tokens.login(SHA_256, token_id)
    assert found is not None
    assert (found.user, found.lifetime_ms) == ("alice", 5)
    clock.advance(6)
    assert tokens.login(SHA_256, token_id) is None
    assert token_id in tokens.tokens
    await tokens.remove_expired()
    assert not tokens.tokens
    assert zk.children(TOKENS) == []
    with pytest.raises(BrokerError) as gone:
        await tokens.change(issued.hmac, Renew("User:alice", -1))
    assert gone.value.code is ErrorCode.delegation_token_not_found


async def test_tokens_of_older_kafkas_are_read_and_what_is_none_logs_nobody_in(
    zk: ZooKeeper, tokens: DelegationTokens, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    zk.create(f"{TOKENS}/old", json.dumps(OLD).encode())
    zk.create(f"{TOKENS}/new", json.dumps({**OLD, "version": 4}).encode())
    zk.create(f"{TOKENS}/none", b"nonsense")
    with caplog.at_level(logging.ERROR):
        await tokens.refresh()
    assert list(tokens.tokens) == ["old"]
    assert tokens.tokens["old"].requester == "User:alice"
    assert "/delegation_token/tokens/none" in caplog.text
    assert "version 4 of delegation tokens is not known" in caplog.text


async def test_without_a_secret_there_are_no_tokens_and_no_nodes(
    zk: ZooKeeper, store: ClusterStore, clock: ManualClock
) -> None:
    none = DelegationTokens(zk, store, BrokerConfig(), clock)
    await none.load()
    assert not zk.exists("/delegation_token")
    with pytest.raises(BrokerError) as refused:
        await none.create("User:alice", "User:alice", (), -1)
    assert refused.value.code is ErrorCode.delegation_token_auth_disabled


async def test_all_is_read_again_when_a_notification_cannot_be_read(zk: ZooKeeper, tokens: DelegationTokens) -> None:
    followed = Followed()
    watches = tokens.watch(followed)  # type: ignore[arg-type]
    zk.create(f"{TOKENS}/old", json.dumps(OLD).encode())
    zk.create(f"{CHANGES}/token_change_", b"\xff", sequence=True)
    await followed.follow(lambda: "old" in tokens.tokens)
    for watch in watches:
        watch.cancel()


def test_the_secrets_older_name_is_known() -> None:
    config = BrokerConfig.load(overrides={"delegation.token.master.key": SECRET})
    assert config.delegation_token_secret_key == SECRET
    assert SECRET not in repr(config)

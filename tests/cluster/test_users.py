"""Users in ZooKeeper: Kafka's nodes, what others write there, and secrets that stay there."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Mapping

import pytest

from broker.cluster.users import Users
from broker.security.scram import ScramCredential, ScramMechanism
from broker.zookeeper import znodes
from broker.zookeeper.client import ZooKeeper
from broker.zookeeper.cluster_store import ClusterStore
from broker.zookeeper.registry import Registry
from tests.support.waiting import eventually

SHA_256, SHA_512 = ScramMechanism
MADE = ScramCredential.make(SHA_256, "s3cret")


@pytest.fixture
def users(store: ClusterStore) -> Users:
    return Users(store)


async def test_a_user_is_kept_as_kafka_keeps_him(zk: ZooKeeper, users: Users) -> None:
    await users.alter("bob, the *", {SHA_256: MADE})
    node = json.loads(zk.get("/config/users/bob%2C%20the%20%2A")[0])
    assert node == {"version": 1, "config": {"SCRAM-SHA-256": MADE.encode()}}
    (change,) = zk.children(znodes.CONFIG_CHANGES)
    told = json.loads(zk.get(f"{znodes.CONFIG_CHANGES}/{change}")[0])
    assert told == {"version": 2, "entity_path": "users/bob%2C%20the%20%2A"}
    assert users.credential(SHA_256, "bob, the *") == MADE
    assert users.credential(SHA_512, "bob, the *") is None


async def test_others_hear_of_a_change_although_the_client_left_meanwhile(
    zk: ZooKeeper, registry: Registry, users: Users, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a user who was removed could go on logging in to other brokers."""
    writing, written = threading.Event(), threading.Event()
    alter = registry.alter_user_config

    def slow(user: str, changes: Mapping[str, str | None]) -> Mapping[str, str]:
        writing.set()
        assert written.wait(20)
        return alter(user, changes)

    monkeypatch.setattr(registry, "alter_user_config", slow)
    altering = asyncio.ensure_future(users.alter("bob", {SHA_256: MADE}))
    await asyncio.to_thread(writing.wait, 20)
    altering.cancel()
    await asyncio.wait([altering])
    written.set()
    await asyncio.to_thread(eventually, lambda: bool(zk.children(znodes.CONFIG_CHANGES)))


async def test_what_else_is_kept_of_a_user_stays(zk: ZooKeeper, registry: Registry, users: Users) -> None:
    registry.alter_user_config("bob", {"producer_byte_rate": "1000"})
    await users.alter("bob", {SHA_256: MADE, SHA_512: MADE})
    await users.alter("bob", {SHA_256: None, SHA_512: None})
    assert registry.user_configs() == {"bob": {"producer_byte_rate": "1000"}}
    assert users.credentials == {}


async def test_users_that_others_wrote_are_found(zk: ZooKeeper, registry: Registry, users: Users) -> None:
    registry.alter_user_config("müller", {"SCRAM-SHA-512": MADE.encode()})
    zk.create("/config/users/<default>", b'{"version":1,"config":{"request_percentage":"5"}}')
    await users.refresh()
    assert users.credentials == {"müller": {SHA_512: MADE}}


async def test_a_credential_that_cannot_be_read_is_left_out_and_not_shown(
    registry: Registry, users: Users, caplog: pytest.LogCaptureFixture
) -> None:
    registry.alter_user_config("bob", {"SCRAM-SHA-256": "salt=s3cret", "SCRAM-SHA-512": MADE.encode()})
    with caplog.at_level(logging.ERROR):
        await users.refresh()
    assert users.credentials == {"bob": {SHA_512: MADE}}
    assert "user 'bob' cannot log in by SCRAM-SHA-256" in caplog.text
    assert "s3cret" not in caplog.text


async def test_a_node_that_is_no_config_is_not_shown(zk: ZooKeeper, users: Users) -> None:
    zk.create("/config/users/bob", b"salt=s3cret")
    with pytest.raises(znodes.MalformedNode, match="/config/users/bob in ZooKeeper holds") as caught:
        await users.refresh()
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "node"),
    [
        ("alice", "alice"),
        ("a b", "a%20b"),
        ("a*b", "a%2Ab"),
        ("CN=x,O=y/z", "CN%3Dx%2CO%3Dy%2Fz"),
        ("ü", "%C3%BC"),
        ("a-_.~b", "a-_.%7Eb"),
    ],
)
def test_names_are_written_as_kafkas_sanitizer_writes_them(name: str, node: str) -> None:
    assert znodes.sanitized(name) == node
    assert znodes.desanitized(node) == name

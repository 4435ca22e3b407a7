"""A broker's registration: refused to duplicates, taken over from one's own past, and kept through every loss."""

from __future__ import annotations

import errno
import os
import queue
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.errors import ConfigError
from broker.replica.cluster_metadata import BrokerInfo
from broker.zookeeper.client import ZooKeeper
from broker.zookeeper.membership import Membership
from broker.zookeeper.operations import Create, Delete
from broker.zookeeper.registry import Registry
from broker.zookeeper.znodes import encode_broker
from tests.support.free_ports import refused_port
from tests.support.waiting import eventually
from tests.support.zookeeper import ZooKeeperServer, expire_session
from tests.zookeeper.conftest import Connect


@pytest.fixture
def listening_port() -> Iterator[int]:
    """Where something listens, as a live broker would."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.fixture
def closed_port() -> Iterator[int]:
    with refused_port() as port:
        yield port


def member(zk: ZooKeeper, port: int = 9092, session_file: Path | None = None) -> Membership:
    return Membership(zk, Registry(zk), BrokerInfo.plaintext(1, "127.0.0.1", port), session_file=session_file)


def test_a_broker_is_registered_until_it_stops(zk: ZooKeeper, registry: Registry) -> None:
    membership = member(zk)
    assert not membership.registered
    membership.start()
    assert membership.registered
    assert list(registry.brokers()) == [1]
    membership.stop()
    membership.stop()
    assert not membership.registered
    assert registry.brokers() == {}


def test_the_id_of_a_live_broker_is_refused_at_once_with_its_address(
    chroot: str, connect: Connect, listening_port: int
) -> None:
    member(connect(), listening_port).start()
    with ZooKeeper(chroot, session_timeout_ms=30_000) as zk:
        began = time.monotonic()
        with pytest.raises(
            ConfigError, match=rf"broker\.id=1 is already used by the broker at 127\.0\.0\.1:{listening_port}"
        ):
            member(zk).start()
        assert time.monotonic() - began < 20


def test_the_id_of_a_broker_that_does_not_answer_is_refused_after_the_session_timeout(
    chroot: str, connect: Connect, closed_port: int
) -> None:
    member(connect(), closed_port).start()  # its session lives on, although it cannot be reached from here
    with ZooKeeper(chroot, session_timeout_ms=1000, connection_timeout_ms=60_000) as zk:
        began = time.monotonic()
        with pytest.raises(ConfigError, match=r"set broker\.id to another number"):
            member(zk).start()
        assert time.monotonic() - began >= 1


def test_a_node_left_by_a_dead_broker_is_waited_out(chroot: str, server: ZooKeeperServer) -> None:
    dead = ZooKeeper(server.address, session_timeout_ms=4_000, connection_timeout_ms=60_000).start()
    member(dead).start()
    server.kill()
    dead.close()  # too late: the server will know that session until it expires
    server.start()
    with ZooKeeper(server.address, session_timeout_ms=4_000, connection_timeout_ms=60_000) as zk:
        assert Registry(zk).broker_node(1) is not None
        membership = member(zk)
        membership.start()
        assert membership.registered


def test_the_node_of_our_own_previous_life_is_taken_over_at_once(
    server: ZooKeeperServer, tmp_path: Path, closed_port: int
) -> None:
    session_file = tmp_path / "zookeeper-session"
    killed = ZooKeeper(server.address, session_timeout_ms=30_000).start()
    member(killed, closed_port, session_file).start()
    server.kill()
    killed.close()
    server.start()
    with ZooKeeper(server.address, session_timeout_ms=30_000) as zk:
        began = time.monotonic()
        membership = member(zk, session_file=session_file)
        membership.start()
        assert time.monotonic() - began < 20
        assert Registry(zk).brokers()[1].port == 9092
        assert int(session_file.read_text(), 16) == zk.session_id
        membership.stop()
        assert not session_file.exists()


def test_a_broken_session_file_is_as_good_as_none(zk: ZooKeeper, tmp_path: Path) -> None:
    session_file = tmp_path / "zookeeper-session"
    session_file.write_text("torn")
    membership = member(zk, session_file=session_file)
    membership.start()
    assert membership.registered


def test_an_expired_session_is_followed_by_a_new_registration(
    zk: ZooKeeper, registry: Registry, connect: Connect
) -> None:
    membership = member(zk)
    membership.start()
    first = zk.session_id
    expire_session(zk)
    eventually(lambda: membership.registered and zk.session_id != first)
    node = Registry(connect()).broker_node(1)
    assert node is not None
    assert node[1].ephemeral_owner == zk.session_id != first


def test_a_killed_and_restarted_zookeeper_finds_the_broker_registered(server: ZooKeeperServer) -> None:
    with ZooKeeper(server.chroot(), session_timeout_ms=10_000) as zk:
        membership = member(zk)
        membership.start()
        server.kill()
        eventually(lambda: not membership.registered)
        server.start()
        eventually(lambda: membership.registered)
        assert list(Registry(zk).brokers()) == [1]


def test_a_zookeeper_that_was_away_for_longer_than_the_session_is_registered_with_anew(
    server: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        ZooKeeper(server.chroot(), session_timeout_ms=1000, connection_timeout_ms=60_000) as zk,
        ZooKeeper(server.address) as bystander,
    ):
        membership = member(zk)
        membership.start()
        first = zk.session_id
        server.kill()
        # The client reaches the server only after its session is over: it is kept away meanwhile.
        monkeypatch.setattr(zk._client.handler, "create_connection", refuse)
        server.start()
        eventually(lambda: bystander.children(f"{zk.connect.chroot}/brokers/ids") == [])
        monkeypatch.undo()
        eventually(lambda: membership.registered)
        assert zk.session_id != first


def refuse(*_: object, **__: object) -> socket.socket:
    raise ConnectionRefusedError("of the test")


def test_a_node_that_somebody_deleted_comes_back(zk: ZooKeeper, registry: Registry) -> None:
    membership = member(zk)
    membership.start()
    registry.unregister_broker(1)
    eventually(lambda: 1 in registry.brokers())
    eventually(lambda: membership.registered)


def test_a_duplicate_that_came_while_we_were_away_is_waited_for(
    zk: ZooKeeper, registry: Registry, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    membership = member(zk)
    membership.start()
    other = connect()
    node = encode_broker(BrokerInfo.plaintext(1, "h", 1))
    other.transaction([Delete("/brokers/ids/1"), Create("/brokers/ids/1", node, ephemeral=True)])
    eventually(lambda: "broker id 1 is registered by another session" in caplog.text)
    assert not membership.registered
    other.close()
    eventually(lambda: membership.registered)


def test_a_stopped_broker_does_not_come_back(zk: ZooKeeper, registry: Registry) -> None:
    membership = member(zk)
    membership.start()
    membership.stop()
    expire_session(zk)
    seen: queue.Queue[object] = queue.Queue()
    registry.watch_brokers(seen.put)
    assert seen.get(timeout=60) == {}
    assert registry.brokers() == {}


def test_a_broker_registers_again_though_its_session_file_cannot_be_written(
    zk: ZooKeeper, registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_full(*_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    membership = member(zk, session_file=tmp_path / "zookeeper.session")
    membership.start()
    monkeypatch.setattr(Path, "write_text", is_full)
    zk.delete("/brokers/ids/1")
    eventually(lambda: list(registry.brokers()) == [1])

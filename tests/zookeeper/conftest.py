"""What the tests of the cluster layer share: clients and registries on a corner of ZooKeeper of their own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from broker.zookeeper.client import ZooKeeper
from broker.zookeeper.registry import Registry
from tests.support.zookeeper import ZooKeeperServer

_counter = itertools.count()

Connect = Callable[[], ZooKeeper]


@pytest.fixture
def chroot(zookeeper: str) -> str:
    """A connect string of this test's own on the session's ZooKeeper."""
    return f"{zookeeper}/cluster-{next(_counter)}"


@pytest.fixture
def connect(chroot: str) -> Iterator[Connect]:
    """`connect()` opens one more client on this test's chroot."""
    clients: list[ZooKeeper] = []

    def start() -> ZooKeeper:
        clients.append(ZooKeeper(chroot, 6000, connection_timeout_ms=60_000, operation_timeout_s=10.0).start())
        return clients[-1]

    yield start
    for client in clients:
        client.close()


@pytest.fixture
def zk(connect: Connect) -> ZooKeeper:
    return connect()


@pytest.fixture
def registry(zk: ZooKeeper) -> Registry:
    registry = Registry(zk)
    registry.ensure_paths()
    return registry


@pytest.fixture
def server() -> Iterator[ZooKeeperServer]:
    """A ZooKeeper of this test's own, to be killed."""
    with ZooKeeperServer() as server:
        yield server

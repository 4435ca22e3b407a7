"""The tests of the cluster layer use the ZooKeeper fixtures, and a store over them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from broker.zookeeper.change_notifications import ChangeNotifications
from broker.zookeeper.client import ZooKeeper
from broker.zookeeper.cluster_store import ClusterStore
from broker.zookeeper.registry import Registry
from tests.zookeeper.conftest import chroot, connect, registry, zk

__all__ = ["chroot", "connect", "registry", "store", "zk"]


@pytest.fixture
def store(zk: ZooKeeper, registry: Registry) -> Iterator[ClusterStore]:
    made = ClusterStore(registry, ChangeNotifications(zk))
    yield made
    made.close()

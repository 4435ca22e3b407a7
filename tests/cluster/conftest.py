"""The tests of the cluster layer use the ZooKeeper fixtures."""

from __future__ import annotations

from tests.zookeeper.conftest import chroot, connect, registry, zk

__all__ = ["chroot", "connect", "registry", "zk"]

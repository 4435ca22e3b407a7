"""The tests of replicas use the fixtures of a slow disk and of ZooKeeper."""

from __future__ import annotations

from tests.support.slow_disk import clock, disk, threads
from tests.zookeeper.conftest import chroot, connect, registry, zk

__all__ = ["chroot", "clock", "connect", "disk", "registry", "threads", "zk"]

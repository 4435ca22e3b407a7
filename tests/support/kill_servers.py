"""The servers under the kill matrix: a ZooKeeper, a broker, three brokers, an HDFS; killed and started again in place.

`Servers` starts ZooKeeper and broker; cluster and HDFS when a cell first needs them. Used by kill_round.py.
"""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.broker_process import BrokerProcess
from tests.support.hdfs import MiniHdfs
from tests.support.kill_cells import OF_CLUSTER, Victim
from tests.support.replicated_cluster import ReplicatedCluster
from tests.support.zookeeper import ZooKeeperServer

__all__ = ["Servers"]

_SETTINGS = {
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
}


class Servers:
    """`with Servers(directory) as servers:`; every address stays the same over kills."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._running = contextlib.ExitStack()
        self._zookeeper = ZooKeeperServer(directory / "zookeeper")
        self.zookeeper = ""
        self.broker: BrokerProcess

    @functools.cached_property
    def hdfs(self) -> MiniHdfs:
        """Started with the first use. Raises Unavailable where it cannot be had."""
        return self._running.enter_context(MiniHdfs(self._directory / "hdfs"))

    @functools.cached_property
    def cluster(self) -> ReplicatedCluster:
        """Started with the first use."""
        cluster = ReplicatedCluster(self._directory / "cluster", _SETTINGS)
        self._running.callback(cluster.kill)
        cluster.start()
        return cluster

    def bootstrap(self, victim: Victim) -> str:
        """Addresses of the brokers among which the victim is."""
        return self.cluster.bootstrap if victim in OF_CLUSTER else self.broker.bootstrap

    def logs(self, victim: Victim) -> list[Path]:
        """The log directories of these brokers."""
        brokers = self.cluster.brokers.values() if victim in OF_CLUSTER else [self.broker]
        return [broker.data_dir / "broker" for broker in brokers]

    def kill(self, victim: Victim) -> None:
        if victim is Victim.BROKER:
            self.broker.kill()
        elif victim is Victim.ZOOKEEPER:
            self._zookeeper.kill()
        else:
            self.hdfs.kill("namenode")

    def restart(self, victim: Victim) -> None:
        """Start it again and wait until it answers."""
        if victim is Victim.BROKER:
            self.broker.start()
        elif victim is Victim.ZOOKEEPER:
            self._zookeeper.start()
        else:
            self.hdfs.start()

    def __enter__(self) -> Self:
        self._running.enter_context(self._zookeeper)
        self.zookeeper = self._zookeeper.address
        self.broker = BrokerProcess(self._directory / "broker", _SETTINGS, zookeeper=f"{self.zookeeper}/matrix")
        self._running.callback(self.broker.kill)
        self.broker.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._running.close()

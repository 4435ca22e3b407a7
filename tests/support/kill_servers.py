"""The servers under the kill matrix: a ZooKeeper, a broker, three brokers, an HDFS; killed and started again in place.

`Servers` starts ZooKeeper and broker; cluster and HDFS when a cell first needs them. Used by kill_round.py.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.embedded import EmbeddedBroker
from broker.quotas.quota_entity import QuotaEntity
from tests.support.broker_process import BrokerProcess
from tests.support.denying import DENYING, make_user, options_of
from tests.support.hdfs import MiniHdfs
from tests.support.job_rights import JOBS
from tests.support.kill_cells import OF_CLUSTER, Victim
from tests.support.replicated_cluster import ReplicatedCluster
from tests.support.scrape import Scrape
from tests.support.zookeeper import ZooKeeperServer

_SETTINGS = {
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
}
_METRICS = {"metrics.listener": "HTTP://127.0.0.1:0"}
_QUOTAS = {"producer_byte_rate": 10_000.0, "consumer_byte_rate": 20_000.0, "request_percentage": 50.0}


class Servers:
    """`with Servers(directory) as servers:`; every address stays the same over kills.

    `guarded`: jobs log in as users who have the rights of the job and no others, and quotas.
    """

    def __init__(self, directory: Path, *, guarded: bool = False) -> None:
        self._directory = directory
        self._guarded = guarded
        self._settings = {**_SETTINGS, **({**DENYING, **_METRICS} if guarded else {})}
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
        cluster = ReplicatedCluster(self._directory / "cluster", self._settings)
        self._running.callback(cluster.kill)
        cluster.start()
        return cluster

    def bootstrap(self, victim: Victim) -> str:
        """Addresses of the brokers among which the victim is."""
        return self.cluster.bootstrap if victim in OF_CLUSTER else self.broker.bootstrap

    def client(self, victim: Victim, number: int, jobs: Iterable[str], names: Mapping[str, str]) -> dict[str, str]:
        """The options with which Spark reaches these brokers, as the user `number`, to do `jobs` of job_rights.py."""
        bootstrap = self.bootstrap(victim)
        if not self._guarded:
            return {"kafka.bootstrap.servers": bootstrap}
        rights = [right for job in JOBS if job.name in jobs for right in job.rights]
        user = make_user(bootstrap, number, rights, names)
        with Cluster(bootstrap) as cluster:
            Admin(cluster).alter_client_quotas(QuotaEntity(user=user), _QUOTAS)
        return options_of(user, ",".join(one.listeners["SASL_PLAINTEXT"] for one in self.brokers(victim)))

    def throttled_s(self) -> float:
        """For how long clients were throttled since the starts of the brokers that run."""
        running = [self.broker, *(self.cluster.brokers.values() if "cluster" in vars(self) else ())]
        name = "kafka_server_quotas_throttle_time_seconds_total"
        return sum(Scrape(one.metrics_url).total(name) for one in running if one.running)

    def brokers(self, victim: Victim) -> list[EmbeddedBroker]:
        return [*self.cluster.brokers.values()] if victim in OF_CLUSTER else [self.broker]

    def logs(self, victim: Victim) -> list[Path]:
        """The log directories of these brokers."""
        return [broker.data_dir / "broker" for broker in self.brokers(victim)]

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
        self.broker = BrokerProcess(self._directory / "broker", self._settings, zookeeper=f"{self.zookeeper}/matrix")
        self._running.callback(self.broker.kill)
        self.broker.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._running.close()

"""Three brokers that replicate everything, and who of them leads and coordinates what: for tests that kill brokers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.client.cluster_metadata import CoordinatorKind
from broker.client.partition_offsets import LATEST, list_offsets
from broker.embedded import EmbeddedCluster
from broker.protocol.topic_partition import TopicPartition
from tests.support.broker_process import BrokerProcess
from tests.support.waiting import eventually

REPLICATED = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "transaction.state.log.num.partitions": "3",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
    "group.initial.rebalance.delay.ms": "50",
}
"""What acknowledged is survives the death of a broker, and two brokers are enough to go on."""


class ReplicatedCluster(EmbeddedCluster):
    """An EmbeddedCluster of three. Questions about leaders are asked anew each time."""

    broker_class = BrokerProcess

    def __init__(
        self,
        data_dir: Path,
        settings: Mapping[str, str] | None = None,
        broker_settings: Mapping[int, Mapping[str, str]] | None = None,
    ) -> None:
        super().__init__(3, data_dir, {**REPLICATED, **(settings or {})}, broker_settings)

    def create(self, topic: str, partitions: int = 1, **configs: str) -> None:
        """A topic with three replicas; returns when they are in sync. `configs` with `_` for dots."""
        with Cluster(self.bootstrap) as cluster:
            dotted = {name.replace("_", "."): value for name, value in configs.items()}
            Admin(cluster).create_topic(topic, partitions, 3, dotted)
        self.wait_until_healed()
        with Cluster(self.bootstrap) as cluster:  # every leader knows by then that it is one
            list_offsets(cluster, dict.fromkeys((TopicPartition(topic, n) for n in range(partitions)), LATEST))

    def leader(self, tp: TopicPartition) -> int:
        """The id of the broker that leads `tp`."""
        with Cluster(self.bootstrap) as cluster:
            return cluster.leader(tp).id

    def coordinator(self, name: str, kind: CoordinatorKind = CoordinatorKind.GROUP) -> int:
        """The id of the coordinator of a group or transactional id."""
        with Cluster(self.bootstrap) as cluster:
            return cluster.coordinator(name, kind).id

    def controller(self) -> int:
        with Cluster(self.bootstrap) as cluster:
            return cluster.controller().id

    def wait_until_healed(self, timeout_s: float = 60.0) -> None:
        """Return when every partition has a leader and all its replicas in sync."""

        def healed() -> bool:
            with Cluster(self.bootstrap) as cluster:
                return all(
                    one.leader >= 0 and set(one.isr) == set(one.replicas)
                    for topic in cluster.topics().values()
                    for one in topic.partitions.values()
                )

        eventually(healed, timeout=timeout_s, interval=0.1)

    def wait_for_new_leader(self, tp: TopicPartition, old: int) -> None:
        """Return when the new leader knows that it is one, not only other brokers."""
        eventually(lambda: self.leader(tp) != old, timeout=60, interval=0.05)
        with Cluster(self.bootstrap) as cluster:
            list_offsets(cluster, {tp: LATEST})

    @contextmanager
    def without(self, broker_id: int) -> Iterator[None]:
        """kill -9 the broker, and start it again after the block; then wait until it has caught up."""
        self.brokers[broker_id].kill()
        try:
            yield
        finally:
            self.brokers[broker_id].start()
            self.wait_until_healed()

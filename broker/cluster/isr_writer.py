"""Writes the ISRs of the partitions that this broker leads into ZooKeeper (Kafka's AlterPartitionManager).

It looks at all replicated partitions every half `replica.lag.time.max.ms`, at least every 5 s, and when brokers come,
go or seem to be dead. It looks at one of them at once when its follower may join. All ISRs that should change are
written in one batch, each by compare-and-set on the state that the partition knows. So a deposed leader changes nothing
(P4). When another broker was faster, the topic is read again, and then decided again.

A leader whose log takes no more records leaves the ISR, too, if another member is registered. It leads no longer then,
and the controller elects.

When ZooKeeper does not answer, nobody knows whether an ISR was written. Until that is known both the old and the new
members count for the high watermark, and the same ISR is written again (KIP-497). Lives on the event loop.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Iterable, Mapping

from broker.cluster.failure_detector import FailureDetector
from broker.cluster.metadata_cache import MetadataCache
from broker.errors import PykafkaError
from broker.metrics import ReplicationMetrics
from broker.protocol.topic_partition import TopicPartition
from broker.replica.cluster_metadata import NO_LEADER
from broker.replica.partition import Partition
from broker.zookeeper.cluster_store import ClusterStore
from broker.zookeeper.znodes import PartitionState

logger = logging.getLogger(__name__)

RETRY_S = 1.0
LONGEST_INTERVAL_S = 5.0


class IsrWriter:
    """Call `start`, then `run` as a task. `request` asks for an early look at a partition."""

    def __init__(
        self,
        store: ClusterStore,
        topics: MetadataCache,
        detector: FailureDetector,
        *,
        interval_s: float,
        metrics: ReplicationMetrics | None = None,
    ) -> None:
        self._registry = store.registry
        self._store = store
        self._topics = topics
        self._detector = detector
        self._interval_s = min(interval_s, LONGEST_INTERVAL_S)
        self._metrics = metrics or ReplicationMetrics()
        self._requested: dict[TopicPartition, Partition] = {}
        self._unnotified: set[TopicPartition] = set()
        """Partitions whose state was written, perhaps, and of which the other brokers were not notified yet."""
        self._due = asyncio.Event()

    def start(self) -> None:
        """Look at partitions whenever their ISR may have to change."""
        self._topics.replicas.on_isr = self.request
        self._topics.add_change_listener(self._metadata_changed)
        self._detector.subscribe(lambda _: self.look_at_all())

    def _metadata_changed(self, _: object) -> None:
        if self._detector.suspected:
            self.look_at_all()

    def request(self, partition: Partition) -> None:
        """A follower of this partition may join the ISR."""
        self._requested[partition.tp] = partition
        self._due.set()

    async def run(self) -> None:
        """Write for ever. After a failure, try again."""
        logged = ""
        next_look = asyncio.get_running_loop().time() + self._interval_s
        while True:
            await self._wait_until(next_look)
            requested: dict[TopicPartition, Partition] = {}
            try:
                if asyncio.get_running_loop().time() >= next_look:
                    next_look = asyncio.get_running_loop().time() + self._interval_s
                    self.look_at_all()
                requested, self._requested = self._requested, {}
                await self.write(requested.values())
                logged = ""
            except PykafkaError as error:
                self._metrics.failed_isr_updates += len(requested)
                if str(error) != logged:
                    logger.warning("cannot write ISRs, trying again: %s", error)
                logged = str(error)
            except Exception:
                logger.exception("writing ISRs failed")
            else:
                continue
            self._requested = requested | self._requested
            await asyncio.sleep(RETRY_S)

    async def _wait_until(self, time: float) -> None:
        timer = asyncio.get_running_loop().call_at(time, self._due.set)
        if not self._requested:
            await self._due.wait()
        self._due.clear()
        timer.cancel()

    def look_at_all(self) -> None:
        """Write each ISR that should change now."""
        for partition in list(self._topics.replicas.led.values()):
            if partition.in_sync is None:
                continue
            for broker_id, since in self._detector.suspected.items():
                partition.suspect(broker_id, since)
            partition.check()
            if partition.isr_to_write() is not None:
                self.request(partition)

    async def write(self, partitions: Iterable[Partition]) -> None:
        """Write the ISRs of those partitions that want another one. Raises BrokerError when ZooKeeper is away."""
        wanting = {partition.tp: partition for partition in partitions if partition.isr_to_write() is not None}
        if not wanting:
            await self._notify_others()  # the last time it may have failed
            return
        found = await self._store(self._registry.partition_states, list(wanting))
        states, reasons, stale = self._begin(wanting, found)
        self._unnotified |= states.keys()
        written = await self._store(self._registry.write_states, states) if states else set()
        self._unnotified -= states.keys() - written
        for tp in written:
            logger.info("%s: the ISR is %s now: %s", tp, list(states[tp].isr), reasons[tp])
            self._count(set(found[tp].isr), set(states[tp].isr))
            wanting[tp].isr_written(states[tp].leader_epoch, states[tp].isr, states[tp].version + 1)
        await self._notify_others()
        lost = states.keys() - written
        self._metrics.failed_isr_updates += len(lost)
        stale |= {tp.topic for tp in lost} | {tp.topic for tp in written if states[tp].leader == NO_LEADER}
        if stale:
            await self._topics.refresh(stale)

    async def _notify_others(self) -> None:
        if self._unnotified:
            await self._store(self._store.changes.notify_isr_change, sorted(self._unnotified))
            self._unnotified.clear()

    def _count(self, before: set[int], after: set[int]) -> None:
        self._metrics.isr_shrinks += not before <= after
        self._metrics.isr_expands += not after <= before

    def _begin(
        self, wanting: Mapping[TopicPartition, Partition], found: Mapping[TopicPartition, PartitionState]
    ) -> tuple[dict[TopicPartition, PartitionState], dict[TopicPartition, str], set[str]]:
        """(the states to write, why, the topics of which this broker knows old states)."""
        states: dict[TopicPartition, PartitionState] = {}
        reasons: dict[TopicPartition, str] = {}
        stale: set[str] = set()
        broker_id = self._topics.replicas.broker_id
        for tp, partition in wanting.items():
            isr, now = partition.isr_to_write(), found.get(tp)
            if isr is None:
                continue  # it changed while the states were read
            expected = broker_id, partition.leader_epoch, partition.version
            if now is None or (now.leader, now.leader_epoch, now.version) != expected:
                stale.add(tp.topic)
                continue
            reasons[tp] = partition.begin_isr_write(isr)
            order = [*(replica for replica in now.isr if replica in isr), *sorted(isr.difference(now.isr))]
            states[tp] = dataclasses.replace(now, isr=tuple(order))
            if broker_id not in isr:  # the controller elects one of the others
                states[tp] = dataclasses.replace(states[tp], leader=NO_LEADER, leader_epoch=now.leader_epoch + 1)
        return states, reasons, stale

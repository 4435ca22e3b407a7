"""Writes the ISRs of the partitions that this broker leads into ZooKeeper (Kafka's AlterPartitionManager).

Every half `replica.lag.time.max.ms` it looks at all replicated partitions, and at once at one whose follower may join.
All ISRs that should change are written in one batch, each by compare-and-set on the state that the partition knows. So
a deposed leader changes nothing (P4). When another broker was faster, the topic is read again, and then decided again.

When ZooKeeper does not answer, nobody knows whether an ISR was written. Until that is known both the old and the new
members count for the high watermark, and the same ISR is written again (KIP-497). Lives on the event loop.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

from broker.errors import PykafkaError
from broker.protocol.topic_partition import TopicPartition
from broker.replica.partition import Partition
from broker.zookeeper.client import ZooKeeperCalls
from broker.zookeeper.registry import Registry
from broker.zookeeper.znodes import PartitionState

__all__ = ["IsrWriter"]

logger = logging.getLogger(__name__)

RETRY_S = 1.0


class IsrWriter:
    """Run `run` as a task. `request` asks for an early look at a partition."""

    def __init__(
        self,
        registry: Registry,
        calls: ZooKeeperCalls,
        notify: Callable[[Iterable[TopicPartition]], None],
        refresh: Callable[[Collection[str]], Awaitable[None]],
        led: Callable[[], Iterable[Partition]],
        *,
        broker_id: int,
        interval_s: float,
    ) -> None:
        """`notify`, which blocks, notifies other brokers of new states. `refresh` reads topics again and applies what
        it finds. `led` gives the partitions that this broker leads."""
        self._registry = registry
        self._call = calls
        self._notify = notify
        self._refresh = refresh
        self._led = led
        self._broker_id = broker_id
        self._interval_s = interval_s
        self._requested: dict[TopicPartition, Partition] = {}
        self._due = asyncio.Event()

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
            if asyncio.get_running_loop().time() >= next_look:
                next_look = asyncio.get_running_loop().time() + self._interval_s
                self._look_at_all()
            requested, self._requested = self._requested, {}
            try:
                await self.write(requested.values())
                logged = ""
            except PykafkaError as error:
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

    def _look_at_all(self) -> None:
        for partition in list(self._led()):
            if partition.in_sync is None:
                continue
            partition.check()
            if partition.isr_to_write() is not None:
                self._requested[partition.tp] = partition

    async def write(self, partitions: Iterable[Partition]) -> None:
        """Write the ISRs of those partitions that want another one. Raises BrokerError when ZooKeeper is away."""
        wanting = {partition.tp: partition for partition in partitions if partition.isr_to_write() is not None}
        if not wanting:
            return
        found = await self._call(self._registry.partition_states, list(wanting))
        states, reasons, stale = self._begin(wanting, found)
        written = await self._call(self._registry.write_states, states) if states else set()
        for tp in written:
            logger.info("%s: the ISR is %s now: %s", tp, list(states[tp].isr), reasons[tp])
            wanting[tp].isr_written(dataclasses.replace(states[tp], version=states[tp].version + 1))
        if written:
            await self._call(self._notify, sorted(written))
        stale |= {tp.topic for tp in states.keys() - written}
        if stale:
            await self._refresh(stale)

    def _begin(
        self, wanting: Mapping[TopicPartition, Partition], found: Mapping[TopicPartition, PartitionState]
    ) -> tuple[dict[TopicPartition, PartitionState], dict[TopicPartition, str], set[str]]:
        """(the states to write, why, the topics of which this broker knows old states)."""
        states: dict[TopicPartition, PartitionState] = {}
        reasons: dict[TopicPartition, str] = {}
        stale: set[str] = set()
        for tp, partition in wanting.items():
            isr, now = partition.isr_to_write(), found.get(tp)
            if isr is None:
                continue  # it changed while the states were read
            expected = self._broker_id, partition.leader_epoch, partition.version
            if now is None or (now.leader, now.leader_epoch, now.version) != expected:
                stale.add(tp.topic)
                continue
            reasons[tp] = partition.begin_isr_write(isr)
            order = [*(replica for replica in now.isr if replica in isr), *sorted(isr.difference(now.isr))]
            states[tp] = dataclasses.replace(now, isr=tuple(order))
        return states, reasons, stale

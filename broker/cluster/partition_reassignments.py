"""Moves replicas of partitions to other brokers, while this broker is the controller (KIP-455).

A reassignment begins with one write: the partition is assigned to its new and its old brokers. The new ones copy the
log and join the ISR. Then the controller finds that the target is complete (controller_state), and the others are no
replicas any more: they delete their logs. All of this is in ZooKeeper, so it goes on under another controller.

Kafka's tools before KIP-455 ask for reassignments by `/admin/reassign_partitions`. AlterPartitionReassignments takes
the partitions that it names out of that node.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence

from broker.cluster.assignment import refused_assignment
from broker.cluster.controller import Controller
from broker.cluster.controller_state import Election, state_reassigned
from broker.cluster.metadata_cache import MetadataCache
from broker.errors import BrokerError, ErrorCode, PykafkaError
from broker.protocol.topic_partition import TopicPartition
from broker.replica.cluster_metadata import NO_STATE, PartitionInfo, Topic
from broker.zookeeper.cluster_store import ClusterStore, on_loop
from broker.zookeeper.metadata_store import Watch
from broker.zookeeper.znodes import REASSIGN_PARTITIONS

logger = logging.getLogger(__name__)

RETRY_S = 1.0
ATTEMPTS = 5
"""So often a write may be lost to another broker that changed the same state."""

Target = Sequence[int] | None
"""The replicas that a partition shall have, the preferred leader first. None cancels its reassignment."""


class PartitionReassignments:
    """Lives on the event loop."""

    def __init__(self, controller: Controller, topics: MetadataCache, store: ClusterStore) -> None:
        self._controller = controller
        self._topics = topics
        self._request = store.registry.wanted_reassignments
        self._store = store
        self._is_requested = False
        """Whether `/admin/reassign_partitions` exists."""
        self._altering = asyncio.Lock()
        self._due = asyncio.Event()

    # --- by AlterPartitionReassignments

    async def alter(
        self, targets: Mapping[TopicPartition, Target], *, may_change_factor: bool = True
    ) -> dict[TopicPartition, BrokerError | None]:
        """Begin, replace or cancel reassignments; returns for each partition why that cannot be done, or None.

        `may_change_factor`: whether a partition may get more or fewer replicas (KIP-860). Raises BrokerError
        `not_controller`, `request_timed_out`.
        """
        async with self._altering:
            if self._is_requested:
                await self._take_out(targets)
            return await self._alter(targets, may_change_factor=may_change_factor)

    async def _alter(
        self, targets: Mapping[TopicPartition, Target], *, may_change_factor: bool = True
    ) -> dict[TopicPartition, BrokerError | None]:
        results: dict[TopicPartition, BrokerError | None] = dict.fromkeys(
            targets, BrokerError(ErrorCode.request_timed_out, "other brokers change the partition at the same time")
        )
        unchanged: set[TopicPartition] = set()

        def decide(tp: TopicPartition, topic: Topic, now: PartitionInfo) -> Election | None:
            try:
                check_target(tp, now, targets[tp], self._controller.live, may_change_factor=may_change_factor)
                election = self._reassigned(tp, topic, now, targets[tp])
            except BrokerError as error:
                results[tp] = error
                return None
            if election.after.assignment == now.assignment:
                unchanged.add(tp)
                return None
            return election

        for tp in targets:
            if self._topics.metadata.partition(tp) is None:
                results[tp] = BrokerError(ErrorCode.unknown_topic_or_partition, f"there is no partition {tp}")
        left = [tp for tp, error in results.items() if _may_try_again(error)]
        for _ in range(ATTEMPTS):
            written = await self._controller.write(left, decide)
            if left:
                await self._topics.refresh({tp.topic for tp in left})
            results |= dict.fromkeys(written | unchanged)
            left = [tp for tp in left if _may_try_again(results[tp])]
            if not left:
                break
        return results

    def _reassigned(self, tp: TopicPartition, topic: Topic, now: PartitionInfo, target: Target) -> Election:
        if now.version == NO_STATE:
            raise BrokerError(ErrorCode.leader_not_available, f"{tp} is new and has no leader yet")
        live, min_isr = self._controller.live, self._topics.replicas.log_config(topic).min_insync_replicas
        election = state_reassigned(now, target, live, min_isr=min_isr)
        if election is None:
            adding = [replica for replica in now.isr if replica in now.adding]
            raise BrokerError(
                ErrorCode.invalid_replica_assignment,
                f"{tp} cannot lose its new replicas on brokers {adding}, because too few others are in sync: "
                f"its ISR is {list(now.isr)}, and min.insync.replicas={min_isr}",
            )
        return election

    def running(self) -> dict[TopicPartition, PartitionInfo]:
        return {
            TopicPartition(topic.name, index): info
            for topic in self._topics.metadata.topics.values()
            for index, info in topic.partitions.items()
            if info.adding or info.removing
        }

    # --- by /admin/reassign_partitions

    def start(self) -> Watch:
        """Watch the node, until the result is cancelled. Call it on the event loop, then `run` as a task."""
        self._topics.add_change_listener(lambda _: self._look_again())
        return self._request.watch(on_loop(self._note))

    def _note(self, exists: bool) -> None:
        self._is_requested = exists
        self._look_again()

    def _look_again(self) -> None:
        if self._is_requested:
            self._due.set()

    async def run(self) -> None:
        """Do for ever what the node asks for, while this broker is the controller."""
        logged = ""
        while True:
            await self._due.wait()
            self._due.clear()
            try:
                if self._controller.epoch is not None:
                    async with self._altering:
                        await self._follow_request()
                    continue
            except PykafkaError as error:
                if str(error) != logged:
                    logger.warning("cannot follow %s, trying again: %s", REASSIGN_PARTITIONS, error)
                logged = str(error)
            except Exception:
                logger.exception("following %s failed", REASSIGN_PARTITIONS)
            asyncio.get_running_loop().call_later(RETRY_S, self._look_again)

    async def _follow_request(self) -> None:
        """Begin what is asked for, and take out what is done or refused."""
        found = await self._store(self._request.read)
        if found is None:
            self._is_requested = False
            return
        asked, _ = found
        new = {tp: replicas for tp, replicas in asked.items() if not self._has_begun(tp, replicas)}
        results = await self._alter(new)
        refused = {tp: error for tp, error in results.items() if error is not None and not _may_try_again(error)}
        for error in refused.values():
            logger.warning("%s asks for a reassignment that is refused: %s", REASSIGN_PARTITIONS, error)
        await self._take_out({tp for tp, replicas in asked.items() if tp in refused or self._is_done(tp, replicas)})

    async def _take_out(self, done: Collection[TopicPartition]) -> None:
        epoch, found = self._controller.epoch, await self._store(self._request.read)
        if found is None or epoch is None:
            return
        asked, version = found
        left = {tp: replicas for tp, replicas in asked.items() if tp not in done}
        if asked and len(left) == len(asked):
            return
        if not await self._store(self._request.write, left, version, controller_version=epoch.version):
            self._look_again()  # the node was changed meanwhile

    def _has_begun(self, tp: TopicPartition, replicas: Sequence[int]) -> bool:
        now = self._topics.metadata.partition(tp)
        return now is not None and now.target == tuple(replicas)

    def _is_done(self, tp: TopicPartition, replicas: Sequence[int]) -> bool:
        now = self._topics.metadata.partition(tp)
        return now is None or now.assignment == (tuple(replicas), (), ())


def _may_try_again(error: BrokerError | None) -> bool:
    return error is not None and error.code is ErrorCode.request_timed_out


def check_target(
    tp: TopicPartition, now: PartitionInfo, target: Target, live: Collection[int], *, may_change_factor: bool
) -> None:
    """Raise BrokerError unless the partition can be assigned to the brokers `target`, or its reassignment cancelled.

    Only brokers that get a new replica have to be alive, as in Kafka with ZooKeeper.
    """
    if target is None:
        if not now.adding and not now.removing:
            raise BrokerError(ErrorCode.no_reassignment_in_progress, f"no reassignment of {tp} is in progress")
        return
    if not target or len(set(target)) != len(target):
        raise refused_assignment(f"{tp} cannot be on brokers {list(target)}: name at least one, and each only once")
    origin = set(now.replicas) - set(now.adding)
    if unknown := sorted(set(target) - origin - set(live)):
        raise refused_assignment(f"{tp} cannot be moved to brokers that are not registered: {unknown}")
    if len(target) != len(now.target) and not may_change_factor:
        raise BrokerError(
            ErrorCode.invalid_replication_factor, f"{tp} has {len(now.target)} replicas, asked for {len(target)}"
        )

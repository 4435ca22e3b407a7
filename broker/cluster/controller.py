"""What the controller of the cluster does: it elects leaders and ends reassignments (Kafka's KafkaController).

Every broker has one, which acts only while this broker is the elected controller. It looks at the metadata after each
change of it and writes the states that `controller_state` finds wanting. A change that it missed, or a write that it
lost to another broker, is found at the next look, so nothing depends on the order of events.

No request goes to other brokers: they are notified of the states that were written, and read them. Each write checks
the controller epoch, so an earlier controller that still runs can change nothing (promise P4).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping

from broker.cluster.assignment import MAX_REPLICATION_FACTOR
from broker.cluster.controller_state import Election, imbalanced_partitions, next_state
from broker.cluster.topics import Topics
from broker.config.dynamic_config import DynamicConfig
from broker.errors import BrokerError, ErrorCode
from broker.protocol.topic_partition import TopicPartition
from broker.zookeeper.client import ZooKeeperCalls
from broker.zookeeper.cluster_metadata import NO_LEADER, PartitionInfo, Topic
from broker.zookeeper.controller_election import ControllerElection
from broker.zookeeper.registry import ControllerEpoch, Registry
from broker.zookeeper.znodes import PartitionState

__all__ = ["Controller"]

logger = logging.getLogger(__name__)

RETRY_S = 1.0

Elections = Mapping[TopicPartition, Election]


class Controller:
    """Lives on the event loop. Call `start`, then `run` as a task until the broker stops."""

    def __init__(
        self,
        election: ControllerElection,
        registry: Registry,
        calls: ZooKeeperCalls,
        topics: Topics,
        config: DynamicConfig,
        *,
        notify: Callable[[Iterable[TopicPartition]], None],
        max_replication_factor: int = MAX_REPLICATION_FACTOR,
    ) -> None:
        """`notify(partitions)`, which blocks, makes all brokers read the states of these partitions.

        Partitions with more than `max_replication_factor` replicas are left alone: their other replicas may have no
        records, although they are in the ISR.
        """
        self._election = election
        self._registry = registry
        self._call = calls
        self._topics = topics
        self._config = config
        self._notify = notify
        self._max_factor = max_replication_factor
        self._due = asyncio.Event()
        self._names: set[str] = set()
        """Topics to look at."""
        self._all = False
        self._writing = asyncio.Lock()

    def start(self) -> None:
        """Call on the event loop."""
        loop = asyncio.get_running_loop()

        def elected() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self.look_at_all)

        self._topics.add_change_listener(self._look_at)
        self._config.subscribe(lambda _: self.look_at_all())
        self._election.subscribe(elected)

    def look_at_all(self) -> None:
        """Look at every partition soon."""
        self._all = True
        self._due.set()

    def _look_at(self, names: Collection[str]) -> None:
        if names and self._election.epoch is not None:
            self._names.update(names)
            self._due.set()

    async def run(self) -> None:
        """Act for ever. After a failure, look at everything again."""
        rebalancing = asyncio.ensure_future(self._rebalance_forever())
        logged = ""
        try:
            while True:
                await self._due.wait()
                self._due.clear()
                try:
                    await self._act()
                    logged = ""
                    continue
                except BrokerError as error:
                    if error.code is not ErrorCode.not_controller and str(error) != logged:
                        logger.warning("the controller cannot act, trying again: %s", error)
                    logged = str(error)
                except Exception:
                    logger.exception("the controller failed")
                asyncio.get_running_loop().call_later(RETRY_S, self.look_at_all)
        finally:
            rebalancing.cancel()

    async def elect(
        self, partitions: Iterable[TopicPartition], *, prefer: bool = False, unclean: bool = False
    ) -> set[TopicPartition]:
        """Look at these partitions now; returns those with a new state.

        `prefer`: the preferred replica shall lead. `unclean`: a replica that is not in the ISR may lead where no other
        is alive, whatever the topic's setting. Raises BrokerError `not_controller`, `request_timed_out`.
        """
        epoch = self._election.epoch
        if epoch is None:
            raise BrokerError(ErrorCode.not_controller, "this broker is not the controller")
        async with self._writing:
            found: dict[TopicPartition, Election] = {}
            for tp in partitions:
                topic = self._topics.metadata.topics.get(tp.topic)
                info = topic.partitions.get(tp.partition) if topic is not None else None
                if topic is None or info is None or len(info.replicas) > self._max_factor:
                    continue
                allowed = unclean or self._unclean_allowed(topic)
                election = next_state(info, self._live, unclean_allowed=allowed, prefer=prefer)
                if election is not None:
                    found[tp] = election
            return await self._write(epoch, found)

    # --- inside

    @property
    def _live(self) -> Collection[int]:
        return self._topics.metadata.brokers

    async def _act(self) -> None:
        names, self._names = self._names, set()
        look_at_all, self._all = self._all, False
        if self._election.epoch is None:
            return
        topics = self._topics.metadata.topics
        chosen = topics.values() if look_at_all else [topics[name] for name in names if name in topics]
        partitions = [TopicPartition(topic.name, index) for topic in chosen for index in topic.partitions]
        await self.elect(partitions)

    def _unclean_allowed(self, topic: Topic) -> bool:
        setting = topic.config.get("unclean.leader.election.enable")
        if setting is None:
            return self._config.current.unclean_leader_election_enable
        return setting.strip().lower() == "true"

    async def _write(self, epoch: ControllerEpoch, elections: Elections) -> set[TopicPartition]:
        """Write states, and make all brokers read these partitions again, this one included.

        It reads those whose write was lost to another broker, too, and then the controller looks at them once more.
        """
        if not elections:
            return set()
        topics = self._topics.metadata.topics
        states = {tp: _state(epoch, one.after) for tp, one in elections.items()}
        moved = {
            tp: (before, one.after)
            for tp, one in elections.items()
            if (before := topics[tp.topic].partitions[tp.partition]).assignment != one.after.assignment
        }
        kept = {tp: state for tp, state in states.items() if tp not in moved}
        written = await self._call(self._registry.write_states, kept, controller_version=epoch.version)
        for tp, (before, after) in moved.items():
            if await self._call(
                self._registry.write_assignment, tp, before, after, states[tp], controller_version=epoch.version
            ):
                written.add(tp)
        for tp in written:
            logger.log(logging.WARNING if elections[tp].unclean else logging.INFO, "%s: %s", tp, elections[tp])
        if not written:
            await asyncio.sleep(RETRY_S / 10)  # all were lost: do not turn in a tight circle
        await self._call(self._notify, list(elections))
        return written

    async def _rebalance_forever(self) -> None:
        """Give partitions back to their preferred leaders (`auto.leader.rebalance.enable`)."""
        while True:
            await asyncio.sleep(self._config.current.leader_imbalance_check_interval_seconds)
            if self._election.epoch is None or not self._config.current.auto_leader_rebalance_enable:
                continue
            every = (
                (TopicPartition(topic.name, index), info)
                for topic in self._topics.metadata.topics.values()
                for index, info in topic.partitions.items()
                if info.leader != NO_LEADER
            )
            percentage = self._config.current.leader_imbalance_per_broker_percentage
            try:
                await self.elect(imbalanced_partitions(every, self._live, percentage), prefer=True)
            except BrokerError as error:
                logger.warning("cannot give partitions back to their preferred leaders: %s", error)


def _state(epoch: ControllerEpoch, after: PartitionInfo) -> PartitionState:
    return PartitionState(after.leader, after.leader_epoch, after.isr, epoch.epoch, after.version)

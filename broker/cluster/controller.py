"""What the controller of the cluster does: it elects leaders and ends reassignments (Kafka's KafkaController).

Every broker has one, which acts only while this broker is the elected controller. It looks at the metadata after each
change of it and writes the states that `controller_state` finds wanting. A change that it missed, or a write that it
lost to another broker, is found at the next look, so nothing depends on the order of events.

No request goes to other brokers: they are notified of the states that were written, and read them. Each write checks
the controller epoch, so an earlier controller that still runs can change nothing (promise P4). When the controller
itself seems to be dead, the others do not wait for the end of its session: one of them takes over.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping

from broker.background_tasks import BackgroundTasks
from broker.cluster.controller_state import Election, imbalanced_partitions, is_restored, next_state
from broker.cluster.failure_detector import FailureDetector
from broker.cluster.features import Features
from broker.cluster.metadata_cache import MetadataCache
from broker.config.dynamic_config import DynamicConfig
from broker.errors import BrokerError, ErrorCode
from broker.metrics import ReplicationMetrics
from broker.protocol.topic_partition import TopicPartition, some_of
from broker.replica.cluster_metadata import NO_LEADER, PartitionInfo, Topic
from broker.zookeeper.cluster_store import ClusterStore, on_loop
from broker.zookeeper.controller_election import ControllerElection, ControllerEpoch
from broker.zookeeper.metadata_store import Watch
from broker.zookeeper.registry import Move
from broker.zookeeper.znodes import PartitionState

logger = logging.getLogger(__name__)

RETRY_S = 1.0

Elections = Mapping[TopicPartition, Election]
Decide = Callable[[TopicPartition, Topic, PartitionInfo], Election | None]


class Controller:
    """Lives on the event loop. Call `start`, then `run` as a task until the broker stops."""

    def __init__(
        self,
        election: ControllerElection,
        store: ClusterStore,
        topics: MetadataCache,
        config: DynamicConfig,
        detector: FailureDetector,
        metrics: ReplicationMetrics | None = None,
        features: Features | None = None,
    ) -> None:
        self._election = election
        self._registry = store.registry
        self._wanted_leaders = store.registry.wanted_preferred_leaders
        self._store = store
        self._topics = topics
        self._config = config
        self._detector = detector
        self._metrics = metrics or ReplicationMetrics()
        self._features = features
        self._newly_suspected: set[int] = set()
        """Brokers to replace if one of them is the controller now. One that becomes controller later lives."""
        self._due = asyncio.Event()
        self._names: set[str] = set()
        """Topics to look at."""
        self._all = False
        self._is_asked = False
        """Whether `/admin/preferred_replica_election` may exist."""
        self._unnotified: set[TopicPartition] = set()
        """Partitions whose state was written, perhaps, and of which the brokers were not notified yet."""
        self._writing = asyncio.Lock()

    def start(self) -> Watch:
        """Call it on the event loop. Cancel the result, from any thread, to end what it starts."""
        self._topics.add_change_listener(self._look_at)
        self._detector.subscribe(self._suspicion_changed)
        self._config.subscribe(lambda _: self.look_at_all())
        self._election.subscribe(on_loop(self._note_request))
        return self._wanted_leaders.watch(on_loop(self._note_request))

    def look_at_all(self) -> None:
        """Look at every partition soon."""
        self._all = True
        self._due.set()

    def _note_request(self, _: bool = True) -> None:
        """This broker was elected, or a request for preferred leaders came."""
        self._is_asked = True
        self.look_at_all()

    def _suspicion_changed(self, broker_id: int) -> None:
        if broker_id in self._detector.suspected:
            self._newly_suspected.add(broker_id)
        self.look_at_all()

    def _look_at(self, names: Collection[str]) -> None:
        if names and self._election.epoch is not None:
            self._names.update(names)
            self._due.set()
        if self._features is not None and self._election.epoch is not None and self._features.is_due:
            self._due.set()

    async def run(self) -> None:
        """Act for ever. After a failure, look at everything again."""
        tasks = BackgroundTasks()
        tasks.begin("giving partitions back to their preferred leaders", self._rebalance_forever())
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
            await tasks.close()

    async def elect(
        self, partitions: Iterable[TopicPartition], *, prefer: bool = False, unclean: bool = False
    ) -> set[TopicPartition]:
        """Look at these partitions now; returns those with a new state.

        `prefer`: the preferred replica shall lead. `unclean`: a replica that is not in the ISR may lead where no other
        is alive, whatever the topic's setting. Raises BrokerError `not_controller`, `request_timed_out`.
        """

        def decide(tp: TopicPartition, topic: Topic, now: PartitionInfo) -> Election | None:
            allowed = unclean or self._unclean_allowed(topic)
            suspected = self._detector.suspected
            return next_state(now, self.live, suspected=suspected, unclean_allowed=allowed, prefer=prefer)

        return await self.write(partitions, decide)

    async def write(self, partitions: Iterable[TopicPartition], decide: Decide) -> set[TopicPartition]:
        """Write the states that `decide` returns for these partitions; returns those whose state was written.

        All brokers read the others again, too: they were changed by another broker meanwhile, or do not exist any more.
        Raises BrokerError as `elect`, and what `decide` raises.
        """
        epoch = self._election.epoch
        if epoch is None:
            raise BrokerError(ErrorCode.not_controller, "this broker is not the controller")
        async with self._writing:
            found: dict[TopicPartition, Election] = {}
            for tp in partitions:
                topic = self._topics.metadata.topics.get(tp.topic)
                info = topic.partitions.get(tp.partition) if topic is not None else None
                if topic is None or info is None or topic.name in self._registry.malformed:
                    continue  # what is malformed cannot be written: the version is not known
                election = decide(tp, topic, info)
                if election is not None:
                    found[tp] = election
            try:
                return await self._write(epoch, found)
            except BrokerError:
                if self._unnotified:
                    asyncio.get_running_loop().call_later(RETRY_S, self.look_at_all)
                raise

    @property
    def epoch(self) -> ControllerEpoch | None:
        """That of this broker while it is the controller, as far as it knows."""
        return self._election.epoch

    @property
    def live(self) -> Collection[int]:
        return self._topics.metadata.brokers

    # --- inside

    async def _act(self) -> None:
        async with self._writing:
            await self._notify_brokers()  # the last time it may have failed
        names, self._names = self._names, set()
        look_at_all, self._all = self._all, False
        if self._election.epoch is None:
            for broker_id in tuple(self._newly_suspected):
                if broker_id in self._detector.suspected:
                    await self._store(self._election.take_over, broker_id)
                self._newly_suspected.discard(broker_id)
            return
        self._newly_suspected.clear()
        topics = self._topics.metadata.topics
        chosen = topics.values() if look_at_all else [topics[name] for name in names if name in topics]
        partitions = [TopicPartition(topic.name, index) for topic in chosen for index in topic.partitions]
        await self.elect(partitions)
        if self._is_asked:
            await self._elect_preferred()
        epoch = self._election.epoch
        if self._features is not None and epoch is not None:
            await self._features.finalize(epoch.version)

    async def _elect_preferred(self) -> None:
        """Do what `/admin/preferred_replica_election` asks for, and delete it, as Kafka's controller with ZooKeeper."""
        self._is_asked = False
        epoch = self._election.epoch
        try:
            found = await self._store(self._wanted_leaders.read)
            if found is None or epoch is None:
                return
            asked, version = found
            await self.elect(asked, prefer=True)
            await self._store(self._wanted_leaders.write, [], version, controller_version=epoch.version)
        except BrokerError:
            self._is_asked = True
            raise

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
        moves: dict[str, dict[TopicPartition, Move]] = defaultdict(dict)
        for tp, one in elections.items():
            before = topics[tp.topic].partitions[tp.partition]
            if before.assignment != one.after.assignment:
                moves[tp.topic][tp] = Move(before, one.after, states.pop(tp))
        self._unnotified.update(elections)
        written = await self._store(self._registry.write_states, states, controller_version=epoch.version)
        for name, of_topic in moves.items():
            written |= await self._store(
                self._registry.write_assignments, name, of_topic, controller_version=epoch.version
            )
        begun = {tp for tp in written if is_restored(topics[tp.topic].partitions[tp.partition])}
        if begun:  # all of a cluster at once
            logger.info("partitions that were restored have leaders: %s", some_of(list(begun)))
        for tp in written:
            if tp not in begun:
                logger.log(logging.WARNING if elections[tp].unclean else logging.INFO, "%s: %s", tp, elections[tp])
            leader = elections[tp].after.leader
            self._metrics.elections += leader not in (NO_LEADER, topics[tp.topic].partitions[tp.partition].leader)
            self._metrics.unclean_elections += elections[tp].unclean
        if not written:
            await asyncio.sleep(RETRY_S / 10)  # all were lost: do not turn in a tight circle
        await self._notify_brokers()
        return written

    async def _notify_brokers(self) -> None:
        if self._unnotified:
            await self._store(self._store.changes.notify_isr_change, sorted(self._unnotified))
            self._unnotified.clear()

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
                await self.elect(imbalanced_partitions(every, self.live, percentage), prefer=True)
            except BrokerError as error:
                logger.warning("cannot give partitions back to their preferred leaders: %s", error)
            except Exception:
                logger.exception("giving partitions back to their preferred leaders failed")


def _state(epoch: ControllerEpoch, after: PartitionInfo) -> PartitionState:
    return PartitionState(
        after.leader, after.leader_epoch, after.isr, epoch.epoch, after.version, is_restored=after.is_restored
    )

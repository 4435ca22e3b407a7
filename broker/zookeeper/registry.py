"""What brokers keep in ZooKeeper, in Kafka's paths and JSON (kafka.zk.KafkaZkClient).

Every method blocks for at least one round trip, so call it from a worker thread. It raises ConnectionFailed when
ZooKeeper does not answer in time. Callbacks of `watch_*` run on the client's event thread: soon after the call, after
each change (several may come as one) and after each reconnection. They may call the registry.

A topic is created as a whole, in one ZooKeeper transaction.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import logging
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from typing import NamedTuple

from broker.clock import Clock, SystemClock
from broker.errors import BrokerError, ConfigError, ErrorCode
from broker.protocol.topic_partition import TopicPartition
from broker.replica.cluster_metadata import NO_STATE, BrokerInfo, ClusterMetadata, PartitionInfo, Topic
from broker.stored_names import number_named
from broker.zookeeper import znodes
from broker.zookeeper.archive_nodes import RESTORING
from broker.zookeeper.config_nodes import QuotaNodes, alter_config, read_config
from broker.zookeeper.consumer_registry import ConsumerRegistry
from broker.zookeeper.controller_election import ControllerNode
from broker.zookeeper.metadata_store import MetadataStore, Watch
from broker.zookeeper.operations import (
    MAX_TRANSACTION_BYTES,
    BadVersion,
    Check,
    Create,
    NodeExists,
    NodeStat,
    NoNode,
    Operation,
    SetData,
    in_transactions,
    request_size,
)
from broker.zookeeper.tool_requests import ToolRequest, not_controller
from broker.zookeeper.topic_deletions import TopicDeletions
from broker.zookeeper.znodes import MalformedNode, PartitionState, TopicRecord

logger = logging.getLogger(__name__)

PRODUCER_ID_BLOCK_SIZE = 1000
RESERVED_BROKER_MAX_ID = 1000
_NO_TOPICS: Mapping[str, Topic] = {}
_MOVES_AT_ONCE = 1000
"""States that fit in one transaction beside the node of their topic."""


class Move(NamedTuple):
    """One step of a partition's reassignment: its replicas before and after, and the state to write."""

    before: PartitionInfo
    after: PartitionInfo
    state: PartitionState


class Registry:
    """Brokers, topics, settings, users and producer ids in ZooKeeper; `controller` is the controller's node."""

    def __init__(self, zk: MetadataStore, clock: Clock | None = None) -> None:
        self._zk = zk
        self.consumers = ConsumerRegistry(zk)
        self.malformed: Set[str] = frozenset()
        """The topics of which a node could not be read when they were loaded the last time."""
        self._clock = clock or SystemClock()
        self.controller = ControllerNode(zk, self._clock)
        self.deletions = TopicDeletions(zk, self._clock)
        self.wanted_reassignments = ToolRequest(
            zk, znodes.REASSIGN_PARTITIONS, "reassignments", znodes.decode_reassignment, znodes.encode_reassignment
        )
        decode = functools.partial(znodes.decode_isr_change, znodes.PREFERRED_ELECTION)
        self.wanted_preferred_leaders = ToolRequest(
            zk, znodes.PREFERRED_ELECTION, "preferred leaders", decode, znodes.encode_isr_change
        )
        self.quotas = QuotaNodes(zk)

    # -- the cluster

    def ensure_paths(self) -> None:
        """Create the missing ones of the persistent nodes below which all others lie."""
        found = self._zk.get_many(znodes.PERSISTENT_PATHS)
        for path, node in zip(znodes.PERSISTENT_PATHS, found, strict=True):
            if node is None:
                self._zk.ensure_path(path)

    def cluster_id(self) -> str:
        """The id of the cluster. The first broker that asks generates it. Raises ConfigError in an unfinished restore:
        under another id, the cluster would not find its archive."""
        try:
            data, _ = self._zk.get(znodes.CLUSTER_ID)
        except NoNode:
            if self._zk.exists(RESTORING) is not None:
                raise ConfigError(
                    f"{self._zk} has a part of a cluster, because its restore has not ended: run `pykafka log restore` "
                    "again"
                ) from None
            with contextlib.suppress(NodeExists):
                generated = znodes.encode_cluster_id(znodes.uuid_to_text(znodes.new_uuid()))
                self._zk.create(znodes.CLUSTER_ID, generated, parents=True)
            data, _ = self._zk.get(znodes.CLUSTER_ID)
        return znodes.decode_cluster_id(data)

    def load_metadata(
        self, previous: ClusterMetadata | None = None, *, fallback: Mapping[str, Topic] = _NO_TOPICS
    ) -> ClusterMetadata:
        """Read the whole cluster. With `previous`, take the topics it has from there and read only new ones.

        `fallback` as in `load_topics`.
        """
        names = self.topic_names()
        known = previous.topics if previous else {}
        topics = {**known, **self.load_topics([name for name in names if name not in known], fallback)}
        return ClusterMetadata(
            cluster_id=previous.cluster_id if previous else self.cluster_id(),
            controller_id=self.controller.id(),
            brokers=self.brokers(),
            topics={name: topics[name] for name in names if name in topics},
        )

    # -- brokers

    def generate_broker_id(self) -> int:
        """A new id above `reserved.broker.max.id`, for `broker.id=-1`. Never the same twice in one cluster."""
        self._zk.ensure_path(znodes.BROKER_SEQUENCE_ID)
        return RESERVED_BROKER_MAX_ID + self._zk.set(znodes.BROKER_SEQUENCE_ID, b"").version

    def register_broker(self, info: BrokerInfo) -> None:
        """Create the ephemeral `/brokers/ids/N`, or update it if this session owns it.

        Raises NodeExists when another session owns it (membership.py decides what to do then).
        """
        path = znodes.broker_path(info.broker_id)
        try:
            self._zk.create(path, znodes.encode_broker(info), ephemeral=True, parents=True)
        except NodeExists:
            stat, session = self._zk.exists(path), self._zk.session_id
            if stat is None or not session:  # without a connection nothing says whose it is
                return self.register_broker(info)
            if stat.ephemeral_owner != session:
                raise
            self._zk.set(path, znodes.encode_broker(info), stat.version)

    def unregister_broker(self, broker_id: int) -> None:
        """Delete a broker's node if it exists, whoever owns it."""
        with contextlib.suppress(NoNode):
            self._zk.delete(znodes.broker_path(broker_id))

    def broker_node(self, broker_id: int) -> tuple[BrokerInfo, NodeStat] | None:
        """A registered broker and the stat of its node, which names the session that owns it."""
        try:
            data, stat = self._zk.get(znodes.broker_path(broker_id))
        except NoNode:
            return None
        return znodes.decode_broker(broker_id, data), stat

    def brokers(self) -> dict[int, BrokerInfo]:
        """All registered brokers, ordered by id."""
        return self._read_brokers(self._zk.children(znodes.BROKER_IDS))

    def watch_brokers(self, callback: Callable[[dict[int, BrokerInfo]], None]) -> Watch:
        """Call back with all registered brokers whenever one comes or goes."""
        return self._zk.watch_children(znodes.BROKER_IDS, lambda ids: callback(self._read_brokers(ids)))

    def _read_brokers(self, names: Collection[str]) -> dict[int, BrokerInfo]:
        ids = sorted(number for number in map(number_named, names) if number is not None)
        nodes = self._zk.get_many([znodes.broker_path(broker_id) for broker_id in ids])
        found: dict[int, BrokerInfo] = {}
        for broker_id, node in zip(ids, nodes, strict=True):
            if node is not None:
                try:
                    info = znodes.decode_broker(broker_id, node[0])
                except MalformedNode as error:
                    logger.error("broker %d is left out: %s", broker_id, error)
                    continue
                found[broker_id] = dataclasses.replace(info, epoch=node[1].created_zxid)
        return found

    # -- producer ids

    def allocate_producer_ids(self, broker_id: int) -> range:
        """A block of PRODUCER_ID_BLOCK_SIZE producer ids that no other broker gets
        (kafka.coordinator.transaction.ZkProducerIdManager)."""
        while True:
            try:
                data, stat = self._zk.get(znodes.PRODUCER_ID_BLOCK)
            except NoNode:
                self._zk.ensure_path(znodes.PRODUCER_ID_BLOCK)
                continue
            first = znodes.decode_producer_id_block_end(data) + 1 if data else 0
            block = range(first, first + PRODUCER_ID_BLOCK_SIZE)
            try:
                node = znodes.encode_producer_id_block(broker_id, block[0], block[-1])
                self._zk.set(znodes.PRODUCER_ID_BLOCK, node, stat.version)
                return block
            except BadVersion:
                continue  # another broker was faster

    # -- reading topics

    def topic_names(self) -> list[str]:
        return self._zk.children(znodes.TOPICS)

    def topics(self, names: Sequence[str] | None = None) -> dict[str, TopicRecord]:
        """Topics, ordered by name; all of them without `names`. Those with malformed nodes are left out."""
        return self._read_topics(self.topic_names() if names is None else names)[0]

    def topic(self, name: str) -> TopicRecord | None:
        """A topic, None if there is no such topic. Raises MalformedNode."""
        records, malformed = self._read_topics([name])
        if malformed:
            raise malformed[name]
        return records.get(name)

    def load_topics(self, names: Sequence[str], fallback: Mapping[str, Topic] = _NO_TOPICS) -> dict[str, Topic]:
        """Topics with the states of their partitions; without those that do not exist.

        A topic with a malformed node is taken from `fallback`, or else left out: one broken topic must not keep a
        broker from learning of all others.
        """
        records, malformed = self._read_topics(names)
        states, unreadable = self._read_states([tp for record in records.values() for tp in record.partitions()])
        malformed |= {tp.topic: error for tp, error in unreadable.items()}
        self.malformed = (self.malformed - set(names)) | malformed.keys()
        for name, reason in malformed.items():
            logger.error("topic %s is %s: %s", name, "left as it was" if name in fallback else "not served", reason)
        found = {name: record.topic(states) for name, record in records.items() if name not in malformed}
        return found | {name: fallback[name] for name in malformed if name in fallback}

    def watch_topics(self, callback: Callable[[frozenset[str]], None]) -> Watch:
        """Call back with the names of all topics whenever one comes or goes."""
        return self._zk.watch_children(znodes.TOPICS, lambda names: callback(frozenset(names)))

    def _read_topics(self, names: Sequence[str]) -> tuple[dict[str, TopicRecord], dict[str, MalformedNode]]:
        """The topics that exist, and why some cannot be read."""
        nodes = self._zk.get_many([znodes.topic_path(name) for name in names])
        paths = [znodes.topic_config_path(name) for name in names]
        configs = self._zk.get_many(paths)
        found: dict[str, TopicRecord] = {}
        malformed: dict[str, MalformedNode] = {}
        for name, node, path, config in zip(names, nodes, paths, configs, strict=True):
            if node is not None:
                try:
                    settings = znodes.decode_config(path, config[0] if config else b"")
                    found[name] = TopicRecord.decode(name, node[0], settings)
                except MalformedNode as error:
                    malformed[name] = error
        return found, malformed

    # -- creating topics

    def create_topic(
        self,
        name: str,
        assignment: Mapping[int, Sequence[int]],
        config: Mapping[str, str] | None = None,
        topic_id: uuid.UUID | None = None,
        *,
        first_epochs: Mapping[int, int] | None = None,
        claim: Sequence[Operation] = (),
    ) -> TopicRecord:
        """Create a topic with its config and partition states, or nothing.

        `assignment`: partition → broker ids, the leader first. The caller has checked the name. For a topic that goes
        on with an archive `claim` is done in the same transaction (archive_nodes.py), and `first_epochs` are the first
        leader epochs of its partitions. Raises BrokerError `topic_already_exists`, `invalid_partitions` (too many for
        one transaction), and ZooKeeperError where the claim fails.
        """
        replicas = {partition: tuple(ids) for partition, ids in sorted(assignment.items())}
        record = TopicRecord(name, topic_id or znodes.new_uuid(), replicas, dict(config or {}))
        new_config: Operation = Create(znodes.topic_config_path(name), znodes.encode_config(record.config))
        operations = [
            Create(znodes.topic_path(name), record.encode()),
            Create(znodes.partitions_path(name)),
            *_new_partitions(name, replicas, first_epochs or {}),
            *claim,
        ]
        _check_size(name, operations)
        try:
            self._zk.transaction([new_config, *operations])
        except NodeExists as error:
            found = self.topic(name)
            if found is not None and found.topic_id == record.topic_id:
                return record  # the response to our first attempt was lost
            if error.path != new_config.path or found is not None:
                raise BrokerError(ErrorCode.topic_already_exists, f"topic {name!r} already exists") from error
            # Somebody deleted a topic and left its config: replace that.
            self._zk.transaction([SetData(new_config.path, znodes.encode_config(record.config)), *operations])
        return record

    def add_partitions(self, name: str, assignment: Mapping[int, Sequence[int]]) -> TopicRecord:
        """Add the partitions in `assignment` (only the new ones), or nothing.

        Raises BrokerError `unknown_topic_or_partition`, `invalid_partitions` (not the next numbers, or too many).
        """
        added = {partition: tuple(replicas) for partition, replicas in sorted(assignment.items())}
        first_attempt = True
        while True:
            record, version = self._read_versioned(name)
            if not first_attempt and added.items() <= record.assignment.items():
                return record  # the response to an earlier attempt was lost
            first = len(record.assignment)
            if list(added) != list(range(first, first + len(added))):
                raise BrokerError(
                    ErrorCode.invalid_partitions,
                    f"topic {name!r} has {first} partitions: {sorted(added)} are not the next ones",
                )
            grown = dataclasses.replace(record, assignment={**record.assignment, **added})
            operations: list[Operation] = [SetData(znodes.topic_path(name), grown.encode(), version)]
            if not self._zk.exists(znodes.partitions_path(name)):
                operations.append(Create(znodes.partitions_path(name)))
            operations += _new_partitions(name, added, {})
            _check_size(name, operations)
            try:
                self._zk.transaction(operations)
                return grown
            except (BadVersion, NodeExists):
                first_attempt = False

    def _read_versioned(self, name: str) -> tuple[TopicRecord, int]:
        try:
            data, stat = self._zk.get(znodes.topic_path(name))
        except NoNode:
            raise _unknown(name) from None
        return TopicRecord.decode(name, data, self.topic_config(name)), stat.version

    # -- partition states

    def partition_states(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, PartitionState]:
        """Leader, ISR and epochs; without partitions that have no state yet, and those whose state is malformed."""
        states, malformed = self._read_states(partitions)
        for tp, reason in malformed.items():
            logger.error("%s is left out: %s", tp, reason)
        return states

    def _read_states(
        self, partitions: Sequence[TopicPartition]
    ) -> tuple[dict[TopicPartition, PartitionState], dict[TopicPartition, MalformedNode]]:
        """The states that exist, and why some cannot be read."""
        nodes = self._zk.get_many([znodes.state_path(tp) for tp in partitions])
        found: dict[TopicPartition, PartitionState] = {}
        malformed: dict[TopicPartition, MalformedNode] = {}
        for tp, node in zip(partitions, nodes, strict=True):
            if node is not None:
                try:
                    found[tp] = PartitionState.decode(tp, node[0], node[1].version)
                except MalformedNode as error:
                    malformed[tp] = error
        return found, malformed

    def write_states(
        self, states: Mapping[TopicPartition, PartitionState], *, controller_version: int | None = None
    ) -> set[TopicPartition]:
        """Write each state over the version it was read with; returns the partitions whose state was written.

        A partition that another broker has changed or deleted since is left out: read it again. `controller_version`:
        the version of the controller epoch for which the writer was elected. Raises BrokerError `not_controller` when
        there has been another controller since; then nothing more is written. None: any broker may write.
        """
        self._create_partition_nodes([tp for tp, state in states.items() if state.version == NO_STATE])
        fence = () if controller_version is None else (Check(znodes.CONTROLLER_EPOCH, controller_version),)
        partitions, written = iter(states), set()
        for chunk in in_transactions([_state_operation(tp, state) for tp, state in states.items()]):
            written |= self._write_chunk({tp: states[tp] for tp in itertools.islice(partitions, len(chunk))}, fence)
        return written

    def _write_chunk(
        self, states: Mapping[TopicPartition, PartitionState], fence: Sequence[Operation]
    ) -> set[TopicPartition]:
        """Write states that fit in one transaction. When one was changed meanwhile, write the others."""
        written: set[TopicPartition] = set()
        while states:
            try:
                self._zk.transaction([*fence, *(_state_operation(tp, state) for tp, state in states.items())])
                return written | states.keys()
            except (BadVersion, NodeExists, NoNode) as error:
                refused = error.path
                if refused == znodes.CONTROLLER_EPOCH:
                    raise not_controller() from error
            found = self.partition_states(list(states))
            # The response to an earlier attempt may have been lost: then the next version is ours.
            written |= {
                tp
                for tp, state in states.items()
                if (now := found.get(tp)) == state and now.version == state.version + 1
            }
            states = {
                tp: state
                for tp, state in states.items()
                if (found[tp].version if tp in found else NO_STATE) == state.version
                and znodes.state_path(tp) != refused
            }
        return written

    def write_assignments(
        self, name: str, moves: Mapping[TopicPartition, Move], *, controller_version: int
    ) -> set[TopicPartition]:
        """Replace replicas and states of partitions of topic `name`, as steps of their reassignments (KIP-455).

        Both change in one transaction. Returns the partitions that were written. Left out are those that have other
        replicas than `Move.before` says, and those whose state another broker has changed. Raises BrokerError
        `not_controller` as `write_states`.
        """
        left, written = dict(moves), set[TopicPartition]()
        while left:
            try:
                record, version = self._read_versioned(name)
            except BrokerError:
                return written
            left = {
                tp: move
                for tp, move in left.items()
                if tp.partition in record.assignment and record.replicas_of(tp.partition) == move.before.assignment
            }
            chunk = dict(itertools.islice(left.items(), _MOVES_AT_ONCE))
            for tp, move in chunk.items():
                record = record.reassigned(tp.partition, *move.after.assignment)
            operations = [_state_operation(tp, move.state) for tp, move in chunk.items()]
            fence = Check(znodes.CONTROLLER_EPOCH, controller_version)
            try:
                self._zk.transaction([fence, SetData(znodes.topic_path(name), record.encode(), version), *operations])
                written |= chunk.keys()
                left = {tp: move for tp, move in left.items() if tp not in chunk}
            except (BadVersion, NodeExists, NoNode) as error:
                if error.path == znodes.CONTROLLER_EPOCH:
                    raise not_controller() from error
                left = {tp: move for tp, move in left.items() if znodes.state_path(tp) != error.path}
        return written

    def _create_partition_nodes(self, partitions: Sequence[TopicPartition]) -> None:
        """Create the missing parents of states: Kafka's tools create topics without them."""
        roots = dict.fromkeys(znodes.partitions_path(tp.topic) for tp in partitions)
        paths = [*roots, *map(znodes.partition_path, partitions)]
        missing = [Create(path) for path, node in zip(paths, self._zk.get_many(paths), strict=True) if node is None]
        for chunk in in_transactions(missing):
            with contextlib.suppress(NodeExists, NoNode):  # created by another broker, or the topic was deleted
                self._zk.transaction(chunk)

    # -- settings of topics and brokers, users

    def topic_config(self, name: str) -> dict[str, str]:
        """The settings that override the broker's; empty when there are none, or no such topic."""
        return read_config(self._zk, znodes.topic_config_path(name))[0]

    def alter_topic_config(self, name: str, changes: Mapping[str, str | None]) -> dict[str, str]:
        """Set settings, or remove those whose new value is None; returns all settings of the topic.

        Concurrent calls keep each other's changes. Raises BrokerError `unknown_topic_or_partition`.
        """
        if not self._zk.exists(znodes.topic_path(name)):
            raise _unknown(name)
        return alter_config(self._zk, znodes.topic_config_path(name), changes)

    def broker_configs(self, broker_id: int) -> tuple[dict[str, str], dict[str, str]]:
        """The settings altered for all brokers, and those for this one."""
        paths = [znodes.broker_config_path(entity) for entity in (znodes.DEFAULT_ENTITY, broker_id)]
        nodes = zip(paths, self._zk.get_many(paths), strict=True)
        shared, own = (znodes.decode_config(path, node[0] if node else b"") for path, node in nodes)
        return shared, own

    def alter_broker_config(self, entity: str, changes: Mapping[str, str | None]) -> dict[str, str]:
        """Set settings of a broker (its id) or of all (DEFAULT_ENTITY), or remove those whose new value is None."""
        return alter_config(self._zk, znodes.broker_config_path(entity), changes)

    def user_configs(self) -> dict[str, dict[str, str]]:
        """The config of each user: SCRAM credentials, quotas."""
        nodes = self._zk.children(znodes.USER_CONFIGS)
        paths = [znodes.user_config_path(node) for node in nodes]
        found = zip(nodes, paths, self._zk.get_many(paths), strict=True)
        return {
            znodes.desanitized(node): _secret_config(path, read[0])
            for node, path, read in found
            if read is not None and node != znodes.DEFAULT_ENTITY
        }

    def alter_user_config(self, user: str, changes: Mapping[str, str | None]) -> dict[str, str]:
        """Set entries of a user's config, or remove those whose new value is None; returns the whole config."""
        return alter_config(self._zk, znodes.user_config_path(znodes.sanitized(user)), changes)

    def group_configs(self, nodes: Iterable[str] | None = None) -> dict[str, dict[str, str]]:
        """The config of each group, or of those with these node names. A node that is no config counts as empty."""
        nodes = list(self._zk.children_many([znodes.GROUP_CONFIGS])[0] if nodes is None else nodes)
        paths = [f"{znodes.GROUP_CONFIGS}/{node}" for node in nodes]
        found = {}
        for node, path, read in zip(nodes, paths, self._zk.get_many(paths), strict=True):
            try:
                found[znodes.desanitized(node)] = znodes.decode_config(path, read[0] if read else b"")
            except MalformedNode as error:
                logger.error("the settings of a group are ignored: %s", error)
        return found

    def alter_group_config(self, node: str, changes: Mapping[str, str | None]) -> dict[str, str]:
        """Set settings of a group (its node's name), or remove those whose new value is None; returns all."""
        return alter_config(self._zk, f"{znodes.GROUP_CONFIGS}/{node}", changes)


def _state_operation(tp: TopicPartition, state: PartitionState) -> Operation:
    path = znodes.state_path(tp)
    return Create(path, state.encode()) if state.version == NO_STATE else SetData(path, state.encode(), state.version)


def _new_partitions(
    name: str, assignment: Mapping[int, tuple[int, ...]], first_epochs: Mapping[int, int]
) -> list[Operation]:
    operations: list[Operation] = []
    for partition, replicas in assignment.items():
        tp, epoch = TopicPartition(name, partition), first_epochs.get(partition, 0)
        state = PartitionState(replicas[0], epoch, replicas, controller_epoch=0, is_restored=epoch > 0)
        operations += (Create(znodes.partition_path(tp)), Create(znodes.state_path(tp), state.encode()))
    return operations


def _check_size(name: str, operations: Iterable[Operation]) -> None:
    size = sum(map(request_size, operations))
    if size > MAX_TRANSACTION_BYTES:
        raise BrokerError(
            ErrorCode.invalid_partitions,
            f"topic {name!r} has too many new partitions for one ZooKeeper transaction "
            f"({size:,} of {MAX_TRANSACTION_BYTES:,} bytes): begin with fewer and add the others in steps",
        )


def _secret_config(path: str, data: bytes) -> dict[str, str]:
    """A user's config, whose data no error may show."""
    try:
        return znodes.decode_config(path, data)
    except MalformedNode:
        raise MalformedNode(path, b"(hidden)", "it is not Kafka's JSON for a config") from None


def _unknown(name: str) -> BrokerError:
    return BrokerError(ErrorCode.unknown_topic_or_partition, f"there is no topic {name!r}")

"""What brokers keep in ZooKeeper, in Kafka's paths and JSON (kafka.zk.KafkaZkClient).

Every method blocks for at least one round trip, so call it from a worker thread. It raises ConnectionFailed when
ZooKeeper does not answer in time. Callbacks of `watch_*` run on the client's event thread: soon after the call, after
each change (several may come as one) and after each reconnection. They may call the registry.

A topic is created and deleted as a whole, in one ZooKeeper transaction. A topic too large to be deleted in one is
marked first, so that `resume_deletions` finishes the deletion if the broker dies meanwhile.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from broker.clock import Clock, SystemClock
from broker.errors import BrokerError, ErrorCode
from broker.protocol.topic_names import check_collision, check_topic_name
from broker.protocol.topic_partition import TopicPartition
from broker.zookeeper import znodes
from broker.zookeeper.client import Watch, ZooKeeper
from broker.zookeeper.cluster_metadata import ClusterMetadata, PartitionInfo, Topic
from broker.zookeeper.operations import (
    MAX_TRANSACTION_BYTES,
    BadVersion,
    Check,
    Create,
    Delete,
    NodeExists,
    NodeStat,
    NoNode,
    NotEmpty,
    Operation,
    SetData,
    in_transactions,
    request_size,
)
from broker.zookeeper.znodes import NO_STATE, BrokerInfo, PartitionState, TopicRecord

__all__ = ["PRODUCER_ID_BLOCK_SIZE", "ControllerEpoch", "Registry"]

PRODUCER_ID_BLOCK_SIZE = 1000
DEFAULT_RESERVED_BROKER_MAX_ID = 1000


class ControllerEpoch(NamedTuple):
    """Which controller wrote something. `version` is that of `/controller_epoch`, which fences earlier controllers."""

    epoch: int
    version: int


class Registry:
    """Brokers, topics, settings, users, the controller and producer ids in ZooKeeper."""

    def __init__(self, zk: ZooKeeper, clock: Clock | None = None) -> None:
        self._zk = zk
        self._clock = clock or SystemClock()

    # -- the cluster

    def ensure_paths(self) -> None:
        """Create the missing ones of the persistent nodes below which all others lie."""
        found = self._zk.get_many(znodes.PERSISTENT_PATHS)
        for path, node in zip(znodes.PERSISTENT_PATHS, found, strict=True):
            if node is None:
                self._zk.ensure_path(path)

    def cluster_id(self) -> str:
        """The id of the cluster. The first broker that asks generates it."""
        try:
            data, _ = self._zk.get(znodes.CLUSTER_ID)
        except NoNode:
            with contextlib.suppress(NodeExists):
                generated = znodes.encode_cluster_id(znodes.uuid_to_text(znodes.new_uuid()))
                self._zk.create(znodes.CLUSTER_ID, generated, parents=True)
            data, _ = self._zk.get(znodes.CLUSTER_ID)
        return znodes.decode_cluster_id(data)

    def load_metadata(self, previous: ClusterMetadata | None = None) -> ClusterMetadata:
        """Read the whole cluster. With `previous`, take the topics it has from there and read only new ones."""
        names = self.topic_names()
        known = previous.topics if previous else {}
        topics = {**known, **self.load_topics([name for name in names if name not in known])}
        return ClusterMetadata(
            cluster_id=previous.cluster_id if previous else self.cluster_id(),
            controller_id=self.controller_id(),
            brokers=self.brokers(),
            topics={name: topics[name] for name in names if name in topics},
        )

    # -- brokers

    def generate_broker_id(self, reserved_max_id: int = DEFAULT_RESERVED_BROKER_MAX_ID) -> int:
        """A new id above `reserved.broker.max.id`, for `broker.id=-1`. Never the same twice in one cluster."""
        self._zk.ensure_path(znodes.BROKER_SEQUENCE_ID)
        return reserved_max_id + self._zk.set(znodes.BROKER_SEQUENCE_ID, b"").version

    def register_broker(self, info: BrokerInfo) -> None:
        """Create the ephemeral `/brokers/ids/N`, or update it if this session owns it.

        Raises NodeExists when another session owns it (membership.py decides what to do then).
        """
        path = znodes.broker_path(info.broker_id)
        try:
            self._zk.create(path, info.encode(), ephemeral=True, parents=True)
        except NodeExists:
            stat = self._zk.exists(path)
            if stat is None:
                return self.register_broker(info)
            if stat.ephemeral_owner != self._zk.session_id:
                raise
            self._zk.set(path, info.encode(), stat.version)

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
        return BrokerInfo.decode(broker_id, data), stat

    def brokers(self) -> dict[int, BrokerInfo]:
        """All registered brokers, ordered by id."""
        return self._read_brokers(self._zk.children(znodes.BROKER_IDS))

    def watch_brokers(self, callback: Callable[[dict[int, BrokerInfo]], None]) -> Watch:
        """Call back with all registered brokers whenever one comes or goes."""
        return self._zk.watch_children(znodes.BROKER_IDS, lambda ids: callback(self._read_brokers(ids)))

    def _read_brokers(self, names: Collection[str]) -> dict[int, BrokerInfo]:
        ids = sorted(int(name) for name in names)
        nodes = self._zk.get_many([znodes.broker_path(broker_id) for broker_id in ids])
        found = zip(ids, nodes, strict=True)
        return {broker_id: BrokerInfo.decode(broker_id, node[0]) for broker_id, node in found if node is not None}

    # -- the controller

    def elect_controller(self, broker_id: int) -> ControllerEpoch | None:
        """Try to become the controller: the new controller epoch, or None when another broker is the controller.

        Creates the node and raises the epoch in one transaction. If this session is the controller already, returns
        its epoch.
        """
        while True:
            epoch, version = self.controller_epoch()
            node = znodes.encode_controller(broker_id, self._clock.now_ms())
            try:
                _, stat = self._zk.transaction(
                    [
                        Create(znodes.CONTROLLER, node, ephemeral=True),
                        SetData(znodes.CONTROLLER_EPOCH, str(epoch + 1).encode(), version),
                    ]
                )
                return ControllerEpoch(epoch + 1, stat.version)
            except BadVersion:
                continue
            except NodeExists:
                stat = self._zk.exists(znodes.CONTROLLER)
                if stat is not None:
                    return self.controller_epoch() if stat.ephemeral_owner == self._zk.session_id else None

    def resign_controller(self) -> None:
        """Delete the controller node if this session owns it. Returns at once while ZooKeeper is away."""
        if not self._zk.connected:
            return
        stat = self._zk.exists(znodes.CONTROLLER)
        if stat is not None and stat.ephemeral_owner == self._zk.session_id:
            with contextlib.suppress(NoNode):
                self._zk.delete(znodes.CONTROLLER)

    def controller_id(self) -> int:
        """Id of the controller, -1 when there is none."""
        try:
            return znodes.decode_controller(self._zk.get(znodes.CONTROLLER)[0])
        except NoNode:
            return -1

    def watch_controller(self, callback: Callable[[int], None]) -> Watch:
        """Call back with the controller's id (-1: none) whenever it changes."""
        return self._zk.watch_data(
            znodes.CONTROLLER, lambda data, _: callback(-1 if data is None else znodes.decode_controller(data))
        )

    def controller_epoch(self) -> ControllerEpoch:
        """The number of controllers so far."""
        try:
            data, stat = self._zk.get(znodes.CONTROLLER_EPOCH)
        except NoNode:
            with contextlib.suppress(NodeExists):
                self._zk.create(znodes.CONTROLLER_EPOCH, b"0")
            data, stat = self._zk.get(znodes.CONTROLLER_EPOCH)
        return ControllerEpoch(int(data), stat.version)

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
        """Names of all topics, sorted."""
        return self._zk.children(znodes.TOPICS)

    def topics(self, names: Sequence[str] | None = None) -> dict[str, TopicRecord]:
        """Topics, ordered by name; all of them without `names`."""
        return self._read_topics(self.topic_names() if names is None else names)

    def topic(self, name: str) -> TopicRecord | None:
        return self._read_topics([name]).get(name)

    def load_topics(self, names: Sequence[str]) -> dict[str, Topic]:
        """Topics with the states of their partitions; without those that do not exist."""
        records = self._read_topics(names)
        states = self.partition_states([tp for record in records.values() for tp in record.partitions()])
        return {name: Topic.of(record, states) for name, record in records.items()}

    def watch_topics(self, callback: Callable[[frozenset[str]], None]) -> Watch:
        """Call back with the names of all topics whenever one comes or goes."""
        return self._zk.watch_children(znodes.TOPICS, lambda names: callback(frozenset(names)))

    def _read_topics(self, names: Sequence[str]) -> dict[str, TopicRecord]:
        nodes = self._zk.get_many([znodes.topic_path(name) for name in names])
        paths = [znodes.topic_config_path(name) for name in names]
        configs = self._zk.get_many(paths)
        return {
            name: TopicRecord.decode(name, node[0], znodes.decode_config(path, config[0] if config else b""))
            for name, node, path, config in zip(names, nodes, paths, configs, strict=True)
            if node is not None
        }

    # -- creating topics

    def create_topic(
        self,
        name: str,
        assignment: Mapping[int, Sequence[int]],
        config: Mapping[str, str] | None = None,
        topic_id: uuid.UUID | None = None,
        *,
        existing: Collection[str] | None = None,
    ) -> TopicRecord:
        """Create a topic with its config and partition states, or nothing.

        `assignment`: partition → broker ids, the leader first. The name must not collide with `existing` topics (None:
        read them).
        Raises BrokerError `invalid_topic_exception` (a bad or colliding name), `topic_already_exists`,
        `invalid_partitions` (too many for one transaction).
        """
        check_topic_name(name)
        check_collision(name, self.topic_names() if existing is None else existing)
        replicas = {partition: tuple(ids) for partition, ids in sorted(assignment.items())}
        record = TopicRecord(name, topic_id or znodes.new_uuid(), replicas, dict(config or {}))
        new_config: Operation = Create(znodes.topic_config_path(name), znodes.encode_config(record.config))
        operations = [
            Create(znodes.topic_path(name), record.encode()),
            Create(znodes.partitions_path(name)),
            *_new_partitions(name, replicas),
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
            operations += _new_partitions(name, added)
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
        """Leader, ISR and epochs; without partitions that have no state yet."""
        nodes = self._zk.get_many([znodes.state_path(tp) for tp in partitions])
        found = zip(partitions, nodes, strict=True)
        return {tp: PartitionState.decode(tp, node[0], node[1].version) for tp, node in found if node is not None}

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
                    raise _not_controller() from error
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

    def write_assignment(
        self,
        tp: TopicPartition,
        before: PartitionInfo,
        after: PartitionInfo,
        state: PartitionState,
        *,
        controller_version: int,
    ) -> bool:
        """Replace a partition's replicas and its state in one transaction, as a step of a reassignment (KIP-455).

        False, and nothing is written, if its replicas are not those of `before` any more or another broker has changed
        the state. Raises BrokerError `not_controller` as `write_states`.
        """
        while True:
            try:
                record, version = self._read_versioned(tp.topic)
            except BrokerError:
                return False
            if tp.partition not in record.assignment or record.replicas_of(tp.partition) != before.assignment:
                return False
            try:
                self._zk.transaction(
                    [
                        Check(znodes.CONTROLLER_EPOCH, controller_version),
                        SetData(
                            znodes.topic_path(tp.topic),
                            record.reassigned(tp.partition, *after.assignment).encode(),
                            version,
                        ),
                        _state_operation(tp, state),
                    ]
                )
                return True
            except (BadVersion, NodeExists, NoNode) as error:
                if error.path == znodes.CONTROLLER_EPOCH:
                    raise _not_controller() from error
                if error.path != znodes.topic_path(tp.topic):
                    return False

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
        return self._read_config(znodes.topic_config_path(name))[0]

    def alter_topic_config(self, name: str, changes: Mapping[str, str | None]) -> dict[str, str]:
        """Set settings, or remove those whose new value is None; returns all settings of the topic.

        Concurrent calls keep each other's changes. Raises BrokerError `unknown_topic_or_partition`.
        """
        if not self._zk.exists(znodes.topic_path(name)):
            raise _unknown(name)
        return self._alter_config(znodes.topic_config_path(name), changes)

    def broker_configs(self, broker_id: int) -> tuple[dict[str, str], dict[str, str]]:
        """The settings altered for all brokers, and those for this one."""
        paths = [znodes.broker_config_path(entity) for entity in (znodes.ALL_BROKERS, broker_id)]
        nodes = zip(paths, self._zk.get_many(paths), strict=True)
        shared, own = (znodes.decode_config(path, node[0] if node else b"") for path, node in nodes)
        return shared, own

    def alter_broker_config(self, entity: str, changes: Mapping[str, str | None]) -> dict[str, str]:
        """Set settings of a broker (its id) or of all (ALL_BROKERS), or remove those whose new value is None."""
        return self._alter_config(znodes.broker_config_path(entity), changes)

    def user_configs(self) -> dict[str, dict[str, str]]:
        """The config of each user: SCRAM credentials, quotas."""
        nodes = self._zk.children(znodes.USER_CONFIGS)
        paths = [znodes.user_config_path(node) for node in nodes]
        found = zip(nodes, paths, self._zk.get_many(paths), strict=True)
        return {
            znodes.desanitized(node): _secret_config(path, read[0])
            for node, path, read in found
            if read is not None and node != znodes.ALL_BROKERS
        }

    def alter_user_config(self, user: str, changes: Mapping[str, str | None]) -> dict[str, str]:
        """Set entries of a user's config, or remove those whose new value is None; returns the whole config."""
        return self._alter_config(znodes.user_config_path(znodes.sanitized(user)), changes)

    def _alter_config(self, path: str, changes: Mapping[str, str | None]) -> dict[str, str]:
        while True:
            config, version = self._read_config(path)
            merged: dict[str, str | None] = {**config, **changes}
            altered = {key: value for key, value in merged.items() if value is not None}
            data = znodes.encode_config(altered)
            try:
                if version is None:
                    self._zk.create(path, data, parents=True)
                else:
                    self._zk.set(path, data, version)
                return altered
            except (BadVersion, NodeExists, NoNode):
                continue  # another broker was faster

    def _read_config(self, path: str) -> tuple[dict[str, str], int | None]:
        """The config and its version, None when there is no node."""
        try:
            data, stat = self._zk.get(path)
        except NoNode:
            return {}, None
        return znodes.decode_config(path, data), stat.version

    # -- deleting topics

    def delete_topic(self, name: str) -> None:
        """Delete a topic, its config and its states. Raises BrokerError `unknown_topic_or_partition`."""
        if not self._zk.exists(znodes.topic_path(name)):
            raise _unknown(name)
        while self._zk.exists(znodes.topic_path(name)):
            try:
                chunks = list(in_transactions(self._deletions(name)))
                if len(chunks) > 1:
                    self.request_deletion(name)
                    chunks = list(in_transactions(self._deletions(name)))
                for chunk in chunks:
                    self._zk.transaction(chunk)
            except (NoNode, NotEmpty):
                continue  # another broker deletes the topic too, or adds partitions: read it again

    def request_deletion(self, name: str) -> None:
        """Mark a topic for deletion, as Kafka's tools do."""
        with contextlib.suppress(NodeExists):
            self._zk.create(znodes.delete_topic_path(name), parents=True)

    def pending_deletions(self) -> list[str]:
        return self._zk.children(znodes.DELETE_TOPICS)

    def resume_deletions(self) -> list[str]:
        """Delete the marked topics, and marks without a topic; returns the names."""
        names = self.pending_deletions()
        for name in names:
            try:
                self.delete_topic(name)
            except BrokerError:
                with contextlib.suppress(NoNode):
                    self._zk.delete(znodes.delete_topic_path(name))
        return names

    def watch_deletions(self, callback: Callable[[list[str]], None]) -> Watch:
        """Call back with the topics marked for deletion whenever they change."""
        return self._zk.watch_children(znodes.DELETE_TOPICS, callback)

    def _deletions(self, name: str) -> list[Operation]:
        """Deletes all nodes of a topic, children before parents, the topic itself last."""
        partitions_root = znodes.partitions_path(name)
        partitions = [f"{partitions_root}/{partition}" for partition in self._zk.children(partitions_root)]
        below = self._zk.children_many(partitions)
        paths = [f"{path}/{child}" for path, children in zip(partitions, below, strict=True) for child in children]
        paths += partitions
        last = (
            partitions_root,
            znodes.topic_config_path(name),
            znodes.delete_topic_path(name),
            znodes.topic_path(name),
        )
        paths += [path for path, node in zip(last, self._zk.get_many(last), strict=True) if node is not None]
        return [Delete(path) for path in paths]


def _state_operation(tp: TopicPartition, state: PartitionState) -> Operation:
    path = znodes.state_path(tp)
    return Create(path, state.encode()) if state.version == NO_STATE else SetData(path, state.encode(), state.version)


def _new_partitions(name: str, assignment: Mapping[int, tuple[int, ...]]) -> list[Operation]:
    operations: list[Operation] = []
    for partition, replicas in assignment.items():
        tp = TopicPartition(name, partition)
        state = PartitionState(replicas[0], 0, replicas, controller_epoch=0)
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
    except znodes.MalformedNode:
        raise znodes.MalformedNode(path, b"(hidden)", "it is not Kafka's JSON for a config") from None


def _not_controller() -> BrokerError:
    return BrokerError(ErrorCode.not_controller, "another broker has become the controller")


def _unknown(name: str) -> BrokerError:
    return BrokerError(ErrorCode.unknown_topic_or_partition, f"there is no topic {name!r}")

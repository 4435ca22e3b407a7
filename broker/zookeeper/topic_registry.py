"""Topics, their configs and partition states in ZooKeeper: the base class of `Registry`, split off for its size.

The same promises as in registry.py. A topic appears and disappears as a whole: everything that makes it up is written
in one ZooKeeper transaction; a topic too large to be deleted in one is marked first, and finished by
`resume_deletions` should the broker die on the way.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from broker.errors import BrokerError, ErrorCode
from broker.protocol.topic_names import check_collision, check_topic_name
from broker.protocol.topic_partition import TopicPartition
from broker.zookeeper import znodes
from broker.zookeeper.client import Watch, ZooKeeper
from broker.zookeeper.cluster_metadata import Topic
from broker.zookeeper.operations import (
    ANY_VERSION,
    BadVersion,
    Create,
    Delete,
    NodeExists,
    NoNode,
    NotEmpty,
    Operation,
    SetData,
)
from broker.zookeeper.znodes import PartitionState, TopicRecord

__all__ = ["TopicRegistry"]

_TRANSACTION_BYTES = 900_000  # ZooKeeper refuses requests above jute.maxbuffer, 1 MiB less a byte
_STATES_AT_ONCE = 2000
_OPERATION_OVERHEAD = 64  # header, ACL, lengths


class TopicRegistry:
    """Reads and writes `/brokers/topics`, `/config/topics` and `/admin/delete_topics`."""

    def __init__(self, zk: ZooKeeper) -> None:
        self._zk = zk

    # -- reading

    def topic_names(self) -> list[str]:
        """Names of all topics, sorted."""
        return self._children(znodes.TOPICS)

    def topics(self) -> dict[str, TopicRecord]:
        """All topics by name, in order."""
        return self._read_topics(self.topic_names())

    def topic(self, name: str) -> TopicRecord | None:
        return self._read_topics([name]).get(name)

    def load_topics(self, names: Sequence[str]) -> dict[str, Topic]:
        """Topics with the states of their partitions; a topic that is gone is left out."""
        records = self._read_topics(names)
        states = self.partition_states([tp for record in records.values() for tp in record.partitions()])
        return {name: Topic.of(record, states) for name, record in records.items()}

    def partition_states(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, PartitionState]:
        """Leader, ISR and epochs; a partition for which none has been written is left out."""
        nodes = self._zk.get_many([znodes.state_path(tp) for tp in partitions])
        found = zip(partitions, nodes, strict=True)
        return {tp: PartitionState.decode(tp, node[0], node[1].version) for tp, node in found if node is not None}

    def watch_topics(self, callback: Callable[[frozenset[str]], None]) -> Watch:
        """Call back with the names of all topics whenever one comes or goes."""
        return self._zk.watch_children(znodes.TOPICS, lambda names: callback(frozenset(names)))

    def _read_topics(self, names: Sequence[str]) -> dict[str, TopicRecord]:
        nodes = self._zk.get_many([znodes.topic_path(name) for name in names])
        configs = self._zk.get_many([znodes.topic_config_path(name) for name in names])
        return {
            name: TopicRecord.decode(name, node[0], _decode_config(name, config[0] if config else b""))
            for name, node, config in zip(names, nodes, configs, strict=True)
            if node is not None
        }

    # -- creating

    def create_topic(
        self,
        name: str,
        assignment: Mapping[int, Sequence[int]],
        config: Mapping[str, str] | None = None,
        topic_id: uuid.UUID | None = None,
        *,
        live_brokers: Collection[int] | None = None,
        controller_epoch: int = 0,
        existing: Collection[str] | None = None,
    ) -> TopicRecord:
        """Create a topic with its config and partition states, all or nothing.

        `assignment`: partition → broker ids, the preferred leader first (assignment.py). A partition is led by its
        first replica among `live_brokers` (None: all are), and gets no state while none is alive. `existing` are the
        names that the new one must not collide with (None: they are read).
        Raises BrokerError `invalid_topic_exception` (a bad name, or one that collides with another topic's),
        `topic_already_exists`, `invalid_partitions` (too many for one transaction).
        """
        check_topic_name(name)
        check_collision(name, self.topic_names() if existing is None else existing)
        replicas = {partition: tuple(ids) for partition, ids in sorted(assignment.items())}
        record = TopicRecord(name, topic_id or znodes.new_uuid(), replicas, dict(config or {}))
        new_config: Operation = Create(znodes.topic_config_path(name), znodes.encode_config(record.config))
        operations = [
            Create(znodes.topic_path(name), record.encode()),
            Create(znodes.partitions_path(name)),
            *_new_partitions(name, replicas, live_brokers, controller_epoch),
        ]
        _check_size(name, operations)
        try:
            self._zk.transaction([new_config, *operations])
        except NodeExists as error:
            if self._is_ours(record):
                return record  # the answer to the first attempt was lost
            if error.path != new_config.path or self._zk.exists(znodes.topic_path(name)):
                raise BrokerError(ErrorCode.topic_already_exists, f"topic {name!r} already exists") from error
            # The config of a topic that somebody deleted without it: replace it.
            self._zk.transaction([SetData(new_config.path, znodes.encode_config(record.config)), *operations])
        return record

    def _is_ours(self, record: TopicRecord) -> bool:
        existing = self.topic(record.name)
        return existing is not None and existing.topic_id == record.topic_id

    def add_partitions(
        self,
        name: str,
        assignment: Mapping[int, Sequence[int]],
        *,
        live_brokers: Collection[int] | None = None,
        controller_epoch: int = 0,
    ) -> TopicRecord:
        """Add the partitions in `assignment` (only the new ones), all or nothing.

        Raises BrokerError `unknown_topic_or_partition`, `invalid_partitions` (not the next numbers, or too many).
        """
        added = {partition: tuple(replicas) for partition, replicas in sorted(assignment.items())}
        first_attempt = True
        while True:
            record, version = self._read_versioned(name)
            if not first_attempt and added.items() <= record.assignment.items():
                return record  # the answer to an earlier attempt was lost
            first = len(record.assignment)
            if list(added) != list(range(first, first + len(added))):
                raise BrokerError(
                    ErrorCode.invalid_partitions,
                    f"topic {name!r} has {first} partitions: {sorted(added)} are not the next ones",
                )
            grown = TopicRecord(
                name,
                record.topic_id,
                {**record.assignment, **added},
                record.config,
                record.adding_replicas,
                record.removing_replicas,
            )
            operations: list[Operation] = [SetData(znodes.topic_path(name), grown.encode(), version)]
            if not self._zk.exists(znodes.partitions_path(name)):
                operations.append(Create(znodes.partitions_path(name)))
            operations += _new_partitions(name, added, live_brokers, controller_epoch)
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

    def set_partition_state(self, tp: TopicPartition, state: PartitionState) -> PartitionState:
        """Write a partition's state over the version it was read with, and return it with its new version.

        Raises BadVersion when another broker was faster, NoNode when the topic is gone or has no state yet.
        """
        return self.set_partition_states({tp: state})[tp]

    def set_partition_states(
        self, states: Mapping[TopicPartition, PartitionState]
    ) -> dict[TopicPartition, PartitionState]:
        """`set_partition_state` of many at once, in as few transactions as they fit: each all or nothing."""
        operations = [SetData(znodes.state_path(tp), state.encode(), state.version) for tp, state in states.items()]
        stats = [stat for chunk in _chunks(operations) for stat in self._zk.transaction(chunk)]
        return {
            tp: PartitionState(state.leader, state.leader_epoch, state.isr, state.controller_epoch, stat.version)
            for (tp, state), stat in zip(states.items(), stats, strict=True)
        }

    def raise_leader_epochs(self, broker_id: int, topics: Iterable[TopicRecord]) -> list[TopicPartition]:
        """Begin a new leader epoch in every partition of `topics` that the broker leads; returns those (KIP-320).

        To be called when a leader starts: whoever has read of its log before then asks how far the old epoch goes,
        and finds out when the log has lost its end. In few round trips, however many partitions there are.
        """
        left = [tp for record in topics for tp in record.partitions() if broker_id in record.assignment[tp.partition]]
        raised: list[TopicPartition] = []
        while left:
            led = {tp: state for tp, state in self.partition_states(left).items() if state.leader == broker_id}
            left = []
            for start in range(0, len(led), _STATES_AT_ONCE):
                chunk = list(led)[start : start + _STATES_AT_ONCE]
                try:
                    self.set_partition_states({tp: led[tp].next_epoch() for tp in chunk})
                    raised += chunk
                except (BadVersion, NoNode):
                    left += chunk  # somebody else changed or deleted one: read them again
        return raised

    # -- config

    def topic_config(self, name: str) -> dict[str, str]:
        """The settings of a topic that differ from the broker's; empty when there are none or no such topic."""
        return self._read_config(znodes.topic_config_path(name))[0]

    def set_topic_config(self, name: str, config: Mapping[str, str]) -> None:
        """Replace a topic's settings. Raises BrokerError `unknown_topic_or_partition`."""
        if not self._zk.exists(znodes.topic_path(name)):
            raise _unknown(name)
        self._write_config(znodes.topic_config_path(name), config, ANY_VERSION)

    def alter_topic_config(self, name: str, changes: Mapping[str, str | None]) -> dict[str, str]:
        """Set some of a topic's settings, take away those whose new value is None, and return all it has then.

        Concurrent alterations do not undo each other. Raises BrokerError `unknown_topic_or_partition`.
        """
        if not self._zk.exists(znodes.topic_path(name)):
            raise _unknown(name)
        return self._alter_config(znodes.topic_config_path(name), changes)

    def _alter_config(self, path: str, changes: Mapping[str, str | None]) -> dict[str, str]:
        while True:
            config, version = self._read_config(path)
            merged: dict[str, str | None] = {**config, **changes}
            altered = {key: value for key, value in merged.items() if value is not None}
            try:
                self._write_config(path, altered, version)
                return altered
            except (BadVersion, NodeExists):
                continue

    def _read_config(self, path: str) -> tuple[dict[str, str], int | None]:
        try:
            data, stat = self._zk.get(path)
        except NoNode:
            return {}, None
        return znodes.decode_config(path, data), stat.version

    def _write_config(self, path: str, config: Mapping[str, str], version: int | None) -> None:
        """`version` None: create the node."""
        data = znodes.encode_config(config)
        if version is not None:
            try:
                self._zk.set(path, data, version)
                return
            except NoNode:
                pass
        self._zk.create(path, data, parents=True)

    # -- deleting

    def delete_topic(self, name: str) -> None:
        """Delete a topic, its config and its states. Raises BrokerError `unknown_topic_or_partition`."""
        if not self._zk.exists(znodes.topic_path(name)):
            raise _unknown(name)
        while self._zk.exists(znodes.topic_path(name)):
            try:
                chunks = list(_chunks(self._deletions(name)))
                if len(chunks) > 1:
                    self.request_deletion(name)
                    chunks = list(_chunks(self._deletions(name)))
                for chunk in chunks:
                    self._zk.transaction(chunk)
            except (NoNode, NotEmpty):
                continue  # somebody else deletes it too, or adds partitions: look again

    def request_deletion(self, name: str) -> None:
        """Mark a topic for deletion, as Kafka's tools do; the controller does the rest (`pending_deletions`)."""
        try:
            self._zk.create(znodes.delete_topic_path(name), parents=True)
        except NodeExists:
            pass

    def pending_deletions(self) -> list[str]:
        """Topics marked for deletion and not yet gone."""
        return self._children(znodes.DELETE_TOPICS)

    def resume_deletions(self) -> list[str]:
        """Finish what was marked, and return the names: marks of topics that are not there go, too."""
        names = self.pending_deletions()
        for name in names:
            try:
                self.delete_topic(name)
            except BrokerError:
                try:
                    self._zk.delete(znodes.delete_topic_path(name))
                except NoNode:
                    pass
        return names

    def watch_deletions(self, callback: Callable[[list[str]], None]) -> Watch:
        """Call back with the topics marked for deletion whenever that changes."""
        return self._zk.watch_children(znodes.DELETE_TOPICS, callback)

    def _deletions(self, name: str) -> list[Operation]:
        """Everything a topic consists of, children before parents, the topic itself at the end."""
        partitions_root = znodes.partitions_path(name)
        partitions = [f"{partitions_root}/{partition}" for partition in self._children(partitions_root)]
        below = self._zk.children_many(partitions)
        paths = [
            f"{path}/{child}" for path, children in zip(partitions, below, strict=True) for child in children or ()
        ]
        paths += partitions
        last = (
            partitions_root,
            znodes.topic_config_path(name),
            znodes.delete_topic_path(name),
            znodes.topic_path(name),
        )
        paths += [path for path, node in zip(last, self._zk.get_many(last), strict=True) if node is not None]
        return [Delete(path) for path in paths]

    def _children(self, path: str) -> list[str]:
        try:
            return self._zk.children(path)
        except NoNode:
            return []


def _new_partitions(
    name: str,
    assignment: Mapping[int, tuple[int, ...]],
    live_brokers: Collection[int] | None,
    controller_epoch: int,
) -> list[Operation]:
    operations: list[Operation] = []
    for partition, replicas in assignment.items():
        tp = TopicPartition(name, partition)
        operations.append(Create(znodes.partition_path(tp)))
        alive = replicas if live_brokers is None else tuple(r for r in replicas if r in live_brokers)
        if alive:
            state = PartitionState(alive[0], 0, alive, controller_epoch)
            operations.append(Create(znodes.state_path(tp), state.encode()))
    return operations


def _size(operation: Operation) -> int:
    data = operation.data if isinstance(operation, Create | SetData) else b""
    return len(operation.path) + len(data) + _OPERATION_OVERHEAD


def _check_size(name: str, operations: Iterable[Operation]) -> None:
    size = sum(map(_size, operations))
    if size > _TRANSACTION_BYTES:
        raise BrokerError(
            ErrorCode.invalid_partitions,
            f"topic {name!r} has too many new partitions for one ZooKeeper transaction "
            f"({size:,} of {_TRANSACTION_BYTES:,} bytes): begin with fewer and add the others in steps",
        )


def _chunks(operations: Iterable[Operation]) -> Iterator[list[Operation]]:
    """Cut a list of operations into transactions that ZooKeeper takes."""
    chunk: list[Operation] = []
    size = 0
    for operation in operations:
        size += _size(operation)
        if chunk and size > _TRANSACTION_BYTES:
            yield chunk
            chunk, size = [], _size(operation)
        chunk.append(operation)
    if chunk:
        yield chunk


def _decode_config(name: str, data: bytes) -> dict[str, str]:
    return znodes.decode_config(znodes.topic_config_path(name), data)


def _unknown(name: str) -> BrokerError:
    return BrokerError(ErrorCode.unknown_topic_or_partition, f"there is no topic {name!r}")

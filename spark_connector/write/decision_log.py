"""The log of a query's decisions: the committed offsets of a group named after the query.

The offset is the batch's number, and its metadata holds the decision (decision.py). It is committed within a
transaction of the driver's own id (TxnOffsetCommit), so all parts of a decision appear together, and a driver with an
old epoch cannot decide anything (W4). The offsets are those of partition 0 of a topic that the query writes to, because
brokers keep offsets only for existing topics. Parts after the first one are in further groups.

Used by attempt.py (read) and commit_protocol.py. Raises TransactionError (ProducerFenced: another driver has taken
over) and the client's errors.
"""

from __future__ import annotations

import contextlib
from typing import Final, NamedTuple

from broker.client.cluster import Cluster
from broker.client.committed_offsets import CommittedOffset, GroupMetadata, GroupOffsets
from broker.client.transaction_errors import TransactionError
from broker.client.transaction_requests import (
    TransactionHandle,
    add_offsets,
    commit_offsets,
    end_transaction,
    init_transactional_id,
)
from broker.errors import BrokerError, ConfigError, ErrorCode, PykafkaError
from broker.protocol.topic_partition import TopicPartition
from spark_connector.write.decision import PART_CHARACTERS, Decision, Part, pack, parse_part, unpack
from spark_connector.write.write_plan import SinkNames

_TIMEOUT_MS: Final = 10_000
"""Timeout of the deciding transaction: if a driver dies in it, tasks wait for its end up to that long."""


_METADATA: Final = "pykafka write"
"""The text beside the offset of the group of done batches, by which people and `pykafka ui` know it."""


class Recorded(NamedTuple):
    """A decision, and the topic whose offsets hold it."""

    decision: Decision
    topic: str


class _StoredPart(NamedTuple):
    tp: TopicPartition
    batch_id: int
    part: Part


class DecisionLog:
    """The decisions of one sink. Only the last one counts."""

    def __init__(self, cluster: Cluster, names: SinkNames, topic: str | None = None) -> None:
        """`topic`: the topic of all rows; None if the rows name their topics."""
        self._cluster = cluster
        self._names = names
        self._topic = topic

    def read(self) -> Recorded | None:
        """The newest decision, or None. Waits for a decision that is just being recorded.

        Raises ConnectorError for a decision that cannot be decoded.
        """
        return self._cluster.retrying(self._read_once)

    def take_over(self) -> TransactionHandle:
        """Become the driver: aborts the decision that an earlier driver is recording, and fences all earlier
        drivers."""
        return init_transactional_id(self._cluster, self._names.of_driver, timeout_ms=_TIMEOUT_MS)

    def record(self, driver: TransactionHandle, decision: Decision, topic: str) -> None:
        """Make `decision` the newest. If this raises anything but a TransactionError, it may still have been
        recorded."""
        tp = TopicPartition(topic, 0)
        try:
            for number, text in enumerate(pack(decision, driver.producer_id << 16 | driver.epoch)):
                group = GroupMetadata(self._names.group(number))
                add_offsets(self._cluster, driver, group.group_id)
                commit_offsets(self._cluster, driver, {tp: decision.batch_id}, group, metadata=text)
        except TransactionError as error:
            with contextlib.suppress(PykafkaError):  # otherwise readers wait for its timeout
                end_transaction(self._cluster, driver, commit=False)
            if error.code is ErrorCode.offset_metadata_too_large:
                raise ConfigError(
                    f"the brokers take less than {PART_CHARACTERS} characters of metadata with an offset: exactly-once "
                    "needs their default of offset.metadata.max.bytes"
                ) from error
            raise
        end_transaction(self._cluster, driver, commit=True)

    def mark_done(self, recorded: Recorded) -> None:
        """Record that every transaction of the decision is committed, before a later batch can use their ids."""
        done = {TopicPartition(recorded.topic, 0): recorded.decision.batch_id}
        GroupOffsets(self._cluster, self._names.group_of_done).commit(done, _METADATA)

    def is_done(self, recorded: Recorded) -> bool:
        """Whether `mark_done` was recorded. True is certain; False may only mean that the driver died before it."""
        done = GroupOffsets(self._cluster, self._names.group_of_done).fetch([TopicPartition(recorded.topic, 0)])
        return recorded.decision.batch_id in done.values()

    def _read_once(self) -> Recorded | None:
        group = GroupOffsets(self._cluster, self._names.group())
        committed = group.committed()
        if self._topic is not None and (first := TopicPartition(self._topic, 0)) not in committed:
            # Brokers list committed offsets only, so a topic's first decision is missing while it is being recorded.
            committed |= group.committed([first])
        found = [_found(tp, one) for tp, one in committed.items()]
        if not found:
            return None
        newest = max(found, key=lambda one: (one.batch_id, one.part.stamp))
        parts = [newest.part]
        for number in range(1, newest.part.parts):
            part = GroupOffsets(self._cluster, self._names.group(number)).committed([newest.tp]).get(newest.tp)
            if part is None or _found(newest.tp, part).batch_id != newest.batch_id:
                raise _changed(newest.batch_id)
            parts.append(parse_part(part.metadata))
            if parts[-1]._replace(number=0, text="") != newest.part._replace(text=""):
                raise _changed(newest.batch_id)
        return Recorded(unpack(newest.batch_id, parts), newest.tp.topic)


def _found(tp: TopicPartition, committed: CommittedOffset) -> _StoredPart:
    return _StoredPart(tp, committed.offset, parse_part(committed.metadata))


def _changed(batch_id: int) -> BrokerError:
    """Another decision was recorded while the parts were read: read again."""
    return BrokerError(ErrorCode.unstable_offset_commit, f"the decision for batch {batch_id} is being replaced")

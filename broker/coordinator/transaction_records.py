"""Kafka's record formats of the `__transaction_state` topic (`TransactionLogKey/Value.json`), as typed values.

Version 1, which is flexible, is written only for transactions of version 2 (KIP-890), so that older Kafkas can read all
others.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import IntEnum
from typing import Annotated, Any, NamedTuple

from broker.coordinator.record_format import RecordFormat
from broker.protocol.entities import Int8, Int16, Int32, Int64, String, Wire
from broker.protocol.topic_partition import TopicPartition, by_topic

NO_PRODUCER_ID = -1
NO_EPOCH = -1


class TransactionState(IntEnum):
    """The state of a transactional id, with the values of the records."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def title(self) -> str:
        """Kafka's spelling: `PrepareCommit`."""
        return self.name.title().replace("_", "")


class _Topic(NamedTuple):
    topic: String
    partitions: tuple[Int32, ...]


def _topics(partitions: Collection[TopicPartition] | None) -> Collection[tuple[str, list[int]]] | None:
    return None if partitions is None else by_topic((tp, tp.partition) for tp in partitions).items()


def _partitions(topics: Collection[_Topic] | None) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(topic, number) for topic, numbers in topics or () for number in numbers)


class TransactionMetadata(NamedTuple):
    """The stored state of one transactional id. Times are in ms since the epoch, the time-out is in ms."""

    producer_id: Int64
    producer_epoch: Int16
    timeout_ms: Int32
    state: Annotated[TransactionState, Wire(stored=Int8, read=TransactionState)]
    last_update_ms: Int64
    partitions: Annotated[
        frozenset[TopicPartition],
        Wire(before="last_update_ms", stored=tuple[_Topic, ...] | None, read=_partitions, write=_topics),
    ] = frozenset()
    start_ms: Int64 = -1
    # The epoch before the last bump, for an InitProducerId that is repeated. Not stored.
    last_producer_epoch: int = NO_EPOCH
    previous_producer_id: Annotated[Int64, Wire(versions=(1,), tag=0)] = NO_PRODUCER_ID
    # The producer id after this transaction, when the epochs of the present one are used up.
    next_producer_id: Annotated[Int64, Wire(versions=(1,), tag=1)] = NO_PRODUCER_ID
    # 2: the client uses the second part of KIP-890, which bumps the epoch with every transaction.
    client_version: Annotated[Int16, Wire(versions=(1,), tag=2)] = 0


class _Key(NamedTuple):
    transactional_id: String


_KEYS = RecordFormat({0: _Key})
_VALUES = RecordFormat({0: TransactionMetadata, 1: TransactionMetadata}, flexible=1)

decode_transaction = _VALUES.decode


def encode_transaction_key(transactional_id: str) -> bytes:
    """The key under which a transactional id is stored (version 0)."""
    return _KEYS.encode((transactional_id,))


def decode_transaction_key(data: bytes) -> str | None:
    """The transactional id of a record. None for a key version of a later Kafka, which should be skipped."""
    key = _KEYS.decode_key(data)
    return None if key is None else key.transactional_id


def encode_transaction(metadata: TransactionMetadata) -> bytes:
    """The partitions are null in state Empty."""
    stored: Any = metadata
    if metadata.state is TransactionState.EMPTY:
        stored = stored._replace(partitions=None)
    return _VALUES.encode(stored, 1 if metadata.client_version >= 2 else 0)

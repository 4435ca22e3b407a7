"""Kafka's record formats of the `__transaction_state` topic (`TransactionLogKey/Value.json`), as typed values.

Kafka's tools can read these records, and this module can read Kafka's.

    key    version i16 = 0      transactional id string
    value  version i16 = 0, 1   producer id i64, epoch i16, time-out (ms) i32, state i8,
                                partitions? [topic string, partitions [i32]] (null in state Empty),
                                last update (ms) i64, start (ms) i64, [tagged fields: v1]
    tags   0 previous producer id i64, 1 next producer id i64, 2 client's transaction version i16

In version 1 a length is an unsigned varint of the length plus one, and the fields end with tagged fields. Version 1 is
written only for transactions of version 2 (KIP-890), so that older Kafkas can read all others. A null record value is a
tombstone. Invalid bytes raise `MalformedRecord`, never anything else.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from broker.coordinator.record_reader import MalformedRecord, RecordReader, encode_string
from broker.protocol.topic_partition import TopicPartition, by_topic
from broker.protocol.wire import array_length, string, unsigned_varint

NO_PRODUCER_ID = -1
NO_EPOCH = -1

_I16 = Struct(">h")
_I32 = Struct(">i")
_HEAD = Struct(">hqhib")
_TWO_I64 = Struct(">qq")
_TAG_I64 = Struct(">BBq")
_TAG_I16 = Struct(">BBh")


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


class TransactionMetadata(NamedTuple):
    """The stored state of one transactional id. Times are in ms since the epoch, the time-out is in ms."""

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState
    last_update_ms: int
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = -1
    # The epoch before the last bump, for an InitProducerId that is repeated. Not stored.
    last_producer_epoch: int = NO_EPOCH
    previous_producer_id: int = NO_PRODUCER_ID
    # The producer id after this transaction, when the epochs of the present one are used up.
    next_producer_id: int = NO_PRODUCER_ID
    # 2: the client uses the second part of KIP-890, which bumps the epoch with every transaction.
    client_version: int = 0


def encode_transaction_key(transactional_id: str) -> bytes:
    """The key under which a transactional id is stored (version 0)."""
    return b"\x00\x00" + encode_string(transactional_id)


def decode_transaction_key(data: bytes) -> str | None:
    """The transactional id of a record. None for a key version of a later Kafka, which should be skipped."""
    reader = RecordReader(data)
    if reader.key_version() > 0:
        return None
    transactional_id = reader.string()
    reader.expect_end()
    return transactional_id


def encode_transaction(metadata: TransactionMetadata) -> bytes:
    version = 1 if metadata.client_version >= 2 else 0
    head = _HEAD.pack(version, metadata.producer_id, metadata.producer_epoch, metadata.timeout_ms, int(metadata.state))
    times = _TWO_I64.pack(metadata.last_update_ms, metadata.start_ms)
    partitions = _encode_partitions(metadata, flexible=version > 0)
    return head + partitions + times + (_encode_tags(metadata) if version else b"")


def decode_transaction(data: bytes) -> TransactionMetadata:
    """Read the value of a transactional id, versions 0 and 1."""
    reader = RecordReader(data)
    reader.version(1, flexible=1)
    producer_id, producer_epoch, timeout_ms, state = reader.i64(), reader.i16(), reader.i32(), reader.i8()
    try:
        state = TransactionState(state)
    except ValueError:
        raise MalformedRecord(f"transaction state {state} is not one of 0 to 7") from None
    partitions = _decode_partitions(reader)
    last_update_ms, start_ms = reader.i64(), reader.i64()
    # Those that are no number of this size are from a later Kafka.
    tags = {tag: int.from_bytes(data, signed=True) for tag, data in reader.tags().items() if len(data) in (1, 2, 4, 8)}
    reader.expect_end()
    return TransactionMetadata(
        producer_id,
        producer_epoch,
        timeout_ms,
        state,
        last_update_ms,
        partitions,
        start_ms,
        previous_producer_id=tags.get(0, NO_PRODUCER_ID),
        next_producer_id=tags.get(1, NO_PRODUCER_ID),
        client_version=tags.get(2, 0),
    )


def _encode_partitions(metadata: TransactionMetadata, *, flexible: bool) -> bytes:
    if metadata.state is TransactionState.EMPTY:
        return b"\0" if flexible else b"\xff\xff\xff\xff"
    topics = by_topic((tp, tp.partition) for tp in metadata.partitions)
    parts = [array_length(len(topics), flexible)]
    for topic, numbers in topics.items():
        parts += (string(topic, flexible), array_length(len(numbers), flexible), *map(_I32.pack, numbers))
        if flexible:
            parts.append(b"\0")  # no tagged fields
    return b"".join(parts)


def _decode_partitions(reader: RecordReader) -> frozenset[TopicPartition]:
    found: set[TopicPartition] = set()
    for _ in range(reader.array_length(nullable=True)):
        topic = reader.string()
        found.update(TopicPartition(topic, reader.i32()) for _ in range(reader.array_length()))
        reader.tags()
    return frozenset(found)


def _encode_tags(metadata: TransactionMetadata) -> bytes:
    tags = [_TAG_I64.pack(0, 8, metadata.previous_producer_id)] if metadata.previous_producer_id >= 0 else []
    if metadata.next_producer_id >= 0:
        tags.append(_TAG_I64.pack(1, 8, metadata.next_producer_id))
    tags.append(_TAG_I16.pack(2, 2, metadata.client_version))
    return b"".join((unsigned_varint(len(tags)), *tags))

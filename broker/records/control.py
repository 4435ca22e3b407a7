"""Control records, which end transactions (KIP-98).

The leader of a partition writes `end_transaction_marker`s. Readers of committed records ask `AbortedTransactions` which
batches to skip. The key of a control record is (version, type), both int16; the value of an end marker is (version
int16, coordinator epoch int32).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from enum import IntEnum
from typing import Final, NamedTuple

from broker.errors import CorruptBatch
from broker.records.batch import HEADER_SIZE, BatchHeader, Buffer, build_batch
from broker.records.varint import encode_varint, read_varint

_KEY = struct.Struct(">hh")
_END_MARKER = struct.Struct(">hi")


BUMPS_EPOCH: Final = 2
"""The version of transactions from which every end bumps the epoch, and leaders add partitions (KIP-890)."""


class ControlType(IntEnum):
    """The types of Kafka's `ControlRecordType` that occur in topics."""

    ABORT = 0
    COMMIT = 1


class EndMarker(NamedTuple):
    """How a producer's transaction ended. `coordinator_epoch` fences a coordinator that was replaced.

    With the `transaction_version` BUMPS_EPOCH, which is not written, the epoch is above that of the records.
    """

    producer_id: int
    producer_epoch: int
    control_type: ControlType
    coordinator_epoch: int
    transaction_version: int = 0


def end_transaction_marker(
    producer_id: int, producer_epoch: int, control_type: ControlType, coordinator_epoch: int, timestamp: int
) -> bytes:
    """The batch of one record that commits or aborts a producer's open transaction; `timestamp` in ms."""
    key, value = _KEY.pack(0, control_type), _END_MARKER.pack(0, coordinator_epoch)
    body = b"".join((b"\0\0\0", encode_varint(len(key)), key, encode_varint(len(value)), value, b"\0"))
    return build_batch(
        encode_varint(len(body)) + body,
        1,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )


def read_control_type(buffer: Buffer, position: int, header: BatchHeader) -> int:
    """The type of the control batch at `position`, even if `ControlType` lacks it. Raises CorruptBatch."""
    plain, key_at, _ = _control_key(buffer, position, header)
    control_type: int = _KEY.unpack_from(plain, key_at)[1]
    return control_type


def read_end_marker(buffer: Buffer, position: int, header: BatchHeader) -> EndMarker | None:
    """The marker in the control batch at `position`. Raises CorruptBatch.

    None for a type that `ControlType` lacks, and for a batch whose record was compacted away.
    """
    if not header.record_count:
        return None
    plain, key_at, key_end = _control_key(buffer, position, header)
    control_type = _KEY.unpack_from(plain, key_at)[1]
    if control_type not in (ControlType.ABORT, ControlType.COMMIT):
        return None
    value_length, at = read_varint(plain, key_end)
    if value_length < _END_MARKER.size or at + value_length > len(plain):
        raise CorruptBatch(f"the end marker at offset {header.base_offset} has a value of {value_length} bytes")
    coordinator_epoch = _END_MARKER.unpack_from(plain, at)[1]
    return EndMarker(header.producer_id, header.producer_epoch, ControlType(control_type), coordinator_epoch)


def _control_key(buffer: Buffer, position: int, header: BatchHeader) -> tuple[memoryview, int, int]:
    """(record section of the control batch, start of the first record's key in it, end of that key)."""
    plain = memoryview(buffer)[position + HEADER_SIZE : position + header.size]
    _, at = read_varint(plain, 0)  # length of the record
    _, at = read_varint(plain, at + 1)  # timestamp, after the attributes
    _, at = read_varint(plain, at)  # offset
    key_length, at = read_varint(plain, at)
    if key_length < _KEY.size or at + key_length > len(plain):
        raise CorruptBatch(f"the control record at offset {header.base_offset} has a key of {key_length} bytes")
    return plain, at, at + key_length


class AbortedTransactions:
    """Which batches of a fetch belong to aborted transactions. Needs every batch, in offset order.

    A fetch reports an aborted transaction by producer and first offset. It ends at that producer's abort marker
    (Kafka's `CompletedFetch.consumeAbortedTransactionsUpTo`).
    """

    def __init__(self, aborted: Iterable[tuple[int, int]] = ()) -> None:
        """`aborted`: (producer id, first offset) of each."""
        self._waiting = sorted((first_offset, producer_id) for producer_id, first_offset in aborted)
        self._waiting.reverse()  # reversed, to pop the next one
        self._open: set[int] = set()

    def drops(self, buffer: Buffer | None, position: int, header: BatchHeader) -> bool:
        """Whether to skip the batch at `position` as aborted. Raises CorruptBatch.

        A broker may give no buffer: in its own log the first marker after the first offset is the abort marker."""
        while self._waiting and self._waiting[-1][0] <= header.last_offset:
            self._open.add(self._waiting.pop()[1])
        if not self._open or not header.is_transactional:
            return False
        if header.is_control:
            if buffer is None or read_control_type(buffer, position, header) == ControlType.ABORT:
                self._open.discard(header.producer_id)
            return False
        return header.producer_id in self._open

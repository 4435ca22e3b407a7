"""Control records, which end transactions, and what they mean to a reader (KIP-98).

The transaction coordinator writes `end_transaction_marker`s; readers of committed data ask
`AbortedTransactions` which batches to leave out. A control record's key is (version, type), both
int16; an end marker's value is (version int16, coordinator epoch int32).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

from broker.errors import CorruptBatch
from broker.records.batch import HEADER_SIZE, BatchHeader, build_batch
from broker.records.varint import encode_varint, read_varint

__all__ = [
    "AbortedTransactions",
    "ControlType",
    "EndMarker",
    "end_transaction_marker",
    "read_control_type",
    "read_end_marker",
]

Buffer = bytes | bytearray | memoryview

_KEY = struct.Struct(">hh")
_END_MARKER = struct.Struct(">hi")


class ControlType(IntEnum):
    """Kafka's `ControlRecordType`, those of clients' logs."""

    ABORT = 0
    COMMIT = 1


class EndMarker(NamedTuple):
    """What an end marker says: how the transaction ended, and the epoch of the coordinator that wrote it."""

    control_type: ControlType
    coordinator_epoch: int


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
    """The type of the control batch at `position`; one that `ControlType` lacks is no error. Raises CorruptBatch."""
    plain, key_at, _ = _control_key(buffer, position, header)
    control_type: int = _KEY.unpack_from(plain, key_at)[1]
    return control_type


def read_end_marker(buffer: Buffer, position: int, header: BatchHeader) -> EndMarker | None:
    """The marker in the control batch at `position`; None when it is of a type that `ControlType` lacks, or when
    compaction left it without its record. Raises CorruptBatch."""
    if not header.record_count:
        return None
    plain, key_at, key_end = _control_key(buffer, position, header)
    control_type = _KEY.unpack_from(plain, key_at)[1]
    if control_type not in (ControlType.ABORT, ControlType.COMMIT):
        return None
    value_length, at = read_varint(plain, key_end)
    if value_length < _END_MARKER.size or at + value_length > len(plain):
        raise CorruptBatch(f"the end marker at offset {header.base_offset} has a value of {value_length} bytes")
    return EndMarker(ControlType(control_type), _END_MARKER.unpack_from(plain, at)[1])


def _control_key(buffer: Buffer, position: int, header: BatchHeader) -> tuple[memoryview, int, int]:
    """The records of the control batch, and where the first one's key begins and ends in them."""
    plain = memoryview(buffer)[position + HEADER_SIZE : position + header.size]
    _, at = read_varint(plain, 0)  # length of the record
    _, at = read_varint(plain, at + 1)  # timestamp, behind the attributes
    _, at = read_varint(plain, at)  # offset
    key_length, at = read_varint(plain, at)
    if key_length < _KEY.size or at + key_length > len(plain):
        raise CorruptBatch(f"the control record at offset {header.base_offset} has a key of {key_length} bytes")
    return plain, at, at + key_length


class AbortedTransactions:
    """Which batches of a fetch belong to aborted transactions. Feed it every batch, in offset order.

    A fetch names each aborted transaction by producer and first offset; it ends at that producer's
    abort marker (Kafka's `CompletedFetch.consumeAbortedTransactionsUpTo`).
    """

    def __init__(self, aborted: Iterable[tuple[int, int]] = ()) -> None:
        """`aborted`: (producer id, first offset) of each."""
        self._waiting = sorted((first_offset, producer_id) for producer_id, first_offset in aborted)
        self._waiting.reverse()  # next one last, to pop
        self._open: set[int] = set()

    def drops(self, buffer: Buffer, position: int, header: BatchHeader) -> bool:
        """Whether the batch at `position` is to be left out as aborted. Raises CorruptBatch."""
        while self._waiting and self._waiting[-1][0] <= header.last_offset:
            self._open.add(self._waiting.pop()[1])
        if not self._open or not header.is_transactional:
            return False
        if header.is_control:
            if read_control_type(buffer, position, header) == ControlType.ABORT:
                self._open.discard(header.producer_id)
            return False
        return header.producer_id in self._open

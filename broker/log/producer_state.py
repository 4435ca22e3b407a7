"""What a partition remembers of idempotent producers, and the rules their batches must obey.

Pure: log.py asks `check` before a batch is written and tells `record` after; recovery.py replays with
the same `record`. Rules (KIP-98; Kafka's `ProducerStateManager`, `ProducerAppendInfo`):

- one of the last five batches of a producer, sent again, is answered with its first result;
- an older epoch is fenced (INVALID_PRODUCER_EPOCH); a new epoch begins at sequence 0;
- otherwise a batch's first sequence follows the last one (OUT_OF_ORDER_SEQUENCE_NUMBER);
- a producer nothing is known of, new or forgotten, may begin anywhere.

A producer is forgotten when it has appended nothing for `producer.id.expiration.ms` of the broker's
clock. (Kafka counts from the records' own timestamps; old data would be forgotten at once.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from broker.errors import BrokerError, ErrorCode
from broker.records.batch import BatchHeader

__all__ = ["REMEMBERED_BATCHES", "AppendedBatch", "ProducerEntry", "ProducerStates"]

REMEMBERED_BATCHES = 5
"""As many as a producer may have in flight (`max.in.flight.requests.per.connection`)."""

_SEQUENCE_MASK = 0x7FFFFFFF
NO_OFFSET = -1


class AppendedBatch(NamedTuple):
    """What answers a duplicate: sequences and offsets of a batch, and its newest timestamp (ms)."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_sequence(self) -> int:
        return (self.last_sequence - self.offset_delta) & _SEQUENCE_MASK

    @property
    def base_offset(self) -> int:
        return self.last_offset - self.offset_delta


@dataclass(slots=True)
class ProducerEntry:
    """One producer id: its epoch, its last batches, where its open transaction begins (-1: none)."""

    producer_id: int
    epoch: int
    batches: deque[AppendedBatch] = field(default_factory=lambda: deque(maxlen=REMEMBERED_BATCHES))
    coordinator_epoch: int = -1
    transaction_first_offset: int = NO_OFFSET
    last_seen_ms: int = 0

    def duplicate_of(self, header: BatchHeader) -> AppendedBatch | None:
        """The remembered batch with the epoch and the sequences of `header`."""
        if header.producer_epoch != self.epoch:
            return None
        for batch in self.batches:
            if batch.first_sequence == header.base_sequence and batch.last_sequence == header.last_sequence:
                return batch
        return None


class ProducerStates:
    """All producers of one partition, by id. Not thread-safe."""

    def __init__(self, entries: Iterable[ProducerEntry] = ()) -> None:
        self._entries = {entry.producer_id: entry for entry in entries}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[ProducerEntry]:
        return iter(self._entries.values())

    def get(self, producer_id: int) -> ProducerEntry | None:
        return self._entries.get(producer_id)

    def check(self, header: BatchHeader) -> AppendedBatch | None:
        """None when the batch may be appended, its first result when it already was. Raises BrokerError."""
        entry = self._entries.get(header.producer_id)
        if entry is None:
            return None
        duplicate = entry.duplicate_of(header)
        if duplicate is not None:
            return duplicate
        if header.producer_epoch < entry.epoch:
            raise BrokerError(
                ErrorCode.invalid_producer_epoch,
                f"producer {header.producer_id} has epoch {entry.epoch} by now, the batch has {header.producer_epoch}",
            )
        if header.producer_epoch > entry.epoch:
            expected = 0
        elif entry.batches:
            expected = (entry.batches[-1].last_sequence + 1) & _SEQUENCE_MASK
        else:
            return None
        if header.base_sequence != expected:
            raise BrokerError(
                ErrorCode.out_of_order_sequence_number,
                f"producer {header.producer_id} sent sequence {header.base_sequence}, expected {expected}",
            )
        return None

    def record(self, header: BatchHeader, base_offset: int, now_ms: int) -> None:
        """Take an appended batch, now at `base_offset`, into account."""
        entry = self._entries.get(header.producer_id)
        if entry is None:
            entry = self._entries[header.producer_id] = ProducerEntry(header.producer_id, header.producer_epoch)
        elif entry.epoch != header.producer_epoch:
            entry.epoch = header.producer_epoch
            entry.batches.clear()
        entry.last_seen_ms = now_ms
        if header.is_control:
            entry.transaction_first_offset = NO_OFFSET
            return
        delta = header.last_offset_delta
        entry.batches.append(AppendedBatch(header.last_sequence, base_offset + delta, delta, header.max_timestamp))
        if header.is_transactional and entry.transaction_first_offset == NO_OFFSET:
            entry.transaction_first_offset = base_offset

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Forget producers idle for `expiration_ms` without an open transaction; returns how many."""
        idle = [
            entry.producer_id
            for entry in self._entries.values()
            if now_ms - entry.last_seen_ms >= expiration_ms and entry.transaction_first_offset == NO_OFFSET
        ]
        for producer_id in idle:
            del self._entries[producer_id]
        return len(idle)

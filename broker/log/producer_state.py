"""The state of a partition's idempotent and transactional producers, and the rules for their batches.

Pure. log.py calls `check` before it writes a batch and `record` afterwards, `check_marker` and `end_transaction` for
the marker that ends a transaction. recovery.py replays a log with the same `record` and `end_transaction`.
Rules (KIP-98; Kafka's `ProducerStateManager`, `ProducerAppendInfo`):

- a repeated batch, one of the producer's last five, gets its first result again;
- an older epoch is fenced (INVALID_PRODUCER_EPOCH); a new epoch begins at sequence 0;
- otherwise a batch's first sequence follows the last one, or is 0 when only a marker of its epoch is known
  (OUT_OF_ORDER_SEQUENCE_NUMBER);
- an unknown producer, new or forgotten, may begin at any sequence;
- the first transactional batch opens a transaction and the marker ends it; in between every batch must be
  transactional (INVALID_TXN_STATE);
- a marker of an older coordinator is refused (TRANSACTION_COORDINATOR_FENCED); a marker without an open transaction
  changes only the epochs;
- in version 2 of transactions (KIP-890) each has an epoch of its own, and its marker the one after that. A marker with
  the epoch of the open transaction came late, and is refused with INVALID_PRODUCER_EPOCH (P10).

A producer without an open transaction is forgotten when it has appended nothing for `producer.id.expiration.ms`
of the broker's clock. (Kafka counts from the records' own timestamps; old data would be forgotten at once.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from broker.errors import BrokerError, ErrorCode
from broker.records.batch import BatchHeader
from broker.records.control import BUMPS_EPOCH

REMEMBERED_BATCHES = 5
"""A producer may have as many in flight (`max.in.flight.requests.per.connection`)."""

NO_OFFSET = -1

_SEQUENCE_MASK = 0x7FFFFFFF
_NO_SEQUENCE = -1


class AppendedBatch(NamedTuple):
    """Sequences and offsets of an appended batch and its newest timestamp (ms): the answer to a duplicate."""

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
    """The state of one producer id. `transaction_first_offset` is -1 without an open transaction."""

    producer_id: int
    epoch: int
    batches: deque[AppendedBatch] = field(default_factory=lambda: deque(maxlen=REMEMBERED_BATCHES))
    coordinator_epoch: int = -1
    transaction_first_offset: int = NO_OFFSET
    last_seen_ms: int = 0
    # The offset of the epoch's last marker, if known: snapshots do not contain it.
    last_marker_offset: int = NO_OFFSET

    @property
    def last_sequence(self) -> int:
        """Sequence of the epoch's last record; -1 when there is none."""
        return self.batches[-1].last_sequence if self.batches else _NO_SEQUENCE

    def duplicate_of(self, header: BatchHeader) -> AppendedBatch | None:
        """The remembered batch with the epoch and the sequences of `header`."""
        if header.producer_epoch != self.epoch:
            return None
        for batch in self.batches:
            if batch.first_sequence == header.base_sequence and batch.last_sequence == header.last_sequence:
                return batch
        return None


class ProducerStates:
    """All producers of one partition, by id. Not thread-safe.

    `first_unstable_offset` is where the oldest open transaction begins, None without one. It is a plain attribute,
    because every append and fetch reads it.
    """

    def __init__(self, entries: Iterable[ProducerEntry] = ()) -> None:
        self._entries = {entry.producer_id: entry for entry in entries}
        opened = [entry for entry in self._entries.values() if entry.transaction_first_offset != NO_OFFSET]
        opened.sort(key=lambda entry: entry.transaction_first_offset)
        # In the order of their first offsets, since a new one begins after all others.
        self._open = {entry.producer_id: entry.transaction_first_offset for entry in opened}
        self.first_unstable_offset: int | None = None
        self._find_first_unstable()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[ProducerEntry]:
        return iter(self._entries.values())

    def get(self, producer_id: int) -> ProducerEntry | None:
        return self._entries.get(producer_id)

    # --- batches of records

    def check(self, header: BatchHeader) -> AppendedBatch | None:
        """None when a client's batch may be appended; its first result when it is a duplicate. Raises BrokerError."""
        entry = self._entries.get(header.producer_id)
        if entry is None:
            return None
        duplicate = entry.duplicate_of(header)
        if duplicate is not None:
            return duplicate
        self.check_epoch(header)
        if header.producer_epoch > entry.epoch:
            expected = 0
        else:
            expected = (entry.last_sequence + 1) & _SEQUENCE_MASK
        if header.base_sequence != expected:
            raise BrokerError(
                ErrorCode.out_of_order_sequence_number,
                f"producer {header.producer_id} sent sequence {header.base_sequence}, expected {expected}",
            )
        return None

    def check_epoch(self, header: BatchHeader) -> None:
        """Check the rules that hold for batches without sequences too. Raises BrokerError."""
        entry = self._entries.get(header.producer_id)
        if entry is None:
            return
        _check_epoch(entry, header.producer_epoch)
        if entry.transaction_first_offset != NO_OFFSET and not header.is_transactional:
            raise BrokerError(
                ErrorCode.invalid_txn_state,
                f"producer {header.producer_id} sent a batch outside of its transaction, which is open since offset "
                f"{entry.transaction_first_offset}",
            )

    def record(self, header: BatchHeader, base_offset: int, now_ms: int) -> None:
        """Update the state after a batch of records was appended at `base_offset`."""
        entry = self._seen(header.producer_id, header.producer_epoch, now_ms)
        if header.base_sequence != _NO_SEQUENCE:
            delta = header.last_offset_delta
            entry.batches.append(AppendedBatch(header.last_sequence, base_offset + delta, delta, header.max_timestamp))
        if header.is_transactional and entry.transaction_first_offset == NO_OFFSET:
            entry.transaction_first_offset = self._open[header.producer_id] = base_offset
            if self.first_unstable_offset is None:
                self.first_unstable_offset = base_offset

    # --- markers

    def check_marker(
        self, producer_id: int, producer_epoch: int, coordinator_epoch: int, transaction_version: int = 0
    ) -> None:
        """Raise BrokerError unless a marker with these epochs may be appended."""
        entry = self._entries.get(producer_id)
        if entry is None:
            return
        _check_epoch(entry, producer_epoch)
        if (
            transaction_version >= BUMPS_EPOCH
            and producer_epoch == entry.epoch
            and entry.transaction_first_offset != NO_OFFSET
        ):
            raise BrokerError(
                ErrorCode.invalid_producer_epoch,
                f"a late marker: producer {producer_id} has begun a transaction of epoch {producer_epoch} since then",
            )
        if coordinator_epoch < entry.coordinator_epoch:
            raise BrokerError(
                ErrorCode.transaction_coordinator_fenced,
                f"a marker of producer {producer_id} from a coordinator of epoch {coordinator_epoch}; "
                f"there was one of epoch {entry.coordinator_epoch}",
            )

    def end_transaction(
        self, producer_id: int, producer_epoch: int, coordinator_epoch: int, now_ms: int, offset: int = NO_OFFSET
    ) -> int:
        """Update the state after a marker at `offset`; returns where its transaction began, or `NO_OFFSET`."""
        entry = self._seen(producer_id, producer_epoch, now_ms)
        entry.coordinator_epoch = coordinator_epoch
        entry.last_marker_offset = offset
        began, entry.transaction_first_offset = entry.transaction_first_offset, NO_OFFSET
        if began != NO_OFFSET:
            del self._open[producer_id]
            if began == self.first_unstable_offset:
                self._find_first_unstable()
        return began

    def first_unstable_without(self, producer_id: int) -> int | None:
        """`first_unstable_offset` as it will be after this producer's transaction has ended."""
        if self._entries[producer_id].transaction_first_offset != self.first_unstable_offset:
            return self.first_unstable_offset
        return next((offset for other, offset in self._open.items() if other != producer_id), None)

    def _find_first_unstable(self) -> None:
        self.first_unstable_offset = next(iter(self._open.values()), None)

    def _seen(self, producer_id: int, epoch: int, now_ms: int) -> ProducerEntry:
        """The entry of a producer that appended something with `epoch`."""
        entry = self._entries.get(producer_id)
        if entry is None:
            entry = self._entries[producer_id] = ProducerEntry(producer_id, epoch)
        elif entry.epoch != epoch:
            entry.epoch = epoch
            entry.batches.clear()
            entry.last_marker_offset = NO_OFFSET
        entry.last_seen_ms = now_ms
        return entry

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


def _check_epoch(entry: ProducerEntry, epoch: int) -> None:
    if epoch < entry.epoch:
        raise BrokerError(
            ErrorCode.invalid_producer_epoch,
            f"producer {entry.producer_id} has epoch {entry.epoch} by now, not {epoch}",
        )

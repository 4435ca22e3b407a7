"""Which batches compaction may empty because of their transaction, and when a marker has nothing left to mark.

Used by compaction.py, which feeds it every batch in offset order. Records of aborted transactions go at once. A
marker may go when no batch of its transaction is left: while one was still there the marker stays, and at the next
compaction, when it is gone, the marker gets its delete horizon. Idea: Kafka's `CleanedTransactionMetadata`.
"""

from __future__ import annotations

from collections.abc import Iterable

from broker.log.compaction_plan import AbortedRange
from broker.records.batch import BatchHeader
from broker.records.control import ControlType, read_control_type

__all__ = ["CleanedTransactions"]

Buffer = bytes | bytearray | memoryview


class CleanedTransactions:
    """The state of one walk over a log."""

    def __init__(self, aborted: Iterable[AbortedRange]) -> None:
        self._waiting = sorted(aborted, key=lambda one: one.first_offset, reverse=True)  # next one last, to pop
        self._aborted: dict[int, AbortedRange] = {}
        self._seen_aborted: set[int] = set()
        self._seen_committed: set[int] = set()

    def discards(self, buffer: Buffer, position: int, header: BatchHeader) -> bool:
        """Whether the batch holds aborted records, or a marker without a transaction. Raises CorruptBatch."""
        while self._waiting and self._waiting[-1].first_offset <= header.last_offset:
            aborted = self._waiting.pop()
            self._aborted[aborted.producer_id] = aborted
        if header.is_control:
            return self._discards_marker(buffer, position, header)
        if not header.is_transactional:
            return False
        aborted_range = self._aborted.get(header.producer_id)
        if aborted_range is not None and header.base_offset <= aborted_range.last_offset:
            self._seen_aborted.add(header.producer_id)
            return True
        self._seen_committed.add(header.producer_id)
        return False

    def _discards_marker(self, buffer: Buffer, position: int, header: BatchHeader) -> bool:
        if not header.record_count:
            return True  # an earlier compaction emptied it
        producer_id = header.producer_id
        kind = read_control_type(buffer, position, header)
        if kind not in (ControlType.ABORT, ControlType.COMMIT):
            return False
        self._aborted.pop(producer_id, None)
        seen = self._seen_aborted if kind == ControlType.ABORT else self._seen_committed
        had_batches = producer_id in seen
        seen.discard(producer_id)
        return not had_batches

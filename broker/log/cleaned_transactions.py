"""Which batches compaction may empty because of their transaction, and when a marker has nothing left to mark.

Used by compaction.py, which feeds it every batch in offset order. Records of aborted transactions go at once. A
marker may go when no batch of its transaction is left, not even an empty one: a transaction without its marker would
count as open when producer state is made anew. So a marker stays at the compaction that takes its last batch away, and
gets its delete horizon at the next. Idea: Kafka's `CleanedTransactionMetadata`.
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
        self._seen: set[int] = set()

    def discards(self, buffer: Buffer, position: int, header: BatchHeader) -> bool:
        """Whether the batch holds aborted records, or a marker without a transaction. Raises CorruptBatch."""
        while self._waiting and self._waiting[-1].first_offset <= header.last_offset:
            begun = self._waiting.pop()
            self._aborted[begun.producer_id] = begun
        if header.is_control:
            return self._discards_marker(buffer, position, header)
        if not header.is_transactional:
            return False
        self._seen.add(header.producer_id)
        aborted = self._aborted.get(header.producer_id)
        return aborted is not None and header.base_offset <= aborted.last_offset

    def _discards_marker(self, buffer: Buffer, position: int, header: BatchHeader) -> bool:
        if not header.record_count:
            return True  # emptied by a broker of Apache Kafka's
        if read_control_type(buffer, position, header) not in (ControlType.ABORT, ControlType.COMMIT):
            return False
        producer_id = header.producer_id
        self._aborted.pop(producer_id, None)
        had_batches = producer_id in self._seen
        self._seen.discard(producer_id)
        return not had_batches

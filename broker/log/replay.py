"""Take batches that stand in a log already into its producer state: what was open, what was aborted.

Used by recovery.py, for what it verifies and for what came after a snapshot. What was checked when it was
appended is not checked again. Idea: Kafka's `UnifiedLog.updateProducers` and `LogSegment.recover`.
"""

from __future__ import annotations

import logging

from broker.errors import CorruptBatch
from broker.log.aborted_index import AbortedEntry, AbortedIndex
from broker.log.producer_state import NO_OFFSET, ProducerStates
from broker.log.segment_file import SegmentFile
from broker.records.batch import BatchHeader
from broker.records.control import ControlType, read_end_marker

__all__ = ["Replay", "note_aborted"]

logger = logging.getLogger(__name__)


class Replay:
    """The producer state so far; feed it the batches in their order."""

    def __init__(self, states: ProducerStates, now_ms: int, aborted: AbortedIndex | None = None) -> None:
        """Aborts are noted in `aborted`; None where its files are sound already."""
        self.states = states
        self._now_ms = now_ms
        self._aborted = aborted

    def take(self, file: SegmentFile, position: int, header: BatchHeader, segment_base: int) -> None:
        """The batch at `position` of a segment's file. Raises OSError."""
        if header.producer_id < 0:
            return
        if not header.is_control:
            self.states.record(header, header.base_offset, self._now_ms)
            return
        try:
            marker = read_end_marker(file.pread(header.size, position), 0, header)
        except CorruptBatch as error:
            logger.error("a control batch at offset %d of %s: %s", header.base_offset, segment_base, error.message)
            return
        if marker is None:
            return
        if marker.control_type is ControlType.ABORT and self._aborted is not None:
            note_aborted(self._aborted, self.states, segment_base, header.producer_id, header.last_offset)
        self.states.end_transaction(
            header.producer_id, header.producer_epoch, marker.coordinator_epoch, self._now_ms, header.last_offset
        )


def note_aborted(
    aborted: AbortedIndex, states: ProducerStates, segment_base: int, producer_id: int, last_offset: int
) -> None:
    """Keep the transaction that a marker at `last_offset` aborts, before `states` hears of the marker.

    One without records leaves nothing out. Raises OSError.
    """
    entry = states.get(producer_id)
    if entry is None or entry.transaction_first_offset == NO_OFFSET:
        return
    unstable = states.first_unstable_without(producer_id)
    stable = last_offset + 1 if unstable is None else unstable
    aborted.note(segment_base, AbortedEntry(producer_id, entry.transaction_first_offset, last_offset, stable))

"""What a log answers to those who read it: its offsets, its batches, and where a time or a leader epoch begins.

`Log` (log.py) derives from this and adds all that changes a log. The first records may be in the archive only
(archived_log.py): readers see one log, whose local part begins at `local_start_offset`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from broker.errors import BrokerError, ErrorCode
from broker.log import timestamps
from broker.log.aborted_index import AbortedIndex, AbortedTransaction
from broker.log.archived_log import ArchivedLog, not_read_yet
from broker.log.disk import storage_error, wrap_disk_errors
from broker.log.leader_epochs import LeaderEpochs
from broker.log.producer_state import ProducerStates
from broker.log.segment import Segment
from broker.log.segment_file import FileSlice
from broker.log.segments import Segments


class ReadableLog:
    """The readers' side of a log. `Log` sets the fields."""

    directory: Path
    producers: ProducerStates
    epochs: LeaderEpochs
    aborted: AbortedIndex
    archived: ArchivedLog | None
    """What the archive has of this log, set by its owner; None without an archive, or before its manifest is read."""
    _segments: Segments
    _start: int
    _end: int

    @property
    def log_start_offset(self) -> int:
        """The first offset that readers see. With an archive, the records from there on may not be on this disk."""
        return self._start

    @property
    def local_start_offset(self) -> int:
        """The first offset that is on this disk; without an archive, the log start offset."""
        first = self._segments.first.base_offset
        return first if first > self._start else self._start

    @property
    def log_end_offset(self) -> int:
        """The offset of the next record."""
        return self._end

    @property
    def segments(self) -> Sequence[Segment]:
        """The local ones, oldest first; the last is the active one."""
        return tuple(self._segments)

    @property
    def active_base_offset(self) -> int:
        return self._segments.active.base_offset

    @property
    def size(self) -> int:
        """Bytes of all local segments."""
        return sum(segment.size for segment in self._segments)

    @property
    def first_unstable_offset(self) -> int | None:
        """Where the oldest open transaction begins, or the log start if that is later; None without one."""
        first = self.producers.first_unstable_offset
        return first if first is None or first > self._start else self._start

    def end_offset_for_epoch(self, epoch: int, leader_epoch: int) -> tuple[int, int]:
        """(epoch, end offset) of the largest epoch up to `epoch`; (-1, -1) when unknown (KIP-101, KIP-320).

        `leader_epoch` is the current one. The log may hold no record of it yet.
        """
        return self.epochs.end_offset(epoch, leader_epoch, self._end)

    def read(self, offset: int, max_bytes: int, *, up_to: int | None = None) -> FileSlice | None:
        """Whole batches from the one that holds `offset`, all below offset `up_to`; None when there are none.

        About `max_bytes`, but at least one batch and never past the end of a segment. The cost does not depend on the
        log's size. Raises BrokerError `offset_out_of_range`, `kafka_storage_error`.
        """
        end = self._end
        if not self._start <= offset <= end:
            reason = f"offset {offset} is not in [{self._start}, {end}] of {self.directory.name}"
            raise BrokerError(ErrorCode.offset_out_of_range, reason)
        if up_to is None or up_to > end:
            up_to = end
        if offset >= up_to:
            return None
        if self.archived is not None and offset < self.local_start_offset:
            found = self.archived.read(offset, max_bytes, up_to)
            if found is not None or up_to <= self.local_start_offset:
                return found
            if self.archived.end < self.local_start_offset:
                raise not_read_yet(self.directory, max(offset, self.archived.end))
            offset = self.local_start_offset
        try:
            return self._segments.read(offset, max_bytes, up_to, end)
        except OSError as error:
            raise storage_error("read", self.directory, error) from error

    def aborted_in(self, offset: int, found: FileSlice, up_to: int) -> list[AbortedTransaction]:
        """The aborted transactions in `found`, which `read` just returned for `offset` and `up_to`.

        There may be some more, from after `found`.
        """
        archived = self.archived
        if archived is not None and offset < self.local_start_offset and not self._segments.first.holds(found):
            # Where a transaction spans several segments, its marker may be in none of the archived ones.
            later = self.aborted.transactions_between(archived.end, min(up_to, archived.end))
            return [*archived.aborted_in(offset, found, up_to), *later]
        if not self.aborted:
            return []
        past = self._segments.offset_after(offset, found)
        return self.aborted.transactions_between(offset, up_to if past is None else min(past, up_to))

    def offset_for_timestamp(self, ms: int) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record with a timestamp of at least `ms`; None when there is none."""
        archived = self._before_local()
        if archived is not None:
            found = archived.offset_for_timestamp(ms, self._start, self.local_start_offset)
            if found is not None:
                return found
        with wrap_disk_errors("read", self.directory):
            return timestamps.first_since(tuple(self._segments), ms, self._start)

    def max_timestamp(self) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record with the newest timestamp; None without timestamps."""
        archived = self._before_local()
        with wrap_disk_errors("read", self.directory):
            local = timestamps.newest(tuple(self._segments), self._start)
        if archived is None:
            return local
        part = self._start, self.local_start_offset
        if local is not None and archived.offset_for_timestamp(local[1], *part) is None:
            return local  # the manifest tells this without the store, if timestamps grow
        return archived.max_timestamp(*part) or local

    def _before_local(self) -> ArchivedLog | None:
        """The archive, if it alone has the log's first records. Raises BrokerError while it is not known."""
        if self._start >= self._segments.first.base_offset:
            return None
        if self.archived is None or self.archived.end < self.local_start_offset:
            raise not_read_yet(self.directory, self._start)
        return self.archived

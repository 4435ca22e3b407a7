"""Where an archive has to end so that it holds nothing from a time on, and no open transaction.

`pykafka log restore --until` cuts there. An archived range never has an open transaction, because its readers know the
aborted ones only: what was open there would count as committed. So the cut goes back to before the first record of each
transaction that was open. Blocks on the store. Raises OSError, BrokenAux.
"""

from __future__ import annotations

from collections.abc import Iterator

from broker.archive.aux_file import decode_aux
from broker.archive.layout import PartitionPlace
from broker.archive.manifest import ArchivedSegment, Manifest
from broker.archive.open_transactions import open_transactions
from broker.records.batch import BatchHeader, walk_batches
from broker.storage.storage import Storage


class CutFinder:
    def __init__(self, storage: Storage, place: PartitionPlace, manifest: Manifest) -> None:
        self._storage = storage
        self._place = place
        self._manifest = manifest

    def before(self, time_ms: int) -> int:
        """The end of the last batch before which no record has this time or a later one, and nothing was open.

        The markers of transactions have the broker's time, so theirs does not count.
        """
        cut = self._first_since(time_ms)
        while (earlier := self._first_open(cut)) is not None and earlier < cut:
            cut = earlier
        return max(cut, self._manifest.start)

    def _first_since(self, time_ms: int) -> int:
        for segment in self._manifest.segments:
            if segment.max_timestamp >= time_ms:
                for header in self._headers(segment):
                    if header.max_timestamp >= time_ms and not header.is_control:
                        return header.base_offset
        return self._manifest.end

    def _first_open(self, cut: int) -> int | None:
        """The first record of the oldest transaction that is open at `cut`; None without one."""
        segments = self._manifest.segments
        number = next((n for n, segment in enumerate(segments) if segment.base < cut <= segment.end), None)
        if number is None:
            return None
        begun = self._open_after(segments[number - 1]) if number else {}
        for header in self._headers(segments[number]):
            if header.base_offset >= cut:
                break
            if header.is_control:
                begun.pop(header.producer_id, None)
            elif header.is_transactional:
                begun.setdefault(header.producer_id, header.base_offset)
        return min(begun.values(), default=None)

    def _open_after(self, segment: ArchivedSegment) -> dict[int, int]:
        """Producer id → the first record of its transaction that was open at the end of a segment."""
        aux = self._storage.read(self._place.aux(segment.name), segment.aux_size)
        snapshot = decode_aux(aux).producer_snapshot
        return open_transactions(snapshot) if snapshot else {}

    def _headers(self, segment: ArchivedSegment) -> Iterator[BatchHeader]:
        data = self._storage.read(self._place.segment(segment.name), segment.size)
        return (header for _, header in walk_batches(data) if header.base_offset < segment.end)

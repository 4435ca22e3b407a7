"""Which target offset corresponds to a source offset: MirrorMaker's offset syncs (KIP-382), without its gaps.

Pure. The offsets of a record differ between the clusters, because the source has batches that are not copied (aborted
records, transaction markers, what compaction removed), and the target has markers of the mirror's own transactions.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

_MOST: Final = 64
_EXACT: Final = 32
"""The newest syncs, which are never merged. A group near the end of a partition is translated exactly."""


class Sync(NamedTuple):
    """`length` consecutive source offsets from `source` on are the target offsets from `target` on."""

    source: int
    target: int
    length: int

    @property
    def source_end(self) -> int:
        return self.source + self.length

    @property
    def target_end(self) -> int:
        return self.target + self.length


class OffsetSyncs:
    """The syncs of one partition, oldest first; at most 64.

    `translate` never returns an offset after the record that the group reads next, so a group that moves to the target
    misses no record. Far from the end of the partition it may return an earlier offset: the group reads records again.
    """

    def __init__(self, syncs: Iterable[Sequence[int]]) -> None:
        """At least one sync. The first is where the mirror began, with a length of 0 before anything was copied."""
        self._syncs = [Sync(*sync) for sync in syncs]

    def __iter__(self) -> Iterator[Sync]:
        return iter(self._syncs)

    def __len__(self) -> int:
        return len(self._syncs)

    def append(self, source: int, target: int, length: int) -> None:
        """Records were copied: `length` consecutive offsets, after all others."""
        last = self._syncs[-1]
        if (last.source_end, last.target_end) == (source, target):
            self._syncs[-1] = last._replace(length=last.length + length)
            return
        self._syncs.append(Sync(source, target, length))
        if len(self._syncs) > _MOST:
            older, newest = self._syncs[:-_EXACT], self._syncs[-_EXACT:]
            pairs = zip(older[::2], older[1::2], strict=False)
            unpaired = older[-1:] if len(older) % 2 else []
            self._syncs = [_merge(*pair) for pair in pairs] + unpaired + newest

    def translate(self, offset: int) -> int:
        """The target offset at which a group continues that has committed the source offset `offset`.

        At most the offset after the last record that was copied. An offset before the beginning of the mirror gives
        the beginning.
        """
        index = bisect.bisect_right(self._syncs, offset, key=lambda sync: sync.source) - 1
        if index < 0:
            return self._syncs[0].target
        sync = self._syncs[index]
        return sync.target + min(offset - sync.source, sync.length)

    def truncate(self, offset: int) -> None:
        """The source lost its records from `offset` on: other records will have these offsets."""
        kept = [
            sync._replace(length=min(sync.length, offset - sync.source)) for sync in self._syncs if sync.source < offset
        ]
        self._syncs = kept or [self._syncs[0]._replace(length=0)]


def _merge(first: Sync, second: Sync) -> Sync:
    """One sync for both, which translates to the same or earlier offsets.

    Offsets of the second may be counted from the first only if the target has at least as large a gap between them.
    """
    source_gap, target_gap = second.source - first.source_end, second.target - first.target_end
    return first._replace(length=second.source_end - first.source) if source_gap <= target_gap else first

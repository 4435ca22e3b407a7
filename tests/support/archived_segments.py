"""Archived segments for tests: values that no store has to hold."""

from __future__ import annotations

from broker.archive.layout import new_object_name
from broker.archive.manifest import ArchivedSegment, EpochStart, Mark


def archived_segment(base: int, end: int, epoch: int = 0, name: str | None = None) -> ArchivedSegment:
    return ArchivedSegment(
        name=name or new_object_name(base, epoch),
        base=base,
        end=end,
        size=100,
        aux_size=10,
        crc=7,
        min_timestamp=base,
        max_timestamp=end,
        epochs=(EpochStart(epoch, base),),
        marks=(Mark(base, 0, -1),),
    )

"""Translation of offsets: never too far, and exact near the end."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.mirror.offset_syncs import OffsetSyncs, Sync

# Per run of records: offsets that the source skips before it, offsets that the target skips, its length.
runs = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(1, 4)), max_size=200)


class Copied:
    """The runs as they were copied, and where each record of the source is on the target."""

    def __init__(self, made: list[tuple[int, int, int]], source: int = 10, target: int = 5) -> None:
        self.syncs = OffsetSyncs([(source, target, 0)])
        self.where: dict[int, int] = {}
        for source_gap, target_gap, length in made:
            source, target = source + source_gap, target + target_gap
            self.syncs.append(source, target, length)
            self.where.update({source + index: target + index for index in range(length)})
            source, target = source + length, target + length
        self.source_end, self.target_end = source, target

    def next_record(self, offset: int) -> int:
        """Where a group that has committed `offset` finds its next record; the end if there is none."""
        return min((at for source, at in self.where.items() if source >= offset), default=self.target_end)


@settings(max_examples=60, deadline=None)
@given(runs)
def test_no_record_is_skipped_and_offsets_rise(made: list[tuple[int, int, int]]) -> None:
    copied = Copied(made)
    offsets = range(copied.source_end + 5)
    translated = [copied.syncs.translate(offset) for offset in offsets]
    assert all(at <= copied.next_record(offset) for at, offset in zip(translated, offsets, strict=True))
    assert translated == sorted(translated)
    assert translated[-1] == copied.target_end, "a group at the end stays at the end"
    assert len(copied.syncs) <= 64
    again = OffsetSyncs([tuple(sync) for sync in copied.syncs])
    assert [again.translate(offset) for offset in offsets] == translated


@settings(max_examples=60, deadline=None)
@given(runs)
def test_the_newest_syncs_are_exact(made: list[tuple[int, int, int]]) -> None:
    copied = Copied(made)
    recent = Copied(made[-16:], *_start(made[:-16]))
    for offset, at in recent.where.items():
        assert copied.syncs.translate(offset) == at


def _start(made: list[tuple[int, int, int]]) -> tuple[int, int]:
    before = Copied(made)
    return before.source_end, before.target_end


def test_markers_of_the_target_cost_a_lagging_group_few_records() -> None:
    """Every transaction leaves a marker on the target: 1,000 of them, with ten records each."""
    copied = Copied([(0, 1, 10)] * 1000)
    behind = [at - copied.syncs.translate(offset) for offset, at in copied.where.items()]
    assert max(behind) < 1000
    assert max(behind[-100:]) == 0


def test_a_sync_goes_on_where_nothing_lies_between() -> None:
    syncs = OffsetSyncs([(0, 7, 0)])
    syncs.append(0, 7, 3)
    syncs.append(3, 10, 2)
    assert list(syncs) == [Sync(0, 7, 5)]


def test_what_the_source_lost_is_forgotten() -> None:
    syncs = OffsetSyncs([(0, 0, 10), (10, 11, 10)])
    syncs.truncate(15)
    assert syncs.translate(18) == 16
    syncs.truncate(4)
    assert list(syncs) == [Sync(0, 0, 4)]
    syncs.truncate(0)
    assert syncs.translate(3) == 0

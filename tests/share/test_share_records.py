"""How the updates of a share partition's state are combined. Their format: tests/coordinator/test_record_formats.py."""

from __future__ import annotations

import uuid
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.coordinator.sharded_coordinator import partition_for
from broker.share.persister import SharePartitionKey, StateBatch
from broker.share.share_records import ShareSnapshot, ShareUpdate, combined

states, counts = st.sampled_from([0, 2, 4]), st.integers(0, 5)


@st.composite
def batch_lists(draw: st.DrawFn, *, gap: int) -> list[StateBatch]:
    """Disjoint and in order. Those with a gap between them are never joined."""
    batches, position = [], 0
    for step, size in draw(st.lists(st.tuples(st.integers(gap, 5), st.integers(1, 5)), max_size=8)):
        batches.append(StateBatch(position + step, position + step + size - 1, draw(states), draw(counts)))
        position += step + size
    return batches


def test_a_kafka_keeps_a_share_partition_in_the_same_partition() -> None:
    """A record of Kafka 4.3.0 was in partition 34 of 50."""
    key = SharePartitionKey("g", uuid.UUID("9f16f47c-adc6-4ad7-b2a9-80dca62fe5b8"), 0)
    assert partition_for(key.coordinator_key, 50) == 34


def by_offset(batches: list[StateBatch]) -> dict[int, tuple[int, int]]:
    return {
        offset: (batch.delivery_count, batch.delivery_state)
        for batch in batches
        for offset in range(batch.first_offset, batch.last_offset + 1)
    }


@given(batch_lists(gap=0), batch_lists(gap=0), st.integers(0, 60))
@settings(max_examples=300)
def test_combined_batches_have_the_higher_state_of_each_offset(
    before: list[StateBatch], new: list[StateBatch], start: int
) -> None:
    result = combined(combined([], before, 0), new, start)
    expected = by_offset(before)
    for offset, state in by_offset(new).items():
        expected[offset] = max(state, expected.get(offset, state))
    assert by_offset(result) == {offset: state for offset, state in expected.items() if offset >= start}
    for one, other in pairwise(result):
        assert one.last_offset < other.first_offset  # disjoint, in order
        assert one.last_offset + 1 < other.first_offset or one[2:] != other[2:]  # and joined


def test_a_late_update_moves_neither_start_nor_leader_epoch_back() -> None:
    state = ShareSnapshot(0, 0, 5, 10).updated(ShareUpdate(0, 4, 3, [StateBatch(3, 12, 0, 1)]))
    assert (state.leader_epoch, state.start_offset, state.state_batches) == (5, 10, [StateBatch(10, 12, 0, 1)])

"""The formats of `__share_group_state`: round trips, Kafka's bytes, invalid bytes, and how updates are combined."""

from __future__ import annotations

import uuid
from itertools import pairwise
from struct import pack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.coordinator.record_reader import MalformedRecord
from broker.coordinator.sharded_coordinator import partition_for
from broker.share.persister import SharePartitionKey, StateBatch
from broker.share.share_records import (
    ShareSnapshot,
    ShareUpdate,
    combined,
    decode_key,
    decode_snapshot,
    decode_update,
    encode_snapshot,
    encode_snapshot_key,
    encode_update,
    encode_update_key,
)

TOPIC_ID = uuid.UUID(int=7)
i32, i64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
keys = st.builds(SharePartitionKey, st.text(max_size=50), st.uuids(), i32)
states, counts = st.sampled_from([0, 2, 4]), st.integers(0, 5)


@st.composite
def batch_lists(draw: st.DrawFn, *, gap: int = 1) -> list[StateBatch]:
    """Disjoint and in order. Those with a gap between them are never joined."""
    batches, position = [], 0
    for step, size in draw(st.lists(st.tuples(st.integers(gap, 5), st.integers(1, 5)), max_size=8)):
        batches.append(StateBatch(position + step, position + step + size - 1, draw(states), draw(counts)))
        position += step + size
    return batches


snapshots = st.builds(ShareSnapshot, i32, i32, i32, i64, i64, i64, batch_lists(), i32)
updates = st.builds(ShareUpdate, i32, i32, i64, batch_lists(), i32)


@given(keys)
def test_key_round_trips(key: SharePartitionKey) -> None:
    assert decode_key(encode_snapshot_key(key)) == (key, True)
    assert decode_key(encode_update_key(key)) == (key, False)


@given(snapshots, updates)
def test_values_round_trip(snapshot: ShareSnapshot, update: ShareUpdate) -> None:
    assert decode_snapshot(encode_snapshot(snapshot)) == snapshot
    assert decode_update(encode_update(update)) == update


def test_bytes_are_kafkas() -> None:
    key = SharePartitionKey("g", TOPIC_ID, 3)
    assert encode_snapshot_key(key) == pack(">hh1s16si", 0, 1, b"g", TOPIC_ID.bytes, 3)
    assert encode_update_key(key) == pack(">hh1s16si", 1, 1, b"g", TOPIC_ID.bytes, 3)
    assert encode_snapshot(ShareSnapshot(1, 2, 3, 10, 100, 200, [StateBatch(10, 12, 2, 1)])) == (
        pack(">hiiiqqq", 0, 1, 2, 3, 10, 100, 200) + b"\x02" + pack(">qqbhb", 10, 12, 2, 1, 0) + b"\x00"
    )
    assert encode_update(ShareUpdate(1, 3, -1, (), 5)) == (
        pack(">hiiq", 0, 1, 3, -1) + b"\x01" + b"\x01\x00\x04" + pack(">i", 5)
    )


KAFKAS_KEY = "00000001679f16f47cadc64ad7b2a980dca62fe5b800000000"
KAFKAS_SNAPSHOT = "0000000000000000000200000000ffffffffffffffff000001a2196f30c1000001a2196f30c10100"
KAFKAS_UPDATE = "00000000000000000000000000000000001402000000000000001400000000000000270200010001000400000014"
"""What Kafka 4.3.0 wrote into its partition 34 of 50 when a share consumer began, and when it had accepted 40."""


def test_records_of_a_kafka_are_read_and_written_alike() -> None:
    key, is_snapshot = decode_key(bytes.fromhex(KAFKAS_KEY)) or (None, False)
    assert key == SharePartitionKey("g", uuid.UUID("9f16f47c-adc6-4ad7-b2a9-80dca62fe5b8"), 0)
    assert is_snapshot
    assert encode_snapshot_key(key).hex() == KAFKAS_KEY
    assert partition_for(key.coordinator_key, 50) == 34
    snapshot = decode_snapshot(bytes.fromhex(KAFKAS_SNAPSHOT))
    assert snapshot == ShareSnapshot(0, 2, 0, -1, 1795723047105, 1795723047105, [], -1)
    assert encode_snapshot(snapshot).hex() == KAFKAS_SNAPSHOT
    update = decode_update(bytes.fromhex(KAFKAS_UPDATE))
    assert update == ShareUpdate(0, 0, 20, [StateBatch(20, 39, 2, 1)], 20)
    assert encode_update(update).hex() == KAFKAS_UPDATE


def test_keys_of_later_versions_are_skipped() -> None:
    assert decode_key(b"\x00\x02anything") is None


@given(st.binary(max_size=80) | st.builds(bytes.__add__, st.just(b"\0\0"), st.binary(max_size=80)))
def test_hostile_bytes_raise_nothing_but_malformed_record(data: bytes) -> None:
    for decode in (decode_key, decode_snapshot, decode_update):
        try:
            decode(data)
        except MalformedRecord:
            pass


@given(snapshots, st.data())
def test_a_cut_value_is_malformed(snapshot: ShareSnapshot, data: st.DataObject) -> None:
    whole = encode_snapshot(snapshot)
    with pytest.raises(MalformedRecord):
        decode_snapshot(whole[: data.draw(st.integers(0, len(whole) - 1))])


@pytest.mark.parametrize("batch", [StateBatch(5, 4, 0, 1), StateBatch(-1, 4, 0, 1)])
def test_impossible_batches_are_malformed(batch: StateBatch) -> None:
    with pytest.raises(MalformedRecord, match="a batch from offset"):
        decode_update(encode_update(ShareUpdate(0, 0, 0, [batch])))


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

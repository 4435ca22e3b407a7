"""The formats of share groups in `__consumer_offsets`: round trips, Kafka's bytes, invalid bytes."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.coordinator.modern_group_messages import TopicIdPartition
from broker.coordinator.modern_group_records import TargetEpoch
from broker.coordinator.record_reader import MalformedRecord
from broker.coordinator.share_group_records import (
    GroupEpoch,
    ShareAssignment,
    ShareGroupKey,
    ShareRecord,
    ShareSubscription,
    StatePartitions,
    TopicShares,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)

text = st.text(max_size=20)
i32 = st.integers(-(2**31), 2**31 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
partitions = st.frozensets(st.builds(TopicIdPartition, st.uuids(), i32), max_size=5)
shares = st.dictionaries(st.uuids(), st.builds(TopicShares, text, st.frozensets(i32, max_size=4)), max_size=3)
values = {
    ShareRecord.MEMBER: st.builds(ShareSubscription, st.none() | text, text, text, st.frozensets(text, max_size=3)),
    ShareRecord.GROUP_EPOCH: st.builds(GroupEpoch, i32, i64),
    ShareRecord.TARGET_EPOCH: st.builds(TargetEpoch, i32, i64),
    ShareRecord.TARGET: partitions,
    ShareRecord.CURRENT: st.builds(ShareAssignment, i32, i32, partitions),
    ShareRecord.STATE_PARTITIONS: st.builds(
        StatePartitions, shares, shares, st.dictionaries(st.uuids(), text, max_size=2)
    ),
}
kinds_and_values = st.sampled_from(ShareRecord).flatmap(lambda kind: st.tuples(st.just(kind), values[kind]))
few = settings(max_examples=25)

TOPIC = UUID("00112233-4455-6677-8899-aabbccddeeff")


@few
@given(st.sampled_from(ShareRecord), text, text)
def test_keys_round_trip(kind: ShareRecord, group_id: str, name: str) -> None:
    of_member = kind in (ShareRecord.MEMBER, ShareRecord.TARGET, ShareRecord.CURRENT)
    key = ShareGroupKey(kind, group_id, name if of_member else "")
    assert decode_key(encode_key(key)) == key


@pytest.mark.parametrize("version", [0, 3, 8, 9, 16, 32767])
def test_a_key_of_another_kind_is_skipped(version: int) -> None:
    assert decode_key(version.to_bytes(2, "big") + b"anything") is None


@few
@given(kinds_and_values)
def test_values_round_trip(kind_and_value: tuple[ShareRecord, Any]) -> None:
    kind, value = kind_and_value
    assert decode_value(kind, encode_value(value)) == value


@few
@given(kinds_and_values, st.data())
def test_a_value_that_is_cut_short_is_malformed(kind_and_value: tuple[ShareRecord, Any], data: st.DataObject) -> None:
    kind, value = kind_and_value
    encoded = encode_value(value)
    with pytest.raises(MalformedRecord):
        decode_value(kind, encoded[: data.draw(st.integers(0, len(encoded) - 1))])


@few
@given(st.sampled_from(ShareRecord), st.binary(max_size=60))
def test_hostile_bytes_are_malformed_or_a_value(kind: ShareRecord, data: bytes) -> None:
    try:
        decode_key(kind.to_bytes(2, "big") + data)
    except MalformedRecord:
        pass
    try:
        value = decode_value(kind, b"\0\0" + data)
    except MalformedRecord:
        return
    assert decode_value(kind, encode_value(value)) == value


def test_the_bytes_are_kafkas() -> None:
    """By the layouts of ShareGroup*Value.json."""
    assert encode_key(ShareGroupKey(ShareRecord.MEMBER, "g", "m")) == b"\0\x0a" + b"\0\1g" + b"\0\1m"
    assert encode_key(ShareGroupKey(ShareRecord.STATE_PARTITIONS, "g")) == b"\0\x0f" + b"\0\1g"
    assert encode_value(GroupEpoch(7, 5)) == b"\0\0" + b"\0\0\0\7" + b"\0\0\0\0\0\0\0\5" + b"\0"
    member = ShareSubscription(None, "c", "/h", frozenset({"b", "a"}))
    assert encode_value(member) == b"\0\0" + b"\0" + b"\2c" + b"\3/h" + b"\3\2a\2b" + b"\0"
    topic = TOPIC.bytes + b"\2" + b"\0\0\0\1"
    assigned = frozenset({TopicIdPartition(TOPIC, 1)})
    assert encode_value(ShareAssignment(4, 3, assigned)) == b"\0\0\0\0\0\4\0\0\0\3\0" + b"\2" + topic + b"\0" + b"\0"
    states = StatePartitions({}, {TOPIC: TopicShares("t", frozenset({1}))}, {TOPIC: "t"})
    initialized = b"\2" + TOPIC.bytes + b"\2t" + b"\2\0\0\0\1" + b"\0"
    assert encode_value(states) == b"\0\0" + b"\1" + initialized + b"\2" + TOPIC.bytes + b"\2t\0" + b"\0"

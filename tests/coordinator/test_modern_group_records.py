"""The formats of consumer groups in `__consumer_offsets`: round trips, Kafka's bytes, invalid bytes."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.coordinator.modern_group_messages import TopicIdPartition
from broker.coordinator.modern_group_records import (
    ClassicMembership,
    ConsumerGroupKey,
    CurrentAssignment,
    GroupEpoch,
    MemberState,
    MemberSubscription,
    RecordKind,
    ResolvedRegex,
    TargetEpoch,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from broker.coordinator.record_reader import MalformedRecord

text = st.text(max_size=20)
i32 = st.integers(-(2**31), 2**31 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
partitions = st.builds(TopicIdPartition, st.uuids(), i32)
epochs = st.dictionaries(partitions, i32, max_size=5)
classic = st.builds(ClassicMembership, i32, st.lists(st.tuples(text, st.binary(max_size=9)), max_size=3).map(tuple))
values = {
    RecordKind.GROUP_EPOCH: st.builds(GroupEpoch, i32, i64),
    RecordKind.MEMBER: st.builds(
        MemberSubscription,
        st.none() | text,
        st.none() | text,
        text,
        text,
        st.frozensets(text, max_size=3),
        text,
        i32,
        st.none() | text,
        st.none() | classic,
    ),
    RecordKind.TARGET_EPOCH: st.builds(TargetEpoch, i32, i64),
    RecordKind.TARGET: st.frozensets(partitions, max_size=5),
    RecordKind.CURRENT: st.builds(CurrentAssignment, i32, i32, st.sampled_from(MemberState), epochs, epochs),
    RecordKind.REGEX: st.builds(ResolvedRegex, st.frozensets(text, max_size=3), i64, i64),
}
kinds_and_values = st.sampled_from(RecordKind).flatmap(lambda kind: st.tuples(st.just(kind), values[kind]))

few = settings(max_examples=25)
TOPIC = UUID("00112233-4455-6677-8899-aabbccddeeff")


@few
@given(st.sampled_from(RecordKind), text, text)
def test_keys_round_trip(kind: RecordKind, group_id: str, name: str) -> None:
    of_group = kind in (RecordKind.GROUP_EPOCH, RecordKind.TARGET_EPOCH)
    key = ConsumerGroupKey(kind, group_id, "" if of_group else name)
    assert decode_key(encode_key(key)) == key


@pytest.mark.parametrize("version", [0, 1, 2, 4, 9, 15, 17, 32767])
def test_a_key_of_another_kind_is_skipped(version: int) -> None:
    assert decode_key(version.to_bytes(2, "big") + b"anything") is None


def test_a_name_that_does_not_fit_a_key_is_refused() -> None:
    with pytest.raises(MalformedRecord):
        encode_key(ConsumerGroupKey(RecordKind.REGEX, "g", "x" * 40_000))


@few
@given(kinds_and_values)
def test_values_round_trip(kind_and_value: tuple[RecordKind, Any]) -> None:
    kind, value = kind_and_value
    assert decode_value(kind, encode_value(value)) == value


@few
@given(kinds_and_values, st.data())
def test_a_value_that_is_cut_short_is_malformed(kind_and_value: tuple[RecordKind, Any], data: st.DataObject) -> None:
    kind, value = kind_and_value
    encoded = encode_value(value)
    with pytest.raises(MalformedRecord):
        decode_value(kind, encoded[: data.draw(st.integers(0, len(encoded) - 1))])


@few
@given(st.sampled_from(RecordKind), st.binary(max_size=60))
def test_hostile_bytes_are_malformed_or_a_value(kind: RecordKind, data: bytes) -> None:
    try:
        decode_key(kind.to_bytes(2, "big") + data)
    except MalformedRecord:
        pass
    try:
        value = decode_value(kind, b"\0\0" + data)
    except MalformedRecord:
        return
    assert decode_value(kind, encode_value(value)) == value


@few
@given(kinds_and_values, st.data())
def test_a_changed_byte_is_malformed_or_a_value(kind_and_value: tuple[RecordKind, Any], data: st.DataObject) -> None:
    kind, value = kind_and_value
    encoded = bytearray(encode_value(value))
    encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode_value(kind, bytes(encoded))
    except MalformedRecord:
        pass


def test_a_kafka_before_4_3_stores_no_assignment_epochs_and_the_members_epoch_stands_for_them() -> None:
    topic = b"\2" + TOPIC.bytes + b"\3" + b"\0\0\0\1" + b"\0\0\0\4" + b"\0"
    data = b"\0\0" + b"\0\0\0\7" + b"\0\0\0\6" + b"\2" + topic + b"\1" + b"\0"
    assigned = {TopicIdPartition(TOPIC, 1): 7, TopicIdPartition(TOPIC, 4): 7}
    assert decode_value(RecordKind.CURRENT, data) == CurrentAssignment(7, 6, MemberState.UNRELEASED, assigned, {})


def test_assignment_epochs_have_the_length_of_the_partitions() -> None:
    topic = b"\2" + TOPIC.bytes + b"\3" + b"\0\0\0\1" + b"\0\0\0\4" + b"\1\0\5\2\0\0\0\7"
    with pytest.raises(MalformedRecord, match="1 assignment epochs of 2 partitions"):
        decode_value(RecordKind.CURRENT, b"\0\0" + bytes(8) + b"\0" + topic + b"\1" + b"\0")


def test_a_member_state_of_a_later_kafka_is_unknown() -> None:
    data = b"\0\0" + bytes(8) + b"\x09" + b"\1\1\0"
    assert decode_value(RecordKind.CURRENT, data).state is MemberState.UNKNOWN


# (kind, what Kafka 4.3's own classes write, the value)
KAFKAS_BYTES = [
    (RecordKind.GROUP_EPOCH, "000000000005010008000000000000004d", GroupEpoch(5, 77)),
    (RecordKind.GROUP_EPOCH, "00000000000500", GroupEpoch(5)),
    (
        RecordKind.MEMBER,
        "00000269000263032f68030261026201000493e00672616e6765010011010000afc8020672616e67650300010000",
        MemberSubscription(
            "i",
            None,
            "c",
            "/h",
            frozenset({"a", "b"}),
            "",
            300_000,
            "range",
            ClassicMembership(45_000, (("range", b"\0\1"),)),
        ),
    ),
    (
        RecordKind.MEMBER,
        "000001010263032f68010278ffffffff0100",
        MemberSubscription("", "", "c", "/h", frozenset(), "x", -1, ""),
    ),
    (RecordKind.TARGET_EPOCH, "0000000000090100080000011f71fb04cb", TargetEpoch(9, 1_234_567_890_123)),
    (
        RecordKind.TARGET,
        "00000200112233445566778899aabbccddeeff0300000000000000030000",
        frozenset({TopicIdPartition(TOPIC, 0), TopicIdPartition(TOPIC, 3)}),
    ),
    (
        RecordKind.CURRENT,
        (
            "0000000000070000000601"
            "0200112233445566778899aabbccddeeff030000000000000003010009030000000500000007"
            "0200112233445566778899aabbccddeeff0200000001010005020000000600"
        ),
        CurrentAssignment(
            7,
            6,
            MemberState.UNREVOKED,
            {TopicIdPartition(TOPIC, 0): 5, TopicIdPartition(TOPIC, 3): 7},
            {TopicIdPartition(TOPIC, 1): 6},
        ),
    ),
    (
        RecordKind.REGEX,
        "00000302610361620000000000000003000000000000006300",
        ResolvedRegex(frozenset({"a", "ab"}), 99, 3),
    ),
]


@pytest.mark.parametrize(("kind", "kafkas", "value"), KAFKAS_BYTES)
def test_values_are_the_bytes_that_kafka_writes(kind: RecordKind, kafkas: str, value: object) -> None:
    assert encode_value(value).hex() == kafkas
    assert decode_value(kind, bytes.fromhex(kafkas)) == value


def test_keys_are_the_bytes_that_kafka_writes() -> None:
    assert encode_key(ConsumerGroupKey(RecordKind.GROUP_EPOCH, "g")).hex() == "0003000167"
    assert encode_key(ConsumerGroupKey(RecordKind.CURRENT, "g", "m")).hex() == "000800016700016d"
    assert encode_key(ConsumerGroupKey(RecordKind.REGEX, "g", "a.*")).hex() == "00100001670003612e2a"

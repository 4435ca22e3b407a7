"""The formats of `__consumer_offsets`: round trips, Kafka's bytes, invalid bytes."""

from __future__ import annotations

from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.coordinator.group_records import (
    GroupKey,
    GroupMetadata,
    MemberMetadata,
    OffsetAndMetadata,
    OffsetKey,
    decode_group,
    decode_key,
    decode_offset,
    encode_group,
    encode_group_key,
    encode_offset,
    encode_offset_key,
)
from broker.coordinator.record_reader import MalformedRecord
from broker.protocol.consumer_protocol import subscribed_topics

text = st.text(max_size=40)
i32 = st.integers(-(2**31), 2**31 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
members = st.builds(MemberMetadata, text, st.none() | text, text, text, i32, i32, st.binary(), st.binary())
groups = st.builds(GroupMetadata, text, i32, st.none() | text, st.none() | text, i64, st.lists(members).map(tuple))


@given(text, text, i32)
def test_offset_key_round_trips(group: str, topic: str, partition: int) -> None:
    assert decode_key(encode_offset_key(group, topic, partition)) == OffsetKey(group, topic, partition)


@given(text)
def test_group_key_round_trips(group: str) -> None:
    assert decode_key(encode_group_key(group)) == GroupKey(group)


@given(i64, i32, text, i64, st.just(-1))
def test_offset_round_trips(offset: int, epoch: int, metadata: str, commit: int, expire: int) -> None:
    committed = OffsetAndMetadata(offset, epoch, metadata, commit, expire)
    assert decode_offset(encode_offset(committed)) == committed


def test_offset_with_an_expiry_is_written_as_version_1_without_leader_epoch() -> None:
    encoded = encode_offset(OffsetAndMetadata(7, 3, "m", 100, 200))
    assert encoded[:2] == b"\x00\x01"
    assert decode_offset(encoded) == OffsetAndMetadata(7, -1, "m", 100, 200)


@given(groups)
def test_group_round_trips(group: GroupMetadata) -> None:
    assert decode_group(encode_group(group)) == group


def test_bytes_are_kafkas() -> None:
    assert encode_offset_key("g", "to", 5) == b"\x00\x01" + b"\x00\x01g" + b"\x00\x02to" + b"\x00\x00\x00\x05"
    assert encode_group_key("g") == b"\x00\x02\x00\x01g"
    assert encode_offset(OffsetAndMetadata(1, 2, "x", 3)) == pack(">hqih", 3, 1, 2, 1) + b"x" + pack(">q", 3)
    member = MemberMetadata("m", None, "c", "h", 10, 20, b"s", b"as")
    assert encode_group(GroupMetadata("consumer", 4, "range", "m", 9, (member,))) == (
        pack(">h", 3)
        + (b"\x00\x08consumer" + pack(">i", 4) + b"\x00\x05range" + b"\x00\x01m" + pack(">qi", 9, 1))
        + (b"\x00\x01m" + b"\xff\xff" + b"\x00\x01c" + b"\x00\x01h" + pack(">ii", 10, 20))
        + (pack(">i", 1) + b"s" + pack(">i", 2) + b"as")
    )


@pytest.mark.parametrize(
    ("encoded", "expected"),
    [
        (pack(">hqh", 0, 1, 1) + b"x" + pack(">q", 3), OffsetAndMetadata(1, -1, "x", 3)),
        (pack(">hqh", 1, 1, 1) + b"x" + pack(">qq", 3, 4), OffsetAndMetadata(1, -1, "x", 3, 4)),
        (pack(">hqh", 2, 1, 1) + b"x" + pack(">q", 3), OffsetAndMetadata(1, -1, "x", 3)),
    ],
)
def test_older_offset_versions_are_read(encoded: bytes, expected: OffsetAndMetadata) -> None:
    assert decode_offset(encoded) == expected


@pytest.mark.parametrize("version", [0, 1, 2])
def test_older_group_versions_are_read(version: int) -> None:
    encoded = (
        (pack(">h", version) + b"\x00\x08consumer" + pack(">i", 4) + b"\x00\x05range" + b"\x00\x01m")
        + (pack(">q", 9) if version >= 2 else b"")
        + (pack(">i", 1) + b"\x00\x01m" + b"\x00\x01c" + b"\x00\x01h")
        + (pack(">i", 10) if version >= 1 else b"")
        + (pack(">i", 20) + pack(">i", 1) + b"s" + pack(">i", -1))
    )
    group = decode_group(encoded)
    assert group.state_timestamp_ms == (9 if version >= 2 else -1)
    rebalance_timeout = 10 if version >= 1 else 20
    assert group.members == (MemberMetadata("m", None, "c", "h", rebalance_timeout, 20, b"s", b""),)


def test_flexible_versions_are_read() -> None:
    """Version 4 (KIP-915). All its tagged fields are skipped."""
    tags = b"\x01\x00\x03abc"
    offset = pack(">hqi", 4, 1, 2) + b"\x02x" + pack(">q", 3)
    for end in (b"\x00", tags):
        assert decode_offset(offset + end) == OffsetAndMetadata(1, 2, "x", 3)
    member = b"\x02m" + b"\x02i" + b"\x02c" + b"\x02h" + pack(">ii", 10, 20) + b"\x02s" + b"\x01" + tags
    group = b"\x09consumer" + pack(">i", 4) + b"\x06range" + b"\x00" + pack(">q", 9) + b"\x02" + member + b"\x00"
    expected = MemberMetadata("m", "i", "c", "h", 10, 20, b"s", b"")
    assert decode_group(pack(">h", 4) + group) == GroupMetadata("consumer", 4, "range", None, 9, (expected,))
    with pytest.raises(MalformedRecord):
        decode_group(pack(">h", 4) + group[:-1])


def test_key_of_a_later_kafka_is_none() -> None:
    assert decode_key(b"\x00\x03anything") is None


@pytest.mark.parametrize("encoded", [b"\xff\xff", b"", b"\x00\x01\x00\x05g", b"\x00\x02\xff\xff"])
def test_broken_key_is_refused(encoded: bytes) -> None:
    with pytest.raises(MalformedRecord):
        decode_key(encoded)


def test_unknown_value_versions_are_refused() -> None:
    for decode in (decode_offset, decode_group):
        with pytest.raises(MalformedRecord, match="version 9"):
            decode(b"\x00\x09" + bytes(40))


def test_count_of_members_that_cannot_be_there_is_refused() -> None:
    encoded = pack(">h", 3) + b"\x00\x00" + pack(">i", 0) + b"\xff\xff" * 2 + pack(">qi", 0, 2**31 - 1)
    with pytest.raises(MalformedRecord, match="array"):
        decode_group(encoded)


def test_string_too_long_for_a_record_is_refused() -> None:
    with pytest.raises(MalformedRecord, match="does not fit a record"):
        encode_group_key("g" * 32768)
    with pytest.raises(MalformedRecord, match="does not fit a record"):
        encode_offset(OffsetAndMetadata(0, metadata="g" * 32768))


@given(st.binary(max_size=200))
def test_hostile_bytes_raise_malformed_record_only(data: bytes) -> None:
    for decode in (decode_key, decode_offset, decode_group):
        for candidate in (data, b"\x00\x01" + data, b"\x00\x02" + data, b"\x00\x03" + data, b"\x00\x04" + data):
            try:
                decode(candidate)
            except MalformedRecord:
                pass
    subscribed_topics(data)


@given(groups, st.data())
def test_every_cut_of_a_group_is_refused(group: GroupMetadata, data: st.DataObject) -> None:
    encoded = encode_group(group)
    cut = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(MalformedRecord):
        decode_group(encoded[:cut])
    with pytest.raises(MalformedRecord, match="too many"):
        decode_group(encoded + b"\x00")


def test_topics_of_a_subscription() -> None:
    encoded = pack(">hi", 1, 2) + b"\x00\x01a" + b"\x00\x01b" + pack(">i", -1)
    assert subscribed_topics(encoded) == frozenset({"a", "b"})
    assert subscribed_topics(b"no subscription") is None
    assert subscribed_topics(b"") is None

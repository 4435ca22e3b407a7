"""What group members tell each other: both ways, across versions, against kafka-python, and broken."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import ProtocolError
from broker.protocol.consumer_protocol import (
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from broker.protocol.topic_partition import TopicPartition

topics = st.text(max_size=12)
partitions = st.sets(st.builds(TopicPartition, topics, st.integers(0, 2**31 - 1)), max_size=6)


@given(st.sets(topics, max_size=5), partitions, st.integers(-1, 2**31 - 1), st.none() | st.binary(max_size=20))
def test_a_subscription_comes_back(
    names: set[str], owned: set[TopicPartition], generation: int, user_data: bytes | None
) -> None:
    sent = Subscription(tuple(sorted(names)), tuple(sorted(owned)), generation, user_data)
    assert decode_subscription(encode_subscription(sent)) == sent


@given(partitions)
def test_an_assignment_comes_back(assigned: set[TopicPartition]) -> None:
    assert decode_assignment(encode_assignment(assigned)) == sorted(assigned)


def test_no_bytes_are_no_partitions() -> None:
    assert decode_assignment(b"") == []


def test_version_0_has_no_owned_partitions() -> None:
    data = b"\0\0" + b"\0\0\0\1" + b"\0\5topic" + b"\xff\xff\xff\xff"
    assert decode_subscription(data) == Subscription(("topic",))


@pytest.mark.parametrize("version", [2, 3, 9])
def test_what_newer_versions_add_is_passed_over(version: int) -> None:
    data = (
        version.to_bytes(2, "big")
        + b"\0\0\0\1\0\1t"  # topics
        + b"\xff\xff\xff\xff"  # user data
        + b"\0\0\0\1\0\1t\0\0\0\1\0\0\0\3"  # owned partitions
        + b"\0\0\0\7"  # generation
        + b"\xff\xff"  # rack
        + b"more"
    )
    assert decode_subscription(data) == Subscription(("t",), (TopicPartition("t", 3),), 7)


def test_bytes_on_the_wire_are_kafkas() -> None:
    assert encode_assignment([TopicPartition("t", 1), TopicPartition("t", 0)]) == (
        b"\0\1" + b"\0\0\0\1\0\1t" + b"\0\0\0\2\0\0\0\0\0\0\0\1" + b"\xff\xff\xff\xff"
    )


@given(st.binary(max_size=80))
def test_junk_is_read_or_refused_and_nothing_else(junk: bytes) -> None:
    for decode in (decode_subscription, decode_assignment):
        try:
            decode(junk)
        except ProtocolError:
            pass


@pytest.mark.parametrize("junk", [b"\0", b"\xff\xff\0\0", b"\0\1\0\0\0\5"])
def test_broken_bytes_are_a_protocol_error(junk: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_subscription(junk)

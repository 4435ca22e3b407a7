"""What members say about their past, in Kafka's formats."""

from __future__ import annotations

from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyAssignorUserDataV1
from hypothesis import given
from hypothesis import strategies as st

from broker.client.assignor_table import ASSIGNORS, is_cooperative, member_of
from broker.client.assignors import Member
from broker.protocol.consumer_protocol import Subscription
from broker.protocol.topic_partition import TopicPartition as Tp

partitions = st.lists(st.builds(Tp, st.text(max_size=8), st.integers(0, 2**31 - 1)), max_size=6, unique=True)
sticky, cooperative = ASSIGNORS["sticky"], ASSIGNORS["cooperative-sticky"]


@given(partitions, st.integers(-1, 2**31 - 1))
def test_what_a_sticky_member_had_comes_back(had: list[Tp], generation: int) -> None:
    sent = Subscription(("t",), user_data=sticky.user_data(had, generation))
    read = member_of("m", sent, had_in_user_data=True)
    assert (sorted(read.owned), read.generation) == ((sorted(had), generation) if had else ([], -1))


def test_bytes_are_kafkas() -> None:
    assert sticky.user_data([Tp("t", 1), Tp("t", 0)], 7) == (
        b"\0\0\0\1" + b"\0\1t" + b"\0\0\0\2\0\0\0\0\0\0\0\1" + b"\0\0\0\7"
    )
    assert sticky.user_data([], 7) is None
    assert cooperative.user_data([Tp("t", 1)], 7) == b"\0\0\0\7"


@given(partitions, st.integers(-1, 2**31 - 1))
def test_aiokafka_reads_and_writes_the_same(had: list[Tp], generation: int) -> None:
    written = sticky.user_data(had, generation)
    if written is not None:
        theirs = StickyAssignorUserDataV1.decode(written)
        read = [Tp(topic, index) for topic, indexes in theirs.previous_assignment for index in indexes]
        assert (read, theirs.generation) == (sorted(had), generation)
        assert theirs.encode() == written


def test_the_first_version_of_sticky_had_no_generation() -> None:
    sent = Subscription(("t",), user_data=b"\0\0\0\1" + b"\0\1t" + b"\0\0\0\1\0\0\0\3")
    assert member_of("m", sent, had_in_user_data=True) == Member("m", ("t",), None, (Tp("t", 3),), -1)


def test_a_cooperative_member_names_what_it_owns_in_the_subscription() -> None:
    older = Subscription(("t",), (Tp("t", 1),), user_data=b"\0\0\0\5")
    assert member_of("m", older, "i", had_in_user_data=False) == Member("m", ("t",), "i", (Tp("t", 1),), 5)
    newer = Subscription(("t",), (Tp("t", 1),), 6, b"\0\0\0\5")
    assert member_of("m", newer, had_in_user_data=False).generation == 6


@given(st.binary(max_size=60), st.booleans())
def test_junk_is_nothing(junk: bytes, had_in_user_data: bool) -> None:
    member_of("m", Subscription(("t",), user_data=junk), had_in_user_data=had_in_user_data)


def test_a_member_keeps_partitions_only_when_every_strategy_allows_it() -> None:
    assert is_cooperative(["cooperative-sticky"])
    assert not is_cooperative(["cooperative-sticky", "range"])
    assert not is_cooperative(["sticky"])

"""How a group's leader shares partitions: the results of Kafka's assignors, and rules that always hold."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.client.assignor_table import ASSIGNORS
from broker.client.assignors import Member, assign_range, assign_round_robin
from broker.protocol.topic_partition import TopicPartition as Tp

TOPICS = ("t0", "t1", "t2")


def test_range_gives_the_first_members_the_odd_partitions_of_each_topic() -> None:
    members = [Member("b", ("t0", "t1")), Member("a", ("t0", "t1"))]
    assert assign_range(members, {"t0": 3, "t1": 3}) == {
        "a": [Tp("t0", 0), Tp("t0", 1), Tp("t1", 0), Tp("t1", 1)],
        "b": [Tp("t0", 2), Tp("t1", 2)],
    }


def test_round_robin_deals_all_partitions_in_turn() -> None:
    members = [Member("a", ("t0", "t1")), Member("b", ("t0", "t1"))]
    assert assign_round_robin(members, {"t0": 3, "t1": 3}) == {
        "a": [Tp("t0", 0), Tp("t0", 2), Tp("t1", 1)],
        "b": [Tp("t0", 1), Tp("t1", 0), Tp("t1", 2)],
    }


def test_round_robin_passes_over_members_that_do_not_want_the_topic() -> None:
    """The example in the documentation of Kafka's RoundRobinAssignor."""
    members = [Member("c0", ("t0",)), Member("c1", ("t0", "t1")), Member("c2", ("t0", "t1", "t2"))]
    assert assign_round_robin(members, {"t0": 1, "t1": 2, "t2": 3}) == {
        "c0": [Tp("t0", 0)],
        "c1": [Tp("t1", 0)],
        "c2": [Tp("t1", 1), Tp("t2", 0), Tp("t2", 1), Tp("t2", 2)],
    }


@pytest.mark.parametrize("assign", [assign_range, assign_round_robin])
def test_a_static_member_keeps_its_partitions_under_a_new_member_id(assign) -> None:  # type: ignore[no-untyped-def]
    before = assign([Member("m1", ("t0",), "one"), Member("m2", ("t0",), "two")], {"t0": 4})
    after = assign([Member("z9", ("t0",), "one"), Member("m2", ("t0",), "two")], {"t0": 4})
    assert before["m1"] == after["z9"]


@pytest.mark.parametrize("name", ASSIGNORS)
def test_a_topic_nobody_has_heard_of_is_not_assigned(name: str) -> None:
    assign = ASSIGNORS[name].assign
    assert assign([Member("a", ("missing",))], {}) == {"a": []}
    assert assign([Member("a", ())], {"t0": 2}) == {"a": []}


members_of_a_group = st.dictionaries(
    st.text("abcdef", min_size=1, max_size=3), st.sets(st.sampled_from(TOPICS)), min_size=1, max_size=6
)


@pytest.mark.parametrize("name", ASSIGNORS)
@given(wanted=members_of_a_group, counts=st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 9)))
def test_every_wanted_partition_goes_to_one_member_that_wants_it(
    name: str, wanted: dict[str, set[str]], counts: dict[str, int]
) -> None:
    members = [Member(member_id, sorted(topics)) for member_id, topics in wanted.items()]
    shares = ASSIGNORS[name].assign(members, counts)
    assert shares.keys() == wanted.keys()
    assert all(tp.topic in wanted[member_id] for member_id, tps in shares.items() for tp in tps)
    expected = {
        Tp(topic, index)
        for topic, count in counts.items()
        for index in range(count)
        if any(topic in topics for topics in wanted.values())
    }
    assert Counter(tp for tps in shares.values() for tp in tps) == Counter(expected)


@pytest.mark.parametrize("name", ASSIGNORS)
@given(members=st.integers(1, 7), partitions=st.integers(0, 30))
def test_members_that_want_the_same_differ_by_at_most_one(name: str, members: int, partitions: int) -> None:
    shares = ASSIGNORS[name].assign([Member(f"m{i}", ("t0",)) for i in range(members)], {"t0": partitions})
    sizes = [len(tps) for tps in shares.values()]
    assert max(sizes) - min(sizes) <= 1

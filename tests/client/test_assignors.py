"""Assignors of a group's leader: Kafka's results, balance, stickiness, and the formats of user data."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyAssignorUserDataV1
from hypothesis import given
from hypothesis import strategies as st

from broker.client.assignors import (
    ASSIGNORS,
    Assignment,
    Member,
    assign_cooperative_sticky,
    assign_range,
    assign_round_robin,
    assign_sticky,
    is_cooperative,
    member_of,
)
from broker.protocol.consumer_protocol import Subscription
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


TOPICS = ("t0", "t1", "t2")

names = st.text("abcdef", min_size=1, max_size=2)
topic_sets = st.sets(st.sampled_from(TOPICS), min_size=1)
topic_counts = st.fixed_dictionaries({topic: st.integers(0, 7) for topic in TOPICS})
owned = st.lists(st.builds(Tp, st.sampled_from(TOPICS), st.integers(0, 8)), max_size=12, unique=True)


@st.composite
def groups(draw: st.DrawFn) -> list[Member]:
    """Members with any past at all, also one that cannot be."""
    wanted = draw(st.dictionaries(names, topic_sets, min_size=1, max_size=5))
    return [
        Member(member_id, sorted(topics), None, draw(owned), draw(st.integers(-1, 3)))
        for member_id, topics in wanted.items()
    ]


def after(members: Sequence[Member], shares: Assignment, generation: int = 9) -> list[Member]:
    """The same members in the next rebalance."""
    return [m._replace(owned=shares.get(m.member_id, []), generation=generation) for m in members]


def least_sum_of_squares(members: Sequence[Member], counts: Mapping[str, int]) -> int:
    """By trying out how many of each topic every member gets; the balance that cannot be beaten."""
    sums = {(0,) * len(members)}
    for topic, count in counts.items():
        takers = [index for index, member in enumerate(members) if topic in member.topics]
        if not takers:
            continue
        for _ in range(count):
            sums = {
                (*loads[:index], loads[index] + 1, *loads[index + 1 :])
                for loads, index in itertools.product(sums, takers)
            }
    return min(sum(load * load for load in loads) for loads in sums)


@given(groups(), topic_counts)
def test_the_sticky_assignor_is_balanced_among_different_subscriptions(
    members: list[Member], counts: dict[str, int]
) -> None:
    shares = assign_sticky(members, counts)
    wanted = {topic for member in members for topic in member.topics}
    every = [Tp(topic, index) for topic in sorted(wanted) for index in range(counts[topic])]
    assert sorted(tp for share in shares.values() for tp in share) == every
    assert all(tp.topic in member.topics for member in members for tp in shares[member.member_id])


@given(groups(), st.fixed_dictionaries({topic: st.integers(0, 4) for topic in TOPICS}))
def test_no_assignment_is_better_balanced(members: list[Member], counts: dict[str, int]) -> None:
    shares = assign_sticky(members[:4], counts)
    assert sum(len(share) ** 2 for share in shares.values()) == least_sum_of_squares(members[:4], counts)


@given(groups(), topic_counts)
def test_nothing_moves_when_nothing_changed(members: list[Member], counts: dict[str, int]) -> None:
    shares = assign_sticky(members, counts)
    again = after(members, shares)
    assert assign_sticky(again, counts) == shares
    assert assign_cooperative_sticky(again, counts) == shares


@given(groups(), topic_counts)
def test_cooperative_members_settle_in_two_rounds_and_share_nothing_in_between(
    members: list[Member], counts: dict[str, int]
) -> None:
    now = after(members, assign_sticky(members, counts), 1)
    newcomer = Member("zz", list(TOPICS))
    first = assign_cooperative_sticky([*now, newcomer], counts)
    held = {member.member_id: set(member.owned) for member in now}
    for member_id, share in first.items():
        others = set[Tp]().union(*(had for other, had in held.items() if other != member_id))
        assert not others & set(share), "its owner must let go first"
    second = assign_cooperative_sticky(after([*now, newcomer], first, 2), counts)
    assert sorted(tp for share in second.values() for tp in share) == sorted(
        Tp(topic, index) for topic in TOPICS for index in range(counts[topic])
    )


@given(st.integers(1, 30), st.integers(2, 6), st.data())
def test_when_a_member_leaves_the_others_keep_what_they_have(partitions: int, count: int, data: st.DataObject) -> None:
    members = [Member(f"m{index}", ("t0",)) for index in range(count)]
    now = after(members, assign_sticky(members, {"t0": partitions}))
    gone = data.draw(st.sampled_from(now))
    left = [member for member in now if member is not gone]
    shares = assign_sticky(left, {"t0": partitions})
    assert all(set(member.owned) <= set(shares[member.member_id]) for member in left)


@given(st.integers(1, 30), st.integers(1, 6))
def test_a_newcomer_gets_no_more_than_its_share(partitions: int, count: int) -> None:
    members = [Member(f"m{index}", ("t0",)) for index in range(count)]
    now = after(members, assign_sticky(members, {"t0": partitions}))
    shares = assign_sticky([*now, Member("new", ("t0",))], {"t0": partitions})
    moved = sum(len(set(member.owned) - set(shares[member.member_id])) for member in now)
    assert moved == len(shares["new"]) == partitions // (count + 1)


def test_of_two_that_claim_a_partition_the_newer_generation_is_right() -> None:
    p0, p1 = Tp("t0", 0), Tp("t0", 1)
    old, new = Member("a", ("t0",), None, [p0, p1], 4), Member("b", ("t0",), None, [p0], 5)
    assert assign_sticky([old, new], {"t0": 2}) == {"a": [p1], "b": [p0]}


def test_a_restarted_static_member_need_not_remember() -> None:
    now = after(
        [Member("m1", ("t0",), "one"), Member("m2", ("t0",), "two")], {"m1": [Tp("t0", 1)], "m2": [Tp("t0", 0)]}
    )
    restarted = Member("m9", ("t0",), "one")
    assert assign_sticky([restarted, now[1]], {"t0": 2}) == {"m9": [Tp("t0", 1)], "m2": [Tp("t0", 0)]}


def test_chains_of_members_are_found() -> None:
    """a may give only to b, and b only to c: Kafka's own assignor stays at 3, 2, 1."""
    members = [
        Member("a", ("t0",), None, [Tp("t0", 0), Tp("t0", 1), Tp("t0", 2)], 1),
        Member("b", ("t0", "t1"), None, [Tp("t1", 0), Tp("t1", 1)], 1),
        Member("c", ("t1",), None, [Tp("t1", 2)], 1),
    ]
    shares = assign_sticky(members, {"t0": 3, "t1": 3})
    assert [len(shares[name]) for name in "abc"] == [2, 2, 2]


@pytest.mark.parametrize("assign", [assign_sticky, assign_cooperative_sticky])
def test_nobody_gets_nothing(assign) -> None:  # type: ignore[no-untyped-def]
    assert assign([], {"t0": 3}) == {}


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
    member = member_of("m", Subscription(("t",), user_data=junk), had_in_user_data=had_in_user_data)
    assert member == Member("m", ("t",), None, member.owned, member.generation)
    assert all(isinstance(tp, Tp) for tp in member.owned)


def test_a_member_keeps_partitions_only_when_every_strategy_allows_it() -> None:
    assert is_cooperative(["cooperative-sticky"])
    assert not is_cooperative(["cooperative-sticky", "range"])
    assert not is_cooperative(["sticky"])

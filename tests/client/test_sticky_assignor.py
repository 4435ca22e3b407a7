"""The sticky assignors: balanced, every partition once, and what need not move stays."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.client.assignors import Assignment, Member
from broker.client.sticky_assignor import assign_cooperative_sticky, assign_sticky
from broker.protocol.topic_partition import TopicPartition as Tp

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
def test_every_wanted_partition_goes_to_one_member_that_wants_it(members: list[Member], counts: dict[str, int]) -> None:
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

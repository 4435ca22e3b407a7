"""The assignors of the coordinator: complete, balanced, and as few moves as that takes."""

from __future__ import annotations

from collections import Counter
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.coordinator.group_assignors import ASSIGNORS, AssignedMember, Assignor, ranges, simple, uniform
from broker.coordinator.modern_group_messages import Partitions, TopicIdPartition

A, B, C = (UUID(int=number) for number in (1, 2, 3))

counts = st.dictionaries(st.sampled_from([A, B, C]), st.builds(range, st.integers(1, 7)))
subscriptions = st.lists(st.frozensets(st.sampled_from([A, B, C])), max_size=6)
few = settings(max_examples=60)


def members_of(topics: list[frozenset[UUID]], before: dict[str, Partitions] | None = None) -> dict[str, AssignedMember]:
    before = before or {}
    return {f"m{i}": AssignedMember(ids, before.get(f"m{i}", frozenset())) for i, ids in enumerate(topics)}


def all_of(counts: dict[UUID, range]) -> set[TopicIdPartition]:
    return {TopicIdPartition(topic_id, number) for topic_id, count in counts.items() for number in count}


def sizes(assigned: dict[str, Partitions]) -> list[int]:
    return sorted(map(len, assigned.values()))


def moved(before: dict[str, Partitions], after: dict[str, Partitions]) -> int:
    return sum(len(partitions - after[member_id]) for member_id, partitions in before.items() if member_id in after)


@pytest.mark.parametrize("assignor", [uniform, ranges])
@few
@given(subscriptions, counts)
def test_each_partition_with_a_subscriber_has_one_member(
    assignor: Assignor, topics: list[frozenset[UUID]], counts: dict[UUID, range]
) -> None:
    assigned = assignor(members_of(topics), counts)
    owners = Counter(partition for partitions in assigned.values() for partition in partitions)
    wanted = {partition for partition in all_of(counts) if any(partition.topic_id in ids for ids in topics)}
    assert owners == Counter(wanted)
    assert all(tp.topic_id in topics[int(member_id[1:])] for member_id, tps in assigned.items() for tp in tps)


@few
@given(st.integers(1, 6), st.integers(1, 6), counts)
def test_uniform_is_balanced_and_moves_no_more_than_needed(before: int, after: int, counts: dict[UUID, range]) -> None:
    everything = frozenset(counts)
    first = uniform(members_of([everything] * before), counts)
    second = uniform(members_of([everything] * after, first), counts)
    for assigned in (first, second):
        assert not assigned or max(sizes(assigned)) - min(sizes(assigned)) <= 1
    surplus = [len(first[member_id]) - len(second[member_id]) for member_id in first.keys() & second.keys()]
    assert moved(first, second) == sum(max(0, more) for more in surplus)


@few
@given(subscriptions, counts)
def test_uniform_changes_nothing_when_nothing_changed(topics: list[frozenset[UUID]], counts: dict[UUID, range]) -> None:
    first = uniform(members_of(topics), counts)
    second = uniform(members_of(topics, first), counts)
    assert moved(first, second) == 0 or sizes(second) != sizes(first)


def test_uniform_balances_members_whose_subscriptions_overlap() -> None:
    topics = [frozenset({A}), frozenset({A, B}), frozenset({B})]
    assert sizes(uniform(members_of(topics), {A: range(6), B: range(3)})) == [3, 3, 3]


def test_uniform_takes_back_what_a_member_no_longer_wants() -> None:
    first = uniform(members_of([frozenset({A, B}), frozenset({A, B})]), {A: range(4), B: range(4)})
    second = uniform(members_of([frozenset({A}), frozenset({A, B})], first), {A: range(4), B: range(4)})
    assert sizes(second) == [4, 4]
    assert all(partition.topic_id == A for partition in second["m0"])


def test_range_divides_topics_with_as_many_partitions_alike() -> None:
    assigned = ranges(members_of([frozenset({A, B})] * 3), {A: range(8), B: range(8)})
    numbers = [[sorted(n for t, n in assigned[m] if t == topic) for topic in (A, B)] for m in ("m0", "m1", "m2")]
    assert numbers == [[[0, 1, 2]] * 2, [[3, 4, 5]] * 2, [[6, 7]] * 2]


def test_range_puts_static_members_first_by_instance_id() -> None:
    wants = frozenset({A})
    members = {
        "a": AssignedMember(wants),
        "b": AssignedMember(wants, instance_id="z"),
        "c": AssignedMember(wants, instance_id="y"),
    }
    assigned = ranges(members, {A: range(3)})
    assert [min(assigned[member_id])[1] for member_id in "cba"] == [0, 1, 2]


@few
@given(st.integers(1, 9), st.integers(1, 9), counts)
def test_simple_gives_every_partition_a_member_and_every_member_its_share(
    before: int, after: int, counts: dict[UUID, range]
) -> None:
    everything = frozenset(counts)
    assigned = simple(members_of([everything] * before), counts)
    for count in (before, after):
        assigned = simple(members_of([everything] * count, assigned), counts)
        sharing = Counter(partition for partitions in assigned.values() for partition in partitions)
        assert sharing.keys() == all_of(counts)
        total = len(all_of(counts))
        assert all(number <= -(-count // total) for number in sharing.values())
        assert max(sizes(assigned)) <= -(-(-(-count // max(total, 1)) * total) // count)


@few
@given(subscriptions, counts)
def test_simple_gives_members_only_what_they_want(topics: list[frozenset[UUID]], counts: dict[UUID, range]) -> None:
    assigned = simple(members_of(topics), counts)
    assert all(tp.topic_id in topics[int(member_id[1:])] for member_id, tps in assigned.items() for tp in tps)
    wanted = {tp for tp in all_of(counts) if any(tp.topic_id in ids for ids in topics)}
    assert set().union(*assigned.values()) == wanted


def test_clients_know_uniform_and_range() -> None:
    assert list(ASSIGNORS) == ["uniform", "range"]

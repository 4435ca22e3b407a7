"""Placement of replicas."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.cluster.assignment import assign_replicas, check_assignment, with_replication_factor
from broker.errors import BrokerError, ErrorCode


def test_partition_i_begins_on_broker_i_and_its_replicas_follow_one_further_in_each_round() -> None:
    assert assign_replicas([3, 1, 2], 4, 2) == {0: (1, 2), 1: (2, 3), 2: (3, 1), 3: (1, 3)}


def test_the_start_shifts_everything() -> None:
    assert assign_replicas([1, 2, 3], 2, 2, start=2) == {0: (3, 1), 1: (1, 2)}


RACKS = {0: "rack1", 1: "rack3", 2: "rack3", 3: "rack2", 4: "rack2", 5: "rack1"}


def test_racks_alternate_as_in_the_example_of_kafkas_admin_utils() -> None:
    assert list(assign_replicas(RACKS, 12, 3, racks=RACKS).values()) == [
        *((0, 3, 1), (3, 1, 5), (1, 5, 4), (5, 4, 2), (4, 2, 0), (2, 0, 3)),
        *((0, 4, 2), (3, 2, 0), (1, 0, 3), (5, 3, 1), (4, 1, 5), (2, 5, 4)),
    ]


def test_racks_do_not_count_while_a_broker_has_none() -> None:
    racks = {**RACKS, 3: None}
    assert assign_replicas(RACKS, 12, 3, racks=racks) == assign_replicas(RACKS, 12, 3)


@given(
    racks=st.dictionaries(st.integers(0, 20), st.sampled_from("abcd"), min_size=1, max_size=9),
    partitions=st.integers(1, 30),
    factor=st.integers(1, 9),
    start=st.integers(0, 2**32),
)
def test_the_replicas_of_a_partition_are_in_as_many_racks_as_possible(
    racks: dict[int, str], partitions: int, factor: int, start: int
) -> None:
    factor = min(factor, len(racks))
    assignment = assign_replicas(racks, partitions, factor, start=start, racks=racks)
    for replicas in assignment.values():
        assert len(set(replicas)) == factor
        assert len({racks[replica] for replica in replicas}) == min(factor, len(set(racks.values())))
    leaders = Counter(replicas[0] for replicas in assignment.values())
    assert max(leaders.values()) - min(leaders[broker] for broker in racks) <= 1


def test_added_partitions_go_on_where_the_topic_ended() -> None:
    whole = assign_replicas([1, 2, 3], 5, 2, start=1)
    added = assign_replicas([1, 2, 3], 2, 2, start=1, first_partition=3)
    assert added == {partition: whole[partition] for partition in (3, 4)}


@given(
    brokers=st.sets(st.integers(0, 1000), min_size=1, max_size=8),
    partitions=st.integers(1, 40),
    factor=st.integers(1, 8),
    start=st.integers(-(2**63), 2**63),
)
def test_replicas_are_distinct_and_load_is_even(brokers: set[int], partitions: int, factor: int, start: int) -> None:
    factor = min(factor, len(brokers))
    assignment = assign_replicas(brokers, partitions, factor, start=start)
    assert list(assignment) == list(range(partitions))
    assert all(len(set(replicas)) == factor and set(replicas) <= brokers for replicas in assignment.values())
    leaders = Counter(replicas[0] for replicas in assignment.values())
    held = Counter(replica for replicas in assignment.values() for replica in replicas)
    assert max(leaders.values()) - min(leaders[broker] for broker in brokers) <= 1
    assert max(held.values()) - min(held[broker] for broker in brokers) <= factor
    assert check_assignment(assignment, brokers) == assignment


@pytest.mark.parametrize(
    ("brokers", "partitions", "factor", "code", "complaint"),
    [
        ([1], 0, 1, ErrorCode.invalid_partitions, "0 partitions asked for"),
        ([1], 1, 0, ErrorCode.invalid_replication_factor, "replication factor 0"),
        ([1, 2], 1, 3, ErrorCode.invalid_replication_factor, "3 is larger than the number of available brokers, 2"),
        ([], 1, 1, ErrorCode.broker_not_available, "no broker is registered"),
    ],
)
def test_what_cannot_be_placed_is_refused(
    brokers: list[int], partitions: int, factor: int, code: ErrorCode, complaint: str
) -> None:
    with pytest.raises(BrokerError, match=complaint) as refusal:
        assign_replicas(brokers, partitions, factor)
    assert refusal.value.code is code


def test_a_possible_manual_assignment_is_kept() -> None:
    assert check_assignment({1: [2, 1], 0: [1, 3]}, [1, 2, 3]) == {0: (1, 3), 1: (2, 1)}
    assert check_assignment({2: [1]}, [1], first_partition=2) == {2: (1,)}


@pytest.mark.parametrize(
    ("assignment", "complaint"),
    [
        ({}, "not consecutive from 0"),
        ({1: [1]}, "not consecutive from 0"),
        ({2: [1], 0: [1]}, r"partitions \[0, 2\] are not consecutive from 0"),
        ({0: []}, "partition 0 has no replica"),
        ({0: [1, 1]}, r"partition 0 names a broker twice: \[1, 1\]"),
        ({0: [1, 2], 1: [1]}, "partition 1 has 1 replicas, partition 0 2"),
        ({0: [1, 9]}, r"names brokers that are not registered: \[9\]"),
    ],
)
def test_an_impossible_manual_assignment_is_refused(assignment: dict[int, list[int]], complaint: str) -> None:
    with pytest.raises(BrokerError, match=complaint) as refusal:
        check_assignment(assignment, [1, 2])
    assert refusal.value.code is ErrorCode.invalid_replica_assignment


@given(st.integers(1, 8), st.integers(1, 20), st.data())
def test_another_replication_factor_moves_as_few_replicas_as_possible(count: int, partitions: int, data: Any) -> None:
    racks = {broker: data.draw(st.sampled_from((None, "a", "b", "c"))) for broker in range(count)}
    before = assign_replicas(racks, partitions, data.draw(st.integers(1, count)), racks=racks)
    gone = data.draw(st.sets(st.sampled_from(sorted(racks)), max_size=count - 1))
    left = {broker: rack for broker, rack in racks.items() if broker not in gone}
    factor = data.draw(st.integers(1, len(left)))
    after = with_replication_factor(before, factor, left)
    for index, ids in after.items():
        kept = [one for one in before[index] if one in left][:factor]
        assert list(ids[: len(kept)]) == kept
        assert len(set(ids)) == len(ids) == factor
        assert set(ids) <= set(left)
        new_racks = {left[one] for one in ids[len(kept) :]}
        unused = set(left.values()) - {left[one] for one in ids}
        assert not unused or len(new_racks) == factor - len(kept), "another rack first"


def test_replicas_that_are_added_go_to_the_brokers_with_the_fewest() -> None:
    racks = dict.fromkeys((1, 2, 3, 4))
    after = with_replication_factor({0: (1,), 1: (1,), 2: (2,), 3: (2, 9)}, 2, racks)
    assert after == {0: (1, 3), 1: (1, 4), 2: (2, 3), 3: (2, 4)}
    with pytest.raises(BrokerError) as refused:
        with_replication_factor({0: (1,)}, 5, racks)
    assert refused.value.code is ErrorCode.invalid_replication_factor

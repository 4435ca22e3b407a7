"""Which state follows from what is: the rules one by one. `test_replication_model.py` tries them together."""

from __future__ import annotations

import dataclasses

import pytest

from broker.cluster.controller_state import (
    Election,
    imbalanced_partitions,
    next_state,
    state_at_start,
    state_reassigned,
    state_without,
)
from broker.protocol.topic_partition import TopicPartition
from broker.zookeeper.cluster_metadata import NO_LEADER, PartitionInfo

LED_BY_1 = PartitionInfo(1, 5, (1, 2, 3), (1, 2, 3), version=7)
ALL = {1, 2, 3, 4, 5}


def outcome(election: Election | None) -> tuple[int, int, tuple[int, ...]] | None:
    """(leader, leader epoch, ISR)."""
    return None if election is None else (election.after.leader, election.after.leader_epoch, election.after.isr)


@pytest.mark.parametrize(
    ("now", "live", "expected"),
    [
        (LED_BY_1, {1, 2, 3}, None),
        (PartitionInfo(NO_LEADER, 0, (1, 2, 3), ()), {2, 3}, (2, 0, (2, 3))),
        (PartitionInfo(NO_LEADER, 0, (1, 2, 3), ()), {4}, None),
        (LED_BY_1, {1, 3}, (1, 5, (1, 3))),
        (LED_BY_1, {2, 3}, (2, 6, (2, 3))),
        (dataclasses.replace(LED_BY_1, isr=(1, 3)), {2, 3}, (3, 6, (3,))),
        (dataclasses.replace(LED_BY_1, isr=(1,)), {2, 3}, (NO_LEADER, 6, (1,))),
        (LED_BY_1, {4}, (NO_LEADER, 6, (1, 2, 3))),
        (dataclasses.replace(LED_BY_1, leader=NO_LEADER, isr=(1,)), {2, 3}, None),
        (dataclasses.replace(LED_BY_1, leader=NO_LEADER, isr=(1, 3)), {3}, (3, 6, (3,))),
        (dataclasses.replace(LED_BY_1, isr=(1, 4)), ALL, (1, 5, (1,))),  # 4 is no replica
        (dataclasses.replace(LED_BY_1, leader=4, isr=(4, 2)), ALL, (2, 6, (2,))),
        (dataclasses.replace(LED_BY_1, isr=()), ALL, None),  # not a state that we write: nothing better is known
    ],
)
def test_a_partition_is_led_by_the_first_live_in_sync_replica(
    now: PartitionInfo, live: set[int], expected: tuple[int, int, tuple[int, ...]] | None
) -> None:
    election = next_state(now, live)
    assert outcome(election) == expected
    if election is not None:
        assert not election.unclean
        assert next_state(election.after, live) is None or now.version == -1


def test_an_unclean_election_happens_only_where_it_is_allowed_and_needed() -> None:
    now = dataclasses.replace(LED_BY_1, isr=(1,))
    election = next_state(now, {2, 3}, unclean_allowed=True)
    assert election is not None
    assert (outcome(election), election.unclean) == ((2, 6, (2,)), True)
    assert "unclean election, records may be lost" in str(election)
    clean = next_state(LED_BY_1, {3}, unclean_allowed=True)
    assert clean is not None
    assert (outcome(clean), clean.unclean) == ((3, 6, (3,)), False)


def test_the_preferred_replica_leads_again_if_it_is_in_sync() -> None:
    now = dataclasses.replace(LED_BY_1, leader=2)
    assert next_state(now, ALL) is None
    assert outcome(next_state(now, ALL, prefer=True)) == (1, 6, (1, 2, 3))
    assert next_state(dataclasses.replace(now, isr=(2, 3)), ALL, prefer=True) is None
    assert next_state(LED_BY_1, ALL, prefer=True) is None


def test_a_broker_that_stops_leaves_what_others_can_take_over() -> None:
    assert outcome(state_without(LED_BY_1, 1, ALL)) == (2, 6, (2, 3))
    assert outcome(state_without(LED_BY_1, 3, ALL)) == (1, 5, (1, 2))
    assert outcome(state_without(LED_BY_1, 1, {1, 3})) == (3, 6, (2, 3))
    assert state_without(LED_BY_1, 1, {1}) is None
    assert state_without(dataclasses.replace(LED_BY_1, isr=(1,)), 1, ALL) is None
    assert state_without(LED_BY_1, 4, ALL) is None


def test_a_broker_that_starts_begins_a_new_epoch_where_it_leads() -> None:
    def start(now: PartitionInfo, broker: int) -> tuple[int, int, tuple[int, ...]] | None:
        return outcome(state_at_start(now, broker, may_have_lost=False))

    assert start(LED_BY_1, 1) == (1, 6, (1, 2, 3))
    assert start(LED_BY_1, 2) is None
    assert start(dataclasses.replace(LED_BY_1, leader=NO_LEADER, isr=(2,)), 2) == (2, 6, (2,))
    assert start(dataclasses.replace(LED_BY_1, isr=(1, 2)), 3) is None


def test_a_broker_that_may_have_lost_records_leaves_the_isr_unless_it_is_the_last() -> None:
    def start(now: PartitionInfo, broker: int) -> tuple[int, int, tuple[int, ...]] | None:
        return outcome(state_at_start(now, broker, may_have_lost=True))

    assert start(LED_BY_1, 1) == (NO_LEADER, 6, (2, 3))
    assert start(LED_BY_1, 2) == (1, 5, (1, 3))
    assert start(dataclasses.replace(LED_BY_1, isr=(1,)), 1) == (1, 6, (1,))
    assert start(dataclasses.replace(LED_BY_1, isr=(1, 2)), 3) == (1, 5, (1, 2))  # written again: a new version
    assert start(LED_BY_1, 4) is None


def test_a_reassignment_adds_then_waits_then_removes() -> None:
    """KIP-455."""
    begun = state_reassigned(LED_BY_1, [4, 5])
    assert begun is not None
    now = begun.after
    assert (now.replicas, now.adding, now.removing, now.target) == ((4, 5, 1, 2, 3), (4, 5), (1, 2, 3), (4, 5))
    assert outcome(begun) == (1, 6, (1, 2, 3))
    assert next_state(now, ALL) is None
    almost = dataclasses.replace(now, isr=(1, 2, 3, 4))
    assert next_state(almost, ALL) is None
    ready = dataclasses.replace(now, isr=(1, 2, 3, 4, 5))
    assert next_state(ready, ALL - {5}) is not None  # only leaves the ISR
    done = next_state(ready, ALL)
    assert done is not None
    assert done.after == PartitionInfo(4, 7, (4, 5), (4, 5), 7)


def test_a_reassignment_is_replaced_and_cancelled() -> None:
    begun = state_reassigned(LED_BY_1, [1, 4])
    assert begun is not None
    replaced = state_reassigned(dataclasses.replace(begun.after, isr=(1, 2, 4)), [1, 5])
    assert replaced is not None
    assert replaced.after == PartitionInfo(1, 7, (1, 5, 2, 3), (1, 2), 7, (5,), (2, 3))
    cancelled = state_reassigned(dataclasses.replace(begun.after, leader=4, isr=(2, 4)), LED_BY_1.replicas)
    assert cancelled is not None
    assert cancelled.after == PartitionInfo(2, 7, (1, 2, 3), (2,), 7)
    only_on_the_new_replica = dataclasses.replace(begun.after, leader=4, isr=(4,))
    assert state_reassigned(only_on_the_new_replica, LED_BY_1.replicas) is None


def test_leaders_are_imbalanced_above_the_share_and_only_if_the_preferred_can_lead() -> None:
    away = dataclasses.replace(LED_BY_1, leader=2)
    partitions = {TopicPartition("t", i): away if i < 2 else LED_BY_1 for i in range(10)}
    assert imbalanced_partitions(partitions.items(), ALL, 20) == []
    assert imbalanced_partitions(partitions.items(), ALL, 19) == [TopicPartition("t", 0), TopicPartition("t", 1)]
    assert imbalanced_partitions(partitions.items(), {2, 3}, 10) == []
    partitions[TopicPartition("t", 0)] = dataclasses.replace(away, isr=(2, 3))
    partitions[TopicPartition("t", 1)] = dataclasses.replace(away, adding=(3,))
    assert imbalanced_partitions(partitions.items(), ALL, 10) == []

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
from broker.replica.cluster_metadata import NO_LEADER, PartitionInfo

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
        (PartitionInfo(2, 1, (3, 4), (2,), version=1), ALL, (3, 2, (3, 4))),  # of a deleted topic of that name
        (PartitionInfo(2, 1, (3, 4), (2,), version=1), {2}, None),
        (PartitionInfo(3, 0, (1, 2), (3, 4), version=0), ALL, (NO_LEADER, 1, (3, 4))),  # the assignment is old
        (PartitionInfo(2, 1, (3, 4), (2,), version=2), ALL, (NO_LEADER, 2, (2,))),  # somebody changed the assignment
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


@pytest.mark.parametrize(
    ("now", "live", "suspected", "expected"),
    [
        (LED_BY_1, ALL, {1}, (2, 6, (2, 3))),
        (LED_BY_1, ALL, {1, 2}, (3, 6, (3,))),
        (LED_BY_1, ALL, {2}, None),  # as a follower it leaves when the leader finds it dead
        (LED_BY_1, ALL, {1, 2, 3}, None),
        (dataclasses.replace(LED_BY_1, isr=(1,)), ALL, {1}, None),
        (LED_BY_1, {2, 3}, {2}, (3, 6, (3,))),
        (dataclasses.replace(LED_BY_1, isr=(1, 2)), {2, 3}, {2}, (NO_LEADER, 6, (1, 2))),
        (dataclasses.replace(LED_BY_1, leader=NO_LEADER, isr=(2,)), {2, 3}, {2}, None),
        (PartitionInfo(NO_LEADER, 0, (1, 2, 3), ()), ALL, {1}, (2, 0, (2, 3))),
    ],
)
def test_a_suspicion_moves_leadership_to_another_in_sync_replica_and_does_nothing_else(
    now: PartitionInfo, live: set[int], suspected: set[int], expected: tuple[int, int, tuple[int, ...]] | None
) -> None:
    for unclean_allowed in (False, True):
        for prefer in (False, True):
            election = next_state(now, live, suspected=suspected, unclean_allowed=unclean_allowed, prefer=prefer)
            assert outcome(election) == expected
            assert election is None or not election.unclean


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


def test_the_last_in_sync_replica_does_not_lead_without_its_log() -> None:
    def start(now: PartitionInfo, broker: int = 1) -> tuple[int, int, tuple[int, ...]] | None:
        return outcome(state_at_start(now, broker, may_have_lost=True, has_log=False))

    last = dataclasses.replace(LED_BY_1, isr=(1,))
    assert start(last) == (NO_LEADER, 6, ())
    assert start(dataclasses.replace(last, leader=NO_LEADER)) == (NO_LEADER, 6, ())
    assert start(LED_BY_1) == (NO_LEADER, 6, (2, 3))
    new = dataclasses.replace(last, leader=NO_LEADER, leader_epoch=1)
    assert outcome(state_at_start(new, 1, may_have_lost=True, has_log=False, never_had_log=True)) == (1, 2, (1,))
    assert outcome(state_at_start(last, 1, may_have_lost=True, has_log=False, never_had_log=True)) == (NO_LEADER, 6, ())
    lost = dataclasses.replace(last, leader=NO_LEADER, isr=())
    assert outcome(next_state(lost, ALL)) is None
    assert outcome(next_state(lost, (2, 3), unclean_allowed=True)) == (2, 6, (2,))


def test_the_only_replica_does_not_lead_without_its_log_until_it_is_back_or_given_up() -> None:
    only = PartitionInfo(1, 5, (1,), (1,), version=7)
    lost = dataclasses.replace(only, leader=NO_LEADER, isr=())

    def start(now: PartitionInfo, **log: bool) -> tuple[int, int, tuple[int, ...]] | None:
        return outcome(state_at_start(now, 1, may_have_lost=False, **log))

    gone = {"has_log": False}
    assert start(only) == (1, 6, (1,))
    assert start(only, **gone) == start(only, has_log=False, is_offline=True) == (NO_LEADER, 6, ())
    assert start(lost, **gone) is None, "nothing to write"
    assert start(lost) == (1, 6, (1,)), "the disk is mounted again"
    assert start(lost, **gone, loss_is_accepted=True) == (1, 6, (1,))
    assert start(lost, **gone, loss_is_accepted=True, is_offline=True) is None, "it may be in the other directory"
    for epoch, first in ((0, 1), (1, 2)):
        new = dataclasses.replace(only, leader_epoch=epoch)
        assert start(new, **gone, never_had_log=True) == (1, first, (1,))
        assert start(new, **gone, never_had_log=True, is_offline=True) == (NO_LEADER, first, ())
    assert start(only, **gone, never_had_log=True) == (NO_LEADER, 6, ()), "it was led in five epochs"
    assert start(dataclasses.replace(lost, leader_epoch=1), **gone, never_had_log=True) is None
    assert outcome(state_at_start(dataclasses.replace(only, leader=4, isr=(4,)), 1, may_have_lost=False)) is None
    assert outcome(next_state(lost, ALL)) is None
    assert outcome(next_state(lost, ALL, unclean_allowed=True)) is None


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
    assert state_reassigned(dataclasses.replace(begun.after, leader=4, isr=(2, 4)), None) == dataclasses.replace(
        cancelled, reason="its reassignment is cancelled, it stays on brokers [1, 2, 3]"
    )


def test_replicas_that_a_reassignment_has_added_are_kept_while_too_few_others_are_in_sync() -> None:
    """They would delete their logs (P1)."""
    begun = state_reassigned(LED_BY_1, [1, 4])
    assert begun is not None
    for isr, min_isr, is_allowed in (
        ((4,), 1, False),
        ((2, 4), 1, True),
        ((2, 4), 2, False),
        ((2, 3, 4), 2, True),
        ((2,), 2, True),  # nothing is lost by it
        ((), 1, True),
    ):
        now = dataclasses.replace(begun.after, leader=(*isr, NO_LEADER)[0], isr=isr)
        assert (state_reassigned(now, None, min_isr=min_isr) is not None) == is_allowed, isr
        assert (state_reassigned(now, [1, 5], min_isr=min_isr) is not None) == is_allowed, isr


def test_a_reassignment_is_complete_at_once_when_its_target_is_in_sync() -> None:
    for target, live, expected in (
        ([3, 2], ALL, PartitionInfo(3, 6, (3, 2), (3, 2), 7)),
        ([2, 1, 3], ALL, PartitionInfo(1, 6, (2, 1, 3), (1, 2, 3), 7)),
        ([3, 2], {1, 2}, PartitionInfo(1, 6, (3, 2, 1), (1, 2, 3), 7, (), (1,))),
    ):
        election = state_reassigned(LED_BY_1, target, live)
        assert election is not None
        assert election.after == expected


def test_leaders_are_imbalanced_above_the_share_and_only_if_the_preferred_can_lead() -> None:
    away = dataclasses.replace(LED_BY_1, leader=2)
    partitions = {TopicPartition("t", i): away if i < 2 else LED_BY_1 for i in range(10)}
    assert imbalanced_partitions(partitions.items(), ALL, 20) == []
    assert imbalanced_partitions(partitions.items(), ALL, 19) == [TopicPartition("t", 0), TopicPartition("t", 1)]
    assert imbalanced_partitions(partitions.items(), {2, 3}, 10) == []
    partitions[TopicPartition("t", 0)] = dataclasses.replace(away, isr=(2, 3))
    partitions[TopicPartition("t", 1)] = dataclasses.replace(away, adding=(3,))
    assert imbalanced_partitions(partitions.items(), ALL, 10) == []


RESTORED = PartitionInfo(NO_LEADER, 7, (1, 2, 3), (), version=0, is_restored=True)


def test_a_restored_partition_begins_with_its_first_live_replica() -> None:
    assert next_state(RESTORED, live=[]) is None
    begun = next_state(RESTORED, live=[3, 2])
    assert begun is not None
    assert not begun.unclean
    assert (begun.after.leader, begun.after.leader_epoch, begun.after.isr) == (2, 8, (2,))
    assert next_state(begun.after, live=[1, 2, 3]) is None


def test_a_broker_that_starts_leaves_a_restored_partition_to_the_controller() -> None:
    for replicas in ((1,), (1, 2, 3)):
        restored = dataclasses.replace(RESTORED, replicas=replicas)
        assert state_at_start(restored, 1, may_have_lost=True, has_log=False, never_had_log=True) is None


def test_a_leader_that_died_before_it_made_its_log_leads_the_restored_partition_again() -> None:
    for replicas in ((1,), (1, 2, 3)):
        begun = dataclasses.replace(RESTORED, replicas=replicas, leader=1, isr=(1,), leader_epoch=8)
        again = state_at_start(begun, 1, may_have_lost=True, has_log=False, never_had_log=True)
        assert outcome(again) == (1, 9, (1,))
        lost = state_at_start(begun, 1, may_have_lost=True, has_log=False, never_had_log=False)
        assert outcome(lost) == (NO_LEADER, 9, ())


def test_a_partition_is_not_restored_any_more_when_it_has_a_second_leader() -> None:
    begun = dataclasses.replace(RESTORED, leader=1, isr=(1, 2), leader_epoch=8)
    second = next_state(begun, live=[2, 3])
    assert second is not None
    assert (second.after.leader, second.after.is_restored) == (2, False)

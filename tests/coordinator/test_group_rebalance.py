"""Rebalances and deadlines of the pure state machine: initial delay, time-outs, lost connections, replay."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.coordinator.group_messages import JoinReply
from broker.coordinator.group_records import GroupMetadata
from broker.coordinator.group_state import ClassicGroup, GroupState
from broker.errors import ErrorCode
from tests.support.groups import START_MS, GroupDriver


def test_first_rebalance_waits_the_initial_delay() -> None:
    driver = GroupDriver(initial_delay_ms=3_000)
    call = driver.join()
    driver.advance(2_999)
    assert call.waits
    driver.advance(1)
    assert call.joined.generation_id == 1


def test_each_newcomer_prolongs_the_initial_delay() -> None:
    driver = GroupDriver(initial_delay_ms=3_000)
    calls = [driver.join()]
    driver.advance(2_000)
    calls.append(driver.join())
    driver.advance(3_999)
    assert all(call.waits for call in calls)
    driver.advance(1)
    assert [call.joined.generation_id for call in calls] == [1, 1]


def test_initial_delay_ends_with_the_rebalance_timeout() -> None:
    driver = GroupDriver(initial_delay_ms=3_000)
    calls = [driver.join(rebalance_ms=7_000)]
    for _ in range(6):
        driver.advance(1_000)
        calls.append(driver.join(rebalance_ms=7_000))
    driver.advance(1_000)
    assert not any(call.waits for call in calls)


def test_initial_delay_ends_on_time_when_the_rebalance_timeout_is_shorter() -> None:
    driver = GroupDriver(initial_delay_ms=3_000)
    calls = [driver.join(rebalance_ms=1_000), driver.join(rebalance_ms=1_000)]
    driver.advance(3_000)
    assert not any(call.waits for call in calls)


def test_only_the_first_generation_of_a_group_is_delayed_again_by_newcomers() -> None:
    """Kafka's `addMemberAndRebalance`: a group that has become empty waits the initial delay once."""
    driver = GroupDriver(initial_delay_ms=3_000)
    first = driver.join()
    driver.advance(3_000)
    driver.leave(first.joined.member_id)
    calls = [driver.join()]
    driver.advance(1_000)
    calls.append(driver.join())
    driver.advance(1_999)
    assert all(call.waits for call in calls)
    driver.advance(1)
    assert len({call.joined.generation_id for call in calls}) == 1


def test_members_that_do_not_come_back_in_time_are_dropped(driver: GroupDriver) -> None:
    leader, lost = driver.stable(2, session_ms=100_000)
    rejoined = driver.join(leader)
    driver.advance(59_999)
    assert rejoined.waits
    driver.advance(1)
    assert [member.member_id for member in rejoined.joined.members] == [leader]
    assert driver.heartbeat(lost) is ErrorCode.unknown_member_id


def test_lost_leader_is_replaced_by_one_that_came_back(driver: GroupDriver) -> None:
    _, follower = driver.stable(2, session_ms=100_000)
    rejoined = driver.join(follower, protocols=(("range", b"new"),))
    driver.advance(60_000)
    assert rejoined.joined.leader == follower


def test_silent_member_is_expired_after_its_session(driver: GroupDriver) -> None:
    leader, silent = driver.stable(2)
    for _ in range(3):
        driver.advance(3_000)
        assert driver.heartbeat(leader) is ErrorCode.none
    driver.advance(1_000)
    assert silent not in driver.group.roster.members
    assert driver.heartbeat(leader) is ErrorCode.rebalance_in_progress


def test_when_all_are_silent_the_group_is_empty_and_that_is_stored(driver: GroupDriver) -> None:
    driver.stable(2)
    driver.advance(10_000)
    assert driver.group.state is GroupState.EMPTY
    assert driver.group.generation_id == 3
    assert driver.stored[-1] == GroupMetadata("consumer", 3, None, None, START_MS + 10_000, ())
    assert driver.group.state_timestamp_ms == START_MS + 10_000


def test_waiting_for_a_rebalance_is_no_silence(driver: GroupDriver) -> None:
    leader, other = driver.stable(2, session_ms=10_000)
    driver.group.roster.members[other].session_timeout_ms = 100_000
    driver.heartbeat(other)
    rejoined = driver.join(leader, session_ms=10_000)
    driver.advance(50_000)
    assert rejoined.waits
    assert leader in driver.group.roster.members


def test_session_begins_anew_when_a_long_sync_is_answered(driver: GroupDriver) -> None:
    leader = driver.join(session_ms=100_000).joined.member_id
    follower = driver.join(session_ms=10_000)
    driver.join(leader, session_ms=100_000)
    waiting = driver.sync(follower.joined.member_id)
    driver.advance(30_000)
    driver.sync(leader, {})
    assert waiting.error is ErrorCode.none
    driver.advance(9_999)
    assert follower.joined.member_id in driver.group.roster.members
    driver.advance(1)
    assert follower.joined.member_id not in driver.group.roster.members


def test_newcomer_waits_five_minutes_at_most(driver: GroupDriver) -> None:
    (old,) = driver.stable(1, session_ms=1_000_000, rebalance_ms=1_000_000)
    newcomer = driver.join()
    driver.advance(300_000)
    assert newcomer.error is ErrorCode.unknown_member_id
    assert driver.join(old).joined.generation_id == 2


def test_members_that_do_not_sync_in_time_are_dropped(driver: GroupDriver) -> None:
    first = driver.join(session_ms=100_000).joined.member_id
    second = driver.join(session_ms=100_000)
    driver.join(first, session_ms=100_000)
    waiting = driver.sync(second.joined.member_id)
    driver.advance(59_999)
    assert waiting.waits
    driver.advance(1)
    assert waiting.error is ErrorCode.rebalance_in_progress
    assert list(driver.group.roster.members) == [second.joined.member_id]


def test_a_follower_that_never_syncs_is_dropped_from_a_stable_group(driver: GroupDriver) -> None:
    first = driver.join(session_ms=100_000).joined.member_id
    second = driver.join(session_ms=100_000)
    driver.join(first, session_ms=100_000)
    driver.sync(first, {})
    assert driver.group.state is GroupState.STABLE
    driver.advance(59_999)
    assert second.joined.member_id in driver.group.roster.members
    driver.advance(1)
    assert second.joined.member_id not in driver.group.roster.members


@pytest.mark.parametrize("can_return", [True, False])
def test_lost_connection_of_a_waiting_newcomer(driver: GroupDriver, can_return: bool) -> None:
    (old,) = driver.stable(1, session_ms=100_000)
    newcomer = driver.join(session_ms=10_000)
    driver.abandon(newcomer, can_return=can_return)
    rejoined = driver.join(old, session_ms=100_000)
    assert rejoined.waits is can_return
    driver.advance(10_000)
    assert len(rejoined.joined.members) == 1
    assert newcomer.waits


def test_lost_connection_of_a_waiting_leader_does_not_hold_the_group_up(driver: GroupDriver) -> None:
    leader, follower = driver.stable(2)
    lost = driver.join(leader)
    driver.abandon(lost)
    rejoined = driver.join(follower)
    driver.advance(10_000)
    assert rejoined.joined.leader == follower


def test_lost_connection_of_an_answered_call_changes_nothing(driver: GroupDriver) -> None:
    call = driver.join()
    driver.abandon(call, can_return=False)
    assert len(driver.group.roster) == 1


def test_replay_gives_the_same_generation_back(driver: GroupDriver) -> None:
    leader, follower = driver.stable(2)
    replayed = GroupDriver()
    replayed.group.install(driver.stored[-1], replayed.now())
    assert replayed.group.snapshot(driver.now()) == driver.group.snapshot(driver.now())
    assert replayed.heartbeat(leader, generation=2) is ErrorCode.none
    assert replayed.sync(follower, generation=2).synced.assignment == follower.encode()
    assert replayed.join(follower).joined.generation_id == 2


def test_a_replayed_group_rebalances_as_soon_as_all_have_joined(driver: GroupDriver) -> None:
    leader, follower = driver.stable(2)
    replayed = GroupDriver(initial_delay_ms=3_000)
    replayed.group.install(driver.stored[-1], replayed.now())
    newcomer, rejoined = replayed.join(instance="new"), replayed.join(leader)
    assert newcomer.waits
    replayed.join(follower)
    assert newcomer.joined.generation_id == rejoined.joined.generation_id == 3


def test_replay_knows_the_leader_the_protocol_and_the_time_of_the_generation(driver: GroupDriver) -> None:
    first, second = driver.stable(2)
    stored = replace(driver.stored[-1], leader=second, state_timestamp_ms=START_MS - 5)
    replayed = GroupDriver()
    replayed.group.install(stored, replayed.now())
    assert replayed.group.snapshot(replayed.now()) == replace(stored, state_timestamp_ms=START_MS)
    assert replayed.group.state_timestamp_ms == START_MS - 5
    assert replayed.join(second).waits, "the leader makes the group rebalance"
    assert replayed.join(first).joined.leader == second


def test_replayed_members_that_do_not_show_up_expire(driver: GroupDriver) -> None:
    driver.stable(2)
    replayed = GroupDriver()
    replayed.group.install(driver.stored[-1], replayed.now())
    replayed.advance(10_000)
    assert replayed.group.state is GroupState.EMPTY
    assert replayed.group.generation_id == 3


def test_kill_answers_whoever_waits(driver: GroupDriver) -> None:
    leader, follower = driver.stable(2)
    joining = driver.join(leader)
    driver.elapsed_ms += 7
    driver.perform(driver.group.kill(ErrorCode.not_coordinator, driver.now()))
    assert joining.joined == JoinReply(ErrorCode.not_coordinator, leader)
    assert driver.group.state_timestamp_ms == START_MS + driver.elapsed_ms
    assert driver.heartbeat(follower) is ErrorCode.coordinator_not_available
    assert driver.group.wake_at == float("inf")


def test_operator_reads_why_a_group_rebalances(caplog: pytest.LogCaptureFixture) -> None:
    """KIP-800: the reasons of members are in the log, on one line each."""
    caplog.set_level("INFO", "broker.coordinator")
    driver = GroupDriver()
    first, second = driver.stable(2)
    driver.leave(second, reason="shutting\ndown" + "x" * 1_000)
    driver.join(first, reason="new subscription")
    removed, rebalances = caplog.messages[-2:]
    assert removed.startswith(f"Member {second} of group g is removed: it leaves, because 'shutting\\ndownxxx")
    assert len(removed) < 400
    assert rebalances.startswith("Group g prepares a rebalance, from Stable in generation 2: ")
    driver.sync_all([first])
    driver.join(first, reason="new subscription")
    assert caplog.messages[-1].endswith(f"member {first}: the leader joins again, because 'new subscription'")


def test_operator_reads_how_a_group_loses_its_members(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "broker.coordinator")
    driver = GroupDriver()
    (first,) = driver.stable(1, session_ms=1_000_000)
    driver.join(session_ms=1_000_000)
    driver.join(first, session_ms=1_000_000)
    driver.sync(first)
    driver.advance(120_000)
    assert caplog.messages == [
        "Group g prepares a rebalance, from Empty in generation 0: member m-1 joins",
        "Group g is stable in generation 1, with 1 members",
        "Group g prepares a rebalance, from Stable in generation 1: member m-2 joins",
        "Group g is stable in generation 2, with 2 members",
        "Group g prepares a rebalance, from Stable in generation 2: members did not sync in time and are removed: m-2",
        "Member m-1 of group g did not join in time and is removed",
        "Group g is empty in generation 3",
    ]


def test_operator_reads_who_was_silent_and_what_was_not_stored(
    driver: GroupDriver, caplog: pytest.LogCaptureFixture
) -> None:
    member = driver.join().joined.member_id
    caplog.set_level("INFO", "broker.coordinator")
    driver.hold = True
    driver.sync(member)
    driver.release(ErrorCode.not_coordinator)
    driver.advance(10_000)
    assert caplog.messages == [
        "Group g prepares a rebalance, from CompletingRebalance in generation 1: the assignment cannot be stored: "
        + ErrorCode.not_coordinator.name,
        "Member m-1 of group g is removed: nothing heard from it for 10000 ms",
        "Group g is empty in generation 2",
    ]


def test_a_group_without_members_has_no_protocol_and_wants_no_waking() -> None:
    group = ClassicGroup("g", GroupDriver().config, START_MS - 9)
    assert group.wake_at == float("inf")
    assert group.state_timestamp_ms == START_MS - 9
    assert group.snapshot(GroupDriver().now()) == GroupMetadata("", 0, None, None, START_MS, ())

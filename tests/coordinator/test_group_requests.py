"""SyncGroup, Heartbeat, LeaveGroup and the checks of OffsetCommit on the pure state machine."""

from __future__ import annotations

from struct import pack

import pytest

from broker.coordinator import group_requests
from broker.coordinator.group_messages import SyncReply
from broker.coordinator.group_state import GroupState
from broker.errors import ErrorCode
from broker.protocol.topic_partition import TopicPartition
from tests.support.groups import GroupDriver

A0, B0 = TopicPartition("a", 0), TopicPartition("b", 0)
READS_A = (("range", pack(">hi", 0, 1) + b"\x00\x01a" + pack(">i", -1)),)


def completing(driver: GroupDriver) -> tuple[str, str]:
    """The leader and a follower of a generation that waits for its assignment."""
    leader = driver.join().joined.member_id
    follower = driver.join()
    driver.join(leader)
    return leader, follower.joined.member_id


def test_leaders_sync_answers_everybody(driver: GroupDriver) -> None:
    leader, follower = completing(driver)
    waiting = driver.sync(follower, {follower: b"of a follower: not heard"})
    assert waiting.waits
    answer = driver.sync(leader, {leader: b"1", follower: b"2"}).synced
    assert answer == SyncReply(ErrorCode.none, b"1", "consumer", "range")
    assert waiting.synced == answer._replace(assignment=b"2")
    assert driver.group.state is GroupState.STABLE


def test_assignment_is_stored_before_anybody_is_answered(driver: GroupDriver) -> None:
    leader, follower = completing(driver)
    driver.hold = True
    calls = [driver.sync(follower), driver.sync(leader, {leader: b"1"})]
    assert all(call.waits for call in calls)
    assert driver.group.state is GroupState.COMPLETING_REBALANCE
    driver.release()
    assert [call.synced.assignment for call in calls] == [b"", b"1"]
    assert {m.member_id: m.assignment for m in driver.stored[-1].members} == {leader: b"1", follower: b""}


def test_assignment_that_cannot_be_stored_makes_the_group_rebalance(driver: GroupDriver) -> None:
    leader, follower = completing(driver)
    driver.hold = True
    calls = [driver.sync(follower), driver.sync(leader, {leader: b"1"})]
    driver.release(ErrorCode.coordinator_not_available)
    assert {call.error for call in calls} == {ErrorCode.coordinator_not_available}
    assert driver.group.state is GroupState.PREPARING_REBALANCE


def test_assignment_of_a_generation_that_is_over_is_not_taken(driver: GroupDriver) -> None:
    leader, _ = completing(driver)
    driver.hold = True
    syncing = driver.sync(leader, {leader: b"old"})
    newcomer = driver.join()
    assert syncing.error is ErrorCode.rebalance_in_progress
    driver.release()
    assert newcomer.waits
    assert driver.group.state is GroupState.PREPARING_REBALANCE
    assert driver.group.roster.members[leader].assignment == b""


def test_repeated_sync_of_the_leader_stores_once(driver: GroupDriver) -> None:
    leader, _ = completing(driver)
    driver.hold = True
    first = driver.sync(leader, {leader: b"first"})
    second = driver.sync(leader, {leader: b"second"})
    assert first.error is ErrorCode.rebalance_in_progress
    driver.release()
    assert second.synced.assignment == b"first"
    assert len(driver.stored) == 1


def test_sync_to_a_stable_group_gets_the_current_assignment(driver: GroupDriver) -> None:
    _, follower = driver.stable(2)
    assert driver.sync(follower).synced.assignment == follower.encode()


@pytest.mark.parametrize("event", ["sync", "heartbeat", "commit"])
@pytest.mark.parametrize(
    ("generation", "stranger", "expected"),
    [(7, False, ErrorCode.illegal_generation), (2, True, ErrorCode.unknown_member_id)],
)
def test_fencing(driver: GroupDriver, event: str, generation: int, stranger: bool, expected: ErrorCode) -> None:
    member = driver.stable(2)[1]
    if stranger:
        member = "stranger"
    if event == "sync":
        assert driver.sync(member, generation=generation).error is expected
    elif event == "heartbeat":
        assert driver.heartbeat(member, generation=generation) is expected
    else:
        assert driver.check_commit(member, generation=generation) is expected


def test_sync_with_another_protocol_is_refused(driver: GroupDriver) -> None:
    leader, _ = driver.stable(2)
    wrong = ErrorCode.inconsistent_group_protocol
    assert driver.sync(leader, protocol_type="connect").error is wrong
    assert driver.sync(leader, protocol_name="sticky").error is wrong
    assert driver.sync(leader, protocol_type="consumer", protocol_name="range").error is ErrorCode.none


def test_sync_while_a_rebalance_is_prepared_is_refused(driver: GroupDriver) -> None:
    leader, _ = driver.stable(2)
    driver.join()
    assert driver.sync(leader).error is ErrorCode.rebalance_in_progress


def test_heartbeat_by_state(driver: GroupDriver) -> None:
    assert driver.heartbeat("m-1", generation=0) is ErrorCode.unknown_member_id
    leader, _ = completing(driver)
    assert driver.heartbeat(leader) is ErrorCode.none
    driver.join()
    assert driver.heartbeat(leader) is ErrorCode.rebalance_in_progress


def test_pending_member_has_no_heartbeat(driver: GroupDriver) -> None:
    pending = driver.join(require_id=True).joined.member_id
    assert driver.heartbeat(pending, generation=0) is ErrorCode.unknown_member_id


def test_leaving_makes_the_others_rebalance(driver: GroupDriver) -> None:
    leader, follower = driver.stable(2)
    assert driver.leave(leader) is ErrorCode.none
    assert driver.heartbeat(follower) is ErrorCode.rebalance_in_progress
    assert driver.join(follower).joined.leader == follower
    assert driver.leave(leader) is ErrorCode.unknown_member_id


def test_leaving_of_a_waiting_member_answers_it(driver: GroupDriver) -> None:
    leader, follower = completing(driver)
    syncing = driver.sync(follower)
    driver.leave(follower)
    assert syncing.error is ErrorCode.unknown_member_id
    joining = driver.join()
    assert joining.waits
    driver.leave("m-4")
    assert joining.error is ErrorCode.unknown_member_id
    assert leader in driver.group.roster.members


def test_leaving_of_a_pending_member_lets_the_rebalance_go_on(driver: GroupDriver) -> None:
    (old,) = driver.stable(1)
    pending = driver.join(require_id=True).joined.member_id
    rejoined = driver.join(old)
    assert rejoined.waits
    assert driver.leave(pending) is ErrorCode.none
    assert rejoined.joined.generation_id == 2


def test_commit_by_state(driver: GroupDriver) -> None:
    assert driver.check_commit() is ErrorCode.none
    assert driver.check_commit("m-1", generation=1) is ErrorCode.unknown_member_id
    leader, follower = completing(driver)
    assert driver.check_commit(leader, generation=2) is ErrorCode.rebalance_in_progress
    driver.sync_all([leader, follower])
    assert driver.check_commit(leader, generation=2) is ErrorCode.none
    assert driver.check_commit() is ErrorCode.unknown_member_id
    assert driver.check_commit(leader) is ErrorCode.illegal_generation
    driver.join()
    assert driver.check_commit(leader, generation=2) is ErrorCode.none


def test_commit_counts_as_a_heartbeat(driver: GroupDriver) -> None:
    (member,) = driver.stable(1)
    for _ in range(4):
        driver.advance(6_000)
        assert driver.check_commit(member, generation=1) is ErrorCode.none


def test_members_data_is_described_in_a_stable_group_only(driver: GroupDriver) -> None:
    (member,) = driver.stable(1)
    described = group_requests.describe(driver.group)
    assert (described.state, described.protocol_type, described.protocol_name) == ("Stable", "consumer", "range")
    assert (described.members[0].subscription, described.members[0].assignment) == (b"topics", member.encode())
    driver.join()
    described = group_requests.describe(driver.group)
    assert (described.state, described.protocol_name) == ("PreparingRebalance", "")
    assert {(m.subscription, m.assignment) for m in described.members} == {(b"", b"")}


def test_offsets_of_subscribed_topics_cannot_be_deleted(driver: GroupDriver) -> None:
    driver.stable(1, protocols=READS_A)
    refused, allowed = ErrorCode.group_subscribed_to_topic, ErrorCode.none
    assert driver.group.deletable_offsets([A0, B0]) == {A0: refused, B0: allowed}


def test_offsets_of_unreadable_subscriptions_cannot_be_deleted(driver: GroupDriver) -> None:
    driver.stable(1, protocols=(("range", b"?"),))
    assert driver.group.deletable_offsets([A0]) == {A0: ErrorCode.group_subscribed_to_topic}


def test_offsets_of_a_group_that_is_no_consumer_group_cannot_be_deleted(driver: GroupDriver) -> None:
    (member,) = driver.stable(1, protocol_type="connect")
    assert driver.group.deletable_offsets([A0]) is None
    driver.leave(member)
    assert driver.group.deletable_offsets([A0]) == {A0: ErrorCode.none}

"""Static members (KIP-345) on the pure state machine."""

from __future__ import annotations

from broker.coordinator.group_messages import JoinReply
from broker.coordinator.group_state import GroupState
from broker.errors import ErrorCode
from tests.support.groups import GroupDriver

BOTH = (("range", b"t"), ("sticky", b"t"))


def stable_static(driver: GroupDriver) -> tuple[str, str]:
    """A stable group of the static members `a` (the leader) and `b`."""
    leader = driver.join(instance="a").joined.member_id
    follower = driver.join(instance="b")
    driver.join(leader, instance="a")
    members = leader, follower.joined.member_id
    driver.sync_all(list(members))
    return members


def test_returning_static_member_takes_its_place_without_a_rebalance(driver: GroupDriver) -> None:
    _, old = stable_static(driver)
    reply = driver.join(instance="b").joined
    assert (reply.error, reply.generation_id, reply.members) == (ErrorCode.none, 2, ())
    assert reply.member_id != old
    assert driver.group.state is GroupState.STABLE
    assert driver.sync(reply.member_id, instance="b").synced.assignment == old.encode()


def test_its_new_id_is_stored_before_it_is_told(driver: GroupDriver) -> None:
    stable_static(driver)
    driver.hold = True
    call = driver.join(instance="b")
    assert call.waits
    driver.release()
    assert call.joined.member_id in {member.member_id for member in driver.stored[-1].members}


def test_failure_to_store_its_new_id_is_told(driver: GroupDriver) -> None:
    stable_static(driver)
    driver.hold = True
    call = driver.join(instance="b")
    driver.release(ErrorCode.coordinator_not_available)
    assert call.error is ErrorCode.coordinator_not_available


def test_member_whose_new_id_cannot_be_stored_keeps_its_old_one(driver: GroupDriver) -> None:
    _, old = stable_static(driver)
    driver.hold = True
    call = driver.join(instance="b", protocols=(("range", b"changed"),), session_ms=20_000)
    driver.release(ErrorCode.not_coordinator)
    assert call.error is ErrorCode.not_coordinator
    assert driver.group.state is GroupState.STABLE
    assert driver.heartbeat(old, instance="b") is ErrorCode.none
    member = driver.group.roster.members[old]
    assert (member.protocols, member.session_timeout_ms) == ({"range": b"topics"}, 10_000)
    assert driver.group.roster.static_ids["b"] == old


def test_of_two_returns_at_once_the_first_is_fenced_though_it_is_stored(driver: GroupDriver) -> None:
    stable_static(driver)
    driver.hold = True
    first, second = driver.join(instance="b"), driver.join(instance="b")
    driver.release()
    assert (first.error, first.joined.member_id) == (ErrorCode.fenced_instance_id, "b-4")
    assert second.error is ErrorCode.none
    assert driver.group.roster.static_ids["b"] == second.joined.member_id


def test_failure_of_an_earlier_return_does_not_undo_a_later_one(driver: GroupDriver) -> None:
    stable_static(driver)
    driver.hold = True
    first, second = driver.join(instance="b"), driver.join(instance="b")
    store_of_first, store_of_second = driver.held
    driver.held = [store_of_first]
    driver.release(ErrorCode.not_coordinator)
    driver.held = [store_of_second]
    driver.release()
    assert (first.error, second.error) == (ErrorCode.not_coordinator, ErrorCode.none)
    assert driver.heartbeat(second.joined.member_id, instance="b") is ErrorCode.none


def test_member_that_an_operator_removes_while_its_return_is_stored_is_unknown(driver: GroupDriver) -> None:
    stable_static(driver)
    driver.hold = True
    call = driver.join(instance="b")
    assert driver.leave(instance="b") is ErrorCode.none
    driver.release()
    assert call.error is ErrorCode.unknown_member_id


def test_old_id_is_fenced(driver: GroupDriver) -> None:
    _, old = stable_static(driver)
    driver.join(instance="b")
    fenced = ErrorCode.fenced_instance_id
    assert driver.heartbeat(old, instance="b") is fenced
    assert driver.join(old, instance="b").error is fenced
    assert driver.sync(old, instance="b").error is fenced
    assert driver.check_commit(old, generation=2, instance="b") is fenced
    assert driver.leave(old, instance="b") is fenced
    assert driver.heartbeat(old) is ErrorCode.unknown_member_id


def test_whoever_waits_under_the_old_id_is_fenced(driver: GroupDriver) -> None:
    leader, follower = stable_static(driver)
    driver.join(leader, instance="a")
    waiting = driver.join(instance="a")
    assert waiting.waits
    (old,) = (id for id, waiter in driver.group.waiters.joining.items() if waiter is waiting)
    again = driver.join(instance="a")
    assert waiting.joined == JoinReply(ErrorCode.fenced_instance_id, old)
    driver.join(follower, instance="b")
    assert again.joined.generation_id == 3


def test_member_that_comes_back_must_still_sync_in_time(driver: GroupDriver) -> None:
    leader = driver.join(instance="a", session_ms=100_000).joined.member_id
    driver.join(instance="b", session_ms=100_000)
    driver.join(leader, instance="a", session_ms=100_000)
    driver.sync(leader, instance="a")
    returned = driver.join(instance="b", session_ms=100_000).joined.member_id
    driver.advance(59_999)
    assert set(driver.group.roster.members) == {leader, returned}
    driver.advance(1)
    assert set(driver.group.roster.members) == {leader}


def test_unknown_instance_with_a_member_id_is_refused(driver: GroupDriver) -> None:
    leader, _ = stable_static(driver)
    assert driver.join(leader, instance="c").error is ErrorCode.unknown_member_id


def test_returning_leader_may_be_told_to_skip_the_assignment(driver: GroupDriver) -> None:
    stable_static(driver)
    reply = driver.join(instance="a", can_skip=True).joined
    assert reply.skip_assignment
    assert reply.leader == reply.member_id
    assert len(reply.members) == 2


def test_returning_leader_of_an_older_version_does_not_think_it_leads(driver: GroupDriver) -> None:
    leader, _ = stable_static(driver)
    reply = driver.join(instance="a").joined
    assert (reply.leader, reply.members, reply.skip_assignment) == (leader, (), False)
    assert driver.group.roster.leader == reply.member_id


def test_return_that_changes_the_protocol_makes_the_group_rebalance(driver: GroupDriver) -> None:
    leader = driver.join(instance="a", protocols=BOTH).joined.member_id
    driver.sync_all([leader])
    assert driver.group.protocol_name == "range"
    reply = driver.join(instance="a", protocols=BOTH[::-1]).joined
    assert (reply.generation_id, reply.protocol_name) == (2, "sticky")


def test_return_between_join_and_sync_makes_the_group_rebalance(driver: GroupDriver) -> None:
    leader = driver.join(instance="a").joined.member_id
    follower = driver.join(instance="b")
    driver.join(leader, instance="a")
    waiting = driver.sync(follower.joined.member_id, instance="b")
    returned = driver.join(instance="a")
    assert waiting.error is ErrorCode.rebalance_in_progress
    driver.join(follower.joined.member_id, instance="b")
    assert returned.joined.generation_id == 3


def test_rebalance_does_not_drop_a_static_member_that_is_late(driver: GroupDriver) -> None:
    leader, follower = stable_static(driver)
    driver.group.roster.members[follower].session_timeout_ms = 120_000
    driver.heartbeat(follower, instance="b")
    rejoined = driver.join(leader, instance="a", session_ms=120_000)
    driver.advance(60_000)
    assert len(rejoined.joined.members) == 2


def test_rebalance_to_which_nobody_comes_back_waits_for_the_sessions(driver: GroupDriver) -> None:
    leader, follower = stable_static(driver)
    for member in (leader, follower):
        driver.group.roster.members[member].session_timeout_ms = 100_000
        driver.heartbeat(member)
    driver.abandon(driver.join(leader, instance="a", rebalance_ms=0, session_ms=100_000))
    driver.advance(90_000)
    assert set(driver.group.roster.members) == {leader, follower}
    driver.advance(20_000)
    assert driver.group.state is GroupState.EMPTY


def test_operator_removes_a_static_member_by_its_instance(driver: GroupDriver) -> None:
    leader, _ = stable_static(driver)
    assert driver.leave(instance="b") is ErrorCode.none
    assert driver.leave(instance="nobody") is ErrorCode.unknown_member_id
    assert driver.leave() is ErrorCode.unknown_member_id
    assert list(driver.group.roster.members) == [leader]

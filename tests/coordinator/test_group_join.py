"""The rules of JoinGroup on the pure state machine."""

from __future__ import annotations

import pytest

from broker.coordinator.group_messages import JoinReply
from broker.coordinator.group_state import GroupState
from broker.errors import ErrorCode
from tests.support.groups import RANGE, GroupDriver

BOTH = (("range", b"t"), ("sticky", b"t"))
STICKY_FIRST = (("sticky", b"t"), ("range", b"t"))


def test_new_dynamic_member_is_given_an_id_to_come_back_with(driver: GroupDriver) -> None:
    first = driver.join(require_id=True).joined
    assert (first.error, first.member_id, first.generation_id) == (ErrorCode.member_id_required, "m-1", -1)
    assert driver.group.state is GroupState.EMPTY
    assert driver.join(first.member_id, require_id=True).joined.generation_id == 1


def test_without_that_rule_a_member_joins_in_one_step() -> None:
    reply = GroupDriver().join().joined
    assert (reply.error, reply.generation_id, reply.leader) == (ErrorCode.none, 1, reply.member_id)


def test_static_member_needs_no_second_step() -> None:
    assert GroupDriver().join(instance="i", require_id=True).joined.generation_id == 1


def test_unknown_member_id_is_refused(driver: GroupDriver) -> None:
    driver.stable(1)
    assert driver.join("stranger").error is ErrorCode.unknown_member_id


@pytest.mark.parametrize(
    ("protocol_type", "protocols"),
    [("connect", RANGE), ("consumer", (("other", b""),)), ("consumer", ()), ("", RANGE)],
)
def test_joiner_without_a_common_protocol_is_refused(
    driver: GroupDriver, protocol_type: str, protocols: tuple[tuple[str, bytes], ...]
) -> None:
    driver.stable(1)
    refused = driver.join(protocol_type=protocol_type, protocols=protocols)
    assert refused.error is ErrorCode.inconsistent_group_protocol
    assert driver.group.state is GroupState.STABLE


@pytest.mark.parametrize(("protocol_type", "protocols"), [("", RANGE), ("consumer", ())])
def test_first_joiner_must_have_a_type_and_a_protocol(
    protocol_type: str, protocols: tuple[tuple[str, bytes], ...]
) -> None:
    refused = GroupDriver().join(protocol_type=protocol_type, protocols=protocols)
    assert refused.error is ErrorCode.inconsistent_group_protocol


def test_an_emptied_group_takes_another_protocol_type(driver: GroupDriver) -> None:
    (member,) = driver.stable(1)
    driver.leave(member)
    assert driver.join(protocol_type="connect", protocols=(("v1", b""),)).joined.protocol_type == "connect"


def test_leader_gets_everybodys_metadata_and_the_others_none(driver: GroupDriver) -> None:
    first = driver.join(protocols=(("range", b"one"),)).joined.member_id
    second = driver.join(protocols=(("range", b"two"),))
    leader = driver.join(first, protocols=(("range", b"one"),)).joined
    assert {member.member_id: member.metadata for member in leader.members} == {
        first: b"one",
        second.joined.member_id: b"two",
    }
    newcomer = second.joined
    assert newcomer == JoinReply(ErrorCode.none, newcomer.member_id, 2, "consumer", "range", first)
    assert leader == newcomer._replace(member_id=first, members=leader.members)


def test_every_member_votes_for_its_favourite_common_protocol() -> None:
    driver = GroupDriver(initial_delay_ms=100)
    calls = [driver.join(protocols=p) for p in (BOTH, STICKY_FIRST, STICKY_FIRST)]
    driver.advance(300)
    assert {call.joined.protocol_name for call in calls} == {"sticky"}


def test_only_a_protocol_all_support_is_chosen() -> None:
    driver = GroupDriver(initial_delay_ms=100)
    calls = [driver.join(protocols=p) for p in (STICKY_FIRST, STICKY_FIRST, RANGE)]
    driver.advance(300)
    assert {call.joined.protocol_name for call in calls} == {"range"}


def test_join_into_a_stable_group_waits_for_the_others(driver: GroupDriver) -> None:
    old = driver.stable(2)
    newcomer = driver.join()
    assert newcomer.waits
    assert driver.group.state is GroupState.PREPARING_REBALANCE
    rejoined = driver.join(old[0])
    assert rejoined.waits
    driver.join(old[1])
    assert newcomer.joined.generation_id == rejoined.joined.generation_id == 3


def test_pending_member_holds_the_rebalance_up_until_its_session_lapses(driver: GroupDriver) -> None:
    (old,) = driver.stable(1)
    driver.join(require_id=True, session_ms=6_000)
    rejoined = driver.join(old)
    driver.advance(5_999)
    assert rejoined.waits
    driver.advance(1)
    assert rejoined.joined.error is ErrorCode.none
    assert not driver.group.roster.pending


def test_an_id_that_nobody_joins_with_expires_without_a_rebalance(driver: GroupDriver) -> None:
    (member,) = driver.stable(1, session_ms=100_000)
    driver.join(require_id=True, session_ms=6_000)
    driver.advance(6_000)
    assert not driver.group.roster.pending
    assert driver.heartbeat(member) is ErrorCode.none
    assert driver.group.state is GroupState.STABLE


def test_follower_that_repeats_its_join_gets_the_generation_again(driver: GroupDriver) -> None:
    _, follower = driver.stable(2)
    repeated = driver.join(follower).joined
    assert (repeated.error, repeated.generation_id, repeated.members) == (ErrorCode.none, 2, ())
    assert driver.group.state is GroupState.STABLE


def test_leader_that_joins_again_forces_a_rebalance(driver: GroupDriver) -> None:
    leader, follower = driver.stable(2)
    assert driver.join(leader).waits
    assert driver.heartbeat(follower) is ErrorCode.rebalance_in_progress


def test_member_with_new_metadata_forces_a_rebalance(driver: GroupDriver) -> None:
    leader, follower = driver.stable(2)
    assert driver.join(follower, protocols=(("range", b"more topics"),)).waits
    assert driver.join(leader).joined.generation_id == 3


def test_leader_that_missed_the_answer_gets_it_again_with_the_members(driver: GroupDriver) -> None:
    leader = driver.join().joined.member_id
    assert driver.group.state is GroupState.COMPLETING_REBALANCE
    repeated = driver.join(leader).joined
    assert (repeated.generation_id, len(repeated.members)) == (1, 1)


def test_second_join_of_a_waiting_member_answers_the_first(driver: GroupDriver) -> None:
    leader, follower = driver.stable(2)
    first = driver.join(leader)
    second = driver.join(leader)
    assert first.error is ErrorCode.rebalance_in_progress
    driver.join(follower)
    assert second.joined.generation_id == 3


def test_group_of_maximal_size_takes_nobody_more() -> None:
    driver = GroupDriver(max_size=2)
    members = driver.stable(2)
    assert driver.join().error is ErrorCode.group_max_size_reached
    assert driver.group.state is GroupState.STABLE
    assert driver.join(members[1]).error is ErrorCode.none


def test_while_a_rebalance_is_prepared_the_last_to_come_back_is_too_many() -> None:
    driver = GroupDriver(max_size=2)
    leader, follower = driver.stable(2)
    driver.join(leader)
    newcomer = driver.join()
    assert newcomer.waits
    assert driver.join(follower).error is ErrorCode.group_max_size_reached
    assert newcomer.joined.generation_id == 3
    assert set(driver.group.roster.members) == {leader, newcomer.joined.member_id}


def test_dead_group_refuses(driver: GroupDriver) -> None:
    driver.perform(driver.group.kill(ErrorCode.not_coordinator, driver.now()))
    assert driver.join().error is ErrorCode.coordinator_not_available

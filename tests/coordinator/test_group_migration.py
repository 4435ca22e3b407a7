"""Groups between the classic protocol and that of KIP-848: upgrade, classic members in a consumer group, downgrade."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from broker.coordinator.consumer_group_requests import commit_error, fetch_error
from broker.coordinator.consumer_group_state import ConsumerGroup
from broker.coordinator.group_messages import CommitRequest, JoinRequest, LeavingMember, SyncRequest
from broker.coordinator.group_records import OffsetAndMetadata
from broker.coordinator.group_state import ClassicGroup, GroupState
from broker.coordinator.modern_group_messages import LEAVE_EPOCH
from broker.errors import ErrorCode
from broker.protocol.topic_partition import TopicPartition
from tests.support.consumer_groups import Player, player, topic
from tests.support.mixed_groups import ClassicPlayer, MixedGroupDriver, named

WANTS = frozenset({"t"})
ALL = {TopicPartition("t", number) for number in range(4)}


@pytest.fixture
def driver() -> MixedGroupDriver:
    return MixedGroupDriver(topic("t", 4))


def consumer(driver: MixedGroupDriver, member_id: str, **says: Any) -> Player:
    return player(driver, member_id, "t", **says)  # type: ignore[arg-type]


def beat(*players: Player | ClassicPlayer, rounds: int = 12) -> None:
    for _ in range(rounds):
        for each in players:
            each.beat()


def owned(driver: MixedGroupDriver, *players: Player | ClassicPlayer) -> list[frozenset[TopicPartition]]:
    return [each.owned if isinstance(each, ClassicPlayer) else named(driver.topics, each.owned) for each in players]


def test_a_group_goes_from_classic_to_consumer_and_back_while_its_members_change(driver: MixedGroupDriver) -> None:
    olds = [ClassicPlayer(driver, WANTS), ClassicPlayer(driver, WANTS)]
    beat(*olds)
    assert isinstance(driver.group, ClassicGroup)
    assert set().union(*owned(driver, *olds)) == ALL
    new = consumer(driver, "a")
    beat(*olds, new)
    assert isinstance(driver.group, ConsumerGroup)
    assert driver.group.state_name == "Stable"
    assert sorted(map(len, owned(driver, *olds, new))) == [1, 1, 2]
    olds[0].leave()
    news = [new, consumer(driver, "b")]
    beat(olds[1], *news)
    olds[1].leave()
    beat(*news)
    assert [len(tps) for tps in owned(driver, *news)] == [2, 2]
    back = ClassicPlayer(driver, WANTS)
    beat(*news, back)
    driver.heartbeat("a", LEAVE_EPOCH)
    beat(news[1], back)
    driver.heartbeat("b", LEAVE_EPOCH)
    assert isinstance(driver.group, ClassicGroup)
    assert driver.group.state is GroupState.PREPARING_REBALANCE
    beat(back)
    assert owned(driver, back) == [ALL]
    assert isinstance(driver.replay(), ClassicGroup)
    assert [each.errors for each in (*olds, *news, back)] == [[]] * 5


@pytest.mark.parametrize("is_eager", [True, False])
def test_a_classic_member_gives_up_what_a_consumer_shall_have(driver: MixedGroupDriver, is_eager: bool) -> None:
    old, new = ClassicPlayer(driver, WANTS, is_eager=is_eager), consumer(driver, "a")
    beat(old)
    new.beat()
    assert owned(driver, old, new) == [ALL, frozenset()]
    assert new.epoch == 2
    beat(old, new)
    assert [len(tps) for tps in owned(driver, old, new)] == [2, 2]
    assert set().union(*owned(driver, old, new)) == ALL
    assert old.generation_id == new.epoch


def test_an_upgrade_keeps_offsets_and_what_members_have(driver: MixedGroupDriver) -> None:
    old = ClassicPlayer(driver, WANTS)
    beat(old)
    offsets, generation = driver.group.offsets, old.generation_id
    consumer(driver, "a").beat()
    assert driver.group.offsets is offsets
    assert isinstance(driver.group, ConsumerGroup)
    member = driver.group.membership.members[old.member_id]
    assert (member.epoch, len(member.current.assigned)) == (generation, 4)
    driver.fail_over()
    assert isinstance(driver.group, ConsumerGroup)
    assert driver.classic_heartbeat(old.member_id, generation) is ErrorCode.rebalance_in_progress


def test_joins_that_wait_begin_again_when_the_group_is_upgraded(driver: MixedGroupDriver) -> None:
    olds = [ClassicPlayer(driver, WANTS), ClassicPlayer(driver, WANTS)]
    beat(olds[0])
    for _ in range(3):
        olds[1].beat()
    assert olds[1].pending is not None
    assert not olds[1].pending.answers
    new = consumer(driver, "a")
    new.beat()
    assert olds[1].pending.reply.error is ErrorCode.rebalance_in_progress
    beat(*olds, new)
    assert set().union(*owned(driver, *olds, new)) == ALL


def test_an_upgrade_during_a_rebalance_leaves_members_what_they_still_have(driver: MixedGroupDriver) -> None:
    old, second, third = (ClassicPlayer(driver, WANTS) for _ in range(3))
    beat(old)
    for each in (second, second, old, old, second):
        each.beat()
    assert isinstance(driver.group, ClassicGroup)
    assert driver.group.state is GroupState.COMPLETING_REBALANCE
    for _ in range(2):
        third.beat()
    assert not any(member.assignment for member in driver.group.roster.members.values())
    assert owned(driver, old) == [ALL]
    new = consumer(driver, "a")
    new.beat()
    assert owned(driver, new) == [frozenset()]
    beat(old, second, third, new)
    assert [len(tps) for tps in owned(driver, old, second, third, new)] == [1, 1, 1, 1]


def test_an_empty_classic_group_becomes_a_consumer_group_and_an_empty_consumer_group_a_classic_one(
    driver: MixedGroupDriver,
) -> None:
    old = ClassicPlayer(driver, WANTS)
    beat(old)
    old.leave()
    new = consumer(driver, "a")
    beat(new)
    assert owned(driver, new) == [ALL]
    assert isinstance(driver.replay(), ConsumerGroup)
    driver.heartbeat("a", LEAVE_EPOCH)
    again = ClassicPlayer(driver, WANTS)
    beat(again)
    assert owned(driver, again) == [ALL]
    assert isinstance(driver.replay(), ClassicGroup)


@pytest.mark.parametrize("broken", ["policy", "size", "protocol type", "subscription", "user data"])
def test_a_group_that_cannot_be_upgraded_stays_classic_and_says_why(driver: MixedGroupDriver, broken: str) -> None:
    old = ClassicPlayer(driver, WANTS)
    beat(old)
    assert isinstance(driver.group, ClassicGroup)
    (member,) = driver.group.roster.members.values()
    if broken == "policy":
        driver.config = replace(driver.config, group_consumer_migration_policy="downgrade")
    elif broken == "size":
        driver.config = replace(driver.config, group_consumer_max_size=0)
    elif broken == "protocol type":
        driver.group.roster.protocol_type = "connect"
    elif broken == "subscription":
        member.protocols["range"] = b"\0"
    else:
        member.assignment = b"\0\1\0\0\0\0\0\0\0\1x"
    reply = consumer(driver, "a")
    reply.send()
    assert reply.pending is not None
    assert reply.pending.reply.error is ErrorCode.group_id_not_found
    assert "cannot become a consumer group" in reply.pending.reply.error_message
    assert isinstance(driver.group, ClassicGroup)
    assert driver.classic_heartbeat(old.member_id, old.generation_id) is ErrorCode.none


def test_an_upgrade_that_cannot_be_stored_leaves_the_classic_group(driver: MixedGroupDriver) -> None:
    old = ClassicPlayer(driver, WANTS)
    beat(old)
    driver.hold = True
    new = consumer(driver, "a")
    new.send()
    driver.release(ErrorCode.coordinator_not_available)
    driver.hold = False
    assert isinstance(driver.group, ClassicGroup)
    assert new.pending is not None
    assert new.pending.reply.error is ErrorCode.coordinator_not_available
    assert driver.classic_heartbeat(old.member_id, old.generation_id) is ErrorCode.none
    beat(old, new)
    assert set().union(*owned(driver, old, new)) == ALL


def test_members_are_not_strangers_while_the_upgrade_is_being_stored(driver: MixedGroupDriver) -> None:
    old, new = ClassicPlayer(driver, WANTS), consumer(driver, "a")
    beat(old)
    driver.hold = True
    new.send()
    group, tp = driver.group, TopicPartition("t", 0)
    assert isinstance(group, ConsumerGroup)
    assert driver.classic_heartbeat(old.member_id, old.generation_id) is ErrorCode.none
    sync = driver.sync(SyncRequest("g", old.generation_id, old.member_id, {}))
    assert sync.reply.error is ErrorCode.rebalance_in_progress
    loading = ErrorCode.coordinator_load_in_progress
    commit = CommitRequest("g", {tp: OffsetAndMetadata(1)}, old.generation_id, old.member_id)
    assert commit_error(group, commit) is loading
    assert fetch_error(group, old.member_id, old.generation_id) is loading
    driver.hold = False
    driver.release()
    assert commit_error(group, commit) is ErrorCode.none
    beat(old, new)
    assert not old.errors


def test_without_downgrade_classic_members_stay_in_the_consumer_group() -> None:
    driver = MixedGroupDriver(topic("t", 4), migration_policy="upgrade")
    old, new = ClassicPlayer(driver, WANTS), consumer(driver, "a")
    beat(old)
    beat(old, new)
    driver.heartbeat("a", LEAVE_EPOCH)
    beat(old)
    assert isinstance(driver.group, ConsumerGroup)
    assert owned(driver, old) == [ALL]


def test_what_cannot_be_stored_as_a_classic_group_stays_a_consumer_group(driver: MixedGroupDriver) -> None:
    old, new = ClassicPlayer(driver, WANTS), consumer(driver, "a")
    beat(old)
    beat(old, new)
    driver.hold = True
    left = driver.heartbeat("a", LEAVE_EPOCH)
    group, store = driver.held.pop()
    driver.perform(group, group.stored(store, ErrorCode.unknown_server_error, driver.now()))
    driver.hold = False
    driver.release()
    assert left.reply.error is ErrorCode.none
    beat(old)
    assert isinstance(driver.group, ConsumerGroup)
    assert owned(driver, old) == [ALL]


def test_a_classic_member_must_have_an_assignor_in_common_with_the_others(driver: MixedGroupDriver) -> None:
    old, new = ClassicPlayer(driver, WANTS), consumer(driver, "a")
    beat(old)
    beat(old, new)
    request = JoinRequest("g", "", "c", "/h", "consumer", (("range", b"\0"),), 10_000)
    for wrong in (
        request._replace(protocols=(("sticky", b""),)),
        request._replace(protocol_type="connect"),
        request,
    ):
        assert driver.join(wrong).reply.error is ErrorCode.inconsistent_group_protocol


def test_requests_of_the_wrong_protocol_or_generation_are_refused(driver: MixedGroupDriver) -> None:
    old, new = ClassicPlayer(driver, WANTS), consumer(driver, "a")
    beat(old)
    beat(old, new)
    good = old.generation_id
    assert driver.classic_heartbeat(old.member_id, good) is ErrorCode.none
    assert driver.classic_heartbeat(old.member_id, good - 1) is ErrorCode.illegal_generation
    assert driver.classic_heartbeat("a", new.epoch) is ErrorCode.unknown_member_id
    assert driver.classic_heartbeat("nobody", good) is ErrorCode.unknown_member_id
    wrong = SyncRequest("g", good, old.member_id, {}, protocol_name="sticky")
    assert driver.sync(wrong).reply.error is ErrorCode.inconsistent_group_protocol
    assert driver.sync(SyncRequest("g", good, "a", {})).reply.error is ErrorCode.unknown_member_id


def test_the_group_wakes_when_a_classic_member_must_have_joined(driver: MixedGroupDriver) -> None:
    old, new = ClassicPlayer(driver, WANTS, rebalance_ms=2_000), consumer(driver, "a")
    beat(old)
    new.beat()
    assert driver.classic_heartbeat(old.member_id, old.generation_id) is ErrorCode.rebalance_in_progress
    assert driver.group.wake_at <= driver.now().monotonic + 2.0
    driver.wait(2_500)
    beat(new)
    assert owned(driver, new) == [ALL]


def test_a_classic_member_that_was_removed_joins_only_without_its_partitions(driver: MixedGroupDriver) -> None:
    old, new = ClassicPlayer(driver, WANTS), consumer(driver, "a")
    beat(old, new)
    driver.leave(LeavingMember(old.member_id))
    old.state = "new"
    old.beat()
    assert old.pending is not None
    assert old.pending.reply.error is ErrorCode.unknown_member_id
    beat(old, new)
    assert [len(tps) for tps in owned(driver, old, new)] == [2, 2]


def test_a_static_member_moves_between_the_protocols_under_its_instance_id(driver: MixedGroupDriver) -> None:
    other = consumer(driver, "a")
    old = ClassicPlayer(driver, WANTS, instance_id="i")
    beat(other, old)
    had = old.owned
    new = consumer(driver, "b", instance_id="i")
    beat(other, new)
    assert owned(driver, new) == [had]
    back = ClassicPlayer(driver, WANTS, instance_id="i")
    beat(other, back)
    assert owned(driver, back) == [had]
    old.beat()
    assert old.errors == [ErrorCode.fenced_instance_id]


def test_an_operator_removes_members_of_both_protocols(driver: MixedGroupDriver) -> None:
    new, old = consumer(driver, "a", instance_id="i"), ClassicPlayer(driver, WANTS)
    beat(new, old)
    gone = driver.leave(LeavingMember("", "i"), LeavingMember("nobody"), LeavingMember(old.member_id))
    assert gone == [ErrorCode.none, ErrorCode.unknown_member_id, ErrorCode.none]
    assert driver.group.is_empty


@pytest.mark.parametrize("silent", ["join", "sync"])
def test_a_classic_member_that_does_not_join_or_sync_in_time_is_removed(driver: MixedGroupDriver, silent: str) -> None:
    old, new = ClassicPlayer(driver, WANTS), consumer(driver, "a")
    beat(old)
    new.beat()
    if silent == "sync":
        for _ in range(2):
            old.beat()
        assert old.state in ("joining", "joined")
    for _ in range(5):
        driver.wait(3_000)
        if silent == "join":
            driver.classic_heartbeat(old.member_id, old.generation_id)
        new.beat()
    beat(new)
    assert owned(driver, new) == [ALL]

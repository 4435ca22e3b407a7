"""The rules of heartbeats on one consumer group (KIP-848)."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from broker.coordinator import modern_group
from broker.coordinator.consumer_group_requests import commit_error, fetch_error, unchanged
from broker.coordinator.group import Now
from broker.coordinator.group_messages import CommitRequest
from broker.coordinator.group_records import OffsetAndMetadata
from broker.coordinator.modern_group import Call as GroupCall
from broker.coordinator.modern_group_members import ConsumerMembership
from broker.coordinator.modern_group_messages import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    LEAVE_STATIC_EPOCH,
    HeartbeatReply,
    HeartbeatRequest,
    Resolve,
)
from broker.coordinator.transaction_state import ProducerIdAndEpoch
from broker.errors import ErrorCode
from broker.protocol.topic_partition import TopicPartition
from tests.support.consumer_groups import (
    Call,
    ConsumerGroupDriver,
    partitions_of,
    player,
    settle,
    snapshot,
    topic,
)

FIRST = {"rebalance_timeout_ms": 60_000, "topic_names": frozenset({"t"}), "owned": frozenset()}


@pytest.fixture
def driver() -> ConsumerGroupDriver:
    return ConsumerGroupDriver(topic("t", 4), topic("u", 2))


def test_the_first_member_gets_everything_with_its_first_heartbeat(driver: ConsumerGroupDriver) -> None:
    reply = driver.join("a", "t")
    assert (reply.error, reply.member_id, reply.member_epoch) == (ErrorCode.none, "a", 2)
    assert reply.assignment == partitions_of("t", 0, 1, 2, 3)
    assert reply.heartbeat_interval_ms == 5_000
    assert driver.group.state_name == "Stable"


def test_a_heartbeat_that_changes_nothing_is_answered_at_once_and_stores_nothing(driver: ConsumerGroupDriver) -> None:
    driver.join("a", "t")
    appends, driver.hold = driver.appends, True
    reply = driver.heartbeat("a", 2).reply
    assert (reply.error, reply.member_epoch, reply.assignment) == (ErrorCode.none, 2, None)
    assert driver.appends == appends
    assert not driver.held


def test_a_second_member_gets_partitions_only_after_the_first_gave_them_up(driver: ConsumerGroupDriver) -> None:
    driver.join("a", "t")
    joined = driver.join("b", "t")
    assert (joined.member_epoch, joined.assignment, joined.heartbeat_interval_ms) == (3, frozenset(), 1_000)
    asked = driver.heartbeat("a", 2).reply
    assert asked.member_epoch == 2
    kept = asked.assignment
    assert len(kept) == 2
    assert driver.heartbeat("b", 3).reply.assignment is None
    assert driver.heartbeat("a", 2).reply.assignment is None, "it has not said that it gave anything up"
    released = driver.heartbeat("a", 2, owned=kept).reply
    assert (released.member_epoch, released.assignment) == (3, None)
    got = driver.heartbeat("b", 3).reply
    assert got.assignment == partitions_of("t", 0, 1, 2, 3) - kept
    assert got.heartbeat_interval_ms == 5_000
    assert driver.group.state_name == "Stable"


@pytest.mark.parametrize(
    ("epoch", "fields"),
    [
        (JOIN_EPOCH, {**FIRST, "rebalance_timeout_ms": -1}),
        (JOIN_EPOCH, {**FIRST, "owned": partitions_of("t", 1)}),
        (JOIN_EPOCH, {**FIRST, "owned": None}),
        (JOIN_EPOCH, {**FIRST, "topic_names": None}),
        (JOIN_EPOCH, {**FIRST, "instance_id": ""}),
        (JOIN_EPOCH, {**FIRST, "rack_id": ""}),
        (JOIN_EPOCH, {**FIRST, "topic_regex": "x" * 40_000}),
        (-3, {}),
        (LEAVE_STATIC_EPOCH, {}),
    ],
)
def test_a_request_that_is_no_request_is_refused(
    driver: ConsumerGroupDriver, epoch: int, fields: dict[str, Any]
) -> None:
    reply = driver.heartbeat("a", epoch, **fields).reply
    assert reply.error is ErrorCode.invalid_request
    assert reply.error_message
    assert not driver.log


def test_a_member_without_an_id_gets_one_in_version_0_and_is_refused_in_version_1(driver: ConsumerGroupDriver) -> None:
    assert driver.heartbeat("", JOIN_EPOCH, **FIRST).reply.error is ErrorCode.invalid_request
    reply = driver.heartbeat("", JOIN_EPOCH, needs_member_id=False, **FIRST).reply
    assert reply.member_id
    assert reply.member_id in driver.group.membership.members


def test_an_assignor_that_the_broker_lacks_is_refused_by_name(driver: ConsumerGroupDriver) -> None:
    reply = driver.heartbeat("a", JOIN_EPOCH, server_assignor="sticky", **FIRST).reply
    assert reply.error is ErrorCode.unsupported_assignor
    assert "uniform, range" in reply.error_message


def test_the_assignor_that_most_members_name_decides(driver: ConsumerGroupDriver) -> None:
    driver.join("a", "t", server_assignor="range")
    driver.join("b", "t")
    assert driver.group.assignor_name == "range"
    targets = {member.member_id: member.target for member in driver.group.membership.members.values()}
    assert targets == {"a": partitions_of("t", 0, 1), "b": partitions_of("t", 2, 3)}


def test_a_full_group_refuses_new_members_only() -> None:
    driver = ConsumerGroupDriver(topic("t", 4), max_size=1)
    driver.join("a", "t")
    assert driver.join("b", "t").error is ErrorCode.group_max_size_reached
    assert driver.join("a", "t").error is ErrorCode.none


def test_a_member_that_joins_again_keeps_its_epoch_and_gets_its_assignment(driver: ConsumerGroupDriver) -> None:
    driver.join("a", "t")
    appends = driver.appends
    reply = driver.join("a", "t")
    assert (reply.error, reply.member_epoch) == (ErrorCode.none, 2)
    assert reply.assignment == partitions_of("t", 0, 1, 2, 3)
    assert driver.appends == appends


@pytest.mark.parametrize(
    ("epoch", "owned", "error"),
    [
        (4, None, ErrorCode.fenced_member_epoch),
        (1, None, ErrorCode.fenced_member_epoch),
        (2, None, ErrorCode.fenced_member_epoch),
        (2, partitions_of("u", 0), ErrorCode.fenced_member_epoch),
        (2, partitions_of("t", 0), ErrorCode.none),
        (3, None, ErrorCode.none),
    ],
)
def test_the_epoch_before_is_accepted_from_a_member_whose_answer_was_lost(
    driver: ConsumerGroupDriver, epoch: int, owned: Any, error: ErrorCode
) -> None:
    driver.join("a", "t")
    assert driver.heartbeat("a", 2, rack_id="r", topic_names=frozenset({"t", "v"})).reply.member_epoch == 3
    assert driver.heartbeat("a", epoch, owned=owned).reply.error is error


def test_a_stranger_is_told_so(driver: ConsumerGroupDriver) -> None:
    driver.join("a", "t")
    for epoch in (1, LEAVE_EPOCH):
        assert driver.heartbeat("b", epoch).reply.error is ErrorCode.unknown_member_id


def test_what_a_member_leaves_goes_to_the_others(driver: ConsumerGroupDriver) -> None:
    a, b = player(driver, "a", "t"), player(driver, "b", "t")
    settle(driver, a, b)
    reply = driver.heartbeat("a", LEAVE_EPOCH).reply
    assert (reply.error, reply.member_id, reply.member_epoch) == (ErrorCode.none, "a", LEAVE_EPOCH)
    settle(driver, b)
    assert b.owned == partitions_of("t", 0, 1, 2, 3)


def test_the_last_member_leaves_an_empty_group_whose_records_can_be_deleted(driver: ConsumerGroupDriver) -> None:
    driver.join("a", "t")
    assert not driver.group.is_empty
    driver.heartbeat("a", LEAVE_EPOCH)
    assert driver.group.is_empty
    assert driver.group.state_name == "Empty"
    assert set(driver.log) <= set(driver.group.stored_keys())


def test_a_member_that_is_silent_is_removed(driver: ConsumerGroupDriver) -> None:
    a, b = player(driver, "a", "t"), player(driver, "b", "t")
    settle(driver, a, b)
    driver.wait(40_000)
    b.beat()
    driver.wait(10_000)
    assert list(driver.group.membership.members) == ["b"]
    settle(driver, b)
    assert b.owned == partitions_of("t", 0, 1, 2, 3)
    a.beat()
    assert a.errors == [ErrorCode.unknown_member_id]


def test_a_member_that_does_not_give_up_is_removed_after_its_rebalance_timeout(driver: ConsumerGroupDriver) -> None:
    driver.join("a", "t", rebalance_timeout_ms=50_000)
    b = player(driver, "b", "t")
    b.beat()
    driver.heartbeat("a", 2)
    for _ in range(6):
        driver.wait(9_000)
        driver.heartbeat("a", 2)
        b.beat()
    assert list(driver.group.membership.members) == ["b"]


def test_a_member_that_never_gives_up_is_removed_also_if_its_requests_wait_for_slow_appends(
    driver: ConsumerGroupDriver,
) -> None:
    driver.join("a", "t", rebalance_timeout_ms=10_000)
    driver.join("b", "t")
    driver.heartbeat("a", 2)
    driver.hold = True
    driver.heartbeat("x", JOIN_EPOCH, **FIRST)
    for number in range(8):
        driver.heartbeat("a", 2, owned=partitions_of("t", 0, 1, 2, 3))
        driver.heartbeat(f"x{number}", JOIN_EPOCH, **FIRST)
        driver.wait(3_000)
        driver.release()
    assert "a" not in driver.group.membership.members


# --- static members


def test_a_static_member_that_left_for_a_while_comes_back_to_its_partitions(driver: ConsumerGroupDriver) -> None:
    a, b = player(driver, "a", "t", instance_id="i"), player(driver, "b", "t")
    settle(driver, a, b)
    had, epoch = a.owned, driver.group.membership.epoch
    assert driver.heartbeat("a", LEAVE_STATIC_EPOCH, instance_id="i").reply.member_epoch == LEAVE_STATIC_EPOCH
    b.beat()
    assert not b.owned & had
    back = driver.heartbeat("a2", JOIN_EPOCH, instance_id="i", **FIRST).reply
    assert back.assignment == had
    assert driver.group.membership.epoch == epoch
    assert driver.group.state_name == "Stable"
    assert driver.heartbeat("a", 3, instance_id="i").reply.error is ErrorCode.fenced_instance_id


def test_a_static_member_that_does_not_come_back_is_removed(driver: ConsumerGroupDriver) -> None:
    a, b = player(driver, "a", "t", instance_id="i"), player(driver, "b", "t")
    settle(driver, a, b)
    driver.heartbeat("a", LEAVE_STATIC_EPOCH, instance_id="i")
    driver.wait(40_000)
    b.beat()
    driver.wait(10_000)
    settle(driver, b)
    assert b.owned == partitions_of("t", 0, 1, 2, 3)


def test_an_instance_id_in_use_is_not_released(driver: ConsumerGroupDriver) -> None:
    driver.join("a", "t", instance_id="i")
    assert driver.join("b", "t", instance_id="i").error is ErrorCode.unreleased_instance_id
    assert driver.join("a", "t", instance_id="i").error is ErrorCode.none, "its first answer may have been lost"
    assert driver.heartbeat("a", 2, instance_id="j").reply.error is ErrorCode.unknown_member_id
    assert driver.heartbeat("b", LEAVE_EPOCH, instance_id="i").reply.error is ErrorCode.fenced_instance_id


def test_an_instance_id_that_its_member_gave_up_is_free(driver: ConsumerGroupDriver) -> None:
    driver.join("a", "t", instance_id="i")
    driver.join("a", "t", instance_id="j")
    assert driver.join("b", "t", instance_id="i").error is ErrorCode.none
    driver.heartbeat("a", LEAVE_EPOCH, instance_id="j")
    assert driver.join("c", "t", instance_id="j").error is ErrorCode.none


# --- subscriptions and topics


def test_a_member_gives_up_at_once_what_it_no_longer_subscribes_to(driver: ConsumerGroupDriver) -> None:
    a = player(driver, "a", "t", "u")
    settle(driver, a)
    a.subscribe(topic_names=frozenset({"u"}))
    a.beat()
    assert a.owned == partitions_of("u", 0, 1)
    settle(driver, a)


def test_new_partitions_and_topics_are_assigned(driver: ConsumerGroupDriver) -> None:
    a = player(driver, "a", "t", "later")
    settle(driver, a)
    epoch = driver.group.membership.epoch.epoch
    driver.change_topics({**driver.topics, "other": topic("other", 3)})
    assert driver.group.membership.epoch.epoch == epoch
    driver.change_topics({**driver.topics, "t": topic("t", 5), "later": topic("later", 1)})
    settle(driver, a)
    assert a.owned == partitions_of("t", 0, 1, 2, 3, 4) | partitions_of("later", 0)


def test_a_topic_that_was_created_again_is_another_one(driver: ConsumerGroupDriver) -> None:
    a = player(driver, "a", "u")
    settle(driver, a)
    again = topic("u", 2, generation=1)
    driver.change_topics({**driver.topics, "u": again})
    settle(driver, a)
    assert {partition.topic_id for partition in a.owned} == {again.topic_id}


def test_a_pattern_is_looked_up_and_then_assigned(driver: ConsumerGroupDriver) -> None:
    a = player(driver, "a", topic_regex="t.*", client="alice")
    a.beat()
    assert (a.epoch, a.owned) == (1, frozenset())
    assert driver.resolve is not None
    assert driver.resolve == Resolve(frozenset({"t.*"}), "alice")
    driver.find_topics({"t.*": {"t"}})
    settle(driver, a)
    assert a.owned == partitions_of("t", 0, 1, 2, 3)
    driver.change_topics({**driver.topics, "t2": topic("t2", 1)})
    driver.find_topics({"t.*": {"t", "t2"}})
    settle(driver, a)
    assert a.owned == partitions_of("t", 0, 1, 2, 3) | partitions_of("t2", 0)


def test_a_pattern_that_nobody_uses_any_more_is_forgotten(driver: ConsumerGroupDriver) -> None:
    a = player(driver, "a", topic_regex="t.*", client="alice")
    a.beat()
    driver.find_topics({"t.*": {"t"}})
    settle(driver, a)
    a.subscribe(topic_regex="", topic_names=frozenset({"u"}))
    settle(driver, a)
    assert a.owned == partitions_of("u", 0, 1)
    assert not driver.group.membership.extras
    assert snapshot(driver.replay()) == snapshot(driver.group)


def test_a_pattern_without_topics_is_not_looked_up_again(driver: ConsumerGroupDriver) -> None:
    a = player(driver, "a", topic_regex="t.*", client="alice")
    a.beat()
    driver.find_topics({})
    assert driver.resolve is None
    settle(driver, a)
    assert a.owned == frozenset()


# --- batches and appends


def test_members_that_join_during_an_append_share_the_next_one(driver: ConsumerGroupDriver) -> None:
    driver.hold = True
    calls = [driver.heartbeat(f"m{i}", JOIN_EPOCH, **FIRST) for i in range(100)]
    assert not any(call.answers for call in calls)
    driver.hold = False
    driver.release()
    assert driver.appends == 2
    assert [call.reply.member_epoch for call in calls] == [2] + [3] * 99


def test_requests_beyond_a_limit_are_refused_while_an_append_hangs(
    driver: ConsumerGroupDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modern_group, "MOST_WAITING", 2)
    driver.hold = True
    calls = [driver.heartbeat(f"m{i}", JOIN_EPOCH, **FIRST) for i in range(4)]
    assert [len(call.answers) for call in calls] == [0, 0, 0, 1]
    assert calls[3].reply.error is ErrorCode.coordinator_not_available
    driver.hold = False
    driver.release()
    assert [call.reply.error for call in calls[:3]] == [ErrorCode.none] * 3


def test_an_append_that_failed_changes_nothing(driver: ConsumerGroupDriver) -> None:
    driver.join("a", "t")
    before = snapshot(driver.group)
    driver.hold = True
    call = driver.heartbeat("b", JOIN_EPOCH, **FIRST)
    later = driver.heartbeat("a", 2)
    driver.release(ErrorCode.not_coordinator)
    assert call.reply.error is ErrorCode.not_coordinator
    assert later.reply.error is ErrorCode.none
    assert snapshot(driver.group) == before == snapshot(driver.replay())


def test_a_removal_that_could_not_be_stored_is_not_tried_again_at_once(driver: ConsumerGroupDriver) -> None:
    """An append may be refused at once, and so is every further one while the event loop does nothing else."""
    driver.join("a", "t")
    driver.hold = True
    driver.wait(46_000)
    driver.release(ErrorCode.coordinator_not_available)
    assert not driver.held
    joining = driver.heartbeat("b", JOIN_EPOCH, **FIRST)
    driver.release(ErrorCode.coordinator_not_available)
    assert joining.reply.error is ErrorCode.coordinator_not_available, "requests do not wait for that"
    assert not driver.held
    driver.hold = False
    driver.wait(1_001)
    assert not driver.group.membership.members


def test_other_topics_that_could_not_be_stored_are_stored_later_without_a_request(driver: ConsumerGroupDriver) -> None:
    driver.join("a", "t")
    driver.hold = True
    driver.change_topics({**driver.topics, "t": topic("t", 9)})
    driver.release(ErrorCode.coordinator_not_available)
    assert not driver.held
    driver.hold = False
    driver.wait(1_001)
    assert len(driver.group.membership.members["a"].target) == 9


def test_topics_of_a_pattern_that_could_not_be_stored_are_looked_up_later(driver: ConsumerGroupDriver) -> None:
    a = player(driver, "a", topic_regex="t.*", client="alice")
    a.beat()
    driver.find_topics({"t.*": {"t"}})
    settle(driver, a)
    driver.change_topics({**driver.topics, "t2": topic("t2", 2)})
    driver.hold = True
    driver.find_topics({"t.*": {"t", "t2"}})
    driver.release(ErrorCode.coordinator_not_available)
    assert driver.resolve is None
    driver.hold = False
    driver.wait(1_001)
    driver.find_topics({"t.*": {"t", "t2"}})
    settle(driver, a)
    assert a.owned >= partitions_of("t2", 0, 1)


def test_a_deadline_that_passes_while_joins_are_gathered_wakes_the_group_once(driver: ConsumerGroupDriver) -> None:
    driver.join("a", "t")
    driver.group.is_gathering = True
    driver.elapsed_ms += 46_000
    driver.perform(driver.group.tick(driver.now()))
    assert driver.group.wake_at > driver.now().monotonic
    driver.group.is_gathering = False
    driver.perform(driver.group.tick(driver.now()))
    assert not driver.group.membership.members


@pytest.mark.parametrize("kept", range(10))
@pytest.mark.parametrize("event", ["join", "leave"])
def test_a_group_goes_on_from_the_first_records_of_an_append(
    driver: ConsumerGroupDriver, event: str, kept: int
) -> None:
    """The leader was lost when the followers had a part of a large append."""
    players = [player(driver, "a", "t"), player(driver, "b", "t")]
    settle(driver, *players)
    driver.hold = True
    if event == "join":
        players.append(player(driver, "c", "t"))
        players[-1].send()
    else:
        driver.heartbeat(players.pop().member_id, LEAVE_EPOCH)
    (store,) = driver.held
    for key, value in store.records()[:kept]:
        driver.log.pop(key, None)
        driver.log.update({} if value is None else {key: value})
    driver.fail_over()
    driver.hold = False
    driver.release()
    driver.wait(30_000)
    for each in players:
        each.beat()
    driver.wait(30_000)
    settle(driver, *players)
    assert frozenset().union(*(each.owned for each in players)) == partitions_of("t", *range(4))


def test_members_whose_requests_wait_for_a_slow_append_are_not_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modern_group, "MOST_REQUESTS", 1)
    driver = ConsumerGroupDriver(topic("t", 4))
    players = [player(driver, "a", "t"), player(driver, "b", "t")]
    settle(driver, *players)
    driver.hold = True
    driver.heartbeat("c", JOIN_EPOCH, **FIRST)
    calls = [driver.heartbeat(each.member_id, each.epoch, rack_id="r") for each in players]
    driver.wait(60_000)
    assert [call.reply.error for call in calls] == [ErrorCode.coordinator_not_available] * 2, "nobody waits so long"
    driver.hold = False
    driver.release()
    assert driver.group.membership.members.keys() == {"a", "b"}, "c was silent since it joined"


def test_who_waits_for_a_slow_append_is_told_so_and_is_a_member_when_it_ends(driver: ConsumerGroupDriver) -> None:
    driver.hold = True
    calls = [driver.heartbeat(member_id, JOIN_EPOCH, **FIRST) for member_id in "ab"]
    driver.wait(4_900)
    assert not any(call.answers for call in calls)
    driver.wait(200)
    assert [call.reply.error for call in calls] == [ErrorCode.coordinator_not_available] * 2
    driver.hold = False
    driver.release()
    assert [driver.join(member_id, "t").member_epoch for member_id in "ab"] == [3, 3]


def test_a_request_that_cannot_be_stored_fails_alone(driver: ConsumerGroupDriver) -> None:
    """One of five that share an append has a record that is too large."""
    driver.hold = True
    first = driver.heartbeat("a", JOIN_EPOCH, **FIRST)
    calls = [driver.heartbeat(member_id, JOIN_EPOCH, **FIRST) for member_id in ("b", "large", "c", "d", "e")]
    while driver.held:
        too_large = any(b"large" in key for key, _ in driver.held[0].records())
        driver.release(ErrorCode.unknown_server_error if too_large else ErrorCode.none)
    assert first.reply.error is ErrorCode.none
    refused = [ErrorCode.unknown_server_error]
    assert [call.reply.error for call in calls] == [ErrorCode.none, *refused, *[ErrorCode.none] * 3]
    assert driver.group.membership.members.keys() == {"a", "b", "c", "d", "e"}


def test_a_defect_in_the_rule_of_one_request_fails_it_alone(
    driver: ConsumerGroupDriver, caplog: pytest.LogCaptureFixture
) -> None:
    def rule(draft: ConsumerMembership, now: Now) -> Generator[None, None, None]:
        draft.remove("a")
        yield
        raise KeyError("a defect")

    driver.hold = True
    first = driver.heartbeat("a", JOIN_EPOCH, **FIRST)
    before = driver.heartbeat("b", JOIN_EPOCH, **FIRST)
    bad = Call()
    driver.perform(driver.group.submit(GroupCall(bad, "bad", rule, HeartbeatReply), driver.now()))
    after = driver.heartbeat("c", JOIN_EPOCH, **FIRST)
    driver.hold = False
    driver.release()
    assert [call.reply.error for call in (first, before, after)] == [ErrorCode.none] * 3
    assert bad.reply.error is ErrorCode.unknown_server_error
    assert driver.group.membership.members.keys() == {"a", "b", "c"}
    assert "a defect" in caplog.text


def test_requests_that_wait_are_refused_when_the_coordinator_moves(driver: ConsumerGroupDriver) -> None:
    driver.hold = True
    calls = [driver.heartbeat(member_id, JOIN_EPOCH, **FIRST) for member_id in "ab"]
    (store,) = driver.held
    driver.fail_over()
    assert [call.reply.error for call in calls] == [ErrorCode.not_coordinator] * 2
    driver.perform(driver.group.stored(store, ErrorCode.none, driver.now()))


def test_a_group_that_is_being_deleted_takes_no_members(driver: ConsumerGroupDriver) -> None:
    driver.group.set_dead(True)
    assert driver.group.state_name == "Dead"
    assert driver.join("a", "t").error is ErrorCode.coordinator_not_available
    driver.group.set_dead(False)
    assert driver.join("a", "t").error is ErrorCode.none


def test_a_new_coordinator_goes_on_where_the_old_one_was(driver: ConsumerGroupDriver) -> None:
    a, b = player(driver, "a", "t"), player(driver, "b", "t")
    for each in (a, b, a):
        each.beat()
    driver.fail_over()
    settle(driver, a, b)
    assert not a.errors
    assert not b.errors
    assert len(a.owned) == len(b.owned) == 2


# --- offsets


def test_commits_count_with_the_present_epoch_or_since_the_partition_is_the_members(
    driver: ConsumerGroupDriver,
) -> None:
    a, b = player(driver, "a", "t"), player(driver, "b", "t")
    settle(driver, a, b)
    kept, got = (next(iter(each.owned)).partition for each in (a, b))
    tps = [TopicPartition("t", kept), TopicPartition("t", got), TopicPartition("gone", 0)]
    none, stale = ErrorCode.none, ErrorCode.stale_member_epoch

    def errors(member: str, epoch: int, *, transactional: bool = False, knows_epochs: bool = True) -> list[ErrorCode]:
        producer = ProducerIdAndEpoch(1, 0) if transactional else None
        asked = [{tp: OffsetAndMetadata(1)} for tp in tps]
        requests = [
            CommitRequest("g", offsets, epoch, member, knows_epochs=knows_epochs, producer=producer)
            for offsets in asked
        ]
        return [commit_error(driver.group, request) for request in requests]

    assert a.epoch == 3
    assert errors("a", 3) == [none] * 3
    assert errors("a", 2) == [none, stale, stale]
    assert errors("a", 1) == [stale] * 3
    assert errors("a", 4) == [stale] * 3
    assert errors("b", 2) == [stale] * 3
    assert errors("a", 2, transactional=True) == [none, ErrorCode.illegal_generation, ErrorCode.illegal_generation]
    assert errors("a", 3, knows_epochs=False) == [ErrorCode.unsupported_version] * 3
    assert errors("x", 3) == errors("", -1) == [ErrorCode.unknown_member_id] * 3
    assert errors("", -1, transactional=True) == [none] * 3


def test_anybody_commits_to_an_empty_group(driver: ConsumerGroupDriver) -> None:
    tp = TopicPartition("t", 0)
    assert commit_error(driver.group, CommitRequest("g", {tp: OffsetAndMetadata(1)})) is ErrorCode.none
    stranger = CommitRequest("g", {tp: OffsetAndMetadata(1)}, 1, "a", knows_epochs=True)
    assert commit_error(driver.group, stranger) is ErrorCode.unknown_member_id


def test_offsets_are_fetched_with_the_present_epoch_or_without_a_member(driver: ConsumerGroupDriver) -> None:
    driver.join("a", "t")
    assert fetch_error(driver.group, None, -1) is ErrorCode.none
    assert fetch_error(driver.group, "a", 2) is ErrorCode.none
    assert fetch_error(driver.group, "a", 1) is ErrorCode.stale_member_epoch
    assert fetch_error(driver.group, "b", 2) is ErrorCode.unknown_member_id


def test_a_heartbeat_that_changes_nothing_needs_no_batch() -> None:
    driver = ConsumerGroupDriver(topic("t", 2))
    now_at = driver.join("a", "t").member_epoch

    def quiet(epoch: int = now_at, **fields: Any) -> HeartbeatReply | None:
        request = HeartbeatRequest("g", "a", epoch, client_id="c", client_host="/h", **fields)
        return unchanged(driver.group, request, driver.now())

    reply = quiet()
    assert reply is not None
    assert (reply.error, reply.member_epoch, reply.assignment) == (ErrorCode.none, now_at, None)
    assert quiet(0) is quiet(now_at + 1) is quiet(-1) is quiet(rebalance_timeout_ms=1) is None
    changes: list[dict[str, Any]] = [
        {"topic_names": frozenset({"t"})},
        {"topic_regex": ""},
        {"server_assignor": "range"},
    ]
    for says in (*changes, {"instance_id": "i"}):
        assert quiet(**says) is None, says
    driver.join("b", "t")
    assert quiet() is None, "it has to give up a partition"

"""The rules of heartbeats on one consumer group (KIP-848)."""

from __future__ import annotations

from typing import Any

import pytest

from broker.coordinator.consumer_group_requests import commit_error, fetch_error, unchanged
from broker.coordinator.group_messages import CommitRequest
from broker.coordinator.group_records import OffsetAndMetadata
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
    FIRST,
    ConsumerGroupDriver,
    partitions_of,
    player,
    settle,
    snapshot,
    topic,
)


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

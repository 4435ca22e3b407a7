"""The machine of groups whose coordinator assigns: batches, appends and deadlines, on a consumer group."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from broker.coordinator import modern_group
from broker.coordinator.group import Now
from broker.coordinator.modern_group import Call as GroupCall
from broker.coordinator.modern_group_members import ConsumerMembership
from broker.coordinator.modern_group_messages import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    HeartbeatReply,
)
from broker.errors import ErrorCode
from tests.support.consumer_groups import (
    FIRST,
    Call,
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
    driver.group.awaits_joins = True
    driver.elapsed_ms += 46_000
    driver.perform(driver.group.tick(driver.now()))
    assert driver.group.wake_at > driver.now().monotonic
    driver.group.awaits_joins = False
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

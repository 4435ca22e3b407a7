"""Members of a share group: heartbeats, epochs, assignments, share states, failed appends, a model of random events."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from broker.config.setting_groups import GroupSettings
from broker.coordinator import modern_group
from broker.coordinator.group import Effects, Now
from broker.coordinator.modern_group import Batch
from broker.coordinator.modern_group_messages import HeartbeatReply, HeartbeatRequest, Partitions, TopicIdPartition
from broker.coordinator.share_group_records import TopicShares, decode_key
from broker.coordinator.share_group_state import ShareGroup, ShareMembership, StatesReply
from broker.errors import ErrorCode
from broker.replica.cluster_metadata import PartitionInfo, Topic

A, B = uuid.UUID(int=1), uuid.UUID(int=2)
SESSION_S = 45.0


def topic(name: str, topic_id: uuid.UUID, partitions: int) -> Topic:
    return Topic(name, topic_id, dict.fromkeys(range(partitions), PartitionInfo(0, 0, (0,), (0,))))


def tps(topic_id: uuid.UUID, *numbers: int) -> Partitions:
    return frozenset(TopicIdPartition(topic_id, number) for number in numbers)


class Driver:
    """A share group, its time, its topics and its log. Appends succeed at once unless `hold` is set."""

    def __init__(self, *, max_size: int = 200) -> None:
        self.config = GroupSettings(group_share_max_size=max_size)
        self.group = ShareGroup("g", self.config)
        self.topics = {"a": topic("a", A, 2), "b": topic("b", B, 1)}
        self.seconds = 0.0
        self.hold = False
        self.held: list[Batch] = []
        self.log: dict[bytes, bytes] = {}
        self.answers: dict[int, Any] = {}
        self.waiters = 0

    @property
    def now(self) -> Now:
        return Now(self.seconds, 1_000)

    def perform(self, effects: Effects) -> None:
        for waiter, answer in effects.replies:
            assert isinstance(waiter, int)
            assert waiter not in self.answers, "a second answer"
            self.answers[waiter] = answer
        for store in effects.stores:
            assert isinstance(store, Batch)
            assert not self.held, "a second append under way"
            self.held.append(store)
            if not self.hold:
                self.append()

    def append(self, error: ErrorCode = ErrorCode.none) -> None:
        store = self.held.pop()
        if error is ErrorCode.none:
            for key, value in store.records():
                if value is None:
                    self.log.pop(key, None)
                else:
                    self.log[key] = value
        self.perform(self.group.stored(store, error, self.now))

    def waiter(self) -> int:
        self.waiters += 1
        return self.waiters

    def beat(self, member: str, epoch: int, *names: str, keep: bool = False) -> Any:
        waiter = self.waiter()
        request = HeartbeatRequest("g", member, epoch, topic_names=None if keep else frozenset(names))
        self.perform(self.group.heartbeat(request, self.topics, waiter, self.now))
        return self.answers.get(waiter)

    def initialize(self) -> None:
        states = self.group.states.initializing
        made = frozenset(TopicIdPartition(one, n) for one, shares in states.items() for n in shares.partitions)
        self.perform(self.group.initialized(made, self.waiter(), self.now))

    def replayed(self) -> ShareGroup:
        group = ShareGroup("g", self.config, topics=self.topics)
        keys = {key: decode_key(key) for key in self.log}
        for raw, key in sorted(keys.items(), key=lambda item: item[1].kind if item[1] else 0):
            assert key is not None
            group.replay(key, self.log[raw])
        return group


def snapshot(group: ShareGroup) -> dict[str, Any]:
    """What a replay must give again."""
    membership = group.membership
    return {
        "epochs": (membership.epoch, membership.target_epoch),
        "members": dict(membership.members),
        "states": membership.states,
        "unsettled": set(membership.unsettled),
    }


@pytest.fixture
def driver() -> Driver:
    return Driver()


def joined(driver: Driver, member: str = "m", *names: str) -> HeartbeatReply:
    """A member that has its partitions."""
    names = names or ("a",)
    first = driver.beat(member, 0, *names)
    driver.initialize()
    reply = driver.beat(member, first.member_epoch, keep=True)
    assert isinstance(reply, HeartbeatReply)
    return reply


def test_a_member_gets_partitions_when_their_states_are_made(driver: Driver) -> None:
    first = driver.beat("m", 0, "a")
    assert (first.error, first.member_epoch, first.assignment) == (ErrorCode.none, 2, frozenset())
    assert first.heartbeat_interval_ms == 1_000
    assert driver.group.states.initializing == {A: TopicShares("a", frozenset({0, 1}))}
    driver.initialize()
    second = driver.beat("m", 2, keep=True)
    assert (second.member_epoch, second.assignment) == (3, tps(A, 0, 1))
    third = driver.beat("m", 3, keep=True)
    assert (third.member_epoch, third.assignment, third.heartbeat_interval_ms) == (3, None, 5_000)


def test_a_heartbeat_that_changes_nothing_stores_nothing(driver: Driver) -> None:
    epoch = joined(driver).member_epoch
    driver.hold = True
    assert driver.beat("m", epoch, keep=True).error is ErrorCode.none
    assert not driver.held


def test_a_heartbeat_that_changes_nothing_needs_no_batch_also_during_an_append(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    epoch = joined(driver).member_epoch
    driver.hold = True
    driver.beat("other", 0, "a")
    monkeypatch.setattr(ShareMembership, "draft", None)
    reply = driver.beat("m", epoch, keep=True)
    assert (reply.error, reply.member_epoch, reply.assignment) == (ErrorCode.none, epoch, None)


def test_more_members_than_partitions_share_them(driver: Driver) -> None:
    joined(driver, "m0", "b")
    for index in range(1, 4):
        reply = driver.beat(f"m{index}", 0, "b")
        assert reply.assignment == tps(B, 0)
    assert driver.group.member_count == 4


def test_a_lost_answer_is_repeated_and_a_wrong_epoch_is_fenced(driver: Driver) -> None:
    assert joined(driver).member_epoch == 3
    assert driver.beat("m", 2, keep=True).member_epoch == 3
    again = driver.beat("m", 0, "a")
    assert (again.member_epoch, again.assignment) == (3, tps(A, 0, 1))
    for epoch in (7, 4):
        refused = driver.beat("m", epoch, keep=True)
        assert refused.error is ErrorCode.fenced_member_epoch
        assert f"greater member epoch ({epoch})" in refused.error_message
    assert driver.beat("other", 2, keep=True).error is ErrorCode.unknown_member_id


def test_who_leaves_or_is_silent_gives_its_partitions_back(driver: Driver) -> None:
    joined(driver, "m0", "a")
    driver.beat("m1", 0, "a")
    epoch = driver.beat("m0", 3, keep=True).member_epoch
    assert driver.beat("m1", -1).member_epoch == -1
    assert driver.beat("m0", epoch, keep=True).assignment == tps(A, 0, 1)
    driver.seconds = driver.group.wake_at
    assert driver.seconds == SESSION_S
    driver.perform(driver.group.tick(driver.now))
    assert (driver.group.state_name, driver.group.member_count) == ("Empty", 0)
    assert driver.group.states.initialized, "the states stay"


def test_a_full_group_refuses_another_member() -> None:
    driver = Driver(max_size=1)
    joined(driver)
    refused = driver.beat("m2", 0, "a")
    assert refused.error is ErrorCode.group_max_size_reached
    assert "capacity of 1 members" in refused.error_message


def test_new_partitions_and_deleted_topics_reach_the_members(driver: Driver) -> None:
    epoch = joined(driver, "m", "a", "b").member_epoch
    driver.topics = {"a": topic("a", A, 3), "b": driver.topics["b"]}
    assert driver.beat("m", epoch, keep=True).heartbeat_interval_ms == 1_000
    driver.initialize()
    grown = driver.beat("m", epoch, keep=True)
    assert grown.assignment == tps(A, 0, 1, 2) | tps(B, 0)
    driver.topics = {"a": driver.topics["a"]}
    assert driver.beat("m", grown.member_epoch, keep=True).assignment == tps(A, 0, 1, 2)


def test_heartbeats_during_an_append_are_answered_together_after_it(driver: Driver) -> None:
    driver.hold = True
    for index in range(5):
        assert driver.beat(f"m{index}", 0, "a") is None
    driver.append()
    assert len(driver.answers) == 1
    driver.append()
    assert [driver.answers[n].error for n in range(1, 6)] == [ErrorCode.none] * 5
    assert driver.group.member_count == 5


def test_many_that_join_at_once_are_stored_in_turn(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modern_group, "MOST_REQUESTS", most := 20)
    driver = Driver()
    driver.hold = True
    count = 2 * most + 2
    for index in range(count):
        driver.beat(f"m{index}", 0, "a")
    answered = []
    while driver.held:
        driver.append()
        answered.append(len(driver.answers))
    assert answered == [1, 1 + most, 1 + 2 * most, count]
    assert driver.group.member_count == count


def test_what_changes_nothing_is_answered_after_an_append_however_much_it_is(driver: Driver) -> None:
    epoch = joined(driver).member_epoch
    driver.hold = True
    driver.beat("other", 0, "a")
    before = len(driver.answers)
    for _ in range(60):
        driver.beat("m", epoch, keep=True)
    driver.append(ErrorCode.coordinator_not_available)
    assert len(driver.answers) == before + 1 + 60


def test_a_failed_append_changes_nothing(driver: Driver) -> None:
    epoch = joined(driver).member_epoch
    driver.hold = True
    driver.beat("other", 0, "a")
    driver.append(ErrorCode.coordinator_not_available)
    assert driver.answers[max(driver.answers)].error is ErrorCode.coordinator_not_available
    assert driver.group.member_count == 1
    driver.hold = False
    driver.beat("m", epoch, "b")
    assert snapshot(driver.replayed()) == snapshot(driver.group)


def test_a_defect_in_one_request_fails_it_alone(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    heartbeat = ShareGroup._heartbeat

    def defective(
        group: ShareGroup, request: HeartbeatRequest, draft: ShareMembership, now: Now
    ) -> Generator[None, None, HeartbeatReply]:
        if request.member_id == "bad":
            draft.remove("first")
            raise KeyError("a defect")
        return heartbeat(group, request, draft, now)

    monkeypatch.setattr(ShareGroup, "_heartbeat", defective)
    driver.hold = True
    for member in ("first", "x", "bad", "y"):
        driver.beat(member, 0, "a")
    while driver.held:
        driver.append()
    codes = [driver.answers[number].error for number in (1, 2, 3, 4)]
    assert codes == [ErrorCode.none, ErrorCode.none, ErrorCode.unknown_server_error, ErrorCode.none]
    assert driver.group.member_count == 3
    assert "a defect" in caplog.text


def test_altered_and_deleted_states_need_an_empty_group(driver: Driver) -> None:
    joined(driver)
    driver.perform(driver.group.reinitialize({A: TopicShares("a", frozenset({0}))}, driver.waiter(), driver.now))
    assert driver.answers[driver.waiters].error is ErrorCode.non_empty_group
    driver.perform(driver.group.forget([A], driver.waiter(), driver.now, deleted=False))
    assert driver.answers[driver.waiters].error is ErrorCode.non_empty_group
    driver.beat("m", -1)
    epoch = driver.group.epoch
    driver.perform(driver.group.reinitialize({A: TopicShares("a", frozenset({0}))}, driver.waiter(), driver.now))
    reply = driver.answers[driver.waiters]
    assert isinstance(reply, StatesReply)
    assert (reply.error, reply.epoch) == (ErrorCode.none, epoch + 1)
    driver.perform(driver.group.forget([A], driver.waiter(), driver.now, deleted=False))
    assert driver.group.states.deleting == {A: "a"}
    driver.perform(driver.group.forget([A], driver.waiter(), driver.now, deleted=True))
    assert driver.group.states == dataclasses.replace(driver.group.states, initializing={}, initialized={}, deleting={})


def test_who_waits_is_answered_when_the_coordinator_moves(driver: Driver) -> None:
    driver.hold = True
    driver.beat("m", 0, "a")
    driver.beat("n", 0, "a")
    driver.perform(driver.group.kill(ErrorCode.not_coordinator, driver.now))
    assert [answer.error for answer in driver.answers.values()] == [ErrorCode.not_coordinator] * 2
    driver.append()
    assert driver.group.state_name == "Dead"


MEMBERS = ("m0", "m1", "m2", "m3")


class RandomShareGroup(RuleBasedStateMachine):
    """Members join, beat, lose answers, leave and fall silent; topics change; appends fail; the coordinator moves."""

    def __init__(self) -> None:
        super().__init__()
        self.driver = Driver()
        self.epochs: dict[str, int] = {}

    def beat(self, member: str, epoch: int, names: frozenset[str] | None) -> None:
        reply = self.driver.beat(member, epoch, *(names or ()), keep=names is None)
        if reply is None:
            return
        if reply.error is ErrorCode.none and reply.member_epoch > 0:
            self.epochs[member] = reply.member_epoch
        else:
            assert reply.error in (ErrorCode.none, ErrorCode.unknown_member_id, ErrorCode.fenced_member_epoch)
            self.epochs.pop(member, None)

    @rule(member=st.sampled_from(MEMBERS), names=st.frozensets(st.sampled_from("abc"), min_size=1))
    def join(self, member: str, names: frozenset[str]) -> None:
        self.beat(member, 0, names)

    @rule(member=st.sampled_from(MEMBERS), back=st.integers(0, 1))
    def heartbeat(self, member: str, back: int) -> None:
        if member in self.epochs:
            self.beat(member, max(self.epochs[member] - back, 1), None)

    @rule(member=st.sampled_from(MEMBERS))
    def leave(self, member: str) -> None:
        self.beat(member, -1, None)

    @rule(seconds=st.sampled_from([1.0, 20.0, 46.0]))
    def time_passes(self, seconds: float) -> None:
        self.driver.seconds += seconds
        if self.driver.group.wake_at <= self.driver.seconds:
            self.driver.perform(self.driver.group.tick(self.driver.now))

    @rule()
    def states_are_made(self) -> None:
        self.driver.initialize()

    @rule(name=st.sampled_from("abc"), partitions=st.integers(0, 4))
    def topic_changes(self, name: str, partitions: int) -> None:
        topics = dict(self.driver.topics)
        known = topics.pop(name, None)
        if partitions:
            topic_id = uuid.uuid4() if known is None else known.topic_id
            topics[name] = topic(name, topic_id, max(partitions, 0 if known is None else len(known.partitions)))
        self.driver.topics = topics

    @rule(hold=st.booleans())
    def appends_become_slow_or_fast(self, hold: bool) -> None:
        self.driver.hold = hold
        while self.driver.held and not hold:
            self.driver.append()

    @precondition(lambda self: self.driver.held)
    @rule()
    def an_append_fails(self) -> None:
        self.driver.append(ErrorCode.coordinator_not_available)

    @precondition(lambda self: not self.driver.held)
    @rule()
    def the_coordinator_moves(self) -> None:
        replayed = self.driver.replayed()
        assert snapshot(replayed) == snapshot(self.driver.group)
        self.driver.group = replayed
        self.driver.perform(replayed.replayed(self.driver.now))

    @precondition(lambda self: self.driver.held)
    @rule(stored=st.integers(0, 12))
    def the_leader_is_lost(self, stored: int) -> None:
        """The next coordinator has the first records of the append under way. Who was answered is not fenced."""
        for key, value in self.driver.held.pop().records()[:stored]:
            self.driver.log.pop(key, None)
            self.driver.log.update({} if value is None else {key: value})
        told = {
            member_id: member.epoch
            for member_id, member in self.driver.group.membership.members.items()
            if self.epochs.get(member_id) == member.epoch
        }
        self.driver.perform(self.driver.group.kill(ErrorCode.not_coordinator, self.driver.now))
        self.driver.hold = False
        self.driver.group = self.driver.replayed()
        self.driver.perform(self.driver.group.replayed(self.driver.now))
        for member_id in told.keys() & self.driver.group.membership.members.keys():
            assert self.driver.beat(member_id, told[member_id], keep=True).error is ErrorCode.none

    @invariant()
    def what_a_member_has_it_subscribes_to_and_there_is_a_state(self) -> None:
        group, names = self.driver.group, {one.topic_id: name for name, one in self.driver.topics.items()}
        for member in group.membership.members.values():
            for one in member.current.assigned:
                name = names.get(one.topic_id)
                shares = group.states.initialized[one.topic_id]
                assert one.partition in shares.partitions
                assert name is None or name in member.subscription.topic_names

    def teardown(self) -> None:
        """Once nothing happens any more, every partition of every subscribed topic has a member."""
        driver = self.driver
        self.appends_become_slow_or_fast(hold=False)
        members = list(driver.group.membership.members)
        for _ in range(3):
            for member in members:
                self.beat(member, 0, frozenset(driver.group.membership.members[member].subscription.topic_names))
            driver.initialize()
        epochs = {
            driver.beat(one, 0, *driver.group.membership.members[one].subscription.topic_names).member_epoch
            for one in members
        }
        assert len(epochs) <= 1
        wanted = driver.group.topics_in_use() & driver.topics.keys()
        every = driver.group.membership.members.values()
        read = frozenset[TopicIdPartition]().union(*(one.current.assigned for one in every))
        assert read == {
            TopicIdPartition(driver.topics[n].topic_id, p) for n in wanted for p in driver.topics[n].partitions
        }
        assert snapshot(driver.replayed()) == snapshot(driver.group)


TestRandomShareGroup = RandomShareGroup.TestCase
TestRandomShareGroup.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)

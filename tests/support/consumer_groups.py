"""Drives one pure consumer group of KIP-848 in tests: turns its clock, keeps its log, and plays its members."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid5

from broker.config.group_config import GroupConfig
from broker.config.setting_groups import GroupSettings
from broker.coordinator import consumer_group_requests
from broker.coordinator.consumer_group_state import ConsumerGroup
from broker.coordinator.group import Effects, Now
from broker.coordinator.modern_group import Batch
from broker.coordinator.modern_group_messages import (
    JOIN_EPOCH,
    HeartbeatReply,
    HeartbeatRequest,
    Partitions,
    Resolve,
    TopicIdPartition,
)
from broker.coordinator.modern_group_records import decode_key
from broker.errors import ErrorCode
from broker.replica.cluster_metadata import PartitionInfo, Topic

START_MS = 1_700_000_000_000
NAMESPACE = UUID(int=7)
FIRST = {"rebalance_timeout_ms": 60_000, "topic_names": frozenset({"t"}), "owned": frozenset()}
"""What a member of topic `t` says when it joins."""
BEGIN_AGAIN = (ErrorCode.fenced_member_epoch, ErrorCode.unknown_member_id, ErrorCode.group_id_not_found)


def topic(name: str, partitions: int, generation: int = 0) -> Topic:
    """A topic whose id depends on its name and on how often it was created again."""
    numbers = range(partitions)
    info = PartitionInfo(leader=0, leader_epoch=0, replicas=(0,), isr=(0,))
    return Topic(name, uuid5(NAMESPACE, f"{name}{generation}"), dict.fromkeys(numbers, info))


def partitions_of(name: str, *numbers: int) -> Partitions:
    return frozenset(TopicIdPartition(topic(name, 0).topic_id, number) for number in numbers)


@dataclass(eq=False)
class Call:
    """One request that waits for its answer; a second answer is an error of the machine."""

    answers: list[Any] = field(default_factory=list)

    @property
    def reply(self) -> Any:
        assert len(self.answers) == 1, self.answers
        return self.answers[0]


class ConsumerGroupDriver:
    """A group, its time and its log. Appends succeed at once unless `hold` is set."""

    def __init__(self, *topics: Topic, session_timeout_ms: int = 45_000, **settings: Any) -> None:
        """`settings`: those of the broker, without `group_consumer_`."""
        self.config = GroupSettings(**{f"group_consumer_{name}": value for name, value in settings.items()})
        self.settings = GroupConfig(consumer_session_timeout_ms=session_timeout_ms)
        self.topics: dict[str, Topic] = {topic.name: topic for topic in topics}
        self.group = self.new_group()
        self.elapsed_ms = 0
        self.hold = False
        self.held: list[Batch] = []
        self.appends = 0
        self.log: dict[bytes, bytes] = {}
        self.resolve: Resolve | None = None

    def new_group(self) -> ConsumerGroup:
        return ConsumerGroup("g", self.config, self.topics, lambda: self.settings)

    def now(self) -> Now:
        return Now(self.elapsed_ms / 1000, START_MS + self.elapsed_ms)

    def perform(self, effects: Effects) -> None:
        for waiter, answer in effects.replies:
            assert isinstance(waiter, Call)
            waiter.answers.append(answer)
            assert len(waiter.answers) == 1, f"answered twice: {waiter.answers}"
        if effects.resolve is not None:
            assert self.resolve is None, "asked for topics while they are being looked up"
            self.resolve = effects.resolve
        for store in effects.stores:
            assert isinstance(store, Batch)
            assert not self.held, "two appends at once"
            self.held.append(store)
        if not self.hold:
            self.release()

    def release(self, error: ErrorCode = ErrorCode.none) -> None:
        """End the append that is under way, and those that follow from it."""
        while self.held:
            store = self.held.pop()
            if error is ErrorCode.none:
                self.appends += 1
                for key, value in store.records():
                    if value is None:
                        self.log.pop(key, None)
                    else:
                        self.log[key] = value
            self.perform(self.group.stored(store, error, self.now()))
            if self.hold:
                break

    def wait(self, ms: int) -> None:
        """Let time pass. The group is woken when it asked for it."""
        until = self.elapsed_ms + ms
        while self.group.wake_at * 1000 <= until:
            self.elapsed_ms = max(self.elapsed_ms, int(self.group.wake_at * 1000) + 1)
            self.perform(self.group.tick(self.now()))
        self.elapsed_ms = max(self.elapsed_ms, until)

    def send(self, request: HeartbeatRequest) -> Call:
        call = Call()
        quiet = consumer_group_requests.unchanged(self.group, request, self.now())
        if quiet is not None and (self.held or self.now().monotonic < self.group.retry_at):
            # It does not wait for what is not stored yet.
            call.answers.append(quiet)
            return call
        self.perform(consumer_group_requests.heartbeat(self.group, request, call, self.now()))
        if quiet is not None:
            assert call.reply == quiet, "the short way and the long one say the same"
        return call

    def heartbeat(self, member_id: str, epoch: int, **fields: Any) -> Call:
        return self.send(HeartbeatRequest("g", member_id, epoch, client_id="c", client_host="/h", **fields))

    def join(self, member_id: str, *names: str, **fields: Any) -> HeartbeatReply:
        """The first heartbeat of a member."""
        says = {"topic_names": frozenset(names), "owned": frozenset(), "rebalance_timeout_ms": 60_000}
        reply: HeartbeatReply = self.heartbeat(member_id, JOIN_EPOCH, **{**says, **fields}).reply
        return reply

    def change_topics(self, topics: Mapping[str, Topic]) -> None:
        self.topics = dict(topics)
        self.perform(self.group.topics_changed(self.topics, self.now()))

    def find_topics(self, found: Mapping[str, set[str]]) -> None:
        """Answer what the group asked to look up."""
        assert self.resolve is not None
        self.resolve = None
        self.perform(self.group.regexes_resolved(found, self.now()))

    def replay(self) -> ConsumerGroup:
        """A group made from the log."""
        group = self.new_group()
        keys = {key: decode_key(key) for key in self.log}
        for raw, key in sorted(keys.items(), key=lambda item: item[1].kind if item[1] else 0):
            assert key is not None
            group.replay(key, self.log[raw])
        return group

    def fail_over(self) -> None:
        """Another broker becomes the coordinator. Requests that wait are refused."""
        self.perform(self.group.kill(ErrorCode.not_coordinator, self.now()))
        self.held.clear()
        self.resolve = None
        self.group = self.replay()
        self.perform(self.group.replayed(self.now()))


@dataclass(eq=False)
class Player:
    """A member that behaves as Kafka's consumer does: it gives up what it must, then says so."""

    driver: ConsumerGroupDriver
    member_id: str
    says: dict[str, Any]
    epoch: int = JOIN_EPOCH
    owned: Partitions = frozenset()
    is_full: bool = True
    """The next heartbeat says everything: it is the first one, or an answer was lost."""
    has_revoked: bool = False
    pending: Call | None = None
    errors: list[ErrorCode] = field(default_factory=list)

    def send(self) -> None:
        """Send a heartbeat, unless one is under way."""
        if self.pending is not None:
            return
        tells_owned = self.is_full or self.has_revoked
        fields = dict(self.says) if self.is_full or self.epoch == JOIN_EPOCH else {}
        fields |= {name: self.says[name] for name in ("instance_id", "client") if name in self.says}
        owned = frozenset() if self.epoch == JOIN_EPOCH else self.owned if tells_owned else None
        self.pending = self.driver.heartbeat(self.member_id, self.epoch, owned=owned, **fields)
        self.is_full = self.has_revoked = False

    def lose(self) -> None:
        """The answer to the last request is lost: the next one says everything."""
        self.pending, self.is_full = None, True

    def receive(self) -> None:
        """Take the answer to the last request, if there is one yet."""
        if self.pending is None or not self.pending.answers:
            return
        reply, self.pending = self.pending.reply, None
        assert isinstance(reply, HeartbeatReply)
        if reply.error is not ErrorCode.none:
            self.errors.append(reply.error)
            self.is_full = True
            if reply.error in BEGIN_AGAIN:
                self.epoch, self.owned = JOIN_EPOCH, frozenset()
            return
        self.epoch = reply.member_epoch
        if reply.assignment is not None and reply.assignment != self.owned:
            self.owned = reply.assignment
            self.has_revoked = True

    def beat(self) -> None:
        self.send()
        self.receive()

    def subscribe(self, **says: Any) -> None:
        self.says.update(says)
        self.is_full = True


def settle(driver: ConsumerGroupDriver, *players: Player, rounds: int = 12) -> None:
    """All members send heartbeats until the group is stable."""
    for _ in range(rounds):
        for player in players:
            player.beat()
        if driver.group.state_name in ("Stable", "Empty") and not any(player.has_revoked for player in players):
            return
    raise AssertionError(f"{driver.group.state_name} after {rounds} rounds")


def player(driver: ConsumerGroupDriver, member_id: str, *names: str, **says: Any) -> Player:
    subscribed = {"topic_names": frozenset(names)} if names else {}
    return Player(driver, member_id, {"rebalance_timeout_ms": 60_000, **subscribed, **says})


def snapshot(group: ConsumerGroup) -> dict[str, Any]:
    """What a replay must give again."""
    membership = group.membership
    return {
        "epochs": (membership.epoch, membership.target_epoch),
        "members": dict(membership.members),
        "regexes": dict(membership.extras),
        "owners": dict(membership.owners),
        "instances": dict(membership.instances),
        "unsettled": set(membership.unsettled),
    }

"""Drives one pure group whose members use the classic protocol, that of KIP-848, or both, as the coordinator does."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from broker.config.group_config import GroupConfig
from broker.config.setting_groups import GroupSettings
from broker.coordinator import consumer_group_requests, group_migration, group_requests, modern_group_records
from broker.coordinator.consumer_group_state import ConsumerGroup
from broker.coordinator.group import Effects, Group, Now, Store
from broker.coordinator.group_messages import JoinReply, JoinRequest, LeavingMember, SyncReply, SyncRequest
from broker.coordinator.group_offsets import GroupOffsets
from broker.coordinator.group_records import GroupKey, decode_group, decode_key
from broker.coordinator.group_state import ClassicGroup
from broker.coordinator.modern_group_messages import JOIN_EPOCH, HeartbeatReply, HeartbeatRequest
from broker.errors import BrokerError, ErrorCode
from broker.protocol.consumer_protocol import (
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from broker.protocol.topic_partition import TopicPartition
from broker.replica.cluster_metadata import Topic
from tests.support.consumer_groups import START_MS, Call


class MixedGroupDriver:
    """The group of one id, of either kind, its time and its log."""

    def __init__(self, *topics: Topic, session_timeout_ms: int = 45_000, **settings: Any) -> None:
        """`settings`: those of the broker, without `group_consumer_`."""
        of_consumers = {f"group_consumer_{name}": value for name, value in settings.items()}
        self.config = GroupSettings(group_initial_rebalance_delay_ms=0, **of_consumers)
        self.settings = GroupConfig(consumer_session_timeout_ms=session_timeout_ms)
        self.topics: dict[str, Topic] = {topic.name: topic for topic in topics}
        self.group: Group = ClassicGroup("g", self.config, START_MS)
        self.elapsed_ms = 0
        self.hold = False
        self.held: list[tuple[Group, Store]] = []
        self.log: dict[bytes, bytes] = {}
        self._ids = 0

    def consumer_group(self, offsets: GroupOffsets | None) -> ConsumerGroup:
        return ConsumerGroup("g", self.config, self.topics, lambda: self.settings, offsets)

    def now(self) -> Now:
        return Now(self.elapsed_ms / 1000, START_MS + self.elapsed_ms)

    def perform(self, group: Group, effects: Effects) -> None:
        for waiter, answer in effects.replies:
            assert isinstance(waiter, Call)
            waiter.answers.append(answer)
            assert len(waiter.answers) == 1, f"answered twice: {waiter.answers}"
        if effects.successor is not None and self.group is group:
            self.group = effects.successor
        self.held += ((group, store) for store in effects.stores)
        if not self.hold:
            self.release()

    def release(self, error: ErrorCode = ErrorCode.none) -> None:
        while self.held:
            group, store = self.held.pop(0)
            if error is ErrorCode.none:
                for key, value in [*((key, None) for key in group.obsolete_keys), *store.records()]:
                    self.log.pop(key, None)
                    self.log.update({} if value is None else {key: value})
                group.obsolete_keys = []
            self.perform(group, group.stored(store, error, self.now()))

    def wait(self, ms: int) -> None:
        until = self.elapsed_ms + ms
        while self.group.wake_at * 1000 <= until:
            self.elapsed_ms = max(self.elapsed_ms, int(self.group.wake_at * 1000) + 1)
            self.perform(self.group, self.group.tick(self.now()))
        self.elapsed_ms = max(self.elapsed_ms, until)

    # --- requests

    def consumer_heartbeat(self, request: HeartbeatRequest) -> Call:
        call = Call()
        if isinstance(self.group, ClassicGroup):
            if request.member_epoch != JOIN_EPOCH:
                call.answers.append(HeartbeatReply(ErrorCode.group_id_not_found))
                return call
            classic, group = self.group, self.consumer_group(self.group.offsets)
            try:
                ends, begins = group_migration.upgrade(classic, request, group, self.now())
            except BrokerError as error:
                call.answers.append(HeartbeatReply(error.code, error.message))
                return call
            self.group = group
            self.perform(classic, ends)
            self.perform(group, begins)
        if not isinstance(self.group, ConsumerGroup):
            call.answers.append(HeartbeatReply(ErrorCode.coordinator_not_available))
            return call
        self.perform(self.group, consumer_group_requests.heartbeat(self.group, request, call, self.now()))
        return call

    def heartbeat(self, member_id: str, epoch: int, **fields: Any) -> Call:
        return self.consumer_heartbeat(HeartbeatRequest("g", member_id, epoch, **fields))

    def join(self, request: JoinRequest) -> Call:
        call = Call()
        self._ids += 1
        if isinstance(self.group, ConsumerGroup) and not self.group.is_empty:
            effects = group_migration.join(self.group, request, f"c{self._ids}", call, self.now())
        else:
            if isinstance(self.group, ConsumerGroup):
                self.group = group_migration.empty_as_classic(self.group, self.now())
            assert isinstance(self.group, ClassicGroup)
            effects = group_requests.join(self.group, request, f"c{self._ids}", call, self.now())
        self.perform(self.group, effects)
        return call

    def sync(self, request: SyncRequest) -> Call:
        call = Call()
        if isinstance(self.group, ConsumerGroup):
            call.answers.append(group_migration.sync(self.group, request, self.now()))
        else:
            assert isinstance(self.group, ClassicGroup)
            self.perform(self.group, group_requests.sync(self.group, request, call, self.now()))
        return call

    def classic_heartbeat(self, member_id: str, generation_id: int, instance_id: str | None = None) -> ErrorCode:
        if isinstance(self.group, ConsumerGroup):
            return group_migration.heartbeat(self.group, member_id, instance_id, generation_id, self.now())
        assert isinstance(self.group, ClassicGroup)
        return group_requests.heartbeat(self.group, member_id, instance_id, generation_id, self.now())

    def leave(self, *members: LeavingMember) -> list[ErrorCode]:
        if isinstance(self.group, ConsumerGroup):
            call = Call()
            self.perform(self.group, group_migration.leave(self.group, members, call, self.now()))
            return [error for _, error in call.reply.members] if call.answers else []
        assert isinstance(self.group, ClassicGroup)
        effects, results = group_requests.leave(self.group, members, self.now())
        self.perform(self.group, effects)
        return [error for _, error in results]

    def replay(self) -> Group:
        """The group that another broker reads from the log."""
        of_consumers = [(modern_group_records.decode_key(key), value) for key, value in self.log.items()]
        known = sorted(((key, value) for key, value in of_consumers if key is not None), key=lambda row: row[0].kind)
        group: Group
        if known:
            assert not any(isinstance(decode_key(key), GroupKey) for key in self.log), "records of both kinds"
            group = self.consumer_group(None)
            for key, value in known:
                group.replay(key, value)
        else:
            group = ClassicGroup("g", self.config, START_MS)
            for value in self.log.values():
                group.install(decode_group(value), self.now())
        return group

    def fail_over(self) -> None:
        self.perform(self.group, self.group.kill(ErrorCode.not_coordinator, self.now()))
        self.held.clear()
        self.group = self.replay()
        self.perform(self.group, self.group.replayed(self.now()))


@dataclass(eq=False)
class ClassicPlayer:
    """A consumer of the classic protocol. As a leader it divides each topic in turn among who wants it.

    `is_eager`: it gives up everything before it joins again. Else (KIP-429) it gives up only what is taken.
    """

    driver: MixedGroupDriver
    topics: frozenset[str]
    is_eager: bool = False
    instance_id: str | None = None
    rebalance_ms: int = 8_000
    member_id: str = ""
    generation_id: int = -1
    owned: frozenset[TopicPartition] = frozenset()
    state: str = "new"
    """new → joining → joined → syncing → stable"""
    pending: Call | None = None
    leads: tuple[Any, ...] = ()
    errors: list[ErrorCode] = field(default_factory=list)

    def beat(self) -> None:
        """Take an answer that has come, then send the next request."""
        if self.pending is not None:
            if not self.pending.answers:
                return
            reply, self.pending = self.pending.reply, None
            if isinstance(reply, JoinReply):
                self._joined(reply)
            else:
                self._synced(reply)
        if self.state == "new":
            self._join()
        elif self.state == "joined":
            self._sync()
        elif self.state == "stable":
            error = self.driver.classic_heartbeat(self.member_id, self.generation_id, self.instance_id)
            if error is not ErrorCode.none:
                self._failed(error)

    def _failed(self, error: ErrorCode) -> None:
        self.state = "new"
        if error is ErrorCode.rebalance_in_progress:
            return
        self.errors.append(error)
        if error in (ErrorCode.unknown_member_id, ErrorCode.illegal_generation, ErrorCode.fenced_instance_id):
            self.owned = frozenset()
            self.member_id = "" if error is not ErrorCode.illegal_generation else self.member_id

    def _join(self) -> None:
        if self.is_eager:
            self.owned = frozenset()
        metadata = encode_subscription(Subscription(tuple(self.topics), tuple(self.owned), self.generation_id))
        protocols = (("range", metadata),)
        ids = "g", self.member_id, "client", "/host", "consumer"
        request = JoinRequest(*ids, protocols, 10_000, self.rebalance_ms, self.instance_id, self.instance_id is None)
        self.pending, self.state = self.driver.join(request), "joining"

    def _joined(self, reply: JoinReply) -> None:
        if reply.error is ErrorCode.member_id_required:
            self.member_id, self.state = reply.member_id, "new"
        elif reply.error is not ErrorCode.none:
            self._failed(reply.error)
        else:
            self.member_id, self.generation_id, self.leads = reply.member_id, reply.generation_id, reply.members
            self.state = "joined"

    def _sync(self) -> None:
        request = SyncRequest("g", self.generation_id, self.member_id, self._assignments(), self.instance_id)
        self.pending, self.state = self.driver.sync(request), "syncing"

    def _assignments(self) -> dict[str, bytes]:
        """The leader's: what somebody owns stays there; what must move is given to nobody in this generation."""
        wants = {member.member_id: decode_subscription(member.metadata) for member in self.leads}
        owners = {tp: member_id for member_id, each in wants.items() for tp in each.owned}
        given: dict[str, list[TopicPartition]] = {member_id: [] for member_id in wants}
        for name in sorted(self.driver.topics):
            members = sorted(member_id for member_id, each in wants.items() if name in each.topics)
            for number in self.driver.topics[name].partitions if members else ():
                tp = TopicPartition(name, number)
                owner, target = owners.get(tp), members[number % len(members)]
                if owner in (None, target):
                    given[target].append(tp)
        return {member_id: encode_assignment(tps) for member_id, tps in given.items()}

    def _synced(self, reply: SyncReply) -> None:
        if reply.error is not ErrorCode.none:
            self._failed(reply.error)
            return
        assigned = frozenset(decode_assignment(reply.assignment))
        lost, self.owned, self.state = self.owned - assigned, assigned, "stable"
        if lost and not self.is_eager:
            self.state = "new"  # it has given something up, which another member waits for

    def leave(self) -> None:
        self.driver.leave(LeavingMember(self.member_id, self.instance_id))


def named(topics: dict[str, Topic], partitions: Any) -> frozenset[TopicPartition]:
    """The partitions of a consumer by topic name."""
    names = {topic.topic_id: topic.name for topic in topics.values()}
    return frozenset(TopicPartition(names[tp.topic_id], tp.partition) for tp in partitions if tp.topic_id in names)

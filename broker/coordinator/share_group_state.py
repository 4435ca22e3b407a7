"""One share group (KIP-932): its members, what each of them reads, and whose share states exist. Pure.

The coordinator assigns partitions, to several members each; nobody must give up one before another may have it. So
there is no rebalance: the next heartbeat brings a member to its target. A partition is assigned once the share
coordinator has a state for it, which `ShareGroupStates` makes. Rules and errors are those of Kafka's
`GroupMetadataManager` and `ShareGroup`.

What the group is, is what is stored of it: `stored` is a map from keys to values of `share_group_records`. An event
works on a copy. If that differs, the difference is appended, and the event is answered when it is in the log. Events
that come meanwhile wait, and are applied after it, some together as one append.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any, NamedTuple
from uuid import UUID

from broker.config.group_config import GroupConfig
from broker.config.setting_groups import GroupSettings
from broker.coordinator.group import Effects, Group, GroupKind, Now, Reply, Waiter
from broker.coordinator.group_assignors import AssignedMember, simple
from broker.coordinator.group_offsets import GroupOffsets
from broker.coordinator.modern_group_messages import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    ConsumerGroupDescription,
    HeartbeatReply,
    HeartbeatRequest,
    MemberDescription,
    Partitions,
    TopicIdPartition,
    Topics,
)
from broker.coordinator.modern_group_records import TargetEpoch, by_topic_id
from broker.coordinator.record_reader import KeyValue
from broker.coordinator.share_group_records import (
    GroupEpoch,
    ShareAssignment,
    ShareGroupKey,
    ShareRecord,
    ShareSubscription,
    StatePartitions,
    TopicShares,
    encode_key,
    encode_value,
)
from broker.errors import BrokerError, ErrorCode

logger = logging.getLogger(__name__)

SHARE_PROTOCOL_TYPE = "share"
SOON_MS = 1_000
"""When a member shall ask again that waits for share states."""

EVENTS_AT_ONCE = 20
"""Events of one append. Each join assigns all partitions, perhaps 10,000, and other requests must not wait for all."""

_UNKNOWN: Any = object()
"""The value of a key whose append failed: it may be in the log or not."""
_DELETED_IN_ORDER = (
    ShareRecord.CURRENT,
    ShareRecord.TARGET,
    ShareRecord.MEMBER,
    ShareRecord.STATE_PARTITIONS,
    ShareRecord.TARGET_EPOCH,
    ShareRecord.GROUP_EPOCH,
)

Values = dict[ShareGroupKey, Any]


class StatesReply(NamedTuple):
    """The answer to a change of the states: the group's epoch and its states after it."""

    error: ErrorCode
    error_message: str = ""
    epoch: int = 0
    states: StatePartitions = StatePartitions()


class _Event(NamedTuple):
    """`change` changes the values and returns the answer. It raises BrokerError before it changes anything."""

    waiter: Waiter | None
    change: Callable[[Values, Now], Any]
    answer: Callable[..., Any] = StatesReply
    """Makes the answer of an error and a text."""


class ShareStore:
    """What changes by one append."""

    def __init__(self, logged: Values, values: Values, replies: list[Reply]) -> None:
        self.values = values
        self.replies = replies
        self.changes = {key: value for key, value in values.items() if logged.get(key) != value}
        self.gone = sorted((key for key in logged if key not in values), key=_deletion_order)

    def records(self) -> list[KeyValue]:
        tombstones: list[KeyValue] = [(encode_key(key), None) for key in self.gone]
        ordered = sorted(self.changes.items(), key=lambda one: one[0])
        return tombstones + [(encode_key(key), encode_value(value)) for key, value in ordered]


def _deletion_order(key: ShareGroupKey) -> int:
    return _DELETED_IN_ORDER.index(key.kind)


class ShareGroup(Group):
    """The state machine of one share group."""

    kind = GroupKind.SHARE

    def __init__(
        self,
        group_id: str,
        config: GroupSettings,
        offsets: GroupOffsets | None = None,
        settings: Callable[[], GroupConfig] = GroupConfig,
    ) -> None:
        """`settings` gives those in force of the group."""
        super().__init__(group_id, config, offsets)
        self._settings = settings
        self.values: Values = {}
        """What is stored. On replay, `values[key]` is set for each record."""
        self._logged: Values = {}
        self._deadlines: dict[str, float] = {}
        self._storing: ShareStore | None = None
        self._queue: list[_Event] = []
        self._dead = False
        self._settled: tuple[Topics, StatePartitions] | None = None
        """For these topics and states, every partition is assigned."""

    # --- what it is

    @property
    def state_name(self) -> str:
        return "Dead" if self._dead else "Stable" if self.member_count else "Empty"

    @property
    def protocol_type(self) -> str | None:
        return SHARE_PROTOCOL_TYPE

    @property
    def member_count(self) -> int:
        return sum(key.kind is ShareRecord.MEMBER for key in self.values)

    @property
    def is_empty(self) -> bool:
        return not (self.member_count or self._storing or self._queue)

    @property
    def is_unused(self) -> bool:
        """Only if nothing of it is stored: its share states end by DeleteGroups alone (as in Kafka)."""
        return super().is_unused and not self._logged

    @property
    def has_records(self) -> bool:
        return bool(self._logged)

    @property
    def is_dead(self) -> bool:
        return self._dead

    def set_dead(self, dead: bool) -> None:
        self._dead = dead

    def stored_keys(self) -> list[bytes]:
        return [encode_key(key) for key in sorted(self._logged, key=_deletion_order)]

    def topics_in_use(self) -> frozenset[str] | None:
        return self._names(self.values)

    @property
    def epoch(self) -> int:
        return _epoch(self.values, self.group_id)

    @property
    def states(self) -> StatePartitions:
        return self._states(self.values)

    def states_of(self, names: Collection[str]) -> set[UUID]:
        """The ids of topics of these names that have share states, or are to have some."""
        states = self.states
        known = (*states.initializing.items(), *states.initialized.items())
        return {topic_id for topic_id, shares in known if shares.name in names}

    def describe(self) -> ConsumerGroupDescription:
        values = self.values
        members = [
            MemberDescription(
                member_id,
                None,
                member.rack_id,
                self._current(values, member_id).epoch,
                member.client_id,
                member.client_host,
                sorted(member.topic_names),
                None,
                self._current(values, member_id).assigned,
                values.get(self._key(ShareRecord.TARGET, member_id), frozenset()),
            )
            for member_id, member in self._members(values).items()
        ]
        epochs = self.epoch, self._target_epoch(values)
        return ConsumerGroupDescription(self.group_id, self.state_name, *epochs, simple.__name__, tuple(members))

    # --- events

    def heartbeat(self, request: HeartbeatRequest, topics: Topics, waiter: Waiter, now: Now) -> Effects:
        """ShareGroupHeartbeat. The answer is a HeartbeatReply."""
        return self._apply(_Event(waiter, partial(self._heartbeat, request, topics), HeartbeatReply), now)

    def initialized(self, partitions: Partitions, waiter: Waiter, now: Now) -> Effects:
        """The share coordinator has states for these partitions. The answer is a StatesReply."""
        return self._apply(_Event(waiter, partial(self._initialized, partitions)), now)

    def reinitialize(self, topics: Mapping[UUID, TopicShares], waiter: Waiter, now: Now) -> Effects:
        """AlterShareGroupOffsets: states of these partitions begin anew, at the epoch of the StatesReply.

        It has the error `non_empty_group` if there are members.
        """
        return self._apply(_Event(waiter, partial(self._reinitialize, topics)), now)

    def forget(self, topic_ids: Iterable[UUID], waiter: Waiter | None, now: Now, *, deleted: bool) -> Effects:
        """The states of the topics are to be deleted, or (`deleted`) are. The answer is a StatesReply.

        It has the error `non_empty_group` if they are not deleted and there are members.
        """
        return self._apply(_Event(waiter, partial(self._forget, frozenset(topic_ids), deleted)), now)

    def begin(self, now: Now) -> Effects:
        self._logged = dict(self.values)
        for member_id in self._members(self.values):
            self._touch(member_id, now)
        return Effects()

    def tick(self, now: Now) -> Effects:
        self.wake_at = now.monotonic + SOON_MS / 1000
        if self._storing is not None:
            return Effects()
        self._deadlines = {one: self._deadlines.get(one, now.monotonic) for one in self._members(self.values)}
        expired = [one for one, deadline in self._deadlines.items() if deadline <= now.monotonic]
        if not expired:
            self.wake_at = min(self._deadlines.values(), default=inf)
        return self._run([_Event(None, partial(self._leave, one)) for one in expired], now)

    def stored(self, store: ShareStore, error: ErrorCode, now: Now) -> Effects:
        if self._storing is not store:
            return Effects()  # killed meanwhile
        self._storing = None
        replies = store.replies
        if error is ErrorCode.none:
            self.values, self._logged = store.values, dict(store.values)
        else:
            self._logged.update(dict.fromkeys([*store.changes, *store.gone], _UNKNOWN))
            self._settled = None
            if error is ErrorCode.rebalance_in_progress:
                error = ErrorCode.coordinator_not_available  # it took too long
            replies = [Reply(waiter, type(answer)(error, "it could not be stored")) for waiter, answer in replies]
        effects = Effects()
        while self._queue and self._storing is None:
            events, self._queue = self._queue[:EVENTS_AT_ONCE], self._queue[EVENTS_AT_ONCE:]
            effects = self._run(events, now)
            replies = [*replies, *effects.replies]
        return Effects(replies, effects.stores)

    def kill(self, error: ErrorCode, now: Now) -> Effects:
        self._dead, self.wake_at = True, inf
        replies = self._storing.replies if self._storing is not None else []
        killed = [Reply(waiter, type(answer)(error)) for waiter, answer in replies]
        killed += [Reply(one.waiter, one.answer(error)) for one in self._queue]
        self._storing, self._queue = None, []
        return Effects(killed)

    def _apply(self, event: _Event, now: Now) -> Effects:
        if self._storing is not None:
            self._queue.append(event)
            return Effects()
        return self._run([event], now)

    def _run(self, events: Sequence[_Event], now: Now) -> Effects:
        values: Values = dict(self.values)
        replies: list[Reply] = []
        for event in events:
            try:
                answer = event.change(values, now)
            except BrokerError as error:
                answer = event.answer(error.code, error.message)
            except Exception:  # a defect of ours: what it may have changed is dropped, and the others begin again
                logger.exception("share group %s: a request failed", self.group_id)
                effects = self._run([one for one in events if one is not event], now)
                answer = event.answer(ErrorCode.unknown_server_error, "The request failed; the broker's log says why.")
                told = [] if event.waiter is None else [Reply(event.waiter, answer)]
                return Effects([*effects.replies, *told], effects.stores)
            if event.waiter is not None:
                replies.append(Reply(event.waiter, answer))
        if values == self.values:
            return Effects(replies)
        self._storing = ShareStore(self._logged, values, replies)
        return Effects(stores=[self._storing])

    # --- changes

    def _heartbeat(self, request: HeartbeatRequest, topics: Topics, values: Values, now: Now) -> HeartbeatReply:
        member_id, config = request.member_id, self.config
        if request.member_epoch == LEAVE_EPOCH:
            self._member(values, member_id)
            self._leave(member_id, values, now)
            return HeartbeatReply(ErrorCode.none, None, member_id, LEAVE_EPOCH)
        if request.member_epoch != JOIN_EPOCH:
            self._member(values, member_id)
        known = values.get(self._key(ShareRecord.MEMBER, member_id))
        if known is None and len(self._members(values)) >= config.group_share_max_size:
            reason = f"The share group has reached its maximum capacity of {config.group_share_max_size} members."
            raise BrokerError(ErrorCode.group_max_size_reached, reason)
        before = self._current(values, member_id)
        _check_epoch(request.member_epoch, before)
        known = known or ShareSubscription()
        names = known.topic_names if request.topic_names is None else request.topic_names
        rack_id = known.rack_id if request.rack_id is None else request.rack_id
        member = ShareSubscription(rack_id, request.client_id, request.client_host, names)
        values[self._key(ShareRecord.MEMBER, member_id)] = member
        self._touch(member_id, now)
        self._assign(values, topics, now, changed=names != known.topic_names)
        after = self._reconcile(values, member_id, topics)
        is_full = request.member_epoch == JOIN_EPOCH or request.topic_names is not None
        waits, interval_ms = bool(self._states(values).initializing), self._settings().share_heartbeat_interval_ms
        return HeartbeatReply(
            ErrorCode.none,
            None,
            member_id,
            after.epoch,
            min(SOON_MS, interval_ms) if waits else interval_ms,
            after.assigned if is_full or after.assigned != before.assigned else None,
        )

    def _assign(self, values: Values, topics: Topics, now: Now, *, changed: bool) -> None:
        """Compute the targets anew if members, topics or states have changed."""
        self._request_states(values, topics)
        states, group_epoch = self._states(values), _epoch(values, self.group_id)
        is_settled = self._settled is not None and self._settled[0] is topics and self._settled[1] is states
        if not changed and is_settled and self._target_epoch(values) == group_epoch:
            return
        members = {
            one: AssignedMember(
                _ids(member.topic_names, topics), values.get(self._key(ShareRecord.TARGET, one), frozenset())
            )
            for one, member in sorted(self._members(values).items())
        }
        wanted = frozenset[UUID]().union(*(one.topic_ids for one in members.values()))
        assignable = {one: sorted(shares.partitions) for one, shares in states.initialized.items() if one in wanted}
        targets = frozenset[TopicIdPartition]().union(*(one.target for one in members.values()))
        if changed or targets != {
            TopicIdPartition(one, number) for one, found in assignable.items() for number in found
        }:
            group_epoch += 1
            values[self._key(ShareRecord.GROUP_EPOCH)] = GroupEpoch(group_epoch)
        if group_epoch > self._target_epoch(values):
            for one, target in simple(members, assignable).items():
                values[self._key(ShareRecord.TARGET, one)] = target
            values[self._key(ShareRecord.TARGET_EPOCH)] = TargetEpoch(group_epoch, now.wall_ms)
        self._settled = (topics, states)

    def _request_states(self, values: Values, topics: Topics) -> None:
        """Note whose states are to be made."""
        states = self._states(values)
        missing = {}
        for name in self._names(values):
            if (topic := topics.get(name)) is not None:
                known = [
                    one[topic.topic_id] for one in (states.initialized, states.initializing) if topic.topic_id in one
                ]
                partitions = frozenset(range(len(topic.partitions))).difference(*(one.partitions for one in known))
                if partitions:
                    missing[topic.topic_id] = TopicShares(name, partitions)
        if missing:
            deleting = {one: name for one, name in states.deleting.items() if one not in missing}
            initializing = _joined(states.initializing, missing)
            values[self._key(ShareRecord.STATE_PARTITIONS)] = StatePartitions(
                initializing, states.initialized, deleting
            )

    def _reconcile(self, values: Values, member_id: str, topics: Topics) -> ShareAssignment:
        current, epoch = self._current(values, member_id), self._target_epoch(values)
        subscribed = _ids(values[self._key(ShareRecord.MEMBER, member_id)].topic_names, topics)
        target: Partitions = values.get(self._key(ShareRecord.TARGET, member_id), frozenset())
        assigned = frozenset(one for one in target if one.topic_id in subscribed)
        if current.epoch != epoch:
            current = ShareAssignment(epoch, current.epoch, assigned)
        current = replace(current, assigned=assigned)
        values[self._key(ShareRecord.CURRENT, member_id)] = current
        return current

    def _leave(self, member_id: str, values: Values, now: Now) -> None:
        for kind in (ShareRecord.CURRENT, ShareRecord.TARGET, ShareRecord.MEMBER):
            values.pop(self._key(kind, member_id), None)
        values[self._key(ShareRecord.GROUP_EPOCH)] = GroupEpoch(_epoch(values, self.group_id) + 1)

    def _initialized(self, partitions: Partitions, values: Values, now: Now) -> StatesReply:
        states, done = (
            self._states(values),
            {one: frozenset(numbers) for one, numbers in by_topic_id(partitions).items()},
        )
        ready = {one: states.initializing[one] for one in done if one in states.initializing}
        ready = {one: TopicShares(name, numbers & done[one]) for one, (name, numbers) in ready.items()}
        left = {
            one: TopicShares(name, numbers - done.get(one, frozenset()))
            for one, (name, numbers) in states.initializing.items()
        }
        left = {one: shares for one, shares in left.items() if shares.partitions}
        return self._with_states(values, StatePartitions(left, _joined(states.initialized, ready), states.deleting))

    def _reinitialize(self, topics: Mapping[UUID, TopicShares], values: Values, now: Now) -> StatesReply:
        self._check_empty(values)
        states = self._states(values)
        values[self._key(ShareRecord.GROUP_EPOCH)] = GroupEpoch(_epoch(values, self.group_id) + 1)
        deleting = {one: name for one, name in states.deleting.items() if one not in topics}
        initializing = _joined(states.initializing, topics)
        return self._with_states(values, StatePartitions(initializing, states.initialized, deleting))

    def _forget(self, topic_ids: frozenset[UUID], deleted: bool, values: Values, now: Now) -> StatesReply:
        if not deleted:
            self._check_empty(values)
        states = self._states(values)
        known = {**states.initializing, **states.initialized}
        deleting = {one: name for one, name in states.deleting.items() if one not in topic_ids}
        if not deleted:
            deleting |= {one: known[one].name for one in topic_ids if one in known}
            deleting |= {one: name for one, name in states.deleting.items() if one in topic_ids}
        initializing, initialized = (
            {one: shares for one, shares in topics.items() if one not in topic_ids}
            for topics in (states.initializing, states.initialized)
        )
        return self._with_states(values, StatePartitions(initializing, initialized, deleting))

    def _with_states(self, values: Values, states: StatePartitions) -> StatesReply:
        values[self._key(ShareRecord.STATE_PARTITIONS)] = states
        return StatesReply(ErrorCode.none, "", _epoch(values, self.group_id), states)

    def _check_empty(self, values: Values) -> None:
        if self._members(values):
            raise BrokerError(ErrorCode.non_empty_group, f"share group {self.group_id} has members")

    # --- look-ups

    def _key(self, kind: ShareRecord, member_id: str = "") -> ShareGroupKey:
        return ShareGroupKey(kind, self.group_id, member_id)

    def _members(self, values: Values) -> dict[str, ShareSubscription]:
        return {key.member_id: member for key, member in values.items() if key.kind is ShareRecord.MEMBER}

    def _member(self, values: Values, member_id: str) -> ShareSubscription:
        member: ShareSubscription | None = values.get(self._key(ShareRecord.MEMBER, member_id))
        if member is None:
            raise BrokerError(
                ErrorCode.unknown_member_id, f"Member {member_id} is not a member of group {self.group_id}."
            )
        return member

    def _names(self, values: Values) -> frozenset[str]:
        return frozenset[str]().union(*(member.topic_names for member in self._members(values).values()))

    def _current(self, values: Values, member_id: str) -> ShareAssignment:
        current: ShareAssignment = values.get(self._key(ShareRecord.CURRENT, member_id), ShareAssignment())
        return current

    def _states(self, values: Values) -> StatePartitions:
        states: StatePartitions = values.get(self._key(ShareRecord.STATE_PARTITIONS), StatePartitions())
        return states

    def _target_epoch(self, values: Values) -> int:
        found: TargetEpoch = values.get(self._key(ShareRecord.TARGET_EPOCH), TargetEpoch(0))
        return found.epoch

    def _touch(self, member_id: str, now: Now) -> None:
        deadline = now.monotonic + self._settings().share_session_timeout_ms / 1000
        self._deadlines[member_id] = deadline
        self.wake_at = min(self.wake_at, deadline)


def _epoch(values: Values, group_id: str) -> int:
    found: GroupEpoch = values.get(ShareGroupKey(ShareRecord.GROUP_EPOCH, group_id), GroupEpoch(1))
    return found.epoch


def _check_epoch(received: int, current: ShareAssignment) -> None:
    """A member may say the epoch before: the answer with the newer one was lost. 0 begins again."""
    if received in (JOIN_EPOCH, current.epoch, current.previous_epoch):
        return
    word = "greater" if received > current.epoch else "smaller"
    raise BrokerError(
        ErrorCode.fenced_member_epoch,
        f"The share group member has a {word} member epoch ({received}) than the one known by the group coordinator "
        f"({current.epoch}). The member must abandon all its partitions and rejoin.",
    )


def _ids(names: Iterable[str], topics: Topics) -> frozenset[UUID]:
    return frozenset(topics[name].topic_id for name in names if name in topics)


def _joined(left: Mapping[UUID, TopicShares], right: Mapping[UUID, TopicShares]) -> dict[UUID, TopicShares]:
    both = dict(left)
    for topic_id, (name, partitions) in right.items():
        known = both.get(topic_id, TopicShares(name, frozenset()))
        both[topic_id] = TopicShares(name, known.partitions | partitions)
    return both

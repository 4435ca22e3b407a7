"""One share group (KIP-932): its members, what each of them reads, and whose share states exist. Pure.

It is a `ModernGroup` in which several members get a partition; nobody must give up one before another may have it. So
there is no rebalance: the next heartbeat brings a member to its target. A partition is assigned once the share
coordinator has a state for it, which `ShareGroupStates` makes. Rules and errors are those of Kafka's
`GroupMetadataManager` and `ShareGroup`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from broker.config.group_config import GroupConfig
from broker.config.setting_groups import GroupSettings
from broker.coordinator import share_group_records
from broker.coordinator.group import Effects, GroupKind, Now, Reply, Waiter
from broker.coordinator.group_assignors import Assignable, Assignor, simple
from broker.coordinator.group_offsets import GroupOffsets
from broker.coordinator.modern_group import Call, ModernGroup, Steps
from broker.coordinator.modern_group_members import Member, Membership
from broker.coordinator.modern_group_messages import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    HeartbeatReply,
    HeartbeatRequest,
    Partitions,
    TopicIdPartition,
    Topics,
)
from broker.coordinator.modern_group_records import by_topic_id
from broker.coordinator.share_group_records import (
    ShareAssignment,
    ShareGroupKey,
    ShareRecord,
    ShareSubscription,
    StatePartitions,
    TopicShares,
)
from broker.errors import BrokerError, ErrorCode

SOON_MS = 1_000
"""When a member shall ask again that waits for share states."""


class StatesReply(NamedTuple):
    """The answer to a change of the states: the group's epoch and its states after it."""

    error: ErrorCode
    error_message: str = ""
    epoch: int = 0
    states: StatePartitions = StatePartitions()


class ShareMembership(Membership):
    """That of a share group. The only extra is its states."""

    records, key, kinds, extra = share_group_records, ShareGroupKey, ShareRecord, ShareRecord.STATE_PARTITIONS
    first = Member("", ShareSubscription(), ShareAssignment(previous_epoch=-1))

    @property
    def states(self) -> StatePartitions:
        return self.extras.get("") or StatePartitions()

    def set_states(
        self,
        initializing: Mapping[UUID, TopicShares],
        initialized: Mapping[UUID, TopicShares],
        deleting: Mapping[UUID, str],
    ) -> None:
        self.extras = {"": StatePartitions(initializing, initialized, deleting)}


class ShareGroup(ModernGroup):
    """The state machine of one share group."""

    kind = GroupKind.SHARE
    protocol_type = "share"
    membership: ShareMembership

    def __init__(
        self,
        group_id: str,
        config: GroupSettings,
        offsets: GroupOffsets | None = None,
        settings: Callable[[], GroupConfig] = GroupConfig,
        topics: Topics | None = None,
    ) -> None:
        super().__init__(group_id, config, offsets, topics or {}, settings)
        self.membership = ShareMembership()

    @property
    def assignor_name(self) -> str:
        return simple.__name__

    @property
    def is_unused(self) -> bool:
        """Only if nothing of it is stored: its share states end by DeleteGroups alone (as in Kafka)."""
        return super().is_unused and not self.has_records

    @property
    def epoch(self) -> int:
        epoch: int = self.membership.epoch.epoch
        return epoch

    @property
    def states(self) -> StatePartitions:
        return self.membership.states

    def states_of(self, names: Collection[str]) -> set[UUID]:
        """The ids of topics of these names that have share states, or are to have some."""
        known = (*self.states.initializing.items(), *self.states.initialized.items())
        return {topic_id for topic_id, shares in known if shares.name in names}

    def session_timeout_ms(self, member: Member) -> int:
        return self.settings().share_session_timeout_ms

    # --- heartbeats

    def heartbeat(self, request: HeartbeatRequest, topics: Topics, waiter: Waiter, now: Now) -> Effects:
        """ShareGroupHeartbeat. The answer is a HeartbeatReply. `topics` are those of the cluster."""
        self.topics = topics
        if (quiet := self._unchanged(request, now)) is not None:
            return Effects([Reply(waiter, quiet)])
        rule = self._leave if request.member_epoch == LEAVE_EPOCH else self._heartbeat
        return self.submit(Call(waiter, request.member_id, partial(rule, request), HeartbeatReply), now)

    def _unchanged(self, request: HeartbeatRequest, now: Now) -> HeartbeatReply | None:
        """The reply to a heartbeat that changes nothing. None for others."""
        member = self.membership.members.get(request.member_id)
        if member is None or self._seen_topics is not self.topics or request.topic_names is not None or self.is_dead:
            return None
        if not JOIN_EPOCH < request.member_epoch == member.epoch or not self.membership.is_settled(member):
            return None
        if _subscription(member.subscription, request) is not member.subscription:
            return None
        self.touch(member, now)
        return self._reply(member, self.membership, None)

    def _reply(self, member: Member, membership: ShareMembership, assignment: Partitions | None) -> HeartbeatReply:
        interval_ms = self.settings().share_heartbeat_interval_ms
        if membership.states.initializing:
            interval_ms = min(SOON_MS, interval_ms)
        return HeartbeatReply(ErrorCode.none, None, member.member_id, member.epoch, interval_ms, assignment)

    def _heartbeat(self, request: HeartbeatRequest, draft: ShareMembership, now: Now) -> Steps:
        joins, most = request.member_epoch == JOIN_EPOCH, self.config.group_share_max_size
        member = draft.members.get(request.member_id)
        if member is None:
            if not joins:
                raise self._unknown(request)
            if len(draft.members) >= most:
                reason = f"The share group has reached its maximum capacity of {most} members."
                raise BrokerError(ErrorCode.group_max_size_reached, reason)
            member = draft.new_member(request.member_id)
        _check_epoch(request.member_epoch, member.current)
        said, before = _subscription(member.subscription, request), member.current
        if said is not member.subscription or member.is_unfinished:
            draft.put(member._replace(subscription=said))
            draft.bumps_epoch |= said.topic_names != member.subscription.topic_names
        yield
        self.touch(member, now)
        member = draft.members[request.member_id]
        subscribed = draft.topic_ids(said, self.topics)
        assigned = frozenset(one for one in member.target if one.topic_id in subscribed)
        epoch = draft.target_epoch.epoch
        if (epoch, assigned) != (before.epoch, before.assigned):
            previous = max(before.epoch if before.epoch != epoch else before.previous_epoch, 0)
            member = member._replace(current=ShareAssignment(epoch, previous, assigned))
            draft.put(member)
        is_full = joins or request.topic_names is not None
        return self._reply(member, draft, assigned if is_full or assigned != before.assigned else None)

    def _leave(self, request: HeartbeatRequest, draft: ShareMembership, now: Now) -> Steps:
        if request.member_id not in draft.members:
            raise self._unknown(request)
        draft.remove(request.member_id)
        draft.bumps_epoch = True
        yield
        return HeartbeatReply(ErrorCode.none, None, request.member_id, LEAVE_EPOCH)

    def _unknown(self, request: HeartbeatRequest) -> BrokerError:
        reason = f"Member {request.member_id} is not a member of group {self.group_id}."
        return BrokerError(ErrorCode.unknown_member_id, reason)

    # --- targets

    def _update_targets(self, draft: ShareMembership, now: Now) -> None:
        is_other = draft.bumps_epoch or draft.extras is not draft.base.extras
        if is_other or self._seen_topics is not self.topics:
            self._request_states(draft)
            assignable = self._assignable(draft).items()
            wanted = {TopicIdPartition(topic_id, number) for topic_id, numbers in assignable for number in numbers}
            targets = frozenset[TopicIdPartition]().union(*(one.target for one in draft.members.values()))
            draft.bumps_epoch |= wanted != targets
        super()._update_targets(draft, now)

    def _request_states(self, draft: ShareMembership) -> None:
        """Note whose states are to be made."""
        states = draft.states
        missing = {}
        for name in draft.topic_names() & self.topics.keys():
            topic = self.topics[name]
            known = [one[topic.topic_id] for one in (states.initialized, states.initializing) if topic.topic_id in one]
            partitions = frozenset(range(len(topic.partitions))).difference(*(one.partitions for one in known))
            if partitions:
                missing[topic.topic_id] = TopicShares(name, partitions)
        if missing:
            self._initialize(draft, missing)

    def _assignable(self, draft: ShareMembership) -> Assignable:
        wanted = {topic.topic_id for name in draft.topic_names() if (topic := self.topics.get(name))}
        initialized = draft.states.initialized.items()
        return {one: tuple(sorted(shares.partitions)) for one, shares in initialized if one in wanted}

    def _assignor(self, draft: ShareMembership) -> tuple[Assignor, Assignable]:
        return simple, self._assignable(draft)

    # --- share states

    def initialized(self, partitions: Partitions, waiter: Waiter, now: Now) -> Effects:
        """The share coordinator has states for these partitions. The answer is a StatesReply."""
        done = {one: frozenset(numbers) for one, numbers in by_topic_id(partitions).items()}

        def change(draft: ShareMembership) -> None:
            states = draft.states
            ready, left = {}, {}
            for one, (name, numbers) in states.initializing.items():
                if numbers & done.get(one, frozenset()):
                    ready[one] = TopicShares(name, numbers & done[one])
                if numbers - done.get(one, frozenset()):
                    left[one] = TopicShares(name, numbers - done.get(one, frozenset()))
            draft.set_states(left, _joined(states.initialized, ready), states.deleting)

        return self._change(change, waiter, now)

    def reinitialize(self, topics: Mapping[UUID, TopicShares], waiter: Waiter, now: Now) -> Effects:
        """AlterShareGroupOffsets: states of these partitions begin anew, at the epoch of the StatesReply.

        It has the error `non_empty_group` if there are members.
        """

        def change(draft: ShareMembership) -> None:
            self._check_empty(draft)
            self._initialize(draft, topics)
            draft.bumps_epoch = True

        return self._change(change, waiter, now)

    def forget(self, topic_ids: Iterable[UUID], waiter: Waiter | None, now: Now, *, deleted: bool) -> Effects:
        """The states of the topics are to be deleted, or (`deleted`) are. The answer is a StatesReply.

        It has the error `non_empty_group` if they are not deleted and there are members.
        """
        forgotten = frozenset(topic_ids)

        def change(draft: ShareMembership) -> None:
            states = draft.states
            gone = states.deleting
            if deleted:
                gone = _without(states.deleting, forgotten)
            else:
                self._check_empty(draft)
                known = {**states.initializing, **states.initialized}
                gone = {**states.deleting, **{one: known[one].name for one in forgotten if one in known}}
            draft.set_states(_without(states.initializing, forgotten), _without(states.initialized, forgotten), gone)

        return self._change(change, waiter, now)

    def _change(self, change: Callable[[ShareMembership], None], waiter: Waiter | None, now: Now) -> Effects:
        def rule(draft: ShareMembership, now: Now) -> Steps:
            change(draft)
            yield
            return StatesReply(ErrorCode.none, "", draft.epoch.epoch, draft.states)

        return self.submit(Call(waiter, "", rule, StatesReply), now)

    @staticmethod
    def _initialize(draft: ShareMembership, topics: Mapping[UUID, TopicShares]) -> None:
        states = draft.states
        draft.set_states(_joined(states.initializing, topics), states.initialized, _without(states.deleting, topics))

    def _check_empty(self, draft: ShareMembership) -> None:
        if draft.members:
            raise BrokerError(ErrorCode.non_empty_group, f"share group {self.group_id} has members")


def _subscription(before: ShareSubscription, request: HeartbeatRequest) -> ShareSubscription:
    """What the member said so far, with what it says now. The same object if that is the same."""
    names = before.topic_names if request.topic_names is None else request.topic_names
    rack_id = before.rack_id if request.rack_id is None else request.rack_id
    said = ShareSubscription(rack_id, request.client_id, request.client_host, names)
    return before if said == before else said


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


def _without(topics: Mapping[UUID, Any], gone: Collection[UUID]) -> dict[UUID, Any]:
    return {topic_id: value for topic_id, value in topics.items() if topic_id not in gone}


def _joined(left: Mapping[UUID, TopicShares], right: Mapping[UUID, TopicShares]) -> dict[UUID, TopicShares]:
    both = dict(left)
    for topic_id, (name, partitions) in right.items():
        known = both.get(topic_id, TopicShares(name, frozenset()))
        both[topic_id] = TopicShares(name, known.partitions | partitions)
    return both

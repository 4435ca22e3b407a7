"""One consumer group whose coordinator assigns the partitions (KIP-848): its members, appends and deadlines. Pure.

A request is a *rule*: a generator that changes a draft of the membership, yields until the targets are computed, and
returns its reply. One append is under way at a time: what comes meanwhile waits and becomes one batch, with one group
epoch, one computation of targets and one append. So a thousand members that join at once cost a few appends, a change
is visible only when it is stored, and a request that changes nothing is answered at once.

    Empty, Assigning (the targets are of an older group epoch), Reconciling (a member is on its way), Stable, Dead
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from math import inf
from typing import Any, NamedTuple, TypeAlias

from broker.config.setting_groups import GroupSettings
from broker.coordinator.consumer_group_members import Draft, Member, Membership
from broker.coordinator.group import CONSUMER_PROTOCOL_TYPE, Effects, Group, GroupKind, Now, Reply, Waiter
from broker.coordinator.group_conversion import as_classic, has_left_for_classic, install_members
from broker.coordinator.group_offsets import GroupOffsets
from broker.coordinator.group_state import ClassicGroup
from broker.coordinator.modern_group_messages import Resolve, Topics
from broker.coordinator.modern_group_records import (
    ConsumerGroupKey,
    MemberState,
    RecordKind,
    ResolvedRegex,
    decode_value,
    encode_key,
)
from broker.coordinator.record_reader import KeyValue
from broker.errors import BrokerError, ErrorCode

logger = logging.getLogger(__name__)

RECONCILING_INTERVAL_MS = 1_000
"""Members are heard from this often while one of them waits for partitions of another."""

MOST_REQUESTS = 500
"""Requests of one batch. It keeps the event loop free."""

MOST_WAITING = 10_000
"""Requests that may wait for an append. Further ones are refused: their clients send them again."""

RETRY_S = 1.0
"""After an append that failed, deadlines are looked at again so much later."""

Rule: TypeAlias = Callable[[Draft, Now], Generator[None, None, Any]]


@dataclass(frozen=True, slots=True)
class ConsumerGroupConfig:
    """The settings group.consumer.*, or those of the group's own configuration. Times are in ms."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    max_size: int = 2**31 - 1
    assignors: tuple[str, ...] = ("uniform", "range")
    can_upgrade: bool = True
    """Whether a classic group may become a consumer group (group.consumer.migration.policy)."""
    can_downgrade: bool = True


_DEFECT = BrokerError(ErrorCode.unknown_server_error, "The request failed; the broker's log says why.")


class Call(NamedTuple):
    """A request that waits for its turn. `refuse` makes its reply from an error and a message."""

    waiter: Waiter
    member_id: str
    rule: Rule
    refuse: Callable[[ErrorCode, str], Any]

    def refused(self, error: BrokerError) -> Reply:
        return Reply(self.waiter, self.refuse(error.code, error.message))


class DeadlineKind(Enum):
    """Why a member is removed when its deadline has passed."""

    SESSION = auto()
    REBALANCE = auto()
    """It does not give up partitions that it must give up."""
    JOIN = auto()
    """A member of the classic protocol does not join again."""
    SYNC = auto()


Deadline: TypeAlias = tuple[DeadlineKind, str]


class Batch(NamedTuple):
    """Requests, what they make of the group, and their replies when that is stored."""

    draft: Draft
    topics: Topics
    calls: Sequence[Call]
    replies: Sequence[Reply]
    encode: Callable[[], Sequence[KeyValue]] | None = None
    """The records of what changes; None if nothing does."""
    successor: ClassicGroup | None = None
    """When that is stored, the group is this one."""

    def records(self) -> Sequence[KeyValue]:
        return self.encode() if self.encode else ()


class ConsumerGroup(Group):
    """The state machine of one group.

    The runtime must call `stored` only when it is known how the append ended, however long that takes.
    """

    kind = GroupKind.CONSUMER

    def __init__(
        self,
        group_id: str,
        config: GroupSettings,
        topics: Topics,
        settings: ConsumerGroupConfig | None = None,
        offsets: GroupOffsets | None = None,
    ) -> None:
        super().__init__(group_id, config, offsets)
        self.settings = settings or ConsumerGroupConfig()
        self.topics = topics
        self.membership = Membership()
        self._queue: deque[Call] = deque()
        self._storing: Batch | None = None
        self._is_dead = False
        self._most_requests = MOST_REQUESTS
        # Members that use the classic protocol cannot be stored as a classic group.
        self._cannot_downgrade = False
        # The group of the classic protocol that this one replaces, until that is stored.
        self._replaces: ClassicGroup | None = None
        # When members are removed (monotonic s), and a time before which none is.
        self._deadlines: dict[Deadline, float] = {}
        self._soonest = inf
        # The topics that the group epoch is of, and those of them that members subscribe to.
        self._seen_topics: Topics | None = None
        self._topics_in_use: frozenset[str] = frozenset()
        # Patterns of members, and those that the runtime looks up now, with the rights of a client that uses one.
        self._regexes: frozenset[str] = frozenset()
        self._asked: frozenset[str] = frozenset()
        self._is_regex_stale = False
        self._client: object = None

    # --- state

    @property
    def state_name(self) -> str:
        if self._is_dead:
            return "Dead"
        if not self.membership.members:
            return "Empty"
        if self.membership.epoch.epoch > self.membership.target_epoch.epoch:
            return "Assigning"
        return "Reconciling" if self.membership.unsettled else "Stable"

    @property
    def protocol_type(self) -> str:
        return CONSUMER_PROTOCOL_TYPE

    @property
    def member_count(self) -> int:
        return len(self.membership.members)

    @property
    def is_empty(self) -> bool:
        return not (self.membership.members or self._queue or self._storing or self._is_dead)

    @property
    def is_dead(self) -> bool:
        return self._is_dead

    def set_dead(self, dead: bool) -> None:
        self._is_dead = dead

    @property
    def has_records(self) -> bool:
        return self.membership.epoch.epoch > 1 or bool(self.membership.members or self.membership.regexes)

    def stored_keys(self) -> list[bytes]:
        members, regexes = self.membership.members, self.membership.regexes
        keys = [
            ConsumerGroupKey(kind, self.group_id, m)
            for kind in (RecordKind.CURRENT, RecordKind.TARGET)
            for m in members
        ]
        keys.append(ConsumerGroupKey(RecordKind.TARGET_EPOCH, self.group_id))
        keys += (ConsumerGroupKey(RecordKind.MEMBER, self.group_id, member_id) for member_id in members)
        keys += (ConsumerGroupKey(RecordKind.REGEX, self.group_id, regex) for regex in regexes)
        keys.append(ConsumerGroupKey(RecordKind.GROUP_EPOCH, self.group_id))
        return [encode_key(key) for key in keys]

    def topics_in_use(self) -> frozenset[str]:
        return self._topics_in_use

    # --- replay

    def replay(self, key: ConsumerGroupKey, value: bytes) -> None:
        """Apply a stored record. Those of one group come in the order of `RecordKind`. Raises MalformedRecord."""
        self.membership.replay(key.kind, key.name, decode_value(key.kind, value))

    def begin(self, now: Now) -> Effects:
        self._derive()
        for member in self.membership.members.values():
            self.touch(member, now)
            self._watch_revocation(member, now)
        self._is_regex_stale = bool(self._regexes)
        unfinished = [member.member_id for member in self.membership.members.values() if member.is_unfinished]

        def rule(draft: Draft, now: Now) -> Generator[None, None, None]:
            for member_id in unfinished:
                draft.remove(member_id)
                draft.bumps_epoch = True
            yield

        return self.submit(Call(None, "", rule, lambda *_: None), now)

    # --- in place of a classic group, and back

    @property
    def is_upgrading(self) -> bool:
        """The members of the classic group that it replaces are not stored yet. They are members all the same."""
        return self._replaces is not None

    def replace_classic(self, classic: ClassicGroup, members: Sequence[Member], now: Now) -> Effects:
        """The first event of a group that takes the place of a classic one: store its members.

        If they cannot be stored, the classic group comes back as the effects' `successor`.
        """
        self._replaces = classic

        def rule(draft: Draft, now: Now) -> Generator[None, None, None]:
            install_members(draft, members, classic.generation_id, self.topics)
            for member in members:
                self.touch(member, now)
            yield

        return self.submit(Call(None, "", rule, lambda *_: None), now)

    def _downgraded(self, draft: Draft, now: Now) -> ClassicGroup | None:
        if (
            self._cannot_downgrade
            or not self.settings.can_downgrade
            or not has_left_for_classic(self.membership, draft)
        ):
            return None
        if len(draft.members) > self.config.group_max_size:
            return None
        return as_classic(self.group_id, self.config, self.offsets, draft, self.topics, now)

    def _end(
        self, error: BrokerError, successor: ClassicGroup, replies: Sequence[Reply], calls: Sequence[Call]
    ) -> Effects:
        """The group is a classic one from now on. Whoever waits sends the request again, to that one."""
        refused = [call.refused(error) for call in (*calls, *self._queue)]
        self._queue.clear()
        self._is_dead, self.wake_at = True, inf
        return Effects([r for r in (*replies, *refused) if r.waiter is not None], successor=successor)

    # --- events

    def submit(self, call: Call, now: Now) -> Effects:
        """A request. It is answered now, or when what it changes is stored."""
        if self._is_dead or len(self._queue) >= MOST_WAITING:
            why = "The group is being deleted." if self._is_dead else "Too many requests wait for an append."
            return Effects([call.refused(BrokerError(ErrorCode.coordinator_not_available, why))])
        self._queue.append(call)
        return self._advance(now)

    def topics_changed(self, topics: Topics, now: Now) -> Effects:
        """Topics of the cluster were created, deleted or got partitions. To be called at each such change."""
        before, self.topics = self.topics, topics
        self._is_regex_stale |= bool(self._regexes) and not topics.keys() <= before.keys()
        if self._seen_topics is before and all(topics.get(name) is before.get(name) for name in self._topics_in_use):
            self._seen_topics = topics
        return self._advance(now)

    def regexes_resolved(self, found: Mapping[str, Collection[str]] | None, now: Now) -> Effects:
        """The answer to `Effects.resolve`: the topics of each pattern, or None if they could not be looked up."""
        asked, self._asked = self._asked, frozenset()
        if found is None:
            self._client = None  # the next member with a pattern makes it be looked up again
            return self._advance(now)

        def rule(draft: Draft, now: Now) -> Generator[None, None, None]:
            before, resolved = draft.regexes, dict(draft.regexes)
            for regex in asked:
                topics = frozenset(found.get(regex, ()))
                if regex not in before or before[regex].topics != topics:
                    resolved[regex] = ResolvedRegex(topics, now.wall_ms)
            draft.set_regexes(resolved)
            draft.bumps_epoch |= draft.regexes is not before
            yield

        return self.submit(Call(None, "", rule, lambda *_: None), now)

    def tick(self, now: Now) -> Effects:
        return self._advance(now)

    def stored(self, store: Any, error: ErrorCode, now: Now) -> Effects:
        batch = self._storing
        if batch is None or store is not batch:
            return Effects()  # the group was killed meanwhile
        self._storing = None
        if error is ErrorCode.none:
            if batch.successor is not None:
                batch.successor.prepare_rebalance(now, "its last member of the consumer protocol is gone")
                moved = BrokerError(ErrorCode.coordinator_not_available, "The group uses the classic protocol now.")
                return self._end(moved, batch.successor, batch.replies, ())
            self._install(batch, now)
            self._most_requests = min(2 * self._most_requests, MOST_REQUESTS)
            return self._advance(now, batch.replies)
        failed = BrokerError(error, "The change of the group could not be stored.")
        if self._replaces is not None:
            return self._end(failed, self._replaces, (), batch.calls)
        if error is ErrorCode.unknown_server_error and (batch.successor is not None or len(batch.calls) > 1):
            # Some record is too large. What cannot be stored must not hold up what can.
            self._cannot_downgrade |= batch.successor is not None
            self._most_requests = max(1, len(batch.calls) // 2)
            self._queue.extendleft(reversed(batch.calls))
            return self._advance(now)
        effects = self._advance(now, [call.refused(failed) for call in batch.calls])
        self.wake_at = max(self.wake_at, now.monotonic + RETRY_S)
        return effects

    def kill(self, error: ErrorCode, now: Now) -> Effects:
        calls = [*(self._storing.calls if self._storing else ()), *self._queue]
        self._is_dead, self._storing, self.wake_at = True, None, inf
        self._queue.clear()
        return Effects([call.refused(BrokerError(error)) for call in calls if call.waiter is not None])

    # --- one batch after the other

    def _advance(self, now: Now, replies: Sequence[Reply] = ()) -> Effects:
        """Apply what waits, until something must be stored."""
        answered = list(replies)
        stores: list[Batch] = []
        while self._storing is None and not self._is_dead:
            calls = self._next_calls()
            try:
                batch = self._batch(calls, now)
            except Exception:
                if not calls:
                    raise
                logger.exception("group %s: of %d requests one failed", self.group_id, len(calls))
                if self._replaces is not None:
                    return self._end(_DEFECT, self._replaces, answered, list(calls.values()))
                answered += self._set_aside(calls)
                if not self._queue:
                    break
                continue
            if batch.encode:
                self._storing = batch
                stores.append(batch)
            else:
                self._install(batch, now)
                answered += batch.replies
            if not self._queue:
                break
        self.wake_at = inf if self._storing or self._is_dead else self._soonest
        return Effects([reply for reply in answered if reply.waiter is not None], stores, self._resolve())

    def _next_calls(self) -> dict[str, Call]:
        """The first requests that wait: one of a member, because its next one may depend on the answer."""
        calls: dict[str, Call] = {}
        while self._queue and self._queue[0].member_id not in calls and len(calls) < self._most_requests:
            call = self._queue.popleft()
            calls[call.member_id] = call
        return calls

    def _set_aside(self, calls: dict[str, Call]) -> list[Reply]:
        """A defect of ours ended the batch of these requests: try each alone, and answer the one that is alone."""
        if len(calls) == 1:
            return [call.refused(_DEFECT) for call in calls.values()]
        self._most_requests = 1
        self._queue.extendleft(reversed(calls.values()))
        return []

    def _batch(self, calls: Mapping[str, Call], now: Now) -> Batch:
        draft = Draft(self.membership)
        expired = self._expired(now)
        heard = calls.keys() | {call.member_id for call in self._queue} if expired else ()
        for member_id, why in expired.items():
            if member_id not in heard:
                logger.info("Member %s of group %s is removed: %s", member_id, self.group_id, why)
                draft.remove(member_id)
                draft.bumps_epoch = True
        replies: list[Reply] = []
        begun = [(call, call.rule(draft, now)) for call in calls.values()]
        begun = [(call, steps) for call, steps in begun if not _ends(call, steps, replies)]
        if draft.changed and draft.regexes:
            draft.set_regexes(draft.regexes)
        if (successor := self._downgraded(draft, now)) is not None:
            again = BrokerError(ErrorCode.rebalance_in_progress)
            for call, steps in begun:
                if call.member_id in draft.members:
                    replies.append(call.refused(again))
                else:
                    _ends(call, steps, replies)  # it has left
            moved = partial(_replacing, self, partial(successor.generation_records, now))
            return Batch(draft, self.topics, list(calls.values()), replies, moved, successor)
        if not draft.bumps_epoch and self._seen_topics is not self.topics:
            draft.bumps_epoch = draft.metadata_hash(self.topics) != draft.epoch.metadata_hash
        if draft.bumps_epoch:
            draft.bump_epoch(self.topics)
        draft.update_targets(self.topics, self.settings.assignors[0], now.wall_ms)
        for call, steps in begun:
            _ends(call, steps, replies)
        encode: Callable[[], Sequence[KeyValue]] | None = partial(draft.records, self.group_id)
        if self._replaces is not None and self._replaces.has_records:
            encode = partial(_replacing, self._replaces, partial(draft.records, self.group_id))
        elif not draft.changes():
            encode = None
        return Batch(draft, self.topics, list(calls.values()), replies, encode)

    def _install(self, batch: Batch, now: Now) -> None:
        """What a batch makes of the group is stored."""
        before, self.membership = self.membership, batch.draft.finished()
        self._replaces = None
        self._seen_topics = batch.topics
        is_other = self.membership.regexes is not before.regexes
        for member_id in batch.draft.changed:
            member, earlier = self.membership.members.get(member_id), before.members.get(member_id)
            if member is None:
                for kind in DeadlineKind:
                    self._deadlines.pop((kind, member_id), None)
            elif earlier is None or earlier.current != member.current:
                self._watch_revocation(member, now)
            is_other |= member is None or earlier is None or earlier.subscription is not member.subscription
        if is_other:
            self._derive()

    def _derive(self) -> None:
        self._topics_in_use = self.membership.topic_names()
        self._regexes = self.membership.used_regexes()
        self._soonest = min(self._deadlines.values(), default=inf)

    # --- deadlines

    def touch(self, member: Member, now: Now) -> None:
        """Restart the member's session: it was heard from."""
        classic = member.subscription.classic
        timeout_ms = self.settings.session_timeout_ms if classic is None else classic.session_timeout_ms
        self.set_deadline(DeadlineKind.SESSION, member.member_id, now.monotonic + timeout_ms / 1000)

    def set_deadline(self, kind: DeadlineKind, member_id: str, deadline: float | None) -> None:
        """When the member is removed. None: not for this reason."""
        if deadline is None:
            self._deadlines.pop((kind, member_id), None)
        else:
            self._deadlines[kind, member_id] = deadline
            self._soonest = min(self._soonest, deadline)
            if self._storing is None:
                self.wake_at = min(self.wake_at, deadline)

    def has_deadline(self, kind: DeadlineKind, member_id: str) -> bool:
        return (kind, member_id) in self._deadlines

    def _watch_revocation(self, member: Member, now: Now) -> None:
        """A member of the consumer protocol must give up partitions within its rebalance time-out."""
        must_revoke = member.current.state is MemberState.UNREVOKED and member.subscription.classic is None
        deadline = now.monotonic + member.subscription.rebalance_timeout_ms / 1000
        self.set_deadline(DeadlineKind.REBALANCE, member.member_id, deadline if must_revoke else None)

    def _expired(self, now: Now) -> dict[str, str]:
        """The members to remove, and why."""
        if now.monotonic < self._soonest:
            return {}
        passed = {deadline: at for deadline, at in self._deadlines.items() if at <= now.monotonic}
        expired = {name: f"its {kind.name.lower()} time-out has passed" for kind, name in passed}
        members = self.membership.members
        for kind, name in passed:
            if name not in members:  # its join could not be stored
                del self._deadlines[kind, name]
        self._soonest = min(self._deadlines.values(), default=inf)
        return {member_id: why for member_id, why in expired.items() if member_id in members}

    # --- patterns

    def refresh_regexes(self, now: Now) -> Effects:
        """Look up the topics of all patterns again: the rights of clients may have changed."""
        self._is_regex_stale = bool(self._regexes)
        return self._advance(now)

    def uses_regex(self, client: object) -> None:
        """A member with a pattern was heard from. Its rights count for what patterns match."""
        self._client = client

    def _resolve(self) -> Resolve | None:
        wanted = self._regexes if self._is_regex_stale else self._regexes - self.membership.regexes.keys()
        if not wanted or self._asked or self._storing or self._client is None or self._is_dead:
            return None
        self._asked, self._is_regex_stale = wanted, False
        return Resolve(wanted, self._client)


def _replacing(group: Group, records: Callable[[], Sequence[KeyValue]]) -> list[KeyValue]:
    """The records of the group that takes the place of `group`."""
    return [*((key, None) for key in group.stored_keys()), *records()]


def _ends(call: Call, steps: Generator[None, None, Any], replies: list[Reply]) -> bool:
    """Go one step on. Whether the request is done; then its reply is among `replies`."""
    try:
        next(steps)
    except StopIteration as end:
        replies.append(Reply(call.waiter, end.value))
    except BrokerError as error:
        replies.append(call.refused(error))
    else:
        return False
    return True

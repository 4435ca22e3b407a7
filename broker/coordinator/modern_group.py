"""One group whose coordinator assigns the partitions: its requests, appends and deadlines. Pure.

`ConsumerGroup` (KIP-848) and `ShareGroup` (KIP-932) are its kinds. A request is a *rule*: a generator that changes a
draft of the membership, yields until the targets are computed, and returns its reply. One append is under way at a
time: what comes meanwhile waits and becomes one batch, with one group epoch, one computation of targets and one append.
So a thousand members that join at once cost a few appends, a change is visible only when it is stored, and a request
that changes nothing is answered at once.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, NamedTuple, TypeAlias

from broker.config.group_config import GroupConfig
from broker.config.setting_groups import GroupSettings
from broker.coordinator.group import Effects, Group, Now, Reply, Waiter
from broker.coordinator.group_assignors import Assignable, Assignor
from broker.coordinator.group_offsets import GroupOffsets
from broker.coordinator.member_deadlines import DeadlineKind, Deadlines
from broker.coordinator.modern_group_members import Member, Membership
from broker.coordinator.modern_group_messages import Resolve, Topics
from broker.coordinator.record_format import KeyValue
from broker.errors import BrokerError, ErrorCode

logger = logging.getLogger(__name__)

MOST_REQUESTS = 1_000
"""Requests of one batch. It keeps the event loop free."""

MOST_WAITING = 10_000
"""Requests that may wait for an append. Further ones are refused: their clients send them again."""

SLOW_APPEND_S = 5.0
"""How long a client waits for an append (Kafka's offsets.commit.timeout.ms)."""

RETRY_S = 1.0
"""After an append that failed, what nobody waits for (deadlines, other topics) is tried again so much later."""

Steps: TypeAlias = Generator[None, None, Any]
Rule: TypeAlias = Callable[[Any, Now], Steps]
"""Takes a draft of the group's membership."""

_DEFECT = BrokerError(ErrorCode.unknown_server_error, "The request failed; the broker's log says why.")
_LATE = BrokerError(ErrorCode.coordinator_not_available, "The change of the group is not stored yet.")


class Call(NamedTuple):
    """A request that waits for its turn. `refuse` makes its reply from an error and a message."""

    waiter: Waiter
    member_id: str
    rule: Rule
    refuse: Callable[[ErrorCode, str], Any]

    def refused(self, error: BrokerError) -> Reply:
        return Reply(self.waiter, self.refuse(error.code, error.message))


@dataclass(slots=True, eq=False)
class Batch:
    """Requests, what they make of the group, and their replies when that is stored."""

    draft: Membership
    topics: Topics
    calls: Sequence[Call]
    replies: Sequence[Reply]
    encode: Callable[[], Sequence[KeyValue]] | None = None
    """The records of what changes; None if nothing does."""
    successor: Group | None = None
    """When that is stored, the group is this one."""

    def records(self) -> Sequence[KeyValue]:
        return self.encode() if self.encode else ()


class ModernGroup(Group):
    """The state machine of one group.

    The runtime must call `stored` only when it is known how the append ended, however long that takes.
    """

    membership: Membership
    """What is stored, of the kind's own class."""

    def __init__(
        self,
        group_id: str,
        config: GroupSettings,
        offsets: GroupOffsets | None,
        topics: Topics,
        settings: Callable[[], GroupConfig],
    ) -> None:
        """`topics`: those of the cluster. `settings`: those in force of the group."""
        super().__init__(group_id, config, offsets)
        self.topics = topics
        self.settings = settings
        # The topics that the group epoch is of.
        self._seen_topics: Topics | None = None
        self._queue: deque[Call] = deque()
        self._storing: Batch | None = None
        self._is_dead = False
        self.awaits_joins = False
        """Requests wait, also if no append is under way, until the runtime ends this: more members may join at once."""
        self._most_requests = MOST_REQUESTS
        # When a batch without requests may be stored again: at once, it would fail at once, for ever.
        self.retry_at = -inf
        # The group of another kind that this one replaces, until that is stored.
        self._replaces: Group | None = None
        self.deadlines = Deadlines()

    # --- what a kind of group decides

    @abstractmethod
    def session_timeout_ms(self, member: Member) -> int: ...

    @abstractmethod
    def _assignor(self, draft: Any) -> tuple[Assignor, Assignable]:
        """How partitions are assigned, and which."""

    def _moved(self, draft: Any, now: Now) -> tuple[Group, Callable[[], Sequence[KeyValue]]] | None:
        """The group of another kind that takes the place of this one, and the records that replace it."""
        return None

    def _changed(self, before: Member | None, after: Member, now: Now) -> None:
        """What a batch made of a member is stored."""

    def _resolve(self) -> Resolve | None:
        """The patterns to look up now. Not asked for until RETRY_S after a failed append."""
        return None

    # --- state

    @property
    def state_name(self) -> str:
        return "Dead" if self._is_dead else "Stable" if self.membership.members else "Empty"

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
        return self.membership.epoch.epoch > 1 or bool(self.membership.members or self.membership.extras)

    def stored_keys(self) -> list[bytes]:
        return self.membership.keys(self.group_id)

    def topics_in_use(self) -> frozenset[str]:
        return self.membership.topic_names()

    @property
    @abstractmethod
    def assignor_name(self) -> str: ...

    # --- events

    def replay(self, key: Any, value: bytes) -> None:
        """Apply a stored record. Those of one group come in the order of their kinds. Raises MalformedRecord."""
        kind, _, name = key
        self.membership.replay(kind, name, self.membership.records.decode_value(kind, value))

    def replayed(self, now: Now) -> Effects:
        members = self.membership.members.values()
        for member in members:
            self.touch(member, now)
            self._changed(None, member, now)
        unfinished = [member.member_id for member in members if member.is_unfinished]

        def rule(draft: Membership, now: Now) -> Steps:
            for member_id in unfinished:
                draft.remove(member_id)
                draft.bumps_epoch = True
            yield

        return self.perform(rule, now)

    def perform(self, rule: Rule, now: Now) -> Effects:
        """A change that nobody waits for."""
        return self.submit(Call(None, "", rule, lambda *_: None), now)

    def submit(self, call: Call, now: Now) -> Effects:
        """A request. It is answered now, or when what it changes is stored."""
        if self._is_dead or len(self._queue) >= MOST_WAITING:
            why = "The group is being deleted." if self._is_dead else "Too many requests wait for an append."
            return Effects([call.refused(BrokerError(ErrorCode.coordinator_not_available, why))])
        self._queue.append(call)
        return self._advance(now)

    def topics_changed(self, topics: Topics, now: Now) -> Effects:
        """Topics of the cluster were created, deleted or got partitions. To be called at each such change."""
        self.topics = topics
        return self._advance(now)

    def tick(self, now: Now) -> Effects:
        batch = self._storing
        if batch is None or now.monotonic < self.wake_at:
            return self._advance(now)
        # The append is slow: nobody waits for it any longer, and all that they asked for happens nevertheless.
        self.wake_at = now.monotonic + SLOW_APPEND_S
        late = [call.refused(_LATE) for call in (*batch.calls, *self._queue) if call.waiter is not None]
        batch.replies, batch.calls = [], [call._replace(waiter=None) for call in batch.calls]
        self._queue = deque(call._replace(waiter=None) for call in self._queue)
        return Effects(late)

    def stored(self, store: Any, error: ErrorCode, now: Now) -> Effects:
        batch = self._storing
        if batch is None or store is not batch:
            return Effects()  # the group was killed meanwhile
        self._storing, self.wake_at = None, self.deadlines.soonest
        if error is ErrorCode.none:
            if batch.successor is not None:
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
            self._most_requests = max(1, len(batch.calls) // 2)
            self._queue.extendleft(reversed(batch.calls))
            return self._advance(now)
        self.retry_at = now.monotonic + RETRY_S
        return self._advance(now, [call.refused(failed) for call in batch.calls])

    def kill(self, error: ErrorCode, now: Now) -> Effects:
        calls = [*(self._storing.calls if self._storing else ()), *self._queue]
        self._is_dead, self._storing, self.wake_at = True, None, inf
        self._queue.clear()
        return Effects([call.refused(BrokerError(error)) for call in calls if call.waiter is not None])

    def _end(self, error: BrokerError, successor: Group, replies: Sequence[Reply], calls: Sequence[Call]) -> Effects:
        """The group is another one from now on. Whoever waits sends the request again, to that one."""
        refused = [call.refused(error) for call in (*calls, *self._queue)]
        self._queue.clear()
        self._is_dead, self.wake_at = True, inf
        return Effects([r for r in (*replies, *refused) if r.waiter is not None], successor=successor)

    # --- one batch after the other

    def _advance(self, now: Now, replies: Sequence[Reply] = ()) -> Effects:
        """Apply what waits, until something must be stored."""
        answered = list(replies)
        stores: list[Batch] = []
        waits = now.monotonic < self.retry_at
        while not (self._storing or self._is_dead or self.awaits_joins or (waits and not self._queue)):
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
                self._storing, self.wake_at = batch, now.monotonic + SLOW_APPEND_S
                stores.append(batch)
            else:
                self._install(batch, now)
                answered += batch.replies
            if not self._queue:
                break
        if self._storing is None:
            ends = self._is_dead or self.awaits_joins  # a deadline that has passed must not wake it again and again
            self.wake_at = inf if ends else self.retry_at if waits else self.deadlines.soonest
        replies = [reply for reply in answered if reply.waiter is not None]
        return Effects(replies, stores, None if waits else self._resolve())

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
        draft = self.membership.draft()
        if now.monotonic >= self.deadlines.soonest:
            waiting = {*calls, *(call.member_id for call in self._queue)}
            for member_id, kind in self.deadlines.passed(now, draft.members.keys(), calls.keys(), waiting).items():
                logger.info("Member %s of group %s is removed: %s time-out", member_id, self.group_id, kind)
                draft.remove(member_id)
                draft.bumps_epoch = True
        replies: list[Reply] = []
        begun = [(call, call.rule(draft, now)) for call in calls.values()]
        begun = [(call, steps) for call, steps in begun if not _ends(call, steps, replies)]
        moved = self._moved(draft, now)
        if moved is None:
            self._update_targets(draft, now)
        for call, steps in begun:
            if moved is not None and call.member_id in draft.members:
                replies.append(call.refused(BrokerError(ErrorCode.rebalance_in_progress)))
            else:
                _ends(call, steps, replies)
        batch = Batch(draft, self.topics, list(calls.values()), replies)
        if moved is not None:
            batch.successor, batch.encode = moved
        elif (changes := draft.changes()) or self.obsolete_keys:
            batch.encode = partial(draft.encoded, self.group_id, changes)
        return batch

    def _update_targets(self, draft: Any, now: Now) -> None:
        """Begin a new group epoch if there are other partitions to assign, and assign them."""
        if not draft.bumps_epoch and self._seen_topics is not self.topics:
            draft.bumps_epoch = draft.metadata_hash(self.topics) != draft.epoch.metadata_hash
        if draft.bumps_epoch:
            draft.bump_epoch(self.topics)
        if draft.target_epoch.epoch < draft.epoch.epoch and draft.members:
            draft.assign(self.topics, *self._assignor(draft), now.wall_ms)

    def _install(self, batch: Batch, now: Now) -> None:
        """What a batch makes of the group is stored."""
        before, self.membership = self.membership.members, batch.draft
        self._replaces = None
        self._seen_topics = batch.topics
        batch.draft.finish()
        for member_id in batch.draft.changed:
            member, earlier = batch.draft.members.get(member_id), before.get(member_id)
            if member is None:
                self.deadlines.forget(member_id)
            else:
                self._changed(earlier, member, now)

    # --- deadlines

    def touch(self, member: Member, now: Now) -> None:
        """Restart the member's session: it was heard from."""
        deadline = now.monotonic + self.session_timeout_ms(member) / 1000
        self.set_deadline(DeadlineKind.SESSION, member.member_id, deadline)

    def set_deadline(self, kind: DeadlineKind, member_id: str, deadline: float) -> None:
        """When the member is removed (monotonic s)."""
        self.deadlines.set(kind, member_id, deadline)
        if self._storing is None:
            self.wake_at = min(self.wake_at, deadline)


def _ends(call: Call, steps: Steps, replies: list[Reply]) -> bool:
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

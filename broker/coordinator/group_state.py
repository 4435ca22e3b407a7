"""One classic consumer group: its states, its rebalances and its deadlines. Pure.

Called by `group_join` and `group_events` (the rules of each request) and by the runtime, which owns
it. No clock, no sockets, no asyncio: events bring `Now`, results are `Effects`. After an event the
runtime must call `tick` at `wake_at` at the latest.

    Empty ──join──▶ PreparingRebalance ──all joined, or time is up──▶ CompletingRebalance
      ▲                 ▲    │ nobody left                                 │ leader's assignment stored
      └─────────────────┼────┘        ◀──────── join, leave, expiry ───────┤
                        └──────────────── join, leave, expiry ────────── Stable          any ──▶ Dead

The rules are those of Kafka's `GroupCoordinator` / `ClassicGroup`. `install` applies a stored
generation, live and on replay alike.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from math import inf

from broker.coordinator.group_config import GroupConfig
from broker.coordinator.group_effects import Effects, GroupState, Now, Return, Store, Waiter
from broker.coordinator.group_member import Member
from broker.coordinator.group_messages import JoinReply, SyncReply
from broker.coordinator.group_offsets import GroupOffsets
from broker.coordinator.group_roster import Roster
from broker.coordinator.group_waiters import Waiters
from broker.coordinator.records import GroupMetadata
from broker.errors import ErrorCode

__all__ = ["ClassicGroup"]

logger = logging.getLogger(__name__)

# A member in its first JoinGroup has no id to send heartbeats with: this is how long it may wait (s).
NEW_MEMBER_JOIN_TIMEOUT = 300.0
# A rebalance to which nobody came back looks again after this time at the earliest.
LEAST_WAIT_MS = 1_000


class ClassicGroup:
    """The state machine of one group. What begins with `_` is its own; the rest is for the event modules."""

    def __init__(self, group_id: str, config: GroupConfig, wall_ms: int) -> None:
        self.group_id = group_id
        self.config = config
        self.state = GroupState.EMPTY
        self.state_timestamp_ms = wall_ms
        self.generation_id = 0
        self.protocol_name: str | None = None
        self.roster = Roster()
        self.waiters = Waiters()
        self.offsets = GroupOffsets()
        # Members that have not sent the SyncGroup of this generation yet.
        self.pending_sync: set[str] = set()
        # The generation's assignment is on its way to the log: a second SyncGroup must not store another one.
        self.storing: GroupMetadata | None = None
        # The earliest moment (monotonic s) at which `tick` may have something to do; never too late.
        self.wake_at = inf
        self._join_deadline = inf
        self._sync_deadline = inf
        # ms the first rebalance of an empty group may still be put off; None in any other rebalance.
        self._initial_remaining_ms: int | None = None
        self._joined_in_delay = False
        self._stores: list[Store] = []

    def drain(self) -> Effects:
        """Hand over what the event caused; every event ends with it."""
        stores, self._stores = self._stores, []
        return Effects(self.waiters.take_replies(), stores)

    # --- stored generations: live and replay -------------------------------------------------------

    def store(self, metadata: GroupMetadata, returned: Return | None = None) -> None:
        self._stores.append(Store(metadata, returned))

    def snapshot(self, now: Now, assignments: Mapping[str, bytes] | None = None) -> GroupMetadata:
        """This generation as it is stored; members without an entry in `assignments` get nothing to do."""
        who = self.roster
        members = who.records(self.protocol_name, assignments)
        protocol_type = who.protocol_type or ""
        return GroupMetadata(protocol_type, self.generation_id, self.protocol_name, who.leader, now.wall_ms, members)

    def install(self, metadata: GroupMetadata, now: Now) -> None:
        """Make a stored generation the current one. Live, its members are here already; on replay they
        come back and have one session time-out to show up."""
        self.generation_id = metadata.generation_id
        self.protocol_name = metadata.protocol_name
        for record in metadata.members:
            member = self.roster.members.get(record.member_id)
            if member is None:
                member = Member.from_record(record, metadata.protocol_name)
                self.roster.add(member, metadata.protocol_type)
                self.touch(member, now)
            member.assignment = record.assignment
        self.roster.protocol_type = metadata.protocol_type or None
        if metadata.leader in self.roster.members:
            self.roster.leader = metadata.leader
        self.state = GroupState.STABLE if metadata.members else GroupState.EMPTY
        self.state_timestamp_ms = metadata.state_timestamp_ms

    def stored(self, store: Store, error: ErrorCode, now: Now) -> Effects:
        """The append of `store` has ended; with an error nothing of it holds."""
        if store.returned is not None:
            self._returned(store.returned, error, now)
        if self.storing is store.metadata:
            self.storing = None
            if error is ErrorCode.none:
                self.install(store.metadata, now)
                logger.info(
                    "Group %s is stable in generation %d, with %d members",
                    self.group_id,
                    self.generation_id,
                    len(self.roster),
                )
                for member in self.roster.members.values():
                    if self.waiters.answer_sync(member.member_id, self.assignment_of(member)):
                        self.touch(member, now)
            else:
                self._cancel_syncs(error, now)
                self.prepare_rebalance(now, f"the assignment cannot be stored: {error.name}")
        return self.drain()

    def _returned(self, returned: Return, error: ErrorCode, now: Now) -> None:
        """A static member's new id is stored, or not: then it has its old one again, which the log knows."""
        waiter, answer, before = returned
        current = self.roster.static_ids.get(before.group_instance_id or "")
        if error is not ErrorCode.none:
            if current == answer.member_id:
                self.replace_static(current, before, now)
            answer = JoinReply(error)
        elif current != answer.member_id:
            # Meanwhile it was removed, or has come back once more.
            gone = ErrorCode.unknown_member_id if current is None else ErrorCode.fenced_instance_id
            answer = JoinReply(gone, answer.member_id)
        self.waiters.reply(waiter, answer)

    def assignment_of(self, member: Member) -> SyncReply:
        return SyncReply(ErrorCode.none, member.assignment, self.roster.protocol_type, self.protocol_name)

    # --- membership ------------------------------------------------------------------------------

    def touch(self, member: Member, now: Now) -> None:
        """Heard from a member: its session begins anew."""
        self._expect(member, now.monotonic + member.session_timeout_ms / 1000)

    def add_member(self, member: Member, protocol_type: str, waiter: Waiter, now: Now) -> None:
        """Take in a member that waits in JoinGroup."""
        if self._initial_remaining_ms is not None and self.generation_id == 0:
            self._joined_in_delay = True
        self.roster.add(member, protocol_type)
        self.waiters.park_join(member.member_id, waiter)
        self._expect(member, now.monotonic + NEW_MEMBER_JOIN_TIMEOUT)

    def add_pending(self, member_id: str, session_timeout_ms: int, now: Now) -> None:
        """Remember an id that was given out; the rebalance waits for it until its session lapses."""
        deadline = now.monotonic + session_timeout_ms / 1000
        self.roster.pending[member_id] = deadline
        self.wake_at = min(self.wake_at, deadline)

    def remove_member(self, member_id: str, now: Now, why: str) -> None:
        """A member, or a pending id, has left or was expired; the others rebalance."""
        was_member = self._drop(member_id)
        if was_member:
            logger.info("Member %s of group %s is removed: %s", member_id, self.group_id, why)
        if was_member and self.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self.prepare_rebalance(now, f"member {member_id} is removed: {why}")
        else:
            self.maybe_complete_join(now)

    def replace_static(self, old_member_id: str, member: Member, now: Now) -> None:
        """A static member is back under a new id; whoever waits under the old one is fenced."""
        self.waiters.dismiss(old_member_id, ErrorCode.fenced_instance_id, old_member_id)
        self.pending_sync = {member.member_id if m == old_member_id else m for m in self.pending_sync}
        self.roster.replace_static(old_member_id, member)
        self.touch(member, now)

    def _drop(self, member_id: str) -> bool:
        self.waiters.dismiss(member_id, ErrorCode.unknown_member_id)
        self.pending_sync.discard(member_id)
        return self.roster.remove(member_id) is not None

    def _expect(self, member: Member, deadline: float) -> None:
        member.deadline = deadline
        self.wake_at = min(self.wake_at, deadline)

    # --- rebalance -------------------------------------------------------------------------------

    def prepare_rebalance(self, now: Now, why: str) -> None:
        """Begin a rebalance unless one is being prepared already; `why` is for the operator (KIP-800)."""
        if self.state in (GroupState.PREPARING_REBALANCE, GroupState.DEAD):
            return
        logger.info(
            "Group %s prepares a rebalance, from %s in generation %d: %s",
            self.group_id,
            self.state.value,
            self.generation_id,
            why,
        )
        if self.state is GroupState.COMPLETING_REBALANCE:
            self._cancel_syncs(ErrorCode.rebalance_in_progress, now)
        self._sync_deadline = inf
        self.storing = None
        timeout_ms = self.roster.rebalance_timeout_ms()
        if self.state is GroupState.EMPTY:
            delay_ms = self.config.group_initial_rebalance_delay_ms
            self._initial_remaining_ms = max(timeout_ms - delay_ms, 0)
            timeout_ms = delay_ms
        self._joined_in_delay = False
        self._enter(GroupState.PREPARING_REBALANCE, now)
        self._wait_for_joins(timeout_ms, now)
        self.maybe_complete_join(now)

    def maybe_complete_join(self, now: Now) -> None:
        """Finish the join phase when everybody is here (the initial delay is always waited out)."""
        if self.state is not GroupState.PREPARING_REBALANCE:
            return
        if self._initial_remaining_ms is not None:
            if self._join_deadline <= now.monotonic:
                self._join_deadline_reached(now)
        elif len(self.waiters.joining) == len(self.roster) and not self.roster.pending:
            self._complete_join(now)

    def _wait_for_joins(self, timeout_ms: int, now: Now) -> None:
        self._join_deadline = now.monotonic + timeout_ms / 1000
        self.wake_at = min(self.wake_at, self._join_deadline)

    def _join_deadline_reached(self, now: Now) -> None:
        if self._initial_remaining_ms and self._joined_in_delay:
            # Members keep arriving: wait one more delay, within the rebalance time-out.
            delay_ms = min(self.config.group_initial_rebalance_delay_ms, self._initial_remaining_ms)
            self._initial_remaining_ms -= delay_ms
            self._joined_in_delay = False
            self._wait_for_joins(delay_ms, now)
        else:
            self._complete_join(now)

    def _complete_join(self, now: Now) -> None:
        self._initial_remaining_ms = None
        joined = self.waiters.joining
        for member in list(self.roster.members.values()):
            if member.member_id not in joined and not member.is_static:
                logger.info(
                    "Member %s of group %s did not join in time and is removed", member.member_id, self.group_id
                )
                self._drop(member.member_id)
        if len(self.roster) and not joined:
            # Only static members are left and none is back: their sessions decide, not this deadline.
            self._wait_for_joins(max(self.roster.rebalance_timeout_ms(), LEAST_WAIT_MS), now)
            return
        self._join_deadline = inf
        self.generation_id += 1
        self.pending_sync = set(self.roster.members)
        if not len(self.roster):
            self.protocol_name = None
            logger.info("Group %s is empty in generation %d", self.group_id, self.generation_id)
            self._enter(GroupState.EMPTY, now)
            self.store(self.snapshot(now))
            return
        if self.roster.leader not in joined:
            self.roster.leader = next(iter(joined))
        self.protocol_name = self.roster.select_protocol()
        self._enter(GroupState.COMPLETING_REBALANCE, now)
        for member in self.roster.members.values():
            self.waiters.answer_join(member.member_id, self.generation_reply(member.member_id))
            member.is_new = False
            self.touch(member, now)
        self._sync_deadline = now.monotonic + self.roster.rebalance_timeout_ms() / 1000
        self.wake_at = min(self.wake_at, self._sync_deadline)

    def generation_reply(self, member_id: str) -> JoinReply:
        """The current generation for one member; the leader learns who is in it."""
        leader = self.roster.leader or ""
        members = self.roster.members.values() if member_id == leader else ()
        return JoinReply(
            ErrorCode.none,
            member_id,
            self.generation_id,
            self.roster.protocol_type,
            self.protocol_name,
            leader,
            members=tuple(member.joined(self.protocol_name) for member in members),
        )

    def _cancel_syncs(self, error: ErrorCode, now: Now) -> None:
        """The generation will get no assignment: everybody forgets its old one and joins again."""
        for member in self.roster.members.values():
            member.assignment = b""
            if self.waiters.answer_sync(member.member_id, SyncReply(error)):
                self.touch(member, now)

    def _enter(self, state: GroupState, now: Now) -> None:
        self.state = state
        self.state_timestamp_ms = now.wall_ms

    # --- deadlines -------------------------------------------------------------------------------

    def tick(self, now: Now) -> Effects:
        """Do what is due, and set `wake_at` anew."""
        for member_id in [m for m, deadline in self.roster.pending.items() if deadline <= now.monotonic]:
            self.remove_member(member_id, now, "it did not join with the id it was given")
        for member in list(self.roster.members.values()):
            # Looked at one by one: the removal of one may end the rebalance and renew the others.
            if self._session_ends(member) <= now.monotonic and member.member_id in self.roster.members:
                self.remove_member(member.member_id, now, f"nothing heard from it for {member.session_timeout_ms} ms")
        if self.state is GroupState.PREPARING_REBALANCE and self._join_deadline <= now.monotonic:
            self._join_deadline_reached(now)
        if not self.pending_sync:
            self._sync_deadline = inf
        elif self._sync_deadline <= now.monotonic:
            late = list(self.pending_sync)
            for member_id in late:
                self._drop(member_id)
            self.prepare_rebalance(now, f"members did not sync in time and are removed: {', '.join(late)}")
        sessions = min(map(self._session_ends, self.roster.members.values()), default=inf)
        pending = min(self.roster.pending.values(), default=inf)
        self.wake_at = min(sessions, pending, self._join_deadline, self._sync_deadline)
        return self.drain()

    def _session_ends(self, member: Member) -> float:
        """Who waits for the group cannot send heartbeats; only a member's first wait is limited."""
        if self.waiters.waits(member.member_id) and not member.is_new:
            return inf
        return member.deadline

    def kill(self, error: ErrorCode, now: Now) -> Effects:
        """Deleted, or moved to another coordinator: whoever waits is told `error`."""
        for member_id in list(self.roster.members):
            self.waiters.dismiss(member_id, error, member_id)
        self._enter(GroupState.DEAD, now)
        self.storing = None
        self.wake_at = self._join_deadline = self._sync_deadline = inf
        return self.drain()

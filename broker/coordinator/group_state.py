"""One classic consumer group: its states, its rebalances and its deadlines. Pure.

`group_requests` holds the rules of each request, the runtime (`group_shard`) owns the group (`Group` in group.py).

    Empty ──join──▶ PreparingRebalance ──all joined, or time is up──▶ CompletingRebalance
      ▲                 ▲    │ nobody left                                 │ leader's assignment stored
      └─────────────────┼────┘        ◀──────── join, leave, expiry ───────┤
                        └──────────────── join, leave, expiry ────────── Stable          any ──▶ Dead

The rules are those of Kafka's `GroupCoordinator` / `ClassicGroup`. `install` applies a stored generation, both live and
on replay.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from enum import StrEnum
from math import inf
from typing import NamedTuple

from broker.config.setting_groups import GroupSettings
from broker.coordinator.group import Effects, Group, GroupKind, Now, Waiter
from broker.coordinator.group_members import Member, Roster, Waiters
from broker.coordinator.group_messages import JoinReply, SyncReply
from broker.coordinator.group_offsets import GroupOffsets
from broker.coordinator.group_records import GroupMetadata, encode_group, encode_group_key
from broker.coordinator.record_format import KeyValue
from broker.errors import ErrorCode
from broker.protocol.topic_partition import TopicPartition

logger = logging.getLogger(__name__)

# A member in its first JoinGroup has no id to send heartbeats with. It may wait this long (s).
NEW_MEMBER_JOIN_TIMEOUT = 300.0
# When nobody came back to a rebalance, the next check is this much later or more.
LEAST_WAIT_MS = 1_000


class GroupState(StrEnum):
    """Kafka's names, as DescribeGroups shows them (`ClassicGroupState`)."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class StaticRejoin(NamedTuple):
    """A static member that came back under a new id. It gets `answer` once the new id is stored.

    If the append fails, `before` is restored.
    """

    waiter: Waiter
    answer: JoinReply
    before: Member


class GenerationStore(NamedTuple):
    """A generation to append."""

    group_id: str
    metadata: GroupMetadata
    rejoin: StaticRejoin | None = None

    def records(self) -> list[KeyValue]:
        return [(encode_group_key(self.group_id), encode_group(self.metadata))]


class ClassicGroup(Group):
    """The state machine of one group."""

    kind = GroupKind.CLASSIC

    def __init__(self, group_id: str, config: GroupSettings, wall_ms: int, offsets: GroupOffsets | None = None) -> None:
        super().__init__(group_id, config, offsets)
        self.state = GroupState.EMPTY
        self.state_timestamp_ms = wall_ms
        self.generation_id = 0
        self.protocol_name: str | None = None
        self.roster = Roster()
        self.waiters = Waiters()
        # Members that have not sent the SyncGroup of this generation yet.
        self.pending_sync: set[str] = set()
        # The assignment that is being appended. A second SyncGroup of the leader must not store another one.
        self.storing: GroupMetadata | None = None
        self._join_deadline = inf
        self._sync_deadline = inf
        # How many ms more the first rebalance of an empty group may be delayed. None in any other rebalance.
        self._initial_remaining_ms: int | None = None
        self._joined_in_delay = False
        self._stores: list[GenerationStore] = []

    @property
    def state_name(self) -> str:
        return self.state.value

    @property
    def protocol_type(self) -> str | None:
        return self.roster.protocol_type

    @property
    def member_count(self) -> int:
        return len(self.roster)

    @property
    def is_empty(self) -> bool:
        return self.state is GroupState.EMPTY

    @property
    def is_unused(self) -> bool:
        return super().is_unused and not self.roster.pending

    @property
    def is_dead(self) -> bool:
        return self.state is GroupState.DEAD

    def set_dead(self, dead: bool) -> None:
        self.state = GroupState.DEAD if dead else GroupState.EMPTY

    def stored_keys(self) -> list[bytes]:
        return [encode_group_key(self.group_id)]

    @property
    def has_records(self) -> bool:
        return self.generation_id > 0

    @property
    def empty_since_ms(self) -> int | None:
        """When the last member left, if it had one."""
        is_known = self.is_empty and self.roster.protocol_type is not None and self.state_timestamp_ms >= 0
        return self.state_timestamp_ms if is_known else None

    def topics_in_use(self) -> frozenset[str] | None:
        return frozenset() if self.is_empty else self.roster.topics_in_use(self.protocol_name)

    def expired_offsets(self, now: Now) -> list[TopicPartition]:
        """Those of a stable group for topics that no member subscribes to, and those of an empty one."""
        return super().expired_offsets(now) if self.state in (GroupState.EMPTY, GroupState.STABLE) else []

    def replayed(self, now: Now) -> Effects:
        for member in self.roster.members.values():
            self.touch(member, now)
        if len(self.roster) > self.config.group_max_size:
            self.prepare_rebalance(now, f"group.max.size is {self.config.group_max_size} now")
        return self.drain()

    def drain(self) -> Effects:
        """Return what the event caused. Every event ends with this."""
        stores, self._stores = self._stores, []
        return Effects(self.waiters.take_replies(), stores)

    # --- stored generations: live and replay -------------------------------------------------------

    def store(self, metadata: GroupMetadata, rejoin: StaticRejoin | None = None) -> None:
        self._stores.append(GenerationStore(self.group_id, metadata, rejoin))

    def snapshot(self, now: Now, assignments: Mapping[str, bytes] | None = None) -> GroupMetadata:
        """This generation as it is stored. Members without an entry in `assignments` get an empty assignment."""
        return GroupMetadata(
            self.roster.protocol_type or "",
            self.generation_id,
            self.protocol_name,
            self.roster.leader,
            now.wall_ms,
            self.roster.records(self.protocol_name, assignments),
        )

    def generation_records(self, now: Now) -> list[KeyValue]:
        """The records that make the stored generation this one."""
        return GenerationStore(self.group_id, self.snapshot(now)).records()

    def install(self, metadata: GroupMetadata, now: Now) -> None:
        """Make a stored generation the current one. On replay this adds its members, each with a new session."""
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

    def stored(self, store: GenerationStore, error: ErrorCode, now: Now) -> Effects:
        """The append of `store` has ended. After an error, nothing of it is stored."""
        if store.rejoin is not None:
            self._rejoin_stored(store.rejoin, error, now)
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

    def _rejoin_stored(self, rejoin: StaticRejoin, error: ErrorCode, now: Now) -> None:
        """Answer a static member that came back. After an error it gets its old id again, as the log has it."""
        waiter, answer, before = rejoin
        current = self.roster.static_ids.get(before.group_instance_id or "")
        if error is not ErrorCode.none:
            if current == answer.member_id:
                self.replace_static(current, before, now)
            answer = JoinReply(error)
        elif current != answer.member_id:
            # The member was removed, or came back once more, during the append.
            gone = ErrorCode.unknown_member_id if current is None else ErrorCode.fenced_instance_id
            answer = JoinReply(gone, answer.member_id)
        self.waiters.reply(waiter, answer)

    def assignment_of(self, member: Member) -> SyncReply:
        return SyncReply(ErrorCode.none, member.assignment, self.roster.protocol_type, self.protocol_name)

    # --- membership ------------------------------------------------------------------------------

    def touch(self, member: Member, now: Now) -> None:
        """Restart the member's session time-out: the broker has heard from it."""
        self._set_deadline(member, now.monotonic + member.session_timeout_ms / 1000)

    def add_member(self, member: Member, protocol_type: str, waiter: Waiter, now: Now) -> None:
        """Add a member whose JoinGroup waits."""
        if self._initial_remaining_ms is not None and self.generation_id == 0:
            self._joined_in_delay = True
        self.roster.add(member, protocol_type)
        self.waiters.park_join(member.member_id, waiter)
        self._set_deadline(member, now.monotonic + NEW_MEMBER_JOIN_TIMEOUT)

    def add_pending(self, member_id: str, session_timeout_ms: int, now: Now) -> None:
        """Remember an id that was given out. A rebalance waits for it for one session time-out."""
        deadline = now.monotonic + session_timeout_ms / 1000
        self.roster.pending[member_id] = deadline
        self.wake_at = min(self.wake_at, deadline)

    def remove_member(self, member_id: str, now: Now, why: str) -> None:
        """Remove a member or a pending id that has left or expired. The other members rebalance."""
        was_member = self._drop(member_id)
        if was_member:
            logger.info("Member %s of group %s is removed: %s", member_id, self.group_id, why)
        if was_member and self.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self.prepare_rebalance(now, f"member {member_id} is removed: {why}")
        else:
            self.maybe_complete_join(now)

    def replace_static(self, old_member_id: str, member: Member, now: Now) -> None:
        """A static member came back under a new id. Requests that wait under the old id are fenced."""
        self.waiters.fail(old_member_id, ErrorCode.fenced_instance_id, old_member_id)
        self.pending_sync = {member.member_id if m == old_member_id else m for m in self.pending_sync}
        self.roster.replace_static(old_member_id, member)
        self.touch(member, now)

    def _drop(self, member_id: str) -> bool:
        self.waiters.fail(member_id, ErrorCode.unknown_member_id)
        self.pending_sync.discard(member_id)
        return self.roster.remove(member_id) is not None

    def _set_deadline(self, member: Member, deadline: float) -> None:
        member.deadline = deadline
        self.wake_at = min(self.wake_at, deadline)

    # --- rebalance -------------------------------------------------------------------------------

    def prepare_rebalance(self, now: Now, why: str) -> None:
        """Begin a rebalance unless one is being prepared already. `why` goes to the log (KIP-800)."""
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
        """Finish the join phase when all members have joined. The initial delay is never cut short."""
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
            # New members joined during the delay: delay again, within the rebalance time-out.
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
            # Only static members are left and none has joined: they stay until their sessions expire.
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
        """The current generation for one member. Only the leader gets the list of members."""
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
        """This generation gets no assignment: drop the old assignments and fail the SyncGroups that wait."""
        for member in self.roster.members.values():
            member.assignment = b""
            if self.waiters.answer_sync(member.member_id, SyncReply(error)):
                self.touch(member, now)

    def _enter(self, state: GroupState, now: Now) -> None:
        self.state = state
        self.state_timestamp_ms = now.wall_ms

    # --- deadlines -------------------------------------------------------------------------------

    def tick(self, now: Now) -> Effects:
        """Handle every deadline that has passed, and set `wake_at` to the next one."""
        for member_id in [m for m, deadline in self.roster.pending.items() if deadline <= now.monotonic]:
            self.remove_member(member_id, now, "it did not join with the id it was given")
        for member in list(self.roster.members.values()):
            # Check one by one: removing a member may complete the rebalance, which restarts the other sessions.
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
        """When the member's session ends. Never while its request waits here, except for its first JoinGroup."""
        if self.waiters.waits(member.member_id) and not member.is_new:
            return inf
        return member.deadline

    def kill(self, error: ErrorCode, now: Now) -> Effects:
        """The group was deleted or has moved to another coordinator. Every request that waits gets `error`."""
        for member_id in list(self.roster.members):
            self.waiters.fail(member_id, error, member_id)
        self._enter(GroupState.DEAD, now)
        self.storing = None
        self.wake_at = self._join_deadline = self._sync_deadline = inf
        return self.drain()

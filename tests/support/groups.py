"""Drives one pure consumer group in tests: turns its clock, keeps its replies and its stored records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from broker.config.setting_groups import GroupSettings
from broker.coordinator import group_requests
from broker.coordinator.group import Effects, Now
from broker.coordinator.group_messages import JoinReply, JoinRequest, LeavingMember, SyncReply, SyncRequest
from broker.coordinator.group_records import GroupMetadata
from broker.coordinator.group_state import ClassicGroup, GenerationStore
from broker.errors import ErrorCode

START_MS = 1_700_000_000_000
RANGE = (("range", b"topics"),)


@dataclass(eq=False)
class Call:
    """One request that waits for its answer; a second answer is an error of the machine."""

    answers: list[JoinReply | SyncReply] = field(default_factory=list)

    @property
    def waits(self) -> bool:
        return not self.answers

    @property
    def joined(self) -> JoinReply:
        assert len(self.answers) == 1, self.answers
        answer = self.answers[0]
        assert isinstance(answer, JoinReply)
        return answer

    @property
    def synced(self) -> SyncReply:
        assert len(self.answers) == 1, self.answers
        answer = self.answers[0]
        assert isinstance(answer, SyncReply)
        return answer

    @property
    def error(self) -> ErrorCode:
        assert len(self.answers) == 1, self.answers
        return self.answers[0].error


class GroupDriver:
    """A group, its time and its log. Stores succeed at once unless `hold` is set."""

    def __init__(self, *, initial_delay_ms: int = 0, max_size: int = 1_000) -> None:
        self.config = GroupSettings(group_initial_rebalance_delay_ms=initial_delay_ms, group_max_size=max_size)
        self.group = ClassicGroup("g", self.config, START_MS)
        self.elapsed_ms = 0
        self.hold = False
        self.held: list[GenerationStore] = []
        self.stored: list[GroupMetadata] = []
        self._ids = 0

    def now(self) -> Now:
        return Now(self.elapsed_ms / 1000, START_MS + self.elapsed_ms)

    def perform(self, effects: Effects) -> None:
        for waiter, answer in effects.replies:
            assert isinstance(waiter, Call)
            waiter.answers.append(answer)
            assert len(waiter.answers) == 1, f"answered twice: {waiter.answers}"
        for store in effects.stores:
            assert isinstance(store, GenerationStore)
            self.held.append(store)
        if not self.hold:
            self.release()

    def release(self, error: ErrorCode = ErrorCode.none) -> None:
        """End the appends that are under way."""
        held, self.held = self.held, []
        for store in held:
            if error is ErrorCode.none:
                self.stored.append(store.metadata)
            self.perform(self.group.stored(store, error, self.now()))

    def advance(self, ms: int) -> None:
        """Turn the clock forward, waking the group exactly when it wants to be woken."""
        end = self.elapsed_ms + ms
        for _ in range(10_000):
            due = self.group.wake_at * 1000
            if due > end:
                self.elapsed_ms = end
                return
            self.elapsed_ms = max(self.elapsed_ms, -int(-due // 1))
            self.perform(self.group.tick(self.now()))
        raise AssertionError("the group wakes without end")

    def join(
        self,
        member_id: str = "",
        *,
        protocols: tuple[tuple[str, bytes], ...] = RANGE,
        protocol_type: str = "consumer",
        instance: str | None = None,
        session_ms: int = 10_000,
        rebalance_ms: int = 60_000,
        require_id: bool = False,
        can_skip: bool = False,
        reason: str | None = None,
    ) -> Call:
        self._ids += 1
        request = JoinRequest(
            "g",
            member_id,
            "client",
            "/host",
            protocol_type,
            protocols,
            session_ms,
            rebalance_ms,
            instance,
            require_id,
            can_skip,
            reason,
        )
        call = Call()
        self.perform(group_requests.join(self.group, request, f"{instance or 'm'}-{self._ids}", call, self.now()))
        return call

    def sync(
        self,
        member_id: str,
        assignments: Mapping[str, bytes] | None = None,
        *,
        generation: int | None = None,
        instance: str | None = None,
        protocol_type: str | None = None,
        protocol_name: str | None = None,
    ) -> Call:
        generation = self.group.generation_id if generation is None else generation
        request = SyncRequest("g", generation, member_id, assignments or {}, instance, protocol_type, protocol_name)
        call = Call()
        self.perform(group_requests.sync(self.group, request, call, self.now()))
        return call

    def heartbeat(self, member_id: str, *, generation: int | None = None, instance: str | None = None) -> ErrorCode:
        generation = self.group.generation_id if generation is None else generation
        return group_requests.heartbeat(self.group, member_id, instance, generation, self.now())

    def leave(self, member_id: str = "", *, instance: str | None = None, reason: str | None = None) -> ErrorCode:
        effects, results = group_requests.leave(self.group, [LeavingMember(member_id, instance, reason)], self.now())
        self.perform(effects)
        return results[0][1]

    def check_commit(self, member_id: str = "", *, generation: int = -1, instance: str | None = None) -> ErrorCode:
        return group_requests.check_commit(self.group, member_id, instance, generation, self.now())

    def abandon(self, call: Call, *, can_return: bool = True) -> None:
        self.perform(group_requests.abandon(self.group, call, can_return=can_return, now=self.now()))

    def stable(self, size: int = 2, **options: object) -> list[str]:
        """Bring `size` members into a stable generation; the leader comes first."""
        first = self.join(**options)  # type: ignore[arg-type]
        members = [first.joined.member_id]
        for _ in range(size - 1):
            newcomer = self.join(**options)  # type: ignore[arg-type]
            rejoins = [self.join(member, **options) for member in members]  # type: ignore[arg-type]
            assert not any(call.waits for call in rejoins)
            members.append(newcomer.joined.member_id)
        self.sync_all(members)
        return members

    def sync_all(self, members: list[str]) -> None:
        """Followers sync, then the leader assigns each member its own id."""
        leader = self.group.roster.leader
        calls = [self.sync(member) for member in members if member != leader]
        calls.append(self.sync(leader or "", {member: member.encode() for member in members}))
        assert all(call.error is ErrorCode.none for call in calls)

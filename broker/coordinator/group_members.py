"""The members of one classic group, and the requests that wait for it. Pure; used by the group's state machine only.

`Member` is one member. `Roster` is all of them: static members, pending ids, the leader and the protocol votes.
`Waiters` holds the JoinGroup and SyncGroup requests that are not answered yet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf

from broker.coordinator.group import CONSUMER_PROTOCOL_TYPE, Reply, Waiter
from broker.coordinator.group_messages import JoinedMember, JoinReply, JoinRequest, SyncReply
from broker.coordinator.group_records import MemberMetadata
from broker.errors import ErrorCode
from broker.protocol.consumer_protocol import subscribed_topics


@dataclass(slots=True)
class Member:
    """Kafka's `MemberMetadata` / `ClassicGroupMember`. Time-outs are in ms, `deadline` in monotonic seconds."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    # Name → metadata, in the member's order of preference.
    protocols: dict[str, bytes]
    assignment: bytes = b""
    # The member is removed unless it is heard from before this time.
    deadline: float = inf
    # In its first rebalance. A new member cannot send heartbeats, so its wait is limited (NEW_MEMBER_JOIN_TIMEOUT).
    is_new: bool = False

    @classmethod
    def from_request(cls, request: JoinRequest, member_id: str) -> Member:
        return cls(
            member_id,
            request.group_instance_id,
            request.client_id,
            request.client_host,
            request.effective_rebalance_timeout_ms,
            request.session_timeout_ms,
            dict(request.protocols),
            is_new=True,
        )

    @classmethod
    def from_record(cls, record: MemberMetadata, protocol_name: str | None) -> Member:
        """A member from the log. Only its metadata for the chosen protocol is stored."""
        return cls(
            record.member_id,
            record.group_instance_id,
            record.client_id,
            record.client_host,
            record.rebalance_timeout_ms,
            record.session_timeout_ms,
            {protocol_name or "": record.subscription},
        )

    @property
    def is_static(self) -> bool:
        return self.group_instance_id is not None

    def supports(self, protocols: tuple[tuple[str, bytes], ...]) -> bool:
        """Whether it joined with exactly these protocols, in this order, with this metadata."""
        return list(self.protocols.items()) == list(dict(protocols).items())

    def joined(self, protocol_name: str | None) -> JoinedMember:
        metadata = self.protocols.get(protocol_name or "", b"")
        return JoinedMember(self.member_id, self.group_instance_id, metadata)

    def record(self, protocol_name: str | None, assignment: bytes) -> MemberMetadata:
        return MemberMetadata(
            self.member_id,
            self.group_instance_id,
            self.client_id,
            self.client_host,
            self.rebalance_timeout_ms,
            self.session_timeout_ms,
            subscription=self.protocols.get(protocol_name or "", b""),
            assignment=assignment,
        )


class Roster:
    """The membership of one group. Keeps its maps consistent; knows no states, time-outs or replies."""

    __slots__ = ("_supporters", "leader", "members", "pending", "protocol_type", "static_ids")

    def __init__(self) -> None:
        # In the order of joining: the first one becomes leader when the leader is lost.
        self.members: dict[str, Member] = {}
        # Group instance id → member id.
        self.static_ids: dict[str, str] = {}
        # Ids that were given out (KIP-394) and did not join yet → when they expire (monotonic s).
        self.pending: dict[str, float] = {}
        self.leader: str | None = None
        self.protocol_type: str | None = None
        # Protocol → number of members that support it.
        self._supporters: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self.members)

    def add(self, member: Member, protocol_type: str | None) -> None:
        """Add a member. The first one becomes leader and decides the protocol type."""
        if not self.members:
            self.protocol_type = protocol_type
        self.members[member.member_id] = member
        if member.group_instance_id is not None:
            self.static_ids[member.group_instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id
        self.pending.pop(member.member_id, None)
        self._supporters.update(member.protocols.keys())

    def remove(self, member_id: str) -> Member | None:
        """Remove a member or a pending id. The member that joined first replaces a lost leader."""
        self.pending.pop(member_id, None)
        member = self.members.pop(member_id, None)
        if member is None:
            return None
        self._withdraw_votes(member)
        if member.group_instance_id is not None and self.static_ids.get(member.group_instance_id) == member_id:
            del self.static_ids[member.group_instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        return member

    def replace_static(self, old_member_id: str, member: Member) -> None:
        """Put a static member in the place of its old id. It stays leader if it was."""
        self._withdraw_votes(self.members.pop(old_member_id))
        self.members[member.member_id] = member
        self._supporters.update(member.protocols.keys())
        if member.group_instance_id is not None:
            self.static_ids[member.group_instance_id] = member.member_id
        if self.leader == old_member_id:
            self.leader = member.member_id

    def update_protocols(self, member: Member, protocols: tuple[tuple[str, bytes], ...]) -> None:
        self._withdraw_votes(member)
        member.protocols = dict(protocols)
        self._supporters.update(member.protocols.keys())

    def check_member(self, member_id: str, group_instance_id: str | None) -> ErrorCode:
        """Whether a request comes from a current member (`validateCurrentMember`)."""
        if group_instance_id is not None:
            current = self.static_ids.get(group_instance_id)
            if current is None:
                return ErrorCode.unknown_member_id
            if current != member_id:
                return ErrorCode.fenced_instance_id
        return ErrorCode.none if member_id in self.members else ErrorCode.unknown_member_id

    def accepts(self, protocol_type: str, names: Iterable[str]) -> bool:
        """Whether a joining member has the group's protocol type and a protocol that all members support."""
        if not self.members:
            return bool(protocol_type) and any(True for _ in names)
        if protocol_type != self.protocol_type:
            return False
        return any(self._supporters[name] == len(self.members) for name in names)

    def select_protocol(self) -> str:
        """The protocol of the next generation. Each member votes for its first one that all support."""
        candidates = {name for name, count in self._supporters.items() if count == len(self.members)}
        votes = Counter(
            next(name for name in member.protocols if name in candidates) for member in self.members.values()
        )
        return votes.most_common(1)[0][0]

    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance time-out of a member."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def topics_in_use(self, protocol_name: str | None) -> frozenset[str] | None:
        """The topics its consumers subscribe to. None when this broker cannot read a subscription."""
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE or protocol_name is None:
            return None
        topics: set[str] = set()
        for member in self.members.values():
            subscribed = subscribed_topics(member.protocols.get(protocol_name, b""))
            if subscribed is None:
                return None
            topics |= subscribed
        return frozenset(topics)

    def records(self, protocol_name: str | None, assignments: Mapping[str, bytes] | None) -> tuple[MemberMetadata, ...]:
        """The members to store, with their present assignments or with new ones."""
        return tuple(
            member.record(
                protocol_name, member.assignment if assignments is None else assignments.get(member.member_id, b"")
            )
            for member in self.members.values()
        )

    def _withdraw_votes(self, member: Member) -> None:
        self._supporters.subtract(member.protocols.keys())
        for name in member.protocols:
            if not self._supporters[name]:
                del self._supporters[name]


class Waiters:
    """JoinGroup and SyncGroup requests that wait, by member id, and the replies an event has caused.

    A member has at most one waiter of each kind.
    """

    __slots__ = ("_replies", "joining", "syncing")

    def __init__(self) -> None:
        self.joining: dict[str, Waiter] = {}
        self.syncing: dict[str, Waiter] = {}
        self._replies: list[Reply] = []

    def take_replies(self) -> list[Reply]:
        replies, self._replies = self._replies, []
        return replies

    def reply(self, waiter: Waiter, answer: JoinReply | SyncReply) -> None:
        """Answer a request, whether it waits here or not."""
        self._replies.append(Reply(waiter, answer))

    def park_join(self, member_id: str, waiter: Waiter) -> None:
        """Let a JoinGroup wait. An older one of the same member gets REBALANCE_IN_PROGRESS."""
        self.answer_join(member_id, JoinReply(ErrorCode.rebalance_in_progress, member_id))
        self.joining[member_id] = waiter

    def park_sync(self, member_id: str, waiter: Waiter) -> None:
        """Let a SyncGroup wait. An older one of the same member gets REBALANCE_IN_PROGRESS."""
        self.answer_sync(member_id, SyncReply(ErrorCode.rebalance_in_progress))
        self.syncing[member_id] = waiter

    def answer_join(self, member_id: str, answer: JoinReply) -> bool:
        """Answer the member's JoinGroup. False when none waits."""
        return self._answer(self.joining.pop(member_id, None), answer)

    def answer_sync(self, member_id: str, answer: SyncReply) -> bool:
        """Answer the member's SyncGroup. False when none waits."""
        return self._answer(self.syncing.pop(member_id, None), answer)

    def _answer(self, waiter: Waiter | None, answer: JoinReply | SyncReply) -> bool:
        if waiter is None:
            return False
        self.reply(waiter, answer)
        return True

    def fail(self, member_id: str, error: ErrorCode, replied_id: str = "") -> None:
        """Answer all that the member waits for with `error`. `replied_id` is the member id in the JoinGroup reply."""
        self.answer_join(member_id, JoinReply(error, replied_id))
        self.answer_sync(member_id, SyncReply(error))

    def waits(self, member_id: str) -> bool:
        return member_id in self.joining or member_id in self.syncing

    def abandon(self, waiter: Waiter) -> str | None:
        """Drop a waiter whose connection is closed. Returns its member id, or None if it was answered already."""
        for waiting in (self.joining, self.syncing):
            for member_id, candidate in waiting.items():
                if candidate is waiter:
                    del waiting[member_id]
                    return member_id
        return None

"""Who is in a group: members, static instances, pending ids, the leader and the protocol votes.

Called by the group machine only. Keeps the maps consistent with each other; knows nothing of states,
time-outs or replies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from broker.coordinator.group_member import Member
from broker.coordinator.records import MemberMetadata
from broker.errors import ErrorCode

__all__ = ["Roster"]


class Roster:
    """The membership of one group."""

    __slots__ = ("_supporters", "leader", "members", "pending", "protocol_type", "static_ids")

    def __init__(self) -> None:
        # In the order of joining: an election takes the first.
        self.members: dict[str, Member] = {}
        # Group instance id → member id.
        self.static_ids: dict[str, str] = {}
        # Ids given out by KIP-394 whose second JoinGroup has not come yet → when they lapse (monotonic s).
        self.pending: dict[str, float] = {}
        self.leader: str | None = None
        self.protocol_type: str | None = None
        # Protocol → number of members that support it.
        self._supporters: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self.members)

    def add(self, member: Member, protocol_type: str | None) -> None:
        """Take a member in; the first one is the leader and decides the protocol type."""
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
        """Drop a member, or a pending id; a lost leader is replaced by the longest member."""
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
        """Put a static member into the place it had under another id; it keeps the leadership."""
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
        """Whether a joiner has the group's protocol type and one protocol that all members support."""
        if not self.members:
            return bool(protocol_type) and any(True for _ in names)
        if protocol_type != self.protocol_type:
            return False
        return any(self._supporters[name] == len(self.members) for name in names)

    def select_protocol(self) -> str:
        """The protocol of the next generation: each member votes for its favourite common one."""
        candidates = {name for name, count in self._supporters.items() if count == len(self.members)}
        votes = Counter(member.vote(candidates) for member in self.members.values())
        return votes.most_common(1)[0][0]

    def rebalance_timeout_ms(self) -> int:
        """How long a rebalance waits: as long as its most patient member."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def records(self, protocol_name: str | None, assignments: Mapping[str, bytes] | None) -> tuple[MemberMetadata, ...]:
        """The members as they are stored: with the assignments they have, or with new ones."""
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

"""One member of a classic group, as the coordinator knows it. Pure; owned by the group's roster."""

from __future__ import annotations

from dataclasses import dataclass, field

from broker.coordinator.group_messages import DescribedMember, JoinedMember, JoinRequest
from broker.coordinator.records import MemberMetadata

__all__ = ["Member"]


@dataclass(slots=True)
class Member:
    """Kafka's `MemberMetadata` / `ClassicGroupMember`; time-outs in ms, `deadline` in monotonic seconds."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    # Name → metadata; the order of the dict is the member's preference.
    protocols: dict[str, bytes]
    assignment: bytes = b""
    # Nothing heard until then: the member is removed.
    deadline: float = field(default=float("inf"))
    # In its first rebalance: it may time out while it waits for the others (it cannot send heartbeats yet).
    is_new: bool = False

    @classmethod
    def from_request(cls, request: JoinRequest, member_id: str) -> Member:
        return cls(
            member_id,
            request.group_instance_id,
            request.client_id,
            request.client_host,
            request.patience_ms,
            request.session_timeout_ms,
            dict(request.protocols),
            is_new=True,
        )

    @classmethod
    def from_record(cls, record: MemberMetadata, protocol_name: str | None) -> Member:
        """A member as replay brings it back: of its protocols only the chosen one is known."""
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
        """Whether it has joined with just these protocols, in this order, with this metadata."""
        return list(self.protocols.items()) == list(dict(protocols).items())

    def vote(self, candidates: set[str]) -> str:
        """Its favourite among protocols that every member supports."""
        return next(name for name in self.protocols if name in candidates)

    def joined(self, protocol_name: str | None) -> JoinedMember:
        metadata = self.protocols.get(protocol_name or "", b"")
        return JoinedMember(self.member_id, self.group_instance_id, metadata)

    def described(self, protocol_name: str | None) -> DescribedMember:
        """How DescribeGroups shows it; without a protocol (no stable generation) without its data."""
        metadata = self.protocols.get(protocol_name, b"") if protocol_name is not None else b""
        assignment = self.assignment if protocol_name is not None else b""
        return DescribedMember(
            self.member_id, self.group_instance_id, self.client_id, self.client_host, metadata, assignment
        )

    def record(self, protocol_name: str | None, assignment: bytes) -> MemberMetadata:
        """What is stored about it."""
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

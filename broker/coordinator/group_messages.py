"""What the API handlers hand to the group coordinator and get back: requests and replies.

Free of wire versions: a handler fills what its version has, the rest keeps its default. Errors are
`ErrorCode` values in the replies; nothing here is raised. Times are in ms.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from broker.coordinator.records import OffsetAndMetadata
from broker.coordinator.transaction_state import ProducerIdAndEpoch
from broker.errors import ErrorCode
from broker.protocol.topic_partition import TopicPartition

__all__ = [
    "NO_OFFSET",
    "CommitRequest",
    "DescribedMember",
    "FetchReply",
    "GroupDescription",
    "JoinReply",
    "JoinRequest",
    "JoinedMember",
    "LeaveReply",
    "LeavingMember",
    "ListedGroup",
    "SyncReply",
    "SyncRequest",
    "quoted",
]

MAX_REASON_LENGTH = 255
"""In characters, as Kafka's clients cut it."""

# What OffsetFetch tells about a partition without a committed offset.
NO_OFFSET = OffsetAndMetadata(-1)


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """JoinGroup. `protocols` are (name, metadata), the member's favourite first."""

    group_id: str
    member_id: str
    client_id: str
    client_host: str
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    session_timeout_ms: int
    # -1 (version 0 has none): the session time-out.
    rebalance_timeout_ms: int = -1
    group_instance_id: str | None = None
    # KIP-394, true from version 4: a dynamic member must come back with the id it is given.
    require_known_member_id: bool = False
    # KIP-814, true from version 9: a returning static leader may be told to skip the assignment.
    can_skip_assignment: bool = False
    # KIP-800, from version 8: why the member joins, for the operator.
    reason: str | None = None

    @property
    def patience_ms(self) -> int:
        """How long the member wants a rebalance to wait for it."""
        return self.session_timeout_ms if self.rebalance_timeout_ms < 0 else self.rebalance_timeout_ms


@dataclass(frozen=True, slots=True)
class JoinedMember:
    """A member as the leader sees it; `metadata` is its subscription under the chosen protocol."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinReply:
    """The generation a member has joined; `members` is empty for all but the leader."""

    error: ErrorCode
    member_id: str = ""
    generation_id: int = -1
    protocol_type: str | None = None
    # None where Kafka has null (from version 7); a handler of an older version sends "".
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


@dataclass(frozen=True, slots=True)
class SyncRequest:
    """SyncGroup; only the leader's `assignments` (member id → bytes) count."""

    group_id: str
    generation_id: int
    member_id: str
    assignments: Mapping[str, bytes]
    group_instance_id: str | None = None
    # From version 5; None = not given, not checked.
    protocol_type: str | None = None
    protocol_name: str | None = None


@dataclass(frozen=True, slots=True)
class SyncReply:
    error: ErrorCode
    assignment: bytes = b""
    protocol_type: str | None = None
    protocol_name: str | None = None


@dataclass(frozen=True, slots=True)
class LeavingMember:
    """One member to remove: by id, or by instance id alone (an operator removes a static member)."""

    member_id: str = ""
    group_instance_id: str | None = None
    # KIP-800, from version 5: why it leaves, for the operator.
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class LeaveReply:
    """One result per leaving member, in the order asked. Before version 3 the handler
    answers `error`, or if that is none the error of the only member."""

    error: ErrorCode
    members: tuple[tuple[LeavingMember, ErrorCode], ...] = ()


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """OffsetCommit; of each offset only `offset`, `leader_epoch` and `metadata` are read."""

    group_id: str
    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None
    # Versions 2 to 4; -1: the broker's offsets.retention.minutes.
    retention_time_ms: int = -1
    # TxnOffsetCommit: whose transaction the offsets belong to.
    producer: ProducerIdAndEpoch | None = None


@dataclass(frozen=True, slots=True)
class FetchReply:
    """OffsetFetch of one group; a partition without a commit has `NO_OFFSET` when it was asked for."""

    error: ErrorCode
    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    # UNSTABLE_OFFSET_COMMIT: an open transaction may still move them (KIP-447).
    unstable: Collection[TopicPartition] = frozenset()


@dataclass(frozen=True, slots=True)
class DescribedMember:
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    # Both are empty while the group is not stable.
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """DescribeGroups of one group; one that does not exist is described as Dead (version 6 on:
    the handler answers GROUP_ID_NOT_FOUND)."""

    error: ErrorCode
    group_id: str
    state: str = ""
    protocol_type: str = ""
    protocol_name: str = ""
    members: Sequence[DescribedMember] = ()


@dataclass(frozen=True, slots=True)
class ListedGroup:
    group_id: str
    protocol_type: str
    state: str


def quoted(reason: str | None) -> str:
    """A client's reason (KIP-800) as the end of a log line: cut, and on that line whatever is in it."""
    return f", because {reason[:MAX_REASON_LENGTH]!r}" if reason else ""

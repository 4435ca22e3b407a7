"""The requests that API handlers pass to the group coordinator, and its replies.

They are the same for every wire version: a field that a version lacks keeps its default. Errors are `ErrorCode` values
in the replies. Times are in ms.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from broker.coordinator.group_records import MemberMetadata, OffsetAndMetadata
from broker.coordinator.transaction_state import ProducerIdAndEpoch
from broker.errors import ErrorCode
from broker.protocol.topic_partition import TopicPartition

# In characters. Kafka's clients cut a reason at this length.
MAX_REASON_LENGTH = 255

# OffsetFetch's answer for a partition without a committed offset.
NO_OFFSET = OffsetAndMetadata(-1)


class JoinRequest(NamedTuple):
    """JoinGroup. `protocols` are (name, metadata), in the member's order of preference."""

    group_id: str
    member_id: str
    client_id: str
    client_host: str
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    session_timeout_ms: int
    # -1 stands for the session time-out. Version 0 has no such field.
    rebalance_timeout_ms: int = -1
    group_instance_id: str | None = None
    # KIP-394, true from version 4: a new dynamic member must join again with the id it is given.
    require_known_member_id: bool = False
    # KIP-814, true from version 9: the reply may ask a static leader that came back to skip the assignment.
    can_skip_assignment: bool = False
    # KIP-800, from version 8: why the member joins, for the log.
    reason: str | None = None

    @property
    def effective_rebalance_timeout_ms(self) -> int:
        return self.session_timeout_ms if self.rebalance_timeout_ms < 0 else self.rebalance_timeout_ms


class JoinedMember(NamedTuple):
    """A member as the leader sees it. `metadata` is its subscription for the chosen protocol."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


class JoinReply(NamedTuple):
    """The generation a member has joined. `members` is empty for all but the leader."""

    error: ErrorCode
    member_id: str = ""
    generation_id: int = -1
    protocol_type: str | None = None
    # Null from version 7. The handler sends "" in older versions.
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


class SyncRequest(NamedTuple):
    """SyncGroup. Only the leader's `assignments` (member id → bytes) are read."""

    group_id: str
    generation_id: int
    member_id: str
    assignments: Mapping[str, bytes]
    group_instance_id: str | None = None
    # From version 5. None is not checked.
    protocol_type: str | None = None
    protocol_name: str | None = None


class SyncReply(NamedTuple):
    error: ErrorCode
    assignment: bytes = b""
    protocol_type: str | None = None
    protocol_name: str | None = None


class LeavingMember(NamedTuple):
    """A member to remove, by id. An operator may name a static member by its instance id alone."""

    member_id: str = ""
    group_instance_id: str | None = None
    # KIP-800, from version 5: why it leaves, for the log.
    reason: str | None = None


class LeaveReply(NamedTuple):
    """One result per member, in the order of the request."""

    error: ErrorCode
    members: tuple[tuple[LeavingMember, ErrorCode], ...] = ()


class CommitRequest(NamedTuple):
    """OffsetCommit. Of each offset `offset`, `leader_epoch`, `metadata` and `commit_timestamp` are read; a timestamp of
    -1 stands for now."""

    group_id: str
    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None
    # Versions 2 to 4. -1 stands for the broker's offsets.retention.minutes.
    retention_time_ms: int = -1
    # OffsetCommit 9 and later: the generation may be a member epoch (KIP-848).
    knows_epochs: bool = False
    # TxnOffsetCommit only.
    producer: ProducerIdAndEpoch | None = None


class FetchingMember(NamedTuple):
    """Who sends an OffsetFetch, from version 9 on. Without an id, anybody."""

    member_id: str | None = None
    member_epoch: int = -1


NO_MEMBER = FetchingMember()


class FetchReply(NamedTuple):
    """OffsetFetch of one group. A requested partition without a commit has `NO_OFFSET`."""

    error: ErrorCode
    offsets: Mapping[TopicPartition, OffsetAndMetadata]
    # UNSTABLE_OFFSET_COMMIT: an open transaction may still change their offsets (KIP-447).
    unstable: Collection[TopicPartition] = frozenset()


class GroupDescription(NamedTuple):
    """DescribeGroups of one group. A group that does not exist has the state Dead."""

    error: ErrorCode
    group_id: str
    state: str = ""
    protocol_type: str = ""
    protocol_name: str = ""
    members: Sequence[MemberMetadata] = ()
    """Without subscriptions and assignments while the group is not stable."""
    message: str | None = None
    """Why there is no such group."""


def quoted(reason: str | None) -> str:
    """A client's reason (KIP-800) for the end of a log line: cut, and without line breaks."""
    return f", because {reason[:MAX_REASON_LENGTH]!r}" if reason else ""

"""The heartbeats of groups to which the coordinator assigns partitions: consumer (KIP-848) and share groups (KIP-932).

The API handlers pass these to the group coordinator. They are the same for every wire version. Times are in ms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias
from uuid import UUID

from broker.errors import ErrorCode
from broker.replica.cluster_metadata import Topic

# Member epochs that mean something else in a request.
JOIN_EPOCH = 0
LEAVE_EPOCH = -1
LEAVE_STATIC_EPOCH = -2
"""A static member leaves for a while: its partitions are free, its place is kept for one session time-out."""


class TopicIdPartition(NamedTuple):
    """A partition of a topic that is named by its id."""

    topic_id: UUID
    partition: int


Partitions: TypeAlias = frozenset[TopicIdPartition]

Topics: TypeAlias = Mapping[str, Topic]
"""The topics of the cluster by name, as `ClusterMetadata.topics`."""


@dataclass(slots=True)  # frozen ones take long to make
class HeartbeatRequest:
    """ConsumerGroupHeartbeat, and ShareGroupHeartbeat with the fields that it has.

    None stands for "as before", and so does a rebalance time-out of -1.
    """

    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topic_names: frozenset[str] | None = None
    topic_regex: str | None = None
    """"" ends a subscription by pattern."""
    server_assignor: str | None = None
    owned: Partitions | None = None
    """The partitions that the member has now."""
    client_id: str = ""
    client_host: str = ""
    client: object = None
    """Whose rights decide which topics a pattern may match. It comes back in `Resolve`, and is not read here."""
    needs_member_id: bool = True
    """From version 1 on, a member brings its own id (KIP-1082). In version 0 the coordinator gives it one."""


@dataclass(slots=True)
class HeartbeatReply:
    """The answer to a heartbeat. `assignment` is None if the member keeps what it has."""

    error: ErrorCode
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: Partitions | None = None


class Resolve(NamedTuple):
    """Patterns whose topics the runtime looks up in a thread, with the rights of `client` (of the request)."""

    regexes: frozenset[str]
    client: object

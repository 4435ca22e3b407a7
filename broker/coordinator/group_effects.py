"""What goes into the pure group machine and what comes out of it.

An event carries `Now` and, where an answer may come later, an opaque waiter; it returns `Effects`.
The runtime delivers the replies, appends the stores, and hands each `Store` back to
`ClassicGroup.stored` when it knows how the append ended.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple, TypeAlias

from broker.coordinator.group_member import Member
from broker.coordinator.group_messages import JoinReply, SyncReply
from broker.coordinator.records import GroupMetadata

__all__ = ["Effects", "GroupState", "Now", "Reply", "Return", "Store", "Waiter"]

# Whatever the runtime wants to get back with the reply; compared by identity only.
Waiter: TypeAlias = object


class GroupState(StrEnum):
    """Kafka's names, as DescribeGroups shows them (`ClassicGroupState`)."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class Now(NamedTuple):
    """The two times an event needs: seconds for waits, ms since the epoch for what is stored."""

    monotonic: float
    wall_ms: int


class Reply(NamedTuple):
    """An answer for one waiter; every waiter gets exactly one, unless it was abandoned."""

    waiter: Waiter
    answer: JoinReply | SyncReply


class Return(NamedTuple):
    """A static member is back under a new id: its reply, kept until the id is stored, and what it was before,
    for the case that it cannot be stored."""

    waiter: Waiter
    answer: JoinReply
    before: Member


class Store(NamedTuple):
    """A generation to append."""

    metadata: GroupMetadata
    returned: Return | None = None


class Effects(NamedTuple):
    """What the runtime has to do, in this order."""

    replies: list[Reply]
    stores: list[Store]

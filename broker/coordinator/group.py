"""What every kind of group has: its committed offsets, its state, its deadlines and its records. Pure.

The group coordinator holds one `Group` for a group id. Its class says what kind of membership it has: `ClassicGroup`
(JoinGroup and SyncGroup), `ConsumerGroup` (KIP-848) or `ShareGroup` (KIP-932). Another kind takes its place by a new
object that gets the same `offsets`.

There is no clock, socket or asyncio here: an event brings `Now` and returns `Effects`. After each event the runtime
(`group_shard`) must call `tick` no later than `wake_at`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from enum import StrEnum
from math import inf
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias

from broker.config.setting_groups import GroupSettings
from broker.coordinator.group_offsets import GroupOffsets
from broker.coordinator.modern_group_messages import Resolve
from broker.coordinator.record_format import KeyValue
from broker.errors import ErrorCode
from broker.protocol.topic_partition import TopicPartition

CONSUMER_PROTOCOL_TYPE = "consumer"

# The runtime's handle for one request. It comes back with the reply and is compared by identity only.
Waiter: TypeAlias = object


class GroupKind(StrEnum):
    """The types of ListGroups (KIP-848)."""

    CLASSIC = "classic"
    CONSUMER = "consumer"
    SHARE = "share"


class Now(NamedTuple):
    """The two times an event needs: monotonic seconds for waits, ms since the epoch for records."""

    monotonic: float
    wall_ms: int


class Reply(NamedTuple):
    """The answer for one waiter, one of `group_messages`. Every waiter gets exactly one, unless it was abandoned."""

    waiter: Waiter
    answer: Any


class Store(Protocol):
    """Records that are appended together."""

    def records(self) -> Sequence[KeyValue]:
        """Raises MalformedRecord if something does not fit into a record."""


class Effects(NamedTuple):
    """What the runtime does after an event, in this order. It passes each `Store` to `Group.stored` when its append has
    ended."""

    replies: Sequence[Reply] = ()
    stores: Sequence[Store] = ()
    resolve: Resolve | None = None
    successor: Group | None = None
    """A group of another kind that takes the place of this one from now on."""


class Group(ABC):
    """One group of any kind."""

    kind: ClassVar[GroupKind]

    def __init__(self, group_id: str, config: GroupSettings, offsets: GroupOffsets | None = None) -> None:
        self.group_id = group_id
        self.config = config
        self.offsets = GroupOffsets() if offsets is None else offsets
        # The keys of a group of another kind whose place this one takes: its next store deletes them.
        self.obsolete_keys: list[bytes] = []
        # No deadline comes before this time (monotonic s).
        self.wake_at = inf

    # --- state

    @property
    @abstractmethod
    def state_name(self) -> str:
        """Kafka's name of the state, as ListGroups shows it."""

    @property
    @abstractmethod
    def protocol_type(self) -> str | None:
        """`consumer` for groups of consumers. None if the group has never had a member."""

    @property
    @abstractmethod
    def member_count(self) -> int: ...

    @property
    @abstractmethod
    def is_empty(self) -> bool:
        """It has no members, so it may be deleted."""

    @property
    @abstractmethod
    def is_dead(self) -> bool:
        """Its deletion is being stored, or it has ended here. It takes no requests."""

    @abstractmethod
    def set_dead(self, dead: bool) -> None:
        """An empty group: its deletion begins, or could not be stored."""

    @property
    def is_unused(self) -> bool:
        """It has no member, no open transaction and no append under way."""
        return self.is_empty and not self.offsets.has_pending and not self.offsets.in_flight

    @abstractmethod
    def stored_keys(self) -> list[bytes]:
        """The keys of the membership's records, in the order in which they are deleted. Raises MalformedRecord."""

    @property
    @abstractmethod
    def has_records(self) -> bool:
        """Whether any of them may be in the log."""

    # --- events

    @abstractmethod
    def replayed(self, now: Now) -> Effects:
        """The group was replayed. Every member gets a new session."""

    @abstractmethod
    def tick(self, now: Now) -> Effects:
        """Handle every deadline that has passed, and set `wake_at` to the next one."""

    @abstractmethod
    def stored(self, store: Any, error: ErrorCode, now: Now) -> Effects:
        """The append of `store` has ended. After an error, nothing of it is stored."""

    @abstractmethod
    def kill(self, error: ErrorCode, now: Now) -> Effects:
        """The group was deleted or has moved to another coordinator. Every request that waits gets `error`."""

    # --- offsets

    def deletable_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, ErrorCode] | None:
        """OffsetDelete (KIP-496): GROUP_SUBSCRIBED_TO_TOPIC for partitions of topics in use, no error for the others.

        None if the group has members and is not a group of consumers.
        """
        if not self.is_empty and self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return None
        in_use, refused = self.topics_in_use(), ErrorCode.group_subscribed_to_topic
        return {tp: refused if in_use is None or tp.topic in in_use else ErrorCode.none for tp in partitions}

    @abstractmethod
    def topics_in_use(self) -> frozenset[str] | None:
        """The topics its members subscribe to: their offsets stay. None: this is not known, all stay."""

    @property
    def empty_since_ms(self) -> int | None:
        """From when the age of all offsets counts. None: each from its commit."""
        return None

    def expired_offsets(self, now: Now) -> list[TopicPartition]:
        """The offsets that have expired (KIP-211)."""
        in_use = self.topics_in_use()
        if in_use is None:
            return []
        retention_ms = self.config.offsets_retention_minutes * 60_000
        return self.offsets.expired(now.wall_ms, retention_ms, empty_since_ms=self.empty_since_ms, in_use=in_use)

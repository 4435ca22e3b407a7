"""Where the state of share partitions is stored (KIP-932): what is asked of it, and the interface. Pure.

The leader of a partition keeps what members of a share group have of it in memory (`share_partition_state`). Whatever
must survive that leader it writes here, before it answers. The share coordinator implements it, on this broker
(`share_coordinator`) or on another one (`share_coordinator_client`), by the APIs 83–87. The fields of all tuples are
called as in their messages.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from broker.errors import BrokerError, ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.protocol.entities import Int8, Int16, Int32, Int64, String, Uuid
from broker.protocol.messages import field

T = TypeVar("T", bound=tuple[Any, ...])

RETRIABLE = (
    ErrorCode.not_coordinator,
    ErrorCode.coordinator_not_available,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.network_exception,
)
"""Ask again. After the first two and the last one a change may have been stored."""


class SharePartitionKey(NamedTuple):
    """One partition of a topic as one share group sees it."""

    group_id: String
    topic_id: Uuid
    partition: Int32

    def __str__(self) -> str:
        return f"{self.topic_id}-{self.partition} of group {self.group_id}"

    @property
    def coordinator_key(self) -> str:
        """Its key for FindCoordinator (key type 2), whose hash is its partition of `__share_group_state`."""
        topic_id = base64.urlsafe_b64encode(self.topic_id.bytes).rstrip(b"=").decode()
        return f"{self.group_id}:{topic_id}:{self.partition}"

    @classmethod
    def parse(cls, coordinator_key: str) -> SharePartitionKey:
        """Raises BrokerError `invalid_request`."""
        try:
            group_id, topic_id, partition = coordinator_key.rsplit(":", 2)
            return cls(group_id, uuid.UUID(bytes=base64.urlsafe_b64decode(topic_id + "==")), int(partition))
        except ValueError:
            raise BrokerError(
                ErrorCode.invalid_request, f"{coordinator_key!r} is not GROUP:TOPIC_ID:PARTITION"
            ) from None


class StateBatch(NamedTuple):
    """Consecutive offsets, both ends included, in one state: 0 available, 2 acknowledged, 3 archiving or 4 archived."""

    first_offset: Int64
    last_offset: Int64
    delivery_state: Int8
    delivery_count: Int16


class ShareState(NamedTuple):
    """What is stored. `start_offset` is −1 before the first write, and for an unknown key. Offsets from there on that
    are in no batch were never acknowledged or released. `delivery_complete_count` of them are acknowledged or archived;
    −1: not known."""

    start_offset: int = -1
    state_epoch: int = 0
    leader_epoch: int = 0
    state_batches: Sequence[StateBatch] = ()
    delivery_complete_count: int = -1


class Initialize(NamedTuple):
    """Begin, or begin again. `start_offset` −1: the first leader decides, by `share.auto.offset.reset`."""

    state_epoch: int
    start_offset: int


class Read(NamedTuple):
    """The state, for a new leader of the partition. Leaders of earlier epochs can write nothing from then on."""

    leader_epoch: int


class ShareWrite(NamedTuple):
    """A change of the state, which all in-sync replicas of the coordinator's partition have when it is answered.
    Batches that are not named stay as they are, but for what is below the start."""

    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int = -1
    state_batches: Sequence[StateBatch] = ()


class Delete(NamedTuple):
    """Forget the state. No error if there is none."""


class Summary(NamedTuple):
    """The state without its batches, for DescribeShareGroupOffsets. Fences nobody."""

    leader_epoch: int = -1


Asked = Initialize | Read | ShareWrite | Delete | Summary

STATE_APIS: Final[Mapping[ApiKey, tuple[type[Asked], int]]] = {
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: (Initialize, 0),
    ApiKey.READ_SHARE_GROUP_STATE: (Read, 0),
    ApiKey.WRITE_SHARE_GROUP_STATE: (ShareWrite, 1),
    ApiKey.DELETE_SHARE_GROUP_STATE: (Delete, 0),
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: (Summary, 1),
}
"""What each API asks for, and the version that brokers use."""


def to_fields(values: Asked | ShareState) -> dict[str, Any]:
    """The fields of a message."""
    batches: Sequence[StateBatch] = getattr(values, "state_batches", ())
    return {**values._asdict(), "state_batches": [one._asdict() for one in batches]}


def from_fields(kind: type[T], row: Any) -> T:
    """The tuple of this kind that a message has, with defaults for what its version lacks."""
    defaults: Mapping[str, Any] = kind._field_defaults  # type: ignore[attr-defined]
    values = {name: field(row, name, defaults.get(name)) for name in kind._fields}  # type: ignore[attr-defined]
    if batches := values.get("state_batches"):
        values["state_batches"] = [from_fields(StateBatch, one) for one in batches]
    return kind(**values)


class Persister:
    """The store of all share partitions."""

    async def ask(self, key: SharePartitionKey, asked: Asked) -> ShareState:
        """The state after what is asked. The same change may be asked for twice.

        Raises BrokerError. `fenced_leader_epoch`: a later leader of the partition has read the state.
        `fenced_state_epoch`: the state was initialized again (its offsets were altered, or deleted). `invalid_request`:
        a read or write of what was never initialized. `RETRIABLE` ones: the coordinator cannot be asked now.
        """
        raise NotImplementedError

    async def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> None:
        await self.ask(key, Initialize(state_epoch, start_offset))

    async def read(self, key: SharePartitionKey, leader_epoch: int) -> ShareState:
        return await self.ask(key, Read(leader_epoch))

    async def write(self, key: SharePartitionKey, write: ShareWrite) -> None:
        await self.ask(key, write)

    async def delete(self, key: SharePartitionKey) -> None:
        await self.ask(key, Delete())

    async def summary(self, key: SharePartitionKey) -> ShareState:
        return await self.ask(key, Summary())

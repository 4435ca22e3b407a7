"""Where the state of share partitions is stored (KIP-932): the interface, and what it stores. Pure.

The leader of a partition keeps what members of a share group have of it in memory (`share_partition_state`). Whatever
must survive that leader it writes here, before it answers. The share coordinator implements it, on this broker
(`share_coordinator`) or on another one (`share_coordinator_client`).
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from broker.errors import BrokerError, ErrorCode
from broker.protocol.entities import Int8, Int16, Int32, Int64, String, Uuid

UNINITIALIZED_START_OFFSET = -1

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
    """The stored state. Offsets from `start_offset` on that are in no batch were never acknowledged or released."""

    start_offset: int = UNINITIALIZED_START_OFFSET
    state_epoch: int = 0
    leader_epoch: int = 0
    state_batches: Sequence[StateBatch] = ()
    delivery_complete_count: int = -1


class ShareWrite(NamedTuple):
    """A change of the stored state. Batches that are not named stay as they are, but for what is below the start."""

    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    state_batches: Sequence[StateBatch]


class ShareSummary(NamedTuple):
    """What DescribeShareGroupOffsets needs. `start_offset` is −1 before the first write and for an unknown key;
    `delivery_complete_count` (offsets from the start on that are acknowledged or archived) may be −1: not known."""

    start_offset: int = UNINITIALIZED_START_OFFSET
    delivery_complete_count: int = -1
    leader_epoch: int = 0
    state_epoch: int = 0


class Persister(Protocol):
    """The store of all share partitions.

    Every method raises BrokerError. `fenced_leader_epoch`: a later leader of the partition has read the state.
    `fenced_state_epoch`: the state was initialized again (its offsets were altered, or deleted). `invalid_request`: a
    read or write of what was never initialized. `RETRIABLE` ones: the coordinator cannot be asked now. Every change
    may be asked for twice.
    """

    async def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> None:
        """Begin, or begin again. `start_offset` −1: the first leader decides, by `share.auto.offset.reset`."""

    async def read(self, key: SharePartitionKey, leader_epoch: int) -> ShareState:
        """The state, for a new leader of the partition. Leaders of earlier epochs can write nothing from then on."""

    async def write(self, key: SharePartitionKey, write: ShareWrite) -> None:
        """Change the state. When this returns, all in-sync replicas of the coordinator's partition have it."""

    async def delete(self, key: SharePartitionKey) -> None:
        """Forget the state. No error if there is none."""

    async def summary(self, key: SharePartitionKey) -> ShareSummary:
        """The start, without fencing anybody."""

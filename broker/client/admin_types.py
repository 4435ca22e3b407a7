"""The arguments and results of `Admin`: topics to create, settings, groups, transactions, data directories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from broker.client.cluster_metadata import Node
from broker.client.produce_request import ProducerIdentity
from broker.errors import BrokerError
from broker.protocol.topic_partition import TopicPartition

HIGH_WATERMARK: Final = -1
"""For `delete_records`: delete all records."""

_BUMPS_AT_END: Final = 2
"""The `transaction.version` with which the end of a transaction raises the epoch (KIP-890)."""

ALL_BROKERS: Final = ""
"""As the name of a broker: the cluster-wide defaults (KIP-226)."""


class NewTopic(NamedTuple):
    """A topic to create. -1 means the broker's default; `assignment` is the broker ids of each partition."""

    name: str
    partitions: int = -1
    replication: int = -1
    configs: Mapping[str, str] = {}
    assignment: Sequence[Sequence[int]] = ()


class PartitionReassignment(NamedTuple):
    """All replicas of a partition, with those that its reassignment adds and those that it removes at its end."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


class QuorumLeader(NamedTuple):
    """The active controller of a KRaft cluster (-1: none) and the epoch of its leadership."""

    id: int
    epoch: int


class GroupListing(NamedTuple):
    """A group in a list; `state` and `group_type` are "" from brokers that are too old to tell."""

    group_id: str
    protocol_type: str
    state: str
    group_type: str


class MemberDescription(NamedTuple):
    """A member and its partitions; none when the group does not speak the consumer protocol.

    A classic group tells nothing from `epoch` on. `target`: what the member has when the group is stable; None of a
    share group, which moves nothing. `regex`: the pattern of topics that it subscribes to.
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]
    epoch: int = -1
    target: tuple[TopicPartition, ...] | None = None
    topics: tuple[str, ...] = ()
    regex: str | None = None
    classic: bool = False
    """Whether it is a member by the classic protocol in a group of KIP-848."""

    @property
    def coming(self) -> frozenset[TopicPartition]:
        """What it will get when others have given it up."""
        return frozenset(self.target or ()).difference(self.partitions)

    @property
    def going(self) -> frozenset[TopicPartition]:
        """What it has to give up."""
        return frozenset() if self.target is None else frozenset(self.partitions).difference(self.target)


class GroupDescription(NamedTuple):
    """A group as its coordinator sees it.

    `state`: Empty, Stable or Dead; PreparingRebalance or CompletingRebalance of a classic group, Assigning or
    Reconciling of one of KIP-848. Of the latter `epoch` counts the changes of members, subscriptions and topics, and
    `assignment_epoch` is that of the newest targets; -1 for a classic group.
    """

    group_id: str
    state: str
    protocol_type: str
    protocol: str
    """The assignor in use."""
    coordinator: Node
    members: tuple[MemberDescription, ...]
    group_type: str = "classic"
    epoch: int = -1
    assignment_epoch: int = -1

    @property
    def active(self) -> bool:
        """Whether it has members: then nobody else may change its offsets."""
        return self.state not in ("Empty", "Dead", "")

    @property
    def owners(self) -> dict[TopicPartition, MemberDescription]:
        return {tp: member for member in self.members for tp in member.partitions}


class TransactionListing(NamedTuple):
    """A transactional id and its state: Empty, Ongoing, PrepareCommit, CompleteAbort, …"""

    transactional_id: str
    coordinator: Node
    producer_id: int
    state: str


class TransactionDescription(NamedTuple):
    """The transaction of one transactional id. Times in ms; `start_ms` is -1 while no transaction is open."""

    transactional_id: str
    coordinator: Node
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_ms: int
    partitions: tuple[TopicPartition, ...]

    def aborted_by_broker(self, producer: ProducerIdentity, transaction_version: int) -> bool:
        """Whether the coordinator itself has aborted the last transaction of `producer`, which was open for too long.

        Such an abort raises the epoch, so that the producer is fenced: by one, or by two in Kafka 4.0.0 with
        `transaction_version` 2 (KAFKA-19367).
        """
        aborted = self.state in ("PrepareAbort", "CompleteAbort") and self.producer_id == producer.producer_id
        most = 2 if transaction_version >= _BUMPS_AT_END else 1
        return aborted and 0 < self.producer_epoch - producer.epoch <= most


class ProducerState(NamedTuple):
    """A producer as a partition remembers it. `coordinator_epoch` and `transaction_start_offset` are -1 if unset."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    transaction_start_offset: int


class ReplicaSize(NamedTuple):
    """Bytes of a partition's log. `offset_lag`: records behind the high watermark or the log it will replace."""

    size: int
    offset_lag: int
    is_future: bool


class LogDir(NamedTuple):
    """One data directory of a broker. Sizes in bytes, -1 if unknown; `error` says why it cannot be used."""

    broker_id: int
    path: str
    error: BrokerError | None
    total_bytes: int
    usable_bytes: int
    partitions: dict[TopicPartition, ReplicaSize]

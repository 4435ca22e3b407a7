"""What a handler gets and returns.

A handler is a plain function `handle(context, request, client)`. It returns the fields of the response by kio's names
(see protocol/messages.py), or an awaitable of them. It never sees a socket.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from broker.api.check_threads import CheckThreads
from broker.api.fetch_sessions import FetchSessionCache
from broker.clock import Clock
from broker.cluster.acls import Acls
from broker.cluster.broker_configs import BrokerConfigs
from broker.cluster.controller import Controller
from broker.cluster.delegation_tokens import DelegationTokens
from broker.cluster.features import Features
from broker.cluster.group_configs import GroupConfigs
from broker.cluster.metadata_cache import MetadataCache
from broker.cluster.partition_reassignments import PartitionReassignments
from broker.cluster.producer_ids import ProducerIds
from broker.cluster.quota_configs import QuotaConfigs
from broker.cluster.topic_changes import TopicChanges
from broker.cluster.users import Users
from broker.cluster.zookeeper_offsets import ZooKeeperOffsets
from broker.config.broker_config import BrokerConfig
from broker.coordinator.group_coordinator import GroupCoordinator
from broker.coordinator.transaction_coordinator import TransactionCoordinator
from broker.coordinator.transaction_markers import MarkerWriter
from broker.coordinator.transaction_verifier import TransactionVerifier
from broker.errors import BrokerError, ErrorCode
from broker.log.manager import LogManager
from broker.metrics import Metrics
from broker.net.router import Client
from broker.net.throttling import quota_user
from broker.protocol.api_keys import ApiKey
from broker.protocol.fetch_response import CurrentLeader
from broker.protocol.messages import Request
from broker.protocol.permissions import Permission
from broker.protocol.topic_partition import TopicPartition
from broker.quotas.client_quotas import ClientQuotas, ControllerMutations
from broker.security.acl_types import CLUSTER_NAME, SUPPORTED_OPERATIONS, AclResourceType
from broker.security.authorizer import Authorizer
from broker.share.share_runtime import ShareRuntime

if TYPE_CHECKING:
    from broker.archive.archive_manager import ArchiveManager

__all__ = ["ApiContext", "Client", "Fields", "Request"]

Fields: TypeAlias = Mapping[str, Any]
"""A response, or a part of one: field name → value."""

LED_ELSEWHERE: Final = (ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch)
"""Errors that come with the leader (KIP-951)."""
NOT_ASKED: Final = -(2**31)
"""In place of the operations that a client may do, if its request does not ask for them."""


def outcome(error: BrokerError | None = None) -> Fields:
    """The code and message of an error, or that there is none."""
    if error is None:
        return {"error_code": ErrorCode.none, "error_message": None}
    return {"error_code": error.code, "error_message": error.message or None}


@dataclasses.dataclass(frozen=True, slots=True)
class ApiContext:
    """The parts of a running broker that requests act on."""

    configs: BrokerConfigs
    clock: Clock
    broker_id: int
    topics: MetadataCache
    topic_changes: TopicChanges
    logs: LogManager
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    verifier: TransactionVerifier
    share: ShareRuntime
    markers: MarkerWriter
    producer_ids: ProducerIds
    users: Users
    delegation_tokens: DelegationTokens
    quota_configs: QuotaConfigs
    group_configs: GroupConfigs
    controller: Controller
    features: Features
    reassignments: PartitionReassignments
    fetch_sessions: FetchSessionCache
    zookeeper_offsets: ZooKeeperOffsets
    authorizer: Authorizer
    acls: Acls | None = None
    """None without an authorizer."""
    metrics: Metrics = dataclasses.field(default_factory=Metrics)
    check_threads: CheckThreads = dataclasses.field(default_factory=CheckThreads)
    quotas: ClientQuotas = dataclasses.field(default_factory=ClientQuotas)
    archive: ArchiveManager | None = None
    """None without archive.url."""

    @property
    def config(self) -> BrokerConfig:
        """The settings in force. They can change at run time, so do not cache them."""
        return self.configs.dynamic.current

    def allows(self, client: Client, need: Permission, name: str = CLUSTER_NAME, *, asked: bool = True) -> bool:
        """Whether the client has this right on the resource. `asked`: as in `Authorizer.allows`."""
        return self.authorizer.allows(client, need, name, asked=asked)

    def check(self, client: Client, need: Permission, name: str = CLUSTER_NAME) -> None:
        """Raise BrokerError with the code of the right if the client lacks it."""
        if not self.authorizer.allows(client, need, name):
            raise self.refusal(client, need, name)

    def refusal(self, client: Client, need: Permission, name: str = CLUSTER_NAME) -> BrokerError:
        """What a client is answered that lacks a right."""
        return BrokerError(
            need.code, f"{client.principal} lacks the right {need.operation.title} on {need.resource.title} {name}"
        )

    def authorized_operations(
        self, client: Client, api: ApiKey, resource: AclResourceType, name: str = CLUSTER_NAME
    ) -> int:
        """What the client may do with a resource, of all that can be done with one of its type: one bit for each ACL
        operation (KIP-430)."""
        allows, needs = self.authorizer.allows, _every_need(api, resource)
        return sum(1 << need.operation for need in needs if allows(client, need, name, asked=False, keep=False))

    def current_leader(self, client: Client, tp: TopicPartition) -> CurrentLeader | None:
        """The leader that this broker knows, and its address on the client's listener; None for an unknown partition.

        For clients that asked another broker (KIP-951). They need no Metadata request.
        """
        metadata = self.topics.metadata
        info = metadata.partition(tp)
        if info is None:
            return None
        broker = metadata.brokers.get(info.leader)
        at = broker.endpoint(client.listener) if broker is not None else None
        if broker is None or at is None:
            return CurrentLeader(info.leader, info.leader_epoch)
        return CurrentLeader(info.leader, info.leader_epoch, at.host, at.port, broker.rack)

    def mutations(self, request: Request, client: Client, *, strict_from: int | None) -> ControllerMutations:
        """The quota of one request for the partitions that it creates or deletes (KIP-599).

        From version `strict_from` on, what exceeds the quota is refused. Clients of older versions do not know that
        error and are throttled.
        """
        strict = strict_from is not None and request.version >= strict_from
        user, client_id = quota_user(client.principal, request.client_id)
        return self.quotas.mutations(user, client_id, self.clock.monotonic(), strict=strict)


@functools.cache
def _every_need(api: ApiKey, resource: AclResourceType) -> Sequence[Permission]:
    return tuple(Permission(api, operation, resource) for operation in SUPPORTED_OPERATIONS[resource])

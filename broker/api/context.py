"""What a handler gets and returns.

A handler is a plain function `handle(context, request, client)`. It returns the fields of the response by kio's names
(see protocol/messages.py), or an awaitable of them. It never sees a socket.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeAlias

from broker.api.check_threads import CheckThreads
from broker.api.fetch_sessions import FetchSessionCache
from broker.clock import Clock
from broker.cluster.acls import Acls
from broker.cluster.broker_configs import BrokerConfigs
from broker.cluster.controller import Controller
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
from broker.errors import BrokerError
from broker.log.manager import LogManager
from broker.metrics import Metrics
from broker.net.router import Client
from broker.protocol.messages import Request
from broker.protocol.permissions import Permission
from broker.quotas.client_quotas import ClientQuotas
from broker.security.acl_types import CLUSTER_NAME
from broker.security.authorizer import Authorizer

__all__ = ["ApiContext", "Client", "Fields", "Request"]

Fields: TypeAlias = Mapping[str, Any]
"""A response, or a part of one: field name → value."""


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
    markers: MarkerWriter
    producer_ids: ProducerIds
    users: Users
    quota_configs: QuotaConfigs
    controller: Controller
    reassignments: PartitionReassignments
    fetch_sessions: FetchSessionCache
    zookeeper_offsets: ZooKeeperOffsets
    authorizer: Authorizer
    acls: Acls | None = None
    """None without an authorizer."""
    metrics: Metrics = dataclasses.field(default_factory=Metrics)
    check_threads: CheckThreads = dataclasses.field(default_factory=CheckThreads)
    quotas: ClientQuotas = dataclasses.field(default_factory=ClientQuotas)

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

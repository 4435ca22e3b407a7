"""What every handler may reach: handed in once, so that a handler is a plain function.

A handler is `handle(context, request, client)` and gives the response body as a mapping in kio's field
names (see protocol/messages.py), or an awaitable of it. It never sees sockets or versions.
"""

from __future__ import annotations

import dataclasses

from broker.api.check_threads import CheckThreads
from broker.clock import Clock
from broker.cluster.broker_configs import BrokerConfigs
from broker.cluster.producer_ids import ProducerIds
from broker.cluster.topics import Topics
from broker.cluster.users import Users
from broker.config.broker_config import BrokerConfig
from broker.coordinator.group_coordinator import GroupCoordinator
from broker.coordinator.transaction_coordinator import TransactionCoordinator
from broker.coordinator.transaction_markers import MarkerWriter
from broker.log.manager import LogManager
from broker.metrics import Metrics

__all__ = ["ApiContext"]


@dataclasses.dataclass(frozen=True, slots=True)
class ApiContext:
    """The parts of a running broker that requests act on."""

    configs: BrokerConfigs
    clock: Clock
    broker_id: int
    topics: Topics
    logs: LogManager
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    markers: MarkerWriter
    producer_ids: ProducerIds
    users: Users
    metrics: Metrics = dataclasses.field(default_factory=Metrics)
    check_threads: CheckThreads = dataclasses.field(default_factory=CheckThreads)

    @property
    def config(self) -> BrokerConfig:
        """The settings in force, which may have been altered since the broker started."""
        return self.configs.dynamic.current

"""What the driver settles before any task of a write runs, and asks brokers for.

Called by the writers once per batch; the answers are remembered by the process. A topic that is not there,
brokers that have no transactions, a transaction time-out beyond their limit: all that is an error here, on the driver,
and not in each task.

Raises ConfigError, UnknownTopic, and what connections raise.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from broker.client.admin_configs import ConfigAdmin, ResourceType
from broker.client.cluster import Cluster
from broker.errors import BrokerError, ConfigError, UnsupportedVersion
from broker.protocol.api_keys import ApiKey
from spark_connector.options.write_options import Delivery, WriteOptions
from spark_connector.worker_clients import worker_clients

__all__ = ["WritePlan", "plan_write"]

logger = logging.getLogger("pykafka.spark")

_NEEDED: Final = (
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.ADD_OFFSETS_TO_TXN,
    ApiKey.TXN_OFFSET_COMMIT,
    ApiKey.END_TXN,
)
_STABLE_FETCH: Final = 7
"""The version of OffsetFetch that waits for a transaction's offsets (KIP-447, Kafka 2.5)."""

_MAX_TIMEOUT: Final = "transaction.max.timeout.ms"
_LONGEST_MS: Final = 15 * 60_000
"""Kafka's default of that setting, and the longest a dead task may hold up readers unless the user says otherwise."""


@dataclass(frozen=True)
class WritePlan:
    """How a write goes: its options, and what became of them at these brokers."""

    options: WriteOptions
    exactly_once: bool
    timeout_ms: int
    """Of a task's transaction; 0 without one."""


_plans: dict[WriteOptions, WritePlan] = {}


def plan_write(options: WriteOptions) -> WritePlan:
    """Ask the brokers once per process and options; a topic that is named, every time."""
    cluster = worker_clients().cluster(options.client)
    if options.topic is not None:
        cluster.topic(options.topic)
    plan = _plans.get(options)
    if plan is None:
        plan = _plans[options] = _settle(options, cluster)
    return plan


def _settle(options: WriteOptions, cluster: Cluster) -> WritePlan:
    if options.delivery is not Delivery.EXACTLY_ONCE:
        return WritePlan(options, exactly_once=False, timeout_ms=0)
    try:
        _check_transactions(cluster)
    except UnsupportedVersion as error:
        raise ConfigError(
            f"exactly-once needs transactions as of Kafka 2.5, which these brokers do not have: {error}. Set option "
            "'delivery' to at-least-once"
        ) from error
    return WritePlan(options, exactly_once=True, timeout_ms=_timeout_ms(options, cluster))


def _check_transactions(cluster: Cluster) -> None:
    connection = cluster.any_connection()
    for api in _NEEDED:
        connection.version(api)
    if connection.version(ApiKey.OFFSET_FETCH) < _STABLE_FETCH:
        raise UnsupportedVersion(f"{connection.address}: OffsetFetch below version {_STABLE_FETCH}")


def _timeout_ms(options: WriteOptions, cluster: Cluster) -> int:
    limit = _broker_limit_ms(cluster)
    asked = options.transaction_timeout_ms
    if asked is None:
        return min(limit or _LONGEST_MS, _LONGEST_MS)
    if limit is not None and asked > limit:
        raise ConfigError(
            f"kafka.transaction.timeout.ms={asked} is above the brokers' {_MAX_TIMEOUT}={limit}: lower it, or have "
            "that raised"
        )
    return asked


def _broker_limit_ms(cluster: Cluster) -> int | None:
    """The brokers' limit; None where they do not tell it."""
    try:
        broker = cluster.brokers()[0]
        entry = ConfigAdmin(cluster).describe_configs(ResourceType.BROKER, str(broker.id), [_MAX_TIMEOUT])[_MAX_TIMEOUT]
        return int(entry.value or "")
    except (BrokerError, UnsupportedVersion, KeyError, ValueError) as error:
        if getattr(error, "retriable", False):
            raise
        logger.info("the brokers do not tell their %s: %s", _MAX_TIMEOUT, error)
        return None

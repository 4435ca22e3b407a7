"""What the driver settles before any task of a write runs, and asks brokers for.

Called by the writers once per batch; the answers are remembered by the process. A topic that is not there,
brokers that have no transactions, a transaction time-out beyond their limit: all that is an error here, on the driver,
and not in each task.

Raises ConfigError, UnknownTopic, and what connections raise.

What an exactly-once write is called at the brokers: transactional ids and groups.

`sink` is the id of a streaming query, which a checkpoint keeps over restarts, or what `named_sink` makes of
`txnAppId`, or an id made for one batch write.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from typing import Final, NamedTuple

from broker.client.admin import Admin, ResourceType
from broker.client.cluster import Cluster
from broker.errors import BrokerError, ConfigError, UnsupportedVersion
from broker.protocol.api_keys import ApiKey
from spark_connector.options.write_options import Delivery, WriteOptions
from spark_connector.worker_clients import worker_clients

__all__ = ["ATTEMPT_IDS", "SinkNames", "WritePlan", "named_sink", "plan_write"]

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
        entry = Admin(cluster).describe_configs(ResourceType.BROKER, str(broker.id), [_MAX_TIMEOUT])[_MAX_TIMEOUT]
        return int(entry.value or "")
    except (BrokerError, UnsupportedVersion, KeyError, ValueError) as error:
        if getattr(error, "retriable", False):
            raise
        logger.info("the brokers do not tell their %s: %s", _MAX_TIMEOUT, error)
        return None


ATTEMPT_IDS: Final = 8
"""How many transactional ids the attempts at one task partition of a query use in turn."""

_NUMBERS: Final = re.compile(r"(\d+)(-\d+)?", re.ASCII)


def named_sink(name: str, query: str | None) -> str:
    """The sink of a write that `txnAppId` names, within a query or without one. No query's id holds a `~`."""
    return f"{query or ''}~{name}"


class SinkNames(NamedTuple):
    """The names of one sink; all begin with the option `transactionalIdPrefix`."""

    prefix: str
    sink: str

    @property
    def of_driver(self) -> str:
        """The transactional id by which the driver records decisions; who holds its latest epoch is the driver."""
        return f"{self.prefix}-{self.sink}"

    def of_partition(self, partition: int) -> str:
        """The id whose epochs number the attempts at a task partition. It never has a transaction, so that whoever
        takes a number hurts nobody."""
        return f"{self.prefix}-{self.sink}-{partition}"

    def of_attempt(self, partition: int, number: int) -> str:
        """The id that attempt `number` of a query writes under: another than those of the last attempts."""
        return f"{self.of_partition(partition)}-{number % ATTEMPT_IDS}"

    def of_task(self, partition: int, task_id: int) -> str:
        """The id of one task of a batch write; Spark gives no number twice."""
        return f"{self.of_partition(partition)}-{task_id}"

    def task_of(self, transactional_id: str) -> int | None:
        """The partition that an id of a task belongs to; None for any other id."""
        rest = transactional_id.removeprefix(f"{self.prefix}-{self.sink}-")
        match = _NUMBERS.fullmatch(rest) if rest != transactional_id else None
        return int(match[1]) if match else None

    @property
    def group_of_done(self) -> str:
        """The group whose committed offset is the batch whose transactions are all committed."""
        return f"{self.prefix}-{self.sink}.done"

    def group(self, part: int = 0) -> str:
        """The group whose committed offset is the batch decided last, and where parts of it beyond the first are."""
        return f"{self.prefix}-{self.sink}" + (f".{part}" if part else "")

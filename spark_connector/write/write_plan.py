"""What the driver determines before any task of a write runs: the write's settings at these brokers, and its names.

The writers call `plan_write` once per batch; the process caches the brokers' answers. A topic that does not exist,
brokers without transactions, a transaction timeout above their limit: these are errors here, once on the driver, and
not in each task.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from broker.client.cluster import Cluster
from broker.client.cluster_metadata import UnknownTopic
from broker.errors import BrokerError, ConfigError, UnsupportedVersion
from spark_connector.broker_needs import EXACTLY_ONCE, IDEMPOTENT, WRITE, check
from spark_connector.first_contact import note_reached, patience_s
from spark_connector.options.option_table import TOKEN_AUTO
from spark_connector.options.write_options import WriteOptions
from spark_connector.spark_worker import in_stream_committer
from spark_connector.worker_clients import worker_clients
from spark_connector.write.decision import ATTEMPT_IDS

logger = logging.getLogger("pykafka.spark")

_MAX_TIMEOUT: Final = "transaction.max.timeout.ms"
_LONGEST_MS: Final = 15 * 60_000
"""Kafka's default of that setting, and the longest time a dead task may block readers unless the user sets another."""

_TASK_NUMBERS: Final = re.compile(r"(\d+)(-\d+)?", re.ASCII)


def named_sink(name: str, query: str | None) -> str:
    """The sink of a write with `txnAppId`, inside or outside a query. A query's id never contains `~`."""
    return f"{query or ''}~{name}"


class SinkNames(NamedTuple):
    """The transactional ids and groups of one sink at the brokers, all with the prefix `transactionalIdPrefix`.

    `sink`: the id of a streaming query, which its checkpoint keeps over restarts; or what `named_sink` makes of
    `txnAppId`; or an id made for one batch write.
    """

    prefix: str
    sink: str

    @property
    def of_driver(self) -> str:
        """The transactional id that records decisions. The process with its latest epoch is the driver."""
        return f"{self.prefix}-{self.sink}"

    def of_partition(self, partition: int) -> str:
        """The id whose epochs number the attempts at a task partition. It never has a transaction, so taking a number
        disturbs no other attempt."""
        return f"{self.prefix}-{self.sink}-{partition}"

    def of_attempt(self, partition: int, number: int) -> str:
        """The id that attempt `number` of a query writes with; the latest attempts have other ids."""
        return f"{self.of_partition(partition)}-{number % ATTEMPT_IDS}"

    def of_task(self, partition: int, task_id: int) -> str:
        """The id of one task of a batch write; Spark uses no task id twice."""
        return f"{self.of_partition(partition)}-{task_id}"

    def task_of(self, transactional_id: str) -> int | None:
        """The partition of a task's id; None for any other id."""
        rest = transactional_id.removeprefix(f"{self.prefix}-{self.sink}-")
        match = _TASK_NUMBERS.fullmatch(rest) if rest != transactional_id else None
        return int(match[1]) if match else None

    @property
    def group_of_done(self) -> str:
        """The group whose committed offset is the last batch with all its transactions committed."""
        return f"{self.prefix}-{self.sink}.done"

    def group(self, part: int = 0) -> str:
        """The group whose committed offset is the last batch decided; further parts of a decision have own groups."""
        return f"{self.prefix}-{self.sink}" + (f".{part}" if part else "")


@dataclass(frozen=True)
class WritePlan:
    """The options of a write, and what they mean at these brokers. `timeout_ms`: of a task's transaction, 0 if none."""

    options: WriteOptions
    timeout_ms: int

    def names(self, sink: str) -> SinkNames:
        return SinkNames(self.options.transactional_id_prefix, sink)


_plans: dict[WriteOptions, WritePlan] = {}


def plan_write(options: WriteOptions) -> WritePlan:
    """The plan, cached per process and options; the topic is checked every time.

    Raises ConfigError, UnknownTopic, and the errors of connections.
    """
    cluster = worker_clients().cluster(options.client, patience_s(options.client))
    if options.topic is not None:
        cluster.topic(options.topic)
    if options.formats.bad_rows_topic is not None:
        try:
            cluster.topic(options.formats.bad_rows_topic)
        except UnknownTopic as error:
            raise ConfigError(f"Option 'badRowsTopic': create the topic before the write: {error.message}") from None
    plan = _plans.get(options)
    if plan is None:
        plan = _plans[options] = _make_plan(options, cluster)
    if cluster.reached:
        note_reached(options.client)
    if options.delegation_token != TOKEN_AUTO or in_stream_committer():
        return plan
    from spark_connector.delegation import executors_settings

    return replace(plan, options=replace(options, client=executors_settings(options.client)))


def _make_plan(options: WriteOptions, cluster: Cluster) -> WritePlan:
    if options.exactly_once:
        check(cluster, WRITE, EXACTLY_ONCE)
        return WritePlan(options, timeout_ms=_timeout_ms(options, cluster))
    if options.topic is not None:  # else nobody has asked the brokers for anything yet
        idempotent = options.client.required_acks == -1 and options.client.enable_idempotence
        check(cluster, WRITE, *([IDEMPOTENT] if idempotent else []))
    return WritePlan(options, timeout_ms=0)


def _timeout_ms(options: WriteOptions, cluster: Cluster) -> int:
    limit = _broker_limit_ms(cluster)
    asked = options.transaction_timeout_ms
    if asked is None:
        return min(limit or _LONGEST_MS, _LONGEST_MS)
    if limit is not None and asked > limit:
        raise ConfigError(
            f"kafka.transaction.timeout.ms={asked} is above the brokers' {_MAX_TIMEOUT}={limit}: lower the option, or "
            "have the brokers' limit raised"
        )
    return asked


def _broker_limit_ms(cluster: Cluster) -> int | None:
    """The brokers' limit; None when they do not report it."""
    from broker.client.admin import Admin, ResourceType  # for this plan only: tasks and commits load the module

    try:
        broker = cluster.brokers()[0]
        entry = Admin(cluster).describe_configs(ResourceType.BROKER, str(broker.id), [_MAX_TIMEOUT])[_MAX_TIMEOUT]
        return int(entry.value or "")
    except (BrokerError, UnsupportedVersion, KeyError, ValueError) as error:
        if getattr(error, "retriable", False):
            raise
        logger.info("the brokers do not report their %s: %s", _MAX_TIMEOUT, error)
        return None

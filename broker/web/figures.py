"""The figures of a running broker at one moment, read off its parts for a scrape.

Called by app.py for each GET of /metrics, on the event loop, which owns what is read; nothing is kept between scrapes
and nothing is counted here. With many partitions it lets requests be served in between.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
from typing import NamedTuple

from broker.cluster.topics import Topics
from broker.coordinator.group_coordinator import GroupCoordinator
from broker.coordinator.group_state import GroupState
from broker.coordinator.transaction_coordinator import TransactionCoordinator
from broker.coordinator.transaction_records import TransactionState
from broker.errors import ErrorCode
from broker.log.manager import LogManager
from broker.metrics import CleanerMetrics, Histogram, Metrics
from broker.net.frame_reader import RequestMemory
from broker.protocol.api_keys import ApiKey
from broker.web.families import FAMILIES, Family
from broker.web.health import Health

__all__ = ["Figure", "Sources", "read_figures"]

PARTITIONS_AT_ONCE = 256

Value = float | Histogram


class Figure(NamedTuple):
    """A metric and its values, each with its labels' values in the family's order."""

    family: Family
    samples: list[tuple[tuple[str, ...], Value]]


@dataclasses.dataclass(frozen=True)
class Sources:
    """The parts that are read."""

    metrics: Metrics
    topics: Topics
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    logs: LogManager
    memory: RequestMemory
    broker_id: int
    health: Health


class _Samples(collections.defaultdict[str, list[tuple[tuple[str, ...], Value]]]):
    """Samples by metric name."""

    def __init__(self) -> None:
        super().__init__(list)

    def add(self, name: str, value: Value, *labels: str) -> None:
        self[name].append((labels, value))


async def read_figures(sources: Sources) -> list[Figure]:
    """Every family, also those without a sample."""
    found = _Samples()
    _requests(sources.metrics, found)
    _connections(sources, found)
    await _partitions(sources, found)
    _groups(sources, found)
    _transactions(sources.transactions, found)
    _cleaner(sources.logs.cleaner_metrics, found)
    is_controller = sources.topics.metadata.controller_id == sources.broker_id
    found.add("kafka_controller_kafkacontroller_activecontrollercount", float(is_controller))
    found.add("kafka_server_sessionexpirelistener_connected", float(sources.health.zookeeper_connected()))
    problems = await asyncio.to_thread(sources.health.directory_problems)
    found.add("kafka_log_logmanager_offlinelogdirectorycount", len(problems))
    return [Figure(family, found[name]) for name, family in FAMILIES.items()]


def _requests(metrics: Metrics, found: _Samples) -> None:
    prefix = "kafka_network_requestmetrics_"
    for key, api in metrics.apis.items():
        name = _camel_case(ApiKey(key).name)
        for version, count in sorted(api.requests.items()):
            found.add(f"{prefix}requests_total", count, name, str(version))
        for code, count in sorted(api.errors.items()):
            found.add(f"{prefix}errors_total", count, name, ErrorCode(code).name.upper())
        found.add(f"{prefix}totaltime_seconds", api.total, name)
        found.add(f"{prefix}requestqueuetime_seconds_total", api.queue, name)
        found.add(f"{prefix}localtime_seconds_total", api.local, name)
        found.add(f"{prefix}remotetime_seconds_total", api.remote, name)
        found.add(f"{prefix}requestbytes_total", api.request_bytes, name)
        found.add(f"{prefix}responsebytes_total", api.response_bytes, name)


def _connections(sources: Sources, found: _Samples) -> None:
    prefix = "kafka_server_socketservermetrics_"
    for name, listener in sources.metrics.listeners.items():
        found.add(f"{prefix}connection_count", listener.accepted - listener.closed.total(), name)
        found.add(f"{prefix}connection_creation_total", listener.accepted, name)
        for reason, count in sorted(listener.closed.items()):
            found.add(f"{prefix}connection_close_total", count, name, reason)
        found.add(f"{prefix}successful_authentication_total", listener.successful_authentications, name)
        found.add(f"{prefix}failed_authentication_total", listener.failed_authentications, name)

    found.add(f"{prefix}memorypoolused_bytes", sources.memory.used)
    found.add(f"{prefix}memorypoolwaiting", sources.memory.waiting)


async def _partitions(sources: Sources, found: _Samples) -> None:
    topics: dict[str, list[int]] = {}
    producers = 0
    led = list(sources.topics.led_partitions().items())
    for number, (tp, partition) in enumerate(led, 1):
        counted = topics.setdefault(tp.topic, [0, 0, 0])
        counted[0] += partition.messages_in
        counted[1] += partition.bytes_in
        counted[2] += partition.bytes_out
        log, labels = partition.log, (tp.topic, str(tp.partition))
        producers += len(log.producers)
        found.add("kafka_log_log_size", log.size, *labels)
        found.add("kafka_log_log_numlogsegments", len(log.segments), *labels)
        found.add("kafka_log_log_logstartoffset", log.log_start_offset, *labels)
        found.add("kafka_log_log_logendoffset", log.log_end_offset, *labels)
        stable = partition.high_watermark - partition.last_stable_offset
        found.add("kafka_cluster_partition_laststableoffsetlag", stable, *labels)
        if number % PARTITIONS_AT_ONCE == 0:
            await asyncio.sleep(0)
    for topic, counted in topics.items():
        for name, count in zip(("messagesin", "bytesin", "bytesout"), counted, strict=True):
            found.add(f"kafka_server_brokertopicmetrics_{name}_total", count, topic)
    found.add("kafka_server_replicamanager_partitioncount", len(sources.logs.logs()))
    found.add("kafka_server_replicamanager_leadercount", len(led))
    found.add("kafka_server_replicamanager_produceridcount", producers)


def _groups(sources: Sources, found: _Samples) -> None:
    led = sources.topics.led_partitions()
    states = dict.fromkeys((state.value for state in GroupState), 0)
    for group in sources.groups.all_groups():
        states[group.state.value] += 1
        found.add("kafka_consumergroup_members", len(group.roster.members), group.group_id)
        for tp, committed in group.offsets.all().items():
            labels = (group.group_id, tp.topic, str(tp.partition))
            found.add("kafka_consumergroup_current_offset", committed.offset, *labels)
            if (partition := led.get(tp)) is not None:
                found.add("kafka_consumergroup_lag", max(partition.high_watermark - committed.offset, 0), *labels)
    for state, count in states.items():
        found.add("kafka_coordinator_group_groupmetadatamanager_numgroups", count, state)


def _transactions(coordinator: TransactionCoordinator, found: _Samples) -> None:
    _, listed = coordinator.list()
    states = collections.Counter(transaction.state for transaction in listed)
    for state in TransactionState:
        found.add("kafka_coordinator_transaction_transactionalidcount", states[state], state.title)


def _cleaner(cleaner: CleanerMetrics, found: _Samples) -> None:
    prefix = "kafka_log_logcleaner_"
    found.add(f"{prefix}runs_total", cleaner.runs)
    found.add(f"{prefix}bytesread_total", cleaner.bytes_read)
    found.add(f"{prefix}byteswritten_total", cleaner.bytes_written)
    found.add(f"{prefix}recordsread_total", cleaner.records_read)
    found.add(f"{prefix}recordskept_total", cleaner.records_kept)
    found.add("kafka_log_logcleanermanager_uncleanablepartitionscount", cleaner.uncleanable)


def _camel_case(name: str) -> str:
    """`API_VERSIONS` → `ApiVersions`, as Kafka spells it in its metrics."""
    return "".join(word.capitalize() for word in name.split("_"))

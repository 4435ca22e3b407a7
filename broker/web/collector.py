"""Every metric of the broker, declared once, and collected from the broker's parts at each scrape.

docs/metrics.md lists the declarations (tested). Names are those that the usual JMX exporter rules give Apache Kafka's
metrics, so that dashboards carry over; times are in seconds. Metrics of groups follow kafka_exporter
(`kafka_consumergroup_…`).

Called by app.py for each GET of /metrics on the event loop, which owns what is read. Nothing is counted here, and
requests are served between slices of partitions.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
from typing import Literal, NamedTuple

from broker.cluster.topics import Topics
from broker.coordinator.group_coordinator import GroupCoordinator
from broker.coordinator.group_state import GroupState
from broker.coordinator.transaction_coordinator import TransactionCoordinator
from broker.coordinator.transaction_records import TransactionState
from broker.errors import ErrorCode
from broker.log.manager import LogManager
from broker.metrics import CleanerMetrics, FetchSessionMetrics, Histogram, Metrics
from broker.net.frame_reader import RequestMemory
from broker.protocol.api_keys import ApiKey
from broker.web.health import Health

__all__ = ["FAMILIES", "Family", "MetricSources", "Samples", "collect"]

PARTITIONS_AT_ONCE = 256

Value = float | Histogram
Samples = list[tuple[tuple[str, ...], Value]]
"""The values of a metric, each with the values of its labels in the family's order."""


class Family(NamedTuple):
    """One metric. A counter's name ends in `_total`, as Prometheus shows it."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    doc: str


def _counter(name: str, doc: str, *labels: str) -> Family:
    return Family(name, "counter", labels, doc)


def _gauge(name: str, doc: str, *labels: str) -> Family:
    return Family(name, "gauge", labels, doc)


def _histogram(name: str, doc: str, *labels: str) -> Family:
    return Family(name, "histogram", labels, doc)


_PARTITION = ("topic", "partition")
_GROUP_PARTITION = ("consumergroup", "topic", "partition")

_DECLARED = (
    _counter("kafka_network_requestmetrics_requests_total", "Requests answered.", "request", "version"),
    _counter(
        "kafka_network_requestmetrics_errors_total",
        "Error codes in responses; NONE is not counted.",
        "request",
        "error",
    ),
    _histogram(
        "kafka_network_requestmetrics_totaltime_seconds",
        "From the last byte of a request until its response is given to the socket.",
        "request",
    ),
    _counter(
        "kafka_network_requestmetrics_requestqueuetime_seconds_total",
        "Part of the total time: waiting for earlier requests of the connection.",
        "request",
    ),
    _counter(
        "kafka_network_requestmetrics_localtime_seconds_total", "Part of the total time: the broker's work.", "request"
    ),
    _counter(
        "kafka_network_requestmetrics_remotetime_seconds_total",
        "Part of the total time: waiting for records (long poll), members, a flush or ZooKeeper.",
        "request",
    ),
    _counter("kafka_network_requestmetrics_requestbytes_total", "Bytes of requests.", "request"),
    _counter("kafka_network_requestmetrics_responsebytes_total", "Bytes of responses.", "request"),
    _counter("kafka_server_brokertopicmetrics_messagesin_total", "Records appended.", "topic"),
    _counter("kafka_server_brokertopicmetrics_bytesin_total", "Bytes of record batches appended.", "topic"),
    _counter("kafka_server_brokertopicmetrics_bytesout_total", "Bytes of record batches sent to fetchers.", "topic"),
    _gauge("kafka_server_socketservermetrics_connection_count", "Open connections.", "listener"),
    _counter("kafka_server_socketservermetrics_connection_creation_total", "Connections accepted.", "listener"),
    _counter(
        "kafka_server_socketservermetrics_connection_close_total",
        "Connections closed: reason `client` by the client, all others by the broker.",
        "listener",
        "reason",
    ),
    _counter(
        "kafka_server_socketservermetrics_successful_authentication_total",
        "Connections that authenticated.",
        "listener",
    ),
    _counter(
        "kafka_server_socketservermetrics_failed_authentication_total", "Authentications that failed.", "listener"
    ),
    _gauge(
        "kafka_server_socketservermetrics_memorypoolused_bytes",
        "Memory of requests being received or waiting; the limit is queued.max.request.bytes.",
    ),
    _gauge(
        "kafka_server_socketservermetrics_memorypoolwaiting", "Connections that wait for memory before they are read."
    ),
    _gauge("kafka_server_replicamanager_partitioncount", "Partitions with a log on this broker."),
    _gauge("kafka_server_replicamanager_leadercount", "Partitions this broker leads."),
    _gauge("kafka_server_replicamanager_produceridcount", "Producer ids known to the logs."),
    _gauge("kafka_server_fetchsessioncache_numincrementalfetchsessions", "Fetch sessions (KIP-227)."),
    _gauge("kafka_server_fetchsessioncache_numincrementalfetchpartitionscached", "Partitions of all fetch sessions."),
    _counter(
        "kafka_server_fetchsessioncache_incrementalfetchsessionevictions_total",
        "Fetch sessions that gave way to others; with many, raise max.incremental.fetch.session.cache.slots.",
    ),
    _gauge("kafka_log_log_size", "Bytes of a partition's segments.", *_PARTITION),
    _gauge("kafka_log_log_numlogsegments", "Segments of a partition.", *_PARTITION),
    _gauge("kafka_log_log_logstartoffset", "First offset of a partition.", *_PARTITION),
    _gauge("kafka_log_log_logendoffset", "Offset of the next record.", *_PARTITION),
    _gauge(
        "kafka_cluster_partition_laststableoffsetlag",
        "Records that open transactions hide from read_committed consumers.",
        *_PARTITION,
    ),
    _gauge(
        "kafka_log_logmanager_offlinelogdirectorycount",
        "Data directories that cannot be written, or have a log that failed.",
    ),
    _counter("kafka_log_logcleaner_runs_total", "Completed compactions."),
    _counter("kafka_log_logcleaner_bytesread_total", "Bytes that compactions read."),
    _counter("kafka_log_logcleaner_byteswritten_total", "Bytes that compactions kept."),
    _counter("kafka_log_logcleaner_recordsread_total", "Records that compactions read."),
    _counter("kafka_log_logcleaner_recordskept_total", "Records that compactions kept."),
    _gauge(
        "kafka_log_logcleanermanager_uncleanablepartitionscount",
        "Partitions whose compaction failed; the broker's log has the reason.",
    ),
    _gauge(
        "kafka_coordinator_transaction_transactionalidcount",
        "Transactional ids by the state of their transaction.",
        "state",
    ),
    _gauge("kafka_controller_kafkacontroller_activecontrollercount", "1 on the controller."),
    _gauge("kafka_server_sessionexpirelistener_connected", "1 while a ZooKeeper server answers."),
    _gauge("kafka_coordinator_group_groupmetadatamanager_numgroups", "Groups by state.", "state"),
    _gauge("kafka_consumergroup_members", "Members of a group.", "consumergroup"),
    _gauge("kafka_consumergroup_current_offset", "Committed offset of a group.", *_GROUP_PARTITION),
    _gauge(
        "kafka_consumergroup_lag",
        "Records between a group's committed offset and the partition's high watermark.",
        *_GROUP_PARTITION,
    ),
)

FAMILIES = {family.name: family for family in _DECLARED}


@dataclasses.dataclass(frozen=True)
class MetricSources:
    """The parts of the broker that are read."""

    metrics: Metrics
    topics: Topics
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    logs: LogManager
    memory: RequestMemory
    broker_id: int
    health: Health


class _Collected(collections.defaultdict[str, Samples]):
    """Samples by metric name."""

    def __init__(self) -> None:
        super().__init__(list)

    def add(self, name: str, value: Value, *labels: str) -> None:
        self[name].append((labels, value))


async def collect(sources: MetricSources) -> list[tuple[Family, Samples]]:
    """All families with their samples; some have none."""
    found = _Collected()
    _requests(sources.metrics, found)
    _connections(sources, found)
    await _partitions(sources, found)
    _groups(sources, found)
    _transactions(sources.transactions, found)
    _cleaner(sources.logs.cleaner_metrics, found)
    _fetch_sessions(sources.metrics.fetch_sessions, found)
    is_controller = sources.topics.metadata.controller_id == sources.broker_id
    found.add("kafka_controller_kafkacontroller_activecontrollercount", float(is_controller))
    found.add("kafka_server_sessionexpirelistener_connected", float(sources.health.zookeeper_connected()))
    problems = await asyncio.to_thread(sources.health.directory_problems)
    found.add("kafka_log_logmanager_offlinelogdirectorycount", len(problems))
    return [(family, found[name]) for name, family in FAMILIES.items()]


def _requests(metrics: Metrics, found: _Collected) -> None:
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


def _connections(sources: MetricSources, found: _Collected) -> None:
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


async def _partitions(sources: MetricSources, found: _Collected) -> None:
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


def _groups(sources: MetricSources, found: _Collected) -> None:
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


def _transactions(coordinator: TransactionCoordinator, found: _Collected) -> None:
    _, listed = coordinator.list()
    states = collections.Counter(current.state for _, current in listed)
    for state in TransactionState:
        found.add("kafka_coordinator_transaction_transactionalidcount", states[state], state.title)


def _cleaner(cleaner: CleanerMetrics, found: _Collected) -> None:
    prefix = "kafka_log_logcleaner_"
    found.add(f"{prefix}runs_total", cleaner.runs)
    found.add(f"{prefix}bytesread_total", cleaner.bytes_read)
    found.add(f"{prefix}byteswritten_total", cleaner.bytes_written)
    found.add(f"{prefix}recordsread_total", cleaner.records_read)
    found.add(f"{prefix}recordskept_total", cleaner.records_kept)
    found.add("kafka_log_logcleanermanager_uncleanablepartitionscount", cleaner.uncleanable)


def _fetch_sessions(sessions: FetchSessionMetrics, found: _Collected) -> None:
    prefix = "kafka_server_fetchsessioncache_"
    found.add(f"{prefix}numincrementalfetchsessions", sessions.sessions)
    found.add(f"{prefix}numincrementalfetchpartitionscached", sessions.partitions)
    found.add(f"{prefix}incrementalfetchsessionevictions_total", sessions.evictions)


def _camel_case(name: str) -> str:
    """`API_VERSIONS` → `ApiVersions`, as in Kafka's metrics."""
    return "".join(word.capitalize() for word in name.split("_"))

"""The values of the metrics that families.py declares, collected from the broker's parts at each scrape.

Called by app.py at most once a second, on the event loop, which owns what is read. Nothing is counted here
(broker/metrics.py), and requests are served between slices: of partitions, of groups and of what they have committed.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NoReturn

from broker.cluster.metadata_cache import MetadataCache
from broker.coordinator.group_coordinator import GroupCoordinator
from broker.coordinator.group_records import OffsetAndMetadata
from broker.coordinator.group_state import GroupState
from broker.coordinator.transaction_coordinator import TransactionCoordinator
from broker.coordinator.transaction_records import TransactionState
from broker.errors import ErrorCode
from broker.log.manager import LogManager
from broker.metrics import Histogram, Metrics, TopicMetrics
from broker.net.frame_reader import RequestMemory
from broker.protocol.api_keys import ApiKey
from broker.protocol.archive_status import ArchiveStatus
from broker.protocol.topic_partition import TopicPartition
from broker.quotas.client_quotas import ClientQuotas
from broker.replica.follower import Follower
from broker.replica.partition import Partition
from broker.security.authorizer import Authorizer
from broker.share.share_partition_state import AcknowledgeType
from broker.share.share_runtime import ShareRuntime
from broker.web.families import FAMILIES, Family
from broker.web.health import Health

if TYPE_CHECKING:
    from broker.archive.broker_archive import BrokerArchive

AT_ONCE = 256
"""Partitions, groups or offsets of one slice: well below a millisecond."""

Value = float | Histogram
Sample = tuple[tuple[str, ...], Value]
Samples = Collection[Sample]
"""The values of a metric, each with the values of its labels in the family's order."""

_ALL_OF_TOPIC = tuple(field.name for field in dataclasses.fields(TopicMetrics))
_OF_TOPIC = tuple(name for name in _ALL_OF_TOPIC if not name.startswith("remote_"))
_OF_CLEANER = ("runs", "bytes_read", "bytes_written", "records_read", "records_kept")


@dataclasses.dataclass(frozen=True)
class MetricSources:
    metrics: Metrics
    topics: MetadataCache
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    logs: LogManager
    memory: RequestMemory
    broker_id: int
    health: Health
    authorizer: Authorizer
    quotas: ClientQuotas
    throttled_connections: Callable[[], int]
    share: ShareRuntime
    archive: BrokerArchive | None = None
    archive_failures: Callable[[], int] = lambda: 0
    """What the controller keeps in the archive and cannot write now: backups, topics, deletions."""


class _Collected(dict[str, list[Sample]]):
    """Samples of each declared metric. Raises LookupError for another one."""

    def __init__(self) -> None:
        super().__init__((name, []) for name in FAMILIES)
        self.of_groups: dict[str, Samples] = {}
        self._in_slice = 0

    def __missing__(self, name: str) -> NoReturn:
        raise LookupError(f"no metric {name} is declared: add it to broker/web/families.py, or correct the name here")

    async def pause(self) -> None:
        """Called for each thing that was looked at: lets requests be served at the end of a slice."""
        self._in_slice += 1
        if self._in_slice >= AT_ONCE:
            self._in_slice = 0
            await asyncio.sleep(0)

    def add(self, name: str, value: Value, *labels: str) -> None:
        self[name].append((labels, value))

    def count(self, prefix: str, counters: object, fields: Iterable[str], *labels: str) -> None:
        """Add counters, whose metrics are called as their fields, without underscores."""
        for field in fields:
            self.add(f"{prefix}{field.replace('_', '')}_total", getattr(counters, field), *labels)


async def collect(sources: MetricSources) -> list[tuple[Family, Samples]]:
    """All families with their samples; some have none."""
    found = _Collected()
    _requests(sources.metrics, found)
    _connections(sources, found)
    _authorizer(sources.authorizer, found)
    _quotas(sources, found)
    await _partitions(sources, found)
    if sources.archive is not None:
        await _archive(sources.archive, found)
        found.add("pykafka_archive_upkeep_failures", sources.archive_failures())
    await _groups(sources, found)
    await _transactions(sources.transactions, found)
    found.count("kafka_log_logcleaner_", sources.logs.cleaner_metrics, _OF_CLEANER)
    uncleanable = sources.logs.cleaner_metrics.uncleanable
    found.add("kafka_log_logcleanermanager_uncleanablepartitionscount", uncleanable)
    prefix, sessions = "kafka_server_fetchsessioncache_", sources.metrics.fetch_sessions
    found.add(f"{prefix}numincrementalfetchsessions", sessions.sessions)
    found.add(f"{prefix}numincrementalfetchpartitionscached", sessions.partitions)
    found.add(f"{prefix}incrementalfetchsessionevictions_total", sessions.evictions)
    _share_groups(sources.metrics, sources.share, found)
    await _replication(sources, found)
    await _controller(sources, found)
    found.add("kafka_server_sessionexpirelistener_connected", float(sources.health.zookeeper_connected()))
    problems = await asyncio.to_thread(sources.health.directory_problems)
    found.add("kafka_log_logmanager_offlinelogdirectorycount", len(problems))
    return [(family, found.of_groups.get(name, found[name])) for name, family in FAMILIES.items()]


def _requests(metrics: Metrics, found: _Collected) -> None:
    prefix = "kafka_network_requestmetrics_"
    for key, api in metrics.apis.items():
        name = ApiKey(key).title
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

        for limit, counted in (("listener", listener.accept_waits), ("ip", listener.ip_throttles)):
            found.add(f"{prefix}connection_accept_throttles_total", counted.throttles, name, limit)
            found.add(f"{prefix}connection_accept_throttle_time_seconds_total", counted.seconds, name, limit)

    found.add(f"{prefix}memorypoolused_bytes", sources.memory.used)
    found.add(f"{prefix}memorypoolwaiting", sources.memory.waiting)


def _authorizer(authorizer: Authorizer, found: _Collected) -> None:
    prefix = "kafka_server_authorizermetrics_"
    found.add(f"{prefix}acls_count", 0 if authorizer.acls is None else len(authorizer.acls))
    found.add(f"{prefix}authorization_allowed_total", authorizer.allowed)
    found.add(f"{prefix}authorization_denied_total", authorizer.denied)


def _quotas(sources: MetricSources, found: _Collected) -> None:
    prefix = "kafka_server_quotas_"
    for kind, clients in sources.quotas.tracked().items():
        counted = sources.metrics.throttles[kind]
        found.add(f"{prefix}throttles_total", counted.throttles, kind.value)
        found.add(f"{prefix}throttle_time_seconds_total", counted.seconds, kind.value)
        found.add(f"{prefix}clients", clients, kind.value)
    found.add(f"{prefix}throttled_connections", sources.throttled_connections())


async def _partitions(sources: MetricSources, found: _Collected) -> None:
    producers = 0
    led = sources.topics.replicas.led
    roles: list[tuple[TopicPartition, Partition | Follower]] = [*led.items(), *sources.topics.replicas.followed.items()]
    for tp, role in roles:
        log, labels = role.log, (tp.topic, str(tp.partition))
        producers += len(log.producers)
        found.add("kafka_log_log_size", log.size, *labels)
        found.add("kafka_log_log_numlogsegments", len(log.segments), *labels)
        found.add("kafka_log_log_logstartoffset", log.log_start_offset, *labels)
        found.add("kafka_log_log_logendoffset", log.log_end_offset, *labels)
        if isinstance(role, Partition):
            stable = role.high_watermark - role.last_stable_offset
            found.add("kafka_cluster_partition_laststableoffsetlag", stable, *labels)
        await found.pause()
    of_topic = _OF_TOPIC if sources.archive is None else _ALL_OF_TOPIC
    for topic, counted in tuple(sources.topics.replicas.metrics.items()):
        found.count("kafka_server_brokertopicmetrics_", counted, of_topic, topic)
        await found.pause()
    found.add("kafka_server_replicamanager_partitioncount", len(sources.logs.logs()))
    found.add("kafka_server_replicamanager_leadercount", len(led))
    found.add("kafka_server_replicamanager_produceridcount", producers)


async def _archive(archive: BrokerArchive, found: _Collected) -> None:
    cache = archive.reader.cache
    found.add("kafka_server_archivecache_size_bytes", cache.size)
    found.add("kafka_server_archivecache_waiting", cache.waiting)
    of_topic: dict[str, list[ArchiveStatus]] = collections.defaultdict(list)
    for status in archive.manager.statuses():
        of_topic[status.tp.topic].append(status)
        await found.pause()
    gauges = {
        "remotecopylagbytes": "lag_bytes",
        "remotecopylagsegments": "lag_segments",
        "remotelogsizebytes": "archived_bytes",
    }
    for topic, statuses in of_topic.items():
        found.add("pykafka_archive_failing_partitions", sum(bool(one.problem) for one in statuses), topic)
        for name, field in gauges.items():
            known = [getattr(one, field) for one in statuses]
            if None not in known:
                found.add(f"kafka_server_brokertopicmetrics_{name}", sum(known), topic)
    found.add("kafka_log_logmanager_archivefillingdirectorycount", archive.manager.filling_disks)


async def _replication(sources: MetricSources, found: _Collected) -> None:
    under_replicated = under_min_isr = at_min_isr = reassigning = 0
    topics = sources.topics.metadata.topics
    for tp, partition in tuple(sources.topics.replicas.led.items()):
        await found.pause()
        topic = topics.get(tp.topic)
        if topic is None or tp.partition not in topic.partitions:
            continue
        info, in_sync = topic.partitions[tp.partition], partition.in_sync
        isr = len(info.isr if in_sync is None else in_sync.isr)
        min_isr = 1 if in_sync is None else in_sync.min_isr
        under_replicated += isr < len(info.target)
        under_min_isr += isr < min_isr
        at_min_isr += isr == min_isr < len(info.replicas)
        reassigning += bool(info.adding or info.removing)
        found.add("kafka_cluster_partition_replicascount", len(info.replicas), tp.topic, str(tp.partition))
        found.add("kafka_cluster_partition_insyncreplicascount", isr, tp.topic, str(tp.partition))
    prefix = "kafka_server_replicamanager_"
    found.add(f"{prefix}underreplicatedpartitions", under_replicated)
    found.add(f"{prefix}underminisrpartitioncount", under_min_isr)
    found.add(f"{prefix}atminisrpartitioncount", at_min_isr)
    found.add(f"{prefix}reassigningpartitions", reassigning)
    found.add(f"{prefix}offlinereplicacount", len(sources.logs.offline))
    found.count(prefix, sources.metrics.replication, ("isr_shrinks", "isr_expands", "failed_isr_updates"))
    found.add("kafka_server_leaderreplication_byte_rate", sources.topics.replicas.leader_quota.byte_rate)
    found.add("kafka_server_followerreplication_byte_rate", sources.topics.replicas.follower_quota.byte_rate)
    most = 0
    for tp, follower in tuple(sources.topics.replicas.followed.items()):
        await found.pause()
        lag = max((follower.leader_end_offset or 0) - follower.log.log_end_offset, 0)
        found.add("kafka_server_fetcherlagmetrics_consumerlag", lag, tp.topic, str(tp.partition))
        most = max(most, lag)
    found.add("kafka_server_replicafetchermanager_maxlag", most)


async def _controller(sources: MetricSources, found: _Collected) -> None:
    metadata, counted = sources.topics.metadata, sources.metrics.replication
    is_controller = metadata.controller_id == sources.broker_id
    partitions = offline = imbalanced = 0
    for topic in metadata.topics.values():  # the metadata are one value, which does not change
        for info in topic.partitions.values():
            partitions += 1
            offline += info.leader not in metadata.brokers
            imbalanced += info.leader != info.replicas[0]
            await found.pause()
    seen = {
        "activebrokercount": len(metadata.brokers),
        "globaltopiccount": len(metadata.topics),
        "globalpartitioncount": partitions,
        "offlinepartitionscount": offline,
        "preferredreplicaimbalancecount": imbalanced,
    }
    prefix = "kafka_controller_kafkacontroller_"
    found.add(f"{prefix}activecontrollercount", float(is_controller))
    for name, count in seen.items():
        found.add(prefix + name, count if is_controller else 0)
    found.add("kafka_controller_controllerstats_leaderelections_total", counted.elections)
    found.add("kafka_controller_controllerstats_uncleanleaderelections_total", counted.unclean_elections)


async def _groups(sources: MetricSources, found: _Collected) -> None:
    states = dict.fromkeys((*(state.value for state in GroupState), "Assigning", "Reconciling"), 0)
    committed: list[tuple[str, Mapping[TopicPartition, OffsetAndMetadata]]] = []
    for group in sources.groups.all_groups():
        states[group.state_name] = states.get(group.state_name, 0) + 1
        found.add("kafka_consumergroup_members", group.member_count, group.group_id)
        committed.append((group.group_id, group.offsets.all()))
        await found.pause()
    ends: dict[TopicPartition, int] = {}
    for tp, partition in tuple(sources.topics.replicas.led.items()):
        ends[tp] = partition.high_watermark
        await found.pause()
    found.of_groups["kafka_consumergroup_current_offset"] = _GroupSamples(committed, lambda tp, offset: offset)
    found.of_groups["kafka_consumergroup_lag"] = _GroupSamples(
        committed, lambda tp, offset: max(ends[tp] - offset, 0) if tp in ends else None
    )
    for state, count in states.items():
        found.add("kafka_coordinator_group_groupmetadatamanager_numgroups", count, state)


class _GroupSamples(Collection[Sample]):
    """A value for each committed offset, made only as it is encoded, in a thread.

    A hundred thousand tuples that stay are no small thing: the garbage collector looks at all of them at once.
    """

    def __init__(
        self,
        committed: list[tuple[str, Mapping[TopicPartition, OffsetAndMetadata]]],
        value: Callable[[TopicPartition, int], int | None],
    ) -> None:
        """`value` gives None where there is none."""
        self._committed = committed
        self._value = value

    def __len__(self) -> int:
        return sum(len(offsets) for _, offsets in self._committed)

    def __contains__(self, sample: object) -> bool:
        return any(sample == one for one in self)

    def __iter__(self) -> Iterator[Sample]:
        for group, offsets in self._committed:
            for tp, one in offsets.items():
                if (value := self._value(tp, one.offset)) is not None:
                    yield (group, tp.topic, str(tp.partition)), value


async def _transactions(coordinator: TransactionCoordinator, found: _Collected) -> None:
    _, listed = coordinator.list()
    states: collections.Counter[TransactionState] = collections.Counter()
    for _, current in listed:
        states[current.state] += 1
        await found.pause()
    for state in TransactionState:
        found.add("kafka_coordinator_transaction_transactionalidcount", states[state], state.title)


def _share_groups(metrics: Metrics, share: ShareRuntime, found: _Collected) -> None:
    found.add("kafka_server_sharesessioncache_sharesessionscount", len(share.sessions))
    found.add("kafka_server_sharesessioncache_sharepartitionscount", share.sessions.partitions)
    for kind in AcknowledgeType:
        count = metrics.share_acknowledgements[kind]
        found.add("kafka_server_sharegroupmetrics_acknowledgement_total", count, kind.name.lower())
    letters = share.dead_letters
    prefix = "kafka_server_sharegroupmetrics_deadletterqueue"
    for group in {one.key.group_id for one in share.partitions.all_loaded}.union(letters.written, letters.failed):
        found.add(f"{prefix}record_total", letters.written[group], group)
        found.add(f"{prefix}failedproducerequests_total", letters.failed[group], group)
    for one in share.partitions.all_loaded:
        labels = one.key.group_id, one.partition.tp.topic, str(one.partition.tp.partition)
        found.add("kafka_server_sharepartitionmetrics_inflightmessagecount", one.state.in_flight, *labels)

"""Every metric of the broker, declared once: name, kind, labels and text.

docs/reference/metrics.md lists them (tested). Names are those that the usual JMX exporter rules give Apache Kafka's
metrics, so that dashboards carry over; times are in seconds. Metrics of groups follow kafka_exporter
(`kafka_consumergroup_…`). collector.py gives them values.
"""

from __future__ import annotations

from typing import Literal, NamedTuple


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
    _gauge("kafka_server_authorizermetrics_acls_count", "ACLs in force."),
    _counter("kafka_server_authorizermetrics_authorization_allowed_total", "Decisions by ACLs that allowed something."),
    _counter("kafka_server_authorizermetrics_authorization_denied_total", "Decisions by ACLs that denied something."),
    _counter(
        "kafka_server_socketservermetrics_connection_accept_throttles_total",
        "Waits of a listener (limit `listener`: max.connection.creation.rate) and connections that were not served "
        "(limit `ip`: the quota of their address).",
        "listener",
        "limit",
    ),
    _counter(
        "kafka_server_socketservermetrics_connection_accept_throttle_time_seconds_total",
        "Time of these waits, and until those connections were closed.",
        "listener",
        "limit",
    ),
    _counter(
        "kafka_server_quotas_throttles_total",
        "Responses after which the client was throttled, by the type of quota: Produce, Fetch, Request or "
        "ControllerMutation.",
        "type",
    ),
    _counter("kafka_server_quotas_throttle_time_seconds_total", "Time for which clients were throttled.", "type"),
    _gauge("kafka_server_quotas_clients", "Clients with a quota that were active in the last hour.", "type"),
    _gauge("kafka_server_quotas_throttled_connections", "Connections that are throttled now."),
    _gauge(
        "kafka_server_socketservermetrics_memorypoolused_bytes",
        "Memory of requests being received or waiting; the limit is queued.max.request.bytes.",
    ),
    _gauge(
        "kafka_server_socketservermetrics_memorypoolwaiting", "Connections that wait for memory before they are read."
    ),
    _counter(
        "kafka_server_brokertopicmetrics_replicationbytesin_total",
        "Bytes of record batches appended as a follower.",
        "topic",
    ),
    _counter(
        "kafka_server_brokertopicmetrics_replicationbytesout_total",
        "Bytes of record batches sent to followers.",
        "topic",
    ),
    _counter(
        "kafka_server_brokertopicmetrics_reassignmentbytesin_total",
        "Part of the replication bytes in: for replicas that a reassignment adds to this broker.",
        "topic",
    ),
    _counter(
        "kafka_server_brokertopicmetrics_reassignmentbytesout_total",
        "Part of the replication bytes out: to replicas that a reassignment adds.",
        "topic",
    ),
    _counter(
        "kafka_server_brokertopicmetrics_remotecopybytes_total", "Bytes of segments copied to the archive.", "topic"
    ),
    _counter("kafka_server_brokertopicmetrics_remotecopyrequests_total", "Segments copied to the archive.", "topic"),
    _counter(
        "kafka_server_brokertopicmetrics_remotecopyerrors_total",
        "Copies and commits to the archive that failed; they are tried again.",
        "topic",
    ),
    _gauge(
        "kafka_server_brokertopicmetrics_remotecopylagbytes",
        "Bytes of closed segments, led by this broker, that are not archived yet; they cannot leave the disk.",
        "topic",
    ),
    _gauge(
        "kafka_server_brokertopicmetrics_remotecopylagsegments",
        "Closed segments, led by this broker, that are not archived yet.",
        "topic",
    ),
    _counter("kafka_server_brokertopicmetrics_remotedeleterequests_total", "Objects of the archive deleted.", "topic"),
    _counter(
        "kafka_server_brokertopicmetrics_remotedeleteerrors_total",
        "Deletions in the archive that failed; they are tried again.",
        "topic",
    ),
    _counter(
        "kafka_server_brokertopicmetrics_remotefetchbytes_total", "Bytes of segments read from the archive.", "topic"
    ),
    _counter(
        "kafka_server_brokertopicmetrics_remotefetchrequests_total",
        "Reads from the archive. What the cache holds needs none.",
        "topic",
    ),
    _counter(
        "kafka_server_brokertopicmetrics_remotefetcherrors_total",
        "Reads from the archive that failed; fetches that need them get KAFKA_STORAGE_ERROR.",
        "topic",
    ),
    _gauge(
        "kafka_server_archivecache_size_bytes",
        "Bytes of the cache of what is read from the archive; the limit is archive.cache.bytes.",
    ),
    _gauge(
        "kafka_server_archivecache_waiting",
        "Reads from the archive that wait for a thread (remote.log.reader.threads) or for room in the cache.",
    ),
    _gauge(
        "kafka_server_brokertopicmetrics_remotelogsizebytes",
        "Bytes of the archived segments of partitions led by this broker.",
        "topic",
    ),
    _gauge(
        "pykafka_archive_upkeep_failures",
        "What this broker, as the controller, cannot write into the archive now: backups of the cluster, topics, "
        "deletions. /healthz says why.",
    ),
    _gauge(
        "kafka_server_leaderreplication_byte_rate",
        "Bytes per second to throttled followers; the limit is leader.replication.throttled.rate.",
    ),
    _gauge(
        "kafka_server_followerreplication_byte_rate",
        "Bytes per second for throttled replicas of this broker; the limit is follower.replication.throttled.rate.",
    ),
    _gauge("kafka_server_replicamanager_partitioncount", "Partitions with a log on this broker."),
    _gauge("kafka_server_replicamanager_leadercount", "Partitions this broker leads."),
    _gauge("kafka_server_replicamanager_produceridcount", "Producer ids known to the logs."),
    _gauge(
        "kafka_server_replicamanager_underreplicatedpartitions",
        "Partitions led by this broker whose ISR lacks a replica; not 0 for long: a broker is down or too slow.",
    ),
    _gauge(
        "kafka_server_replicamanager_underminisrpartitioncount",
        "Partitions led by this broker whose ISR is smaller than min.insync.replicas, so acks=all is refused.",
    ),
    _gauge(
        "kafka_server_replicamanager_atminisrpartitioncount",
        "Partitions led by this broker whose ISR is as small as min.insync.replicas allows.",
    ),
    _gauge(
        "kafka_server_replicamanager_reassigningpartitions",
        "Partitions led by this broker that are being reassigned.",
    ),
    _gauge("kafka_server_replicamanager_offlinereplicacount", "Replicas of this broker whose disk failed."),
    _counter("kafka_server_replicamanager_isrshrinks_total", "Times an ISR led by this broker has lost a replica."),
    _counter("kafka_server_replicamanager_isrexpands_total", "Times an ISR led by this broker has got a replica."),
    _counter(
        "kafka_server_replicamanager_failedisrupdates_total",
        "Changes of an ISR that ZooKeeper did not take.",
    ),
    _gauge(
        "kafka_server_replicafetchermanager_maxlag",
        "Most records by which a replica on this broker is behind its leader's high watermark.",
    ),
    _gauge(
        "kafka_server_fetcherlagmetrics_consumerlag",
        "Records by which the replica on this broker is behind its leader's high watermark.",
        *_PARTITION,
    ),
    _gauge("kafka_cluster_partition_replicascount", "Replicas of a partition led by this broker.", *_PARTITION),
    _gauge(
        "kafka_cluster_partition_insyncreplicascount",
        "In-sync replicas of a partition led by this broker.",
        *_PARTITION,
    ),
    _gauge("kafka_server_fetchsessioncache_numincrementalfetchsessions", "Fetch sessions (KIP-227)."),
    _gauge("kafka_server_fetchsessioncache_numincrementalfetchpartitionscached", "Partitions of all fetch sessions."),
    _counter(
        "kafka_server_fetchsessioncache_incrementalfetchsessionevictions_total",
        "Fetch sessions that gave way to others; with many, raise max.incremental.fetch.session.cache.slots.",
    ),
    _gauge("kafka_server_sharesessioncache_sharesessionscount", "Sessions of members of share groups (KIP-932)."),
    _gauge("kafka_server_sharesessioncache_sharepartitionscount", "Partitions of all share sessions."),
    _counter(
        "kafka_server_sharegroupmetrics_acknowledgement_total",
        "Records that members of share groups acknowledged.",
        "ack_type",
    ),
    _counter(
        "kafka_server_sharegroupmetrics_deadletterqueuerecord_total",
        "Dead letters that were written for a share group (KIP-1191).",
        "group",
    ),
    _counter(
        "kafka_server_sharegroupmetrics_deadletterqueuefailedproducerequests_total",
        "Attempts to write dead letters of a share group that failed.",
        "group",
    ),
    _gauge(
        "kafka_server_sharepartitionmetrics_inflightmessagecount",
        "Records of a partition that a share group has begun and not finished.",
        "group",
        "topic",
        "partition",
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
    _gauge(
        "kafka_log_logmanager_archivefillingdirectorycount",
        "Data directories on a disk that is 80 % full, with partitions whose archive lags: nothing leaves the disk "
        "before it is archived.",
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
    _gauge("kafka_controller_kafkacontroller_activebrokercount", "Registered brokers, as the controller sees it."),
    _gauge("kafka_controller_kafkacontroller_globaltopiccount", "Topics of the cluster, as the controller sees it."),
    _gauge(
        "kafka_controller_kafkacontroller_globalpartitioncount",
        "Partitions of the cluster, as the controller sees it.",
    ),
    _gauge(
        "kafka_controller_kafkacontroller_offlinepartitionscount",
        "Partitions without a leader that is registered, as the controller sees it; they cannot be read or written.",
    ),
    _gauge(
        "kafka_controller_kafkacontroller_preferredreplicaimbalancecount",
        "Partitions that their preferred replica does not lead, as the controller sees it.",
    ),
    _counter(
        "kafka_controller_controllerstats_leaderelections_total", "New leaders that this broker elected as controller."
    ),
    _counter(
        "kafka_controller_controllerstats_uncleanleaderelections_total",
        "New leaders from outside the ISR: committed records may be lost.",
    ),
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

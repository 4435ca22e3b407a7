"""Every metric of the broker, declared once: name, kind, labels and text.

docs/reference/metrics.md lists them (tested). Names are those that the usual JMX exporter rules give Apache Kafka's
metrics, so that dashboards carry over; times are in seconds. Metrics of groups follow kafka_exporter
(`kafka_consumergroup_…`). collector.py gives them values.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

Kind = Literal["counter", "gauge", "histogram"]


class Family(NamedTuple):
    """One metric. A counter's name ends in `_total`, as Prometheus shows it."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    doc: str


_HISTOGRAM: Final = "kafka_network_requestmetrics_totaltime_seconds"
_DECLARED: Final = """
kafka_network_requestmetrics_requests_total{request,version} Requests answered.
kafka_network_requestmetrics_errors_total{request,error} Error codes in responses; NONE is not counted.
kafka_network_requestmetrics_totaltime_seconds{request} From the last byte of a request until its response is given to
    the socket.
kafka_network_requestmetrics_requestqueuetime_seconds_total{request} Part of the total time: waiting for earlier
    requests of the connection.
kafka_network_requestmetrics_localtime_seconds_total{request} Part of the total time: the broker's work.
kafka_network_requestmetrics_remotetime_seconds_total{request} Part of the total time: waiting for records (long poll),
    members, a flush or ZooKeeper.
kafka_network_requestmetrics_requestbytes_total{request} Bytes of requests.
kafka_network_requestmetrics_responsebytes_total{request} Bytes of responses.
kafka_server_brokertopicmetrics_messagesin_total{topic} Records appended.
kafka_server_brokertopicmetrics_bytesin_total{topic} Bytes of record batches appended.
kafka_server_brokertopicmetrics_bytesout_total{topic} Bytes of record batches sent to fetchers.
kafka_server_socketservermetrics_connection_count{listener} Open connections.
kafka_server_socketservermetrics_connection_creation_total{listener} Connections accepted.
kafka_server_socketservermetrics_connection_close_total{listener,reason} Connections closed: reason `client` by the
    client, all others by the broker.
kafka_server_socketservermetrics_successful_authentication_total{listener} Connections that authenticated.
kafka_server_socketservermetrics_failed_authentication_total{listener} Authentications that failed.
kafka_server_authorizermetrics_acls_count ACLs in force.
kafka_server_authorizermetrics_authorization_allowed_total Decisions by ACLs that allowed something.
kafka_server_authorizermetrics_authorization_denied_total Decisions by ACLs that denied something.
kafka_server_socketservermetrics_connection_accept_throttles_total{listener,limit} Waits of a listener (limit
    `listener`: max.connection.creation.rate) and connections that were not served (limit `ip`: the quota of their
    address).
kafka_server_socketservermetrics_connection_accept_throttle_time_seconds_total{listener,limit} Time of these waits, and
    until those connections were closed.
kafka_server_quotas_throttles_total{type} Responses after which the client was throttled, by the type of quota: Produce,
    Fetch, Request or ControllerMutation.
kafka_server_quotas_throttle_time_seconds_total{type} Time for which clients were throttled.
kafka_server_quotas_clients{type} Clients with a quota that were active in the last hour.
kafka_server_quotas_throttled_connections Connections that are throttled now.
kafka_server_socketservermetrics_memorypoolused_bytes Memory of requests being received or waiting; the limit is
    queued.max.request.bytes.
kafka_server_socketservermetrics_memorypoolwaiting Connections that wait for memory before they are read.
kafka_server_brokertopicmetrics_replicationbytesin_total{topic} Bytes of record batches appended as a follower.
kafka_server_brokertopicmetrics_replicationbytesout_total{topic} Bytes of record batches sent to followers.
kafka_server_brokertopicmetrics_reassignmentbytesin_total{topic} Part of the replication bytes in: for replicas that a
    reassignment adds to this broker.
kafka_server_brokertopicmetrics_reassignmentbytesout_total{topic} Part of the replication bytes out: to replicas that a
    reassignment adds.
kafka_server_brokertopicmetrics_truncatedrecords_total{topic} Records that this broker, as a follower, cut off its logs
    because their leader does not have them: what an isolated leader took with acks=1 is lost. The broker's log has
    partition, offsets and leader epochs.
kafka_server_brokertopicmetrics_remotecopybytes_total{topic} Bytes of segments copied to the archive.
kafka_server_brokertopicmetrics_remotecopyrequests_total{topic} Segments copied to the archive.
kafka_server_brokertopicmetrics_remotecopyerrors_total{topic} Copies and commits to the archive that failed; they are
    tried again.
kafka_server_brokertopicmetrics_remotecopylagbytes{topic} Bytes of closed segments, led by this broker, that are not
    archived yet; they cannot leave the disk.
kafka_server_brokertopicmetrics_remotecopylagsegments{topic} Closed segments, led by this broker, that are not archived
    yet.
kafka_server_brokertopicmetrics_remotedeleterequests_total{topic} Objects of the archive deleted.
kafka_server_brokertopicmetrics_remotedeleteerrors_total{topic} Deletions in the archive that failed; they are tried
    again.
kafka_server_brokertopicmetrics_remotefetchbytes_total{topic} Bytes of segments read from the archive.
kafka_server_brokertopicmetrics_remotefetchrequests_total{topic} Reads from the archive. What the cache holds needs
    none.
kafka_server_brokertopicmetrics_remotefetcherrors_total{topic} Reads from the archive that failed; fetches that need
    them get KAFKA_STORAGE_ERROR.
kafka_server_archivecache_size_bytes Bytes of the cache of what is read from the archive; the limit is
    archive.cache.bytes.
kafka_server_archivecache_waiting Reads from the archive that wait for a thread (remote.log.reader.threads) or for room
    in the cache.
kafka_server_brokertopicmetrics_remotelogsizebytes{topic} Bytes of the archived segments of partitions led by this
    broker; left out while that of one is not known.
pykafka_archive_failing_partitions{topic} Partitions led by this broker whose archive does not go on: not 0 as soon as a
    copy fails, until one succeeds. `pykafka log archive status` says why, and since when.
pykafka_archive_upkeep_failures What this broker, as the controller, cannot write into the archive now: backups of the
    cluster, topics, deletions. /healthz says why.
kafka_server_leaderreplication_byte_rate Bytes per second to throttled followers; the limit is
    leader.replication.throttled.rate.
kafka_server_followerreplication_byte_rate Bytes per second for throttled replicas of this broker; the limit is
    follower.replication.throttled.rate.
kafka_server_replicamanager_partitioncount Partitions with a log on this broker.
kafka_server_replicamanager_leadercount Partitions this broker leads.
kafka_server_replicamanager_produceridcount Producer ids known to the logs.
kafka_server_replicamanager_underreplicatedpartitions Partitions led by this broker whose ISR lacks a replica; not 0 for
    long: a broker is down or too slow.
kafka_server_replicamanager_underminisrpartitioncount Partitions led by this broker whose ISR is smaller than
    min.insync.replicas, so acks=all is refused.
kafka_server_replicamanager_atminisrpartitioncount Partitions led by this broker whose ISR is as small as
    min.insync.replicas allows.
kafka_server_replicamanager_reassigningpartitions Partitions led by this broker that are being reassigned.
kafka_server_replicamanager_offlinereplicacount Replicas of this broker whose disk failed.
kafka_server_replicamanager_isrshrinks_total Times an ISR led by this broker has lost a replica.
kafka_server_replicamanager_isrexpands_total Times an ISR led by this broker has got a replica.
kafka_server_replicamanager_failedisrupdates_total Changes of an ISR that ZooKeeper did not take.
kafka_server_replicafetchermanager_maxlag Most records by which a replica on this broker is behind its leader's high
    watermark.
kafka_server_fetcherlagmetrics_consumerlag{topic,partition} Records by which the replica on this broker is behind its
    leader's high watermark.
kafka_cluster_partition_replicascount{topic,partition} Replicas of a partition led by this broker.
kafka_cluster_partition_insyncreplicascount{topic,partition} In-sync replicas of a partition led by this broker.
kafka_server_fetchsessioncache_numincrementalfetchsessions Fetch sessions (KIP-227).
kafka_server_fetchsessioncache_numincrementalfetchpartitionscached Partitions of all fetch sessions.
kafka_server_fetchsessioncache_incrementalfetchsessionevictions_total Fetch sessions that gave way to others; with many,
    raise max.incremental.fetch.session.cache.slots.
kafka_server_sharesessioncache_sharesessionscount Sessions of members of share groups (KIP-932).
kafka_server_sharesessioncache_sharepartitionscount Partitions of all share sessions.
kafka_server_sharegroupmetrics_acknowledgement_total{ack_type} Records that members of share groups acknowledged.
kafka_server_sharegroupmetrics_deadletterqueuerecord_total{group} Dead letters that were written for a share group
    (KIP-1191).
kafka_server_sharegroupmetrics_deadletterqueuefailedproducerequests_total{group} Attempts to write dead letters of a
    share group that failed.
kafka_server_sharepartitionmetrics_inflightmessagecount{group,topic,partition} Records of a partition that a share group
    has begun and not finished.
kafka_log_log_size{topic,partition} Bytes of a partition's segments.
kafka_log_log_numlogsegments{topic,partition} Segments of a partition.
kafka_log_log_logstartoffset{topic,partition} First offset of a partition.
kafka_log_log_logendoffset{topic,partition} Offset of the next record.
kafka_cluster_partition_laststableoffsetlag{topic,partition} Records that open transactions hide from read_committed
    consumers.
kafka_log_logmanager_offlinelogdirectorycount Data directories that cannot be written, or have a log that failed.
kafka_log_logmanager_archivefillingdirectorycount Data directories on a disk that is 80 % full, with partitions whose
    archive lags: nothing leaves the disk before it is archived.
kafka_log_logcleaner_runs_total Completed compactions.
kafka_log_logcleaner_bytesread_total Bytes that compactions read.
kafka_log_logcleaner_byteswritten_total Bytes that compactions kept.
kafka_log_logcleaner_recordsread_total Records that compactions read.
kafka_log_logcleaner_recordskept_total Records that compactions kept.
kafka_log_logcleanermanager_uncleanablepartitionscount Partitions whose compaction failed; the broker's log has the
    reason.
kafka_coordinator_transaction_transactionalidcount{state} Transactional ids by the state of their transaction.
kafka_controller_kafkacontroller_activecontrollercount 1 on the controller.
kafka_controller_kafkacontroller_activebrokercount Registered brokers, as the controller sees it.
kafka_controller_kafkacontroller_globaltopiccount Topics of the cluster, as the controller sees it.
kafka_controller_kafkacontroller_globalpartitioncount Partitions of the cluster, as the controller sees it.
kafka_controller_kafkacontroller_offlinepartitionscount Partitions without a leader that is registered, as the
    controller sees it; they cannot be read or written.
kafka_controller_kafkacontroller_preferredreplicaimbalancecount Partitions that their preferred replica does not lead,
    as the controller sees it.
kafka_controller_controllerstats_leaderelections_total New leaders that this broker elected as controller.
kafka_controller_controllerstats_uncleanleaderelections_total New leaders from outside the ISR: committed records may be
    lost.
kafka_server_sessionexpirelistener_connected 1 while a ZooKeeper server answers.
kafka_coordinator_group_groupmetadatamanager_numgroups{state} Groups by state.
kafka_consumergroup_members{consumergroup} Members of a group.
kafka_consumergroup_current_offset{consumergroup,topic,partition} Committed offset of a group.
kafka_consumergroup_lag{consumergroup,topic,partition} Records between a group's committed offset and the partition's
    high watermark.
"""
"""Name, labels and text of one metric a line; what is indented belongs to the line above."""


def _family(line: str) -> Family:
    head, _, doc = line.partition(" ")
    name, _, labels = head.removesuffix("}").partition("{")
    kind: Kind = "counter" if name.endswith("_total") else "histogram" if name == _HISTOGRAM else "gauge"
    return Family(name, kind, tuple(filter(None, labels.split(","))), doc)


FAMILIES: Final = {one.name: one for one in map(_family, _DECLARED.strip().replace("\n    ", " ").splitlines())}

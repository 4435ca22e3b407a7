"""Every metric of the broker, declared once: name, kind, labels, meaning.

`figures.py` fills them at each scrape and docs/metrics.md lists them (a test compares both). Names follow those that
the usual JMX exporter rules give Apache Kafka's metrics, so that dashboards carry over; times are in seconds. Groups
follow the kafka_exporter of many dashboards (`kafka_consumergroup_…`).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

__all__ = ["FAMILIES", "Family"]


class Family(NamedTuple):
    """One metric. A counter's name ends in `_total`, as it is shown."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    doc: str


_API = ("request",)
_TOPIC = ("topic",)
_PARTITION = ("topic", "partition")
_LISTENER = ("listener",)
_GROUP_PARTITION = ("consumergroup", "topic", "partition")

_DECLARED: tuple[tuple[str, Literal["counter", "gauge", "histogram"], tuple[str, ...], str], ...] = (
    ("kafka_network_requestmetrics_requests_total", "counter", ("request", "version"), "Requests answered."),
    (
        "kafka_network_requestmetrics_errors_total",
        "counter",
        ("request", "error"),
        "Error codes in responses, each as often as it stands in one; NONE is not counted.",
    ),
    (
        "kafka_network_requestmetrics_totaltime_seconds",
        "histogram",
        _API,
        "From a request's last byte to its response being handed to the socket.",
    ),
    (
        "kafka_network_requestmetrics_requestqueuetime_seconds_total",
        "counter",
        _API,
        "Of the total time: waiting for earlier requests of the same connection.",
    ),
    ("kafka_network_requestmetrics_localtime_seconds_total", "counter", _API, "Of the total time: the broker's work."),
    (
        "kafka_network_requestmetrics_remotetime_seconds_total",
        "counter",
        _API,
        "Of the total time: waiting for records (long poll), members, a flush or ZooKeeper.",
    ),
    ("kafka_network_requestmetrics_requestbytes_total", "counter", _API, "Bytes of requests."),
    ("kafka_network_requestmetrics_responsebytes_total", "counter", _API, "Bytes of responses."),
    ("kafka_server_brokertopicmetrics_messagesin_total", "counter", _TOPIC, "Records appended."),
    ("kafka_server_brokertopicmetrics_bytesin_total", "counter", _TOPIC, "Bytes of record batches appended."),
    ("kafka_server_brokertopicmetrics_bytesout_total", "counter", _TOPIC, "Bytes of record batches sent to fetchers."),
    ("kafka_server_socketservermetrics_connection_count", "gauge", _LISTENER, "Connections open now."),
    ("kafka_server_socketservermetrics_connection_creation_total", "counter", _LISTENER, "Connections taken."),
    (
        "kafka_server_socketservermetrics_connection_close_total",
        "counter",
        ("listener", "reason"),
        "Connections ended: `client` by the peer, all else by the broker.",
    ),
    (
        "kafka_server_socketservermetrics_successful_authentication_total",
        "counter",
        _LISTENER,
        "Connections that authenticated.",
    ),
    (
        "kafka_server_socketservermetrics_failed_authentication_total",
        "counter",
        _LISTENER,
        "Authentications that failed.",
    ),
    (
        "kafka_server_socketservermetrics_memorypoolused_bytes",
        "gauge",
        (),
        "Memory of requests being received or waiting, against queued.max.request.bytes.",
    ),
    (
        "kafka_server_socketservermetrics_memorypoolwaiting",
        "gauge",
        (),
        "Connections that are not read from until memory is free.",
    ),
    ("kafka_server_replicamanager_partitioncount", "gauge", (), "Partitions with a log on this broker."),
    ("kafka_server_replicamanager_leadercount", "gauge", (), "Partitions this broker leads."),
    ("kafka_server_replicamanager_produceridcount", "gauge", (), "Producer ids known to the logs."),
    ("kafka_log_log_size", "gauge", _PARTITION, "Bytes of a partition's segments."),
    ("kafka_log_log_numlogsegments", "gauge", _PARTITION, "Segments of a partition."),
    ("kafka_log_log_logstartoffset", "gauge", _PARTITION, "First offset of a partition."),
    ("kafka_log_log_logendoffset", "gauge", _PARTITION, "Offset the next record gets."),
    (
        "kafka_cluster_partition_laststableoffsetlag",
        "gauge",
        _PARTITION,
        "Records that open transactions keep from read_committed consumers.",
    ),
    (
        "kafka_log_logmanager_offlinelogdirectorycount",
        "gauge",
        (),
        "Data directories that cannot be written, or hold a log that failed.",
    ),
    ("kafka_log_logcleaner_runs_total", "counter", (), "Compactions that were swapped in."),
    ("kafka_log_logcleaner_bytesread_total", "counter", (), "Bytes that compactions read."),
    ("kafka_log_logcleaner_byteswritten_total", "counter", (), "Bytes that they left."),
    ("kafka_log_logcleaner_recordsread_total", "counter", (), "Records that compactions read."),
    ("kafka_log_logcleaner_recordskept_total", "counter", (), "Records that they left."),
    (
        "kafka_log_logcleanermanager_uncleanablepartitionscount",
        "gauge",
        (),
        "Partitions that are not compacted any more, for what the log said.",
    ),
    (
        "kafka_coordinator_transaction_transactionalidcount",
        "gauge",
        ("state",),
        "Transactional ids by the state of their transaction.",
    ),
    ("kafka_controller_kafkacontroller_activecontrollercount", "gauge", (), "1 on the broker that is controller."),
    ("kafka_server_sessionexpirelistener_connected", "gauge", (), "1 while a ZooKeeper server answers."),
    ("kafka_coordinator_group_groupmetadatamanager_numgroups", "gauge", ("state",), "Groups by state."),
    ("kafka_consumergroup_members", "gauge", ("consumergroup",), "Members of a group."),
    ("kafka_consumergroup_current_offset", "gauge", _GROUP_PARTITION, "Offset a group committed."),
    (
        "kafka_consumergroup_lag",
        "gauge",
        _GROUP_PARTITION,
        "Records between a group's committed offset and the partition's high watermark.",
    ),
)

FAMILIES: dict[str, Family] = {declared[0]: Family(*declared) for declared in _DECLARED}
"""By name."""

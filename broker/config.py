"""The broker's settings, in Kafka's key names, each declared once.

`BrokerConfig.load(file, overrides)` is what `pykafka broker start` calls. The README's table and
`conf/server.properties` are tested against the declarations here. Topic settings live in
`log/log_config.py`; the broker keys that give topics their defaults map to them in `topic_defaults`.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from pathlib import Path

from broker.errors import ConfigError
from broker.settings import at_least, between, one_of, parse_properties, read_properties_file, setting, settings_of

__all__ = ["IGNORED_KEYS", "BrokerConfig", "Listener"]

logger = logging.getLogger(__name__)

BASICS, SOCKET, LOG = "basics", "socket", "log"
FLUSH, RETENTION, ZOOKEEPER, GROUPS = "flush", "retention", "zookeeper", "groups"

IGNORED_KEYS = frozenset(
    [
        "num.network.threads",
        "num.io.threads",
        "num.recovery.threads.per.data.dir",
        "background.threads",
        "queued.max.requests",
        "num.replica.fetchers",
        "log.cleaner.enable",
        "log.cleaner.threads",
        "transaction.state.log.replication.factor",
        "transaction.state.log.min.isr",
        "zookeeper.connection.timeout.ms",
        "inter.broker.protocol.version",
        "log.message.format.version",
        "confluent.support.metrics.enable",
    ]
)
"""Keys of an Apache Kafka `server.properties` that mean nothing here: noted in the log, not refused."""


@dataclasses.dataclass(frozen=True)
class Listener:
    """Where to listen, or what to tell clients: `PLAINTEXT://host:port`; port 0 takes a free one."""

    protocol: str
    host: str
    port: int

    @classmethod
    def parse(cls, text: str, key: str = "listeners") -> Listener:
        protocol, separator, rest = text.partition("://")
        host, colon, port = rest.rpartition(":")
        if not separator or not colon or not port.isdigit() or int(port) > 65535:
            raise ConfigError(f"{key}={text}: expected PLAINTEXT://host:port")
        if protocol.upper() != "PLAINTEXT":
            raise ConfigError(f"{key}={text}: protocol {protocol} is not supported, use PLAINTEXT")
        return cls("PLAINTEXT", host.strip("[]"), int(port))


@dataclasses.dataclass(frozen=True, kw_only=True)
class BrokerConfig:
    """Every broker key; `settings_of(BrokerConfig)` lists them with their docs."""

    broker_id: int = setting(
        "broker.id", 0, "Id of this broker, unique in its ZooKeeper.", group=BASICS, check=at_least(0)
    )
    listeners: tuple[str, ...] = setting(
        "listeners", ("PLAINTEXT://127.0.0.1:9092",), "Where to listen; port 0 takes a free port.", group=BASICS
    )
    advertised_listeners: tuple[str, ...] = setting(
        "advertised.listeners", (), "What clients are told to connect to; by default the listeners.", group=BASICS
    )
    log_dirs: tuple[str, ...] = setting(
        "log.dirs", ("pykafka-data",), "Directories of the partition logs, comma-separated.", group=BASICS
    )
    num_partitions: int = setting(
        "num.partitions", 1, "Partitions of a topic created without a count.", group=BASICS, check=at_least(1)
    )
    default_replication_factor: int = setting(
        "default.replication.factor",
        1,
        "Replicas of a topic created without a factor.",
        group=BASICS,
        check=at_least(1),
    )
    auto_create_topics_enable: bool = setting(
        "auto.create.topics.enable", True, "Create a topic when a client first names it.", group=BASICS
    )
    delete_topic_enable: bool = setting("delete.topic.enable", True, "Allow topics to be deleted.", group=BASICS)

    socket_send_buffer_bytes: int = setting(
        "socket.send.buffer.bytes", -1, "SO_SNDBUF of client sockets; -1 leaves it to the OS.", group=SOCKET
    )
    socket_receive_buffer_bytes: int = setting(
        "socket.receive.buffer.bytes", -1, "SO_RCVBUF of client sockets; -1 leaves it to the OS.", group=SOCKET
    )
    socket_request_max_bytes: int = setting(
        "socket.request.max.bytes",
        104857600,
        "A larger request closes its connection.",
        group=SOCKET,
        check=at_least(1),
    )
    connections_max_idle_ms: int = setting(
        "connections.max.idle.ms", 600000, "Connections idle for longer are closed.", group=SOCKET, check=at_least(1)
    )
    max_connections_per_ip: int = setting(
        "max.connections.per.ip", 2147483647, "Connections taken from one address.", group=SOCKET, check=at_least(0)
    )
    fetch_max_bytes: int = setting(
        "fetch.max.bytes", 57671680, "Most bytes in one fetch response.", group=SOCKET, check=at_least(1024)
    )

    log_segment_bytes: int = setting(
        "log.segment.bytes", 1073741824, "A segment is closed at this size.", group=LOG, check=at_least(14)
    )
    log_roll_hours: int = setting(
        "log.roll.hours", 168, "A segment is closed at this age (log.roll.ms wins).", group=LOG, check=at_least(1)
    )
    log_roll_ms: int | None = setting("log.roll.ms", None, "The same in milliseconds.", group=LOG, check=at_least(1))
    log_index_interval_bytes: int = setting(
        "log.index.interval.bytes", 4096, "Log bytes between two index entries.", group=LOG, check=at_least(0)
    )
    log_index_size_max_bytes: int = setting(
        "log.index.size.max.bytes",
        10485760,
        "A segment is closed when an index is this large.",
        group=LOG,
        check=at_least(4),
    )
    message_max_bytes: int = setting(
        "message.max.bytes", 1048588, "Largest record batch taken.", group=LOG, check=at_least(0)
    )
    log_message_timestamp_type: str = setting(
        "log.message.timestamp.type",
        "CreateTime",
        "CreateTime keeps the producer's time, LogAppendTime stamps the broker's.",
        group=LOG,
        check=one_of(("CreateTime", "LogAppendTime")),
    )
    log_cleanup_policy: tuple[str, ...] = setting(
        "log.cleanup.policy",
        ("delete",),
        "What becomes of old segments.",
        group=LOG,
        check=one_of(("delete", "compact")),
    )
    compression_type: str = setting(
        "compression.type",
        "producer",
        "Batches are stored as the producer sent them.",
        group=LOG,
        check=one_of(("producer",)),
    )
    min_insync_replicas: int = setting(
        "min.insync.replicas", 1, "In-sync replicas that acks=all needs.", group=LOG, check=at_least(1)
    )
    log_segment_delete_delay_ms: int = setting(
        "log.segment.delete.delay.ms", 60000, "Wait before a deleted file is unlinked.", group=LOG, check=at_least(0)
    )
    producer_id_expiration_ms: int = setting(
        "producer.id.expiration.ms", 86400000, "Idle idempotent producers are forgotten.", group=LOG, check=at_least(1)
    )

    log_flush_interval_messages: int = setting(
        "log.flush.interval.messages",
        9223372036854775807,
        "fsync after this many records.",
        group=FLUSH,
        check=at_least(1),
    )
    log_flush_interval_ms: int | None = setting(
        "log.flush.interval.ms", None, "fsync records older than this; unset leaves it to the OS.", group=FLUSH
    )
    log_flush_scheduler_interval_ms: int = setting(
        "log.flush.scheduler.interval.ms",
        1000,
        "How often time-based work on logs is looked for.",
        group=FLUSH,
        check=at_least(10),
    )

    log_retention_hours: int = setting(
        "log.retention.hours", 168, "Age at which a segment is deleted.", group=RETENTION
    )
    log_retention_minutes: int | None = setting(
        "log.retention.minutes", None, "The same in minutes; wins over hours.", group=RETENTION
    )
    log_retention_ms: int | None = setting(
        "log.retention.ms", None, "The same in milliseconds; wins over both; -1 keeps for ever.", group=RETENTION
    )
    log_retention_bytes: int = setting(
        "log.retention.bytes",
        -1,
        "Size of a partition above which its oldest segments go; -1 is no limit.",
        group=RETENTION,
    )
    log_retention_check_interval_ms: int = setting(
        "log.retention.check.interval.ms", 300000, "How often segments are checked.", group=RETENTION, check=at_least(1)
    )

    zookeeper_connect: str = setting(
        "zookeeper.connect",
        "",
        "host:port,…/chroot; empty starts a ZooKeeper of our own beside the logs.",
        group=ZOOKEEPER,
    )
    embedded_zookeeper_port: int = setting(
        "embedded.zookeeper.port",
        0,
        "Port of the ZooKeeper of our own; 0 takes a free one at each start.",
        group=ZOOKEEPER,
        check=between(0, 65535),
    )
    zookeeper_session_timeout_ms: int = setting(
        "zookeeper.session.timeout.ms",
        18000,
        "After this silence the broker's registration is gone.",
        group=ZOOKEEPER,
        check=between(1000, 3600000),
    )

    group_initial_rebalance_delay_ms: int = setting(
        "group.initial.rebalance.delay.ms",
        3000,
        "How long a new group waits for more members.",
        group=GROUPS,
        check=at_least(0),
    )
    group_min_session_timeout_ms: int = setting(
        "group.min.session.timeout.ms",
        6000,
        "Shortest session time-out a member may ask for.",
        group=GROUPS,
        check=at_least(1),
    )
    group_max_session_timeout_ms: int = setting(
        "group.max.session.timeout.ms",
        1800000,
        "Longest session time-out a member may ask for.",
        group=GROUPS,
        check=at_least(1),
    )
    group_max_size: int = setting(
        "group.max.size", 2147483647, "Most members of one group.", group=GROUPS, check=at_least(1)
    )
    offset_metadata_max_bytes: int = setting(
        "offset.metadata.max.bytes", 4096, "Longest text stored with an offset.", group=GROUPS, check=at_least(0)
    )
    offsets_retention_minutes: int = setting(
        "offsets.retention.minutes",
        10080,
        "Offsets of an empty group are kept this long.",
        group=GROUPS,
        check=at_least(1),
    )
    offsets_topic_num_partitions: int = setting(
        "offsets.topic.num.partitions",
        50,
        "Partitions of __consumer_offsets; fixed once it exists.",
        group=GROUPS,
        check=at_least(1),
    )
    offsets_topic_replication_factor: int = setting(
        "offsets.topic.replication.factor", 1, "Replicas of __consumer_offsets.", group=GROUPS, check=at_least(1)
    )
    offsets_topic_segment_bytes: int = setting(
        "offsets.topic.segment.bytes", 104857600, "Segment size of __consumer_offsets.", group=GROUPS, check=at_least(1)
    )

    @classmethod
    def load(cls, path: Path | None = None, overrides: Mapping[str, str] | None = None) -> BrokerConfig:
        """Settings of a properties file with `overrides` on top. Raises ConfigError."""
        properties = {**(read_properties_file(path) if path else {}), **(overrides or {})}
        if "log.dir" in properties:
            properties.setdefault("log.dirs", properties.pop("log.dir"))
        for name in [n for n in properties if n in IGNORED_KEYS]:
            logger.info("%s has no meaning in pykafka and is ignored", name)
            del properties[name]
        config = parse_properties(cls, properties)
        config._check_together()
        return config

    def _check_together(self) -> None:
        if not self.log_dirs:
            raise ConfigError("log.dirs: name at least one directory")
        if not self.listeners:
            raise ConfigError("listeners: name at least one, such as PLAINTEXT://127.0.0.1:9092")
        if self.group_min_session_timeout_ms > self.group_max_session_timeout_ms:
            raise ConfigError("group.min.session.timeout.ms is above group.max.session.timeout.ms")
        for text in self.listeners:
            Listener.parse(text)
        for text in self.advertised_listeners:
            Listener.parse(text, "advertised.listeners")

    def topic_defaults(self) -> dict[str, str]:
        """What a topic gets that sets nothing itself, in topic key names."""
        retention_ms = _first(self.log_retention_ms, _times(self.log_retention_minutes, 60_000))
        values = {
            "cleanup.policy": ",".join(self.log_cleanup_policy),
            "compression.type": self.compression_type,
            "file.delete.delay.ms": self.log_segment_delete_delay_ms,
            "flush.messages": self.log_flush_interval_messages,
            "flush.ms": self.log_flush_interval_ms,
            "index.interval.bytes": self.log_index_interval_bytes,
            "max.message.bytes": self.message_max_bytes,
            "message.timestamp.type": self.log_message_timestamp_type,
            "min.insync.replicas": self.min_insync_replicas,
            "retention.bytes": self.log_retention_bytes,
            "retention.ms": _first(retention_ms, self.log_retention_hours * 3_600_000),
            "segment.bytes": self.log_segment_bytes,
            "segment.index.bytes": self.log_index_size_max_bytes,
            "segment.ms": _first(self.log_roll_ms, self.log_roll_hours * 3_600_000),
        }
        return {name: str(value) for name, value in values.items() if value is not None}

    def describe(self) -> dict[str, str]:
        """Key → value as text, every key."""
        return {s.name: s.format(getattr(self, s.attribute)) for s in settings_of(BrokerConfig).values()}


def _times(value: int | None, factor: int) -> int | None:
    return None if value is None else value * factor


def _first(value: int | None, fallback: int | None) -> int | None:
    return fallback if value is None else value

"""The broker settings by group; `BrokerConfig` is all of them together. Security is in security_settings.py."""

from __future__ import annotations

import dataclasses
from functools import partial

from broker.config.group_config import with_defaults_of
from broker.config.topic_settings import UNLIMITED, default_of_topics
from broker.errors import ConfigError
from broker.security.jaas import parse_jaas
from broker.security.kerberos import identity_of_module
from broker.security.kerberos_login import KerberosLogin
from broker.security.mechanisms import GSSAPI, LOGIN_MODULES
from broker.settings import Long, Short, UpdateMode, at_least, between, one_of, setting

CLUSTER_WIDE = UpdateMode.CLUSTER_WIDE
HOUR_MS = 3_600_000
RACK_AWARE_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
LEADER_SELECTOR = "org.apache.kafka.common.replica.LeaderSelector"

_basic = partial(setting, group="basics")
_socket = partial(setting, group="socket")
_log = partial(setting, group="log")
_flush = partial(setting, group="flush")
_retention = partial(setting, group="retention")
_cleaner = partial(setting, group="cleaner")
_zookeeper = partial(setting, group="zookeeper")
_controller = partial(setting, group="controller")
_group = partial(setting, group="groups")
_transaction = partial(setting, group="transactions")
_share = partial(setting, group="share groups")
_token = partial(setting, group="delegation tokens")
_observability = partial(setting, group="observability")
_replica = partial(setting, group="replicas")
_quota = partial(setting, group="quotas")
_dynamic_cleaner = partial(_cleaner, update=CLUSTER_WIDE)
_dynamic_flush = partial(_flush, update=CLUSTER_WIDE)
_dynamic_log = partial(_log, update=CLUSTER_WIDE)
_dynamic_replica = partial(_replica, update=CLUSTER_WIDE)
_dynamic_retention = partial(_retention, update=CLUSTER_WIDE)
_topic_cleaner = partial(default_of_topics, group="cleaner")
_topic_flush = partial(default_of_topics, group="flush")
_topic_log = partial(default_of_topics, group="log")
_topic_retention = partial(default_of_topics, group="retention")
_dynamic_socket = partial(_socket, update=CLUSTER_WIDE)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Who this broker is, where its data lie, what topics get by default, and the limits of connections."""

    broker_id: int = _basic(
        0,
        "Id of this broker, unique in its cluster; -1 takes the id in log.dirs, or generates one above 1000.",
        at_least(-1),
    )
    listeners: tuple[str, ...] = _basic(
        ("PLAINTEXT://127.0.0.1:9092",), "Addresses to listen on; port 0 takes a free port."
    )
    advertised_listeners: tuple[str, ...] = _basic((), "Addresses that clients connect to; by default the listeners.")
    log_dirs: tuple[str, ...] = _basic(("pykafka-data",), "Directories of the partition logs, comma-separated.")
    num_partitions: int = _basic(1, "Partitions of a topic created without a count.", at_least(1))
    default_replication_factor: int = _basic(1, "Replicas of a topic created without a factor.", at_least(1))
    broker_rack: str | None = _basic(
        None, "Rack or zone of this broker; the replicas of a partition are spread over racks if every broker has one."
    )
    auto_create_topics_enable: bool = _basic(True, "Create a topic when a client first names it.")
    delete_topic_enable: bool = _basic(True, "Allow topics to be deleted.")
    socket_send_buffer_bytes: int = _socket(-1, "SO_SNDBUF of client sockets; -1 leaves it to the OS.")
    socket_receive_buffer_bytes: int = _socket(-1, "SO_RCVBUF of client sockets; -1 leaves it to the OS.")
    socket_request_max_bytes: int = _socket(104857600, "A larger request closes its connection.", at_least(1))
    connections_max_idle_ms: Long = _socket(600000, "Connections idle for longer are closed.", at_least(1))
    socket_request_receive_timeout_ms: Long = _socket(
        60000,
        "A request that takes longer to arrive, at less than 100 KB per second, closes its connection.",
        at_least(1),
    )
    queued_max_request_bytes: Long = _socket(
        536870912,
        "Memory for requests being received or waiting; above it one connection is read at a time. -1: no limit "
        "(Kafka's default).",
        at_least(-1),
    )
    max_connections: int = _dynamic_socket(2147483647, "Most connections; one more is closed at once.", at_least(0))
    max_connections_per_ip_overrides: tuple[str, ...] = _socket(
        (), "address:count,… that override max.connections.per.ip.", type="string"
    )
    max_connections_per_ip: int = _dynamic_socket(2147483647, "Most connections from one address.", at_least(0))
    max_connection_creation_rate: int = _dynamic_socket(
        2147483647,
        "Connections accepted per second; above it, listeners wait. listener.name.NAME.max.connection.creation.rate "
        "limits one listener.",
        at_least(1),
    )
    max_request_partition_size_limit: int = _socket(
        2000, "Most partitions in one DescribeTopicPartitions response.", at_least(1)
    )
    fetch_max_bytes: int = _socket(57671680, "Most bytes in one fetch response.", at_least(1024))
    max_incremental_fetch_session_cache_slots: int = _socket(
        1000, "Most fetch sessions; a client without one names all its partitions in each fetch.", at_least(0)
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class LogSettings:
    """What topics get by default: segments, flushing, retention."""

    log_segment_bytes: int = _topic_log("segment.bytes")
    log_roll_hours: int = _log(
        168, "A segment is closed at this age (log.roll.ms wins).", at_least(1), topic="segment.ms", factor=HOUR_MS
    )
    log_roll_ms: Long | None = _dynamic_log(None, "The same in milliseconds.", at_least(1), topic="segment.ms")
    log_roll_jitter_hours: int = _log(
        0,
        "Up to this is randomly subtracted from that age, so that partitions do not roll together "
        "(log.roll.jitter.ms wins).",
        at_least(0),
        topic="segment.jitter.ms",
        factor=HOUR_MS,
    )
    log_roll_jitter_ms: Long | None = _dynamic_log(
        None, "The same in milliseconds.", at_least(0), topic="segment.jitter.ms"
    )
    log_preallocate: bool = _topic_log("preallocate")
    log_index_interval_bytes: int = _topic_log("index.interval.bytes")
    log_index_size_max_bytes: int = _topic_log("segment.index.bytes")
    message_max_bytes: int = _topic_log("max.message.bytes")
    log_message_timestamp_type: str = _topic_log("message.timestamp.type")
    log_message_timestamp_before_max_ms: Long = _topic_log("message.timestamp.before.max.ms")
    log_message_timestamp_after_max_ms: Long = _topic_log("message.timestamp.after.max.ms")
    log_cleanup_policy: tuple[str, ...] = _topic_log("cleanup.policy")
    compression_type: str = _topic_log("compression.type")
    compression_gzip_level: int = _topic_log("compression.gzip.level")
    compression_lz4_level: int = _topic_log("compression.lz4.level")
    compression_zstd_level: int = _topic_log("compression.zstd.level")
    min_insync_replicas: int = _topic_log("min.insync.replicas")
    unclean_leader_election_enable: bool = _topic_log("unclean.leader.election.enable")
    log_segment_delete_delay_ms: Long = _topic_log("file.delete.delay.ms")
    producer_id_expiration_ms: int = _dynamic_log(
        86400000, "An idempotent producer is forgotten after this idle time.", at_least(1)
    )
    log_flush_interval_messages: Long = _topic_flush("flush.messages")
    log_flush_interval_ms: Long | None = _dynamic_flush(
        None, "fsync records older than this; unset leaves it to the OS.", topic="flush.ms"
    )
    log_flush_scheduler_interval_ms: Long = _flush(
        1000, "How often logs are checked for time-based work.", at_least(10)
    )
    log_retention_hours: int = _retention(
        168, "Age at which a segment is deleted.", topic="retention.ms", factor=HOUR_MS
    )
    log_retention_minutes: int | None = _retention(
        None, "The same in minutes; wins over hours.", topic="retention.ms", factor=60_000
    )
    log_retention_ms: Long | None = _dynamic_retention(
        None, "The same in milliseconds; wins over both; -1: never.", topic="retention.ms"
    )
    log_retention_bytes: Long = _topic_retention("retention.bytes")
    log_local_retention_ms: Long = _topic_retention("local.retention.ms")
    log_local_retention_bytes: Long = _topic_retention("local.retention.bytes")
    log_retention_check_interval_ms: Long = _retention(300000, "How often segments are checked.", at_least(1))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplicaSettings:
    """How followers fetch from the leaders of their partitions, and when a leader takes them for too slow."""

    replica_lag_time_max_ms: Long = _replica(
        30000, "A follower that has not caught up for this long leaves the ISR.", at_least(1)
    )
    replica_selector_class: str | None = _replica(
        None,
        "org.apache.kafka.common.replica.RackAwareReplicaSelector: consumers read from a replica in their client.rack. "
        "By default, as with LeaderSelector, from the leader.",
        lambda value: one_of((LEADER_SELECTOR, RACK_AWARE_SELECTOR))(value) if value else None,
    )
    replica_fetch_max_bytes: int = _replica(
        1048576, "Bytes that a follower asks for per partition; a larger batch comes all the same.", at_least(0)
    )
    replica_fetch_response_max_bytes: int = _replica(
        10485760, "Most bytes in one response to a follower, but for one large batch.", at_least(0)
    )
    replica_fetch_min_bytes: int = _replica(1, "A follower's fetch waits until there are as many bytes.", at_least(0))
    replica_fetch_wait_max_ms: int = _replica(
        500, "A follower's fetch waits no longer than this; keep it below replica.lag.time.max.ms.", at_least(1)
    )
    replica_fetch_backoff_ms: int = _replica(
        1000, "Longest wait before a follower fetches again after an error; the first waits are shorter.", at_least(1)
    )
    replica_socket_timeout_ms: int = _replica(
        30000, "How long a leader may send nothing before its follower connects again.", at_least(1)
    )
    leader_replication_throttled_rate: Long = _dynamic_replica(
        UNLIMITED,
        "Bytes per second that this broker sends for leader.replication.throttled.replicas; in-sync ones never wait.",
        at_least(0),
    )
    follower_replication_throttled_rate: Long = _dynamic_replica(
        UNLIMITED, "Bytes per second that this broker fetches for follower.replication.throttled.replicas.", at_least(0)
    )
    replication_quota_window_num: int = _replica(11, "Samples that the rates above are taken from.", at_least(1))
    replication_quota_window_size_seconds: int = _replica(1, "Length of such a sample.", at_least(1))

    @property
    def is_rack_aware(self) -> bool:
        """Whether leaders send consumers to replicas in their racks (KIP-392)."""
        return self.replica_selector_class == RACK_AWARE_SELECTOR


@dataclasses.dataclass(frozen=True, kw_only=True)
class CleanerSettings:
    """When compaction runs, what it may take, and what topics get by default for it."""

    log_cleaner_enable: bool = _cleaner(
        True, "Compact the topics with cleanup.policy=compact, __consumer_offsets among them."
    )
    log_cleaner_backoff_ms: Long = _dynamic_cleaner(
        15000, "Wait before logs are checked again when none needed compaction.", at_least(0)
    )
    log_cleaner_dedupe_buffer_size: Long = _dynamic_cleaner(
        134217728,
        "Memory for the keys of one compaction, 150 bytes plus the key for each; a log with more needs several.",
        at_least(1 << 20),
    )
    log_cleaner_io_max_bytes_per_second: float = _dynamic_cleaner(
        1.7976931348623157e308,
        "Most bytes that compaction reads and writes per second.",
        between(1, 1.7976931348623157e308),
    )
    log_cleaner_min_cleanable_ratio: float = _topic_cleaner("min.cleanable.dirty.ratio")
    log_cleaner_delete_retention_ms: Long = _topic_cleaner("delete.retention.ms")
    log_cleaner_min_compaction_lag_ms: Long = _topic_cleaner("min.compaction.lag.ms")
    log_cleaner_max_compaction_lag_ms: Long = _topic_cleaner("max.compaction.lag.ms")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ZooKeeperSettings:
    """Which ZooKeeper, and its session."""

    standalone: bool = _zookeeper(
        False, "Run one broker without ZooKeeper; the metadata is in a file in the first of log.dirs."
    )
    zookeeper_connect: str = _zookeeper("", "host:port,…/chroot; empty starts an embedded ZooKeeper beside the logs.")
    embedded_zookeeper_port: int = _zookeeper(
        0, "Port of the embedded ZooKeeper; 0 takes a free one at each start.", between(0, 65535)
    )
    zookeeper_session_timeout_ms: int = _zookeeper(
        6000, "The broker's registration ends after this time without contact.", between(1000, 3600000)
    )
    zookeeper_sasl_jaas_config: str | None = _zookeeper(
        None,
        "…Krb5LoginModule required useKeyTab=true keyTab=… principal=…; logs in to ZooKeeper by Kerberos. Its option "
        "serviceName is the first part of ZooKeeper's principal, zookeeper by default.",
    )

    def zookeeper_login(self) -> KerberosLogin | None:
        """None where none is set. Raises ConfigError."""
        key, text = "zookeeper.sasl.jaas.config", self.zookeeper_sasl_jaas_config
        if not text:
            return None
        module = parse_jaas(text, key)
        if not self.zookeeper_connect or module.name != LOGIN_MODULES[GSSAPI]:
            raise ConfigError(f"{key}: it needs zookeeper.connect, and Krb5LoginModule, not {module.name}")
        identity, service = identity_of_module(module.options, key), module.options.get("serviceName", "zookeeper")
        return KerberosLogin(GSSAPI, identity.principal, identity, service, settings=f"the options in {key}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ControllerSettings:
    """When brokers take over leadership from each other."""

    controlled_shutdown_enable: bool = _controller(
        True, "A broker that stops hands leadership to other in-sync replicas first."
    )
    auto_leader_rebalance_enable: bool = _controller(
        True, "The controller gives partitions back to their preferred leaders."
    )
    leader_imbalance_check_interval_seconds: Long = _controller(
        300, "How often the controller looks for such partitions.", at_least(1)
    )
    leader_imbalance_per_broker_percentage: int = _controller(
        10, "It acts for a broker when others lead more than this share of the partitions that prefer it.", at_least(1)
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
@with_defaults_of("share", "share groups")
class ShareSettings:
    """Share groups (KIP-932) and their dead letters."""

    group_share_max_size: int = _share(200, "Most members of one share group.", between(1, 1000))
    group_share_max_share_sessions: int = _share(2000, "Most share sessions of this broker.", at_least(1))
    errors_deadletterqueue_topic_name_prefix: str = _share(
        "dlq.",
        "Dead letters of share groups are only written to topics whose names begin so; empty: to any (KIP-1191).",
        update=CLUSTER_WIDE,
    )
    errors_deadletterqueue_auto_create_topics_enable: bool = _share(
        False, "Create the dead-letter topic of a share group when it is needed.", update=CLUSTER_WIDE
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
@with_defaults_of("consumer", "groups")
class GroupSettings(ShareSettings):
    """Consumer groups and the topic that stores them."""

    group_initial_rebalance_delay_ms: int = _group(3000, "How long a new group waits for more members.", at_least(0))
    group_min_session_timeout_ms: int = _group(6000, "Shortest session time-out a member may ask for.", at_least(1))
    group_max_session_timeout_ms: int = _group(1800000, "Longest session time-out a member may ask for.", at_least(1))
    group_max_size: int = _group(2147483647, "Most members of one classic group.", at_least(1))
    group_consumer_max_size: int = _group(2147483647, "Most members of one consumer group.", at_least(1))
    group_consumer_assignors: tuple[str, ...] = _group(
        ("uniform", "range"),
        "Assignors that members of consumer groups may name; the first is for those that name none.",
        one_of(("uniform", "range")),
    )
    group_consumer_migration_policy: str = _group(
        "bidirectional",
        "Whether a group with members may turn from classic to consumer (upgrade), back (downgrade), both or neither.",
        one_of(("bidirectional", "upgrade", "downgrade", "disabled")),
    )
    group_consumer_regex_refresh_interval_ms: int = _group(
        600000, "How often the topics of patterns are looked up again, because of changed rights.", at_least(10000)
    )
    offset_metadata_max_bytes: int = _group(4096, "Longest text stored with an offset.", between(0, 8191))
    offsets_retention_minutes: int = _group(10080, "Offsets of an empty group are kept this long.", at_least(1))
    offsets_retention_check_interval_ms: Long = _group(600000, "How often expired offsets are looked for.", at_least(1))
    offsets_topic_num_partitions: int = _group(
        50, "Partitions of __consumer_offsets; fixed once it exists.", at_least(1)
    )
    offsets_topic_replication_factor: Short = _group(
        3, "Replicas of __consumer_offsets; fewer while fewer brokers are registered.", at_least(1)
    )
    offsets_topic_segment_bytes: int = _group(104857600, "Segment size of __consumer_offsets.", at_least(1))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransactionSettings:
    """Transactions and the topic that stores them."""

    transaction_max_timeout_ms: int = _transaction(
        900000, "Longest transaction a producer may ask for (its transaction.timeout.ms).", at_least(1)
    )
    transactional_id_expiration_ms: int = _transaction(
        604800000, "A transactional id expires after this time without use.", at_least(1)
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = _transaction(
        10000, "How often timed-out transactions are looked for and aborted.", at_least(1)
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = _transaction(
        3600000, "How often expired transactional ids are removed.", at_least(1)
    )
    transaction_partition_verification_enable: bool = _transaction(
        True, "Refuse transactional records for a partition that was not added to the transaction."
    )
    transaction_state_log_num_partitions: int = _transaction(
        50, "Partitions of __transaction_state; fixed once it exists.", at_least(1)
    )
    transaction_state_log_min_isr: int = _transaction(
        2,
        "min.insync.replicas of __transaction_state, set when it is created. With fewer replicas, all of them.",
        at_least(1),
    )
    transaction_state_log_replication_factor: Short = _transaction(
        3, "Replicas of __transaction_state; fewer while fewer brokers are registered.", at_least(1)
    )
    transaction_state_log_segment_bytes: int = _transaction(
        104857600, "Segment size of __transaction_state.", at_least(1)
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShareCoordinatorSettings:
    """The topic that stores the state of share groups."""

    share_coordinator_state_topic_num_partitions: int = _share(
        50, "Partitions of __share_group_state; fixed once it exists.", at_least(1)
    )
    share_coordinator_state_topic_replication_factor: Short = _share(
        3, "Replicas of __share_group_state; fewer while fewer brokers are registered.", at_least(1)
    )
    share_coordinator_state_topic_min_isr: int = _share(
        2,
        "min.insync.replicas of __share_group_state, set when it is created. With fewer replicas, all of them.",
        at_least(1),
    )
    share_coordinator_state_topic_segment_bytes: int = _share(
        104857600, "Segment size of __share_group_state.", at_least(1)
    )
    share_coordinator_state_topic_prune_interval_ms: int = _share(
        300000, "How often records of __share_group_state are deleted that later ones replace.", at_least(1)
    )
    share_coordinator_snapshot_update_records_per_snapshot: int = _share(
        500, "Changes of a share partition that are stored alone before its whole state is.", between(0, 500)
    )
    share_coordinator_write_timeout_ms: int = _share(
        5000, "How long a change waits for the replicas of __share_group_state.", at_least(1)
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuotaSettings:
    """How the rates are measured that client quotas limit."""

    quota_window_num: int = _quota(
        11, "Samples that request_percentage and the rates of connections are taken from.", at_least(1)
    )
    quota_window_size_seconds: int = _quota(1, "Length of such a sample.", at_least(1))
    quota_burst_ms: int = _quota(
        100, "Time for which a client may save up producer_byte_rate and consumer_byte_rate; Kafka: 10000.", at_least(1)
    )
    controller_quota_window_num: int = _quota(
        11, "With the next setting: seconds of controller_mutation_rate that a client may save up.", at_least(1)
    )
    controller_quota_window_size_seconds: int = _quota(1, "The other factor.", at_least(1))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ObservabilitySettings:
    """Metrics and health over HTTP, the format of the log, slow requests."""

    metrics_listener: str = _observability(
        "", "HTTP://host:port of /metrics (Prometheus) and /healthz; port 0 takes a free one; empty: off."
    )
    metrics_auth_username: str = _observability(
        "", "Who may read /metrics, with metrics.auth.password; /healthz stays open. Empty: everybody who reaches it."
    )
    metrics_auth_password: str | None = _observability(None, "The password of metrics.auth.username.", type="password")
    metrics_auth_token: str | None = _observability(
        None, "A bearer token with which /metrics may be read, beside a password or alone.", type="password"
    )
    logging_format: str = _observability(
        "text", "Format of the broker's log: text, or json (one object per line).", one_of(("text", "json"))
    )
    slow_request_log_ms: int = _observability(
        1000, "Requests slower than this are logged, without the wait of a long poll; -1: none.", at_least(-1)
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class DelegationTokenSettings:
    """Delegation tokens (KIP-48): whether there are any, and how long they live."""

    delegation_token_secret_key: str | None = _token(
        None,
        "Secret of which the HMACs of delegation tokens are made, the same on all brokers. Without it there are no "
        "tokens; with another one, those that there are can log nobody in.",
        type="password",
    )
    delegation_token_max_lifetime_ms: Long = _token(
        604800000, "A delegation token cannot be renewed beyond this age.", at_least(1)
    )
    delegation_token_expiry_time_ms: Long = _token(
        86400000, "How long a delegation token is valid until it is renewed.", at_least(1)
    )
    delegation_token_expiry_check_interval_ms: Long = _token(
        3600000,
        "How often the controller removes expired delegation tokens. They log nobody in before that.",
        at_least(1),
    )

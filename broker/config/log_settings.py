"""The broker keys that give topics their defaults: segments, flushing, retention."""

from __future__ import annotations

import dataclasses

from broker.settings import UpdateMode, at_least, between, gzip_level, one_of, setting

__all__ = ["LogSettings"]

LOG, FLUSH, RETENTION = "log", "flush", "retention"
CLUSTER_WIDE = UpdateMode.CLUSTER_WIDE
UNLIMITED = 2**63 - 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class LogSettings:
    """A part of `BrokerConfig`."""

    log_segment_bytes: int = setting(
        "log.segment.bytes",
        1073741824,
        "A segment is closed at this size.",
        group=LOG,
        check=at_least(14),
        update=CLUSTER_WIDE,
    )
    log_roll_hours: int = setting(
        "log.roll.hours", 168, "A segment is closed at this age (log.roll.ms wins).", group=LOG, check=at_least(1)
    )
    log_roll_ms: int | None = setting(
        "log.roll.ms", None, "The same in milliseconds.", group=LOG, check=at_least(1), type="long", update=CLUSTER_WIDE
    )
    log_roll_jitter_hours: int = setting(
        "log.roll.jitter.hours",
        0,
        "A random part of this is taken off a segment's age, so that partitions do not roll together "
        "(log.roll.jitter.ms wins).",
        group=LOG,
        check=at_least(0),
    )
    log_roll_jitter_ms: int | None = setting(
        "log.roll.jitter.ms",
        None,
        "The same in milliseconds.",
        group=LOG,
        check=at_least(0),
        type="long",
        update=CLUSTER_WIDE,
    )
    log_preallocate: bool = setting(
        "log.preallocate",
        False,
        "Reserve a whole segment on disk when it is created.",
        group=LOG,
        update=CLUSTER_WIDE,
    )
    log_index_interval_bytes: int = setting(
        "log.index.interval.bytes",
        4096,
        "Log bytes between two index entries.",
        group=LOG,
        check=at_least(0),
        update=CLUSTER_WIDE,
    )
    log_index_size_max_bytes: int = setting(
        "log.index.size.max.bytes",
        10485760,
        "A segment is closed when an index is this large.",
        group=LOG,
        check=at_least(4),
        update=CLUSTER_WIDE,
    )
    message_max_bytes: int = setting(
        "message.max.bytes", 1048588, "Largest record batch taken.", group=LOG, check=at_least(0), update=CLUSTER_WIDE
    )
    log_message_timestamp_type: str = setting(
        "log.message.timestamp.type",
        "CreateTime",
        "CreateTime keeps the producer's time, LogAppendTime stamps the broker's.",
        group=LOG,
        check=one_of(("CreateTime", "LogAppendTime")),
        update=CLUSTER_WIDE,
    )
    log_message_timestamp_before_max_ms: int = setting(
        "log.message.timestamp.before.max.ms",
        UNLIMITED,
        "With CreateTime, a record may be this much older than the broker's clock.",
        group=LOG,
        check=at_least(0),
        type="long",
        update=CLUSTER_WIDE,
    )
    log_message_timestamp_after_max_ms: int = setting(
        "log.message.timestamp.after.max.ms",
        3_600_000,
        "With CreateTime, a record may be this much newer than the broker's clock.",
        group=LOG,
        check=at_least(0),
        type="long",
        update=CLUSTER_WIDE,
    )
    log_cleanup_policy: tuple[str, ...] = setting(
        "log.cleanup.policy",
        ("delete",),
        "What becomes of old segments.",
        group=LOG,
        check=one_of(("delete", "compact")),
        update=CLUSTER_WIDE,
    )
    compression_type: str = setting(
        "compression.type",
        "producer",
        "Codec batches are stored with: producer keeps them as they were sent, any other costs a recompression.",
        group=LOG,
        check=one_of(("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")),
        update=CLUSTER_WIDE,
    )
    compression_gzip_level: int = setting(
        "compression.gzip.level",
        -1,
        "Level of what is recompressed as gzip: 1 (fast) to 9 (small), or -1 for zlib's own.",
        group=LOG,
        check=gzip_level,
        update=CLUSTER_WIDE,
    )
    compression_lz4_level: int = setting(
        "compression.lz4.level",
        9,
        "Level of what is recompressed as lz4: 1 to 17; 9 is the fast compressor, any other the thorough one.",
        group=LOG,
        check=between(1, 17),
        update=CLUSTER_WIDE,
    )
    compression_zstd_level: int = setting(
        "compression.zstd.level",
        3,
        "Level of what is recompressed as zstd: -131072 (fast) to 22 (small).",
        group=LOG,
        check=between(-131072, 22),
        update=CLUSTER_WIDE,
    )
    min_insync_replicas: int = setting(
        "min.insync.replicas",
        1,
        "In-sync replicas that acks=all needs, at most as many as there are.",
        group=LOG,
        check=at_least(1),
        update=CLUSTER_WIDE,
    )
    unclean_leader_election_enable: bool = setting(
        "unclean.leader.election.enable",
        False,
        "Let a replica that lacks records lead when no other lives; loses them.",
        group=LOG,
        update=CLUSTER_WIDE,
    )
    log_segment_delete_delay_ms: int = setting(
        "log.segment.delete.delay.ms",
        60000,
        "Wait before a deleted file is unlinked.",
        group=LOG,
        check=at_least(0),
        type="long",
        update=CLUSTER_WIDE,
    )
    producer_id_expiration_ms: int = setting(
        "producer.id.expiration.ms",
        86400000,
        "Idle idempotent producers are forgotten.",
        group=LOG,
        check=at_least(1),
        update=CLUSTER_WIDE,
    )

    log_flush_interval_messages: int = setting(
        "log.flush.interval.messages",
        UNLIMITED,
        "fsync after this many records.",
        group=FLUSH,
        check=at_least(1),
        type="long",
        update=CLUSTER_WIDE,
    )
    log_flush_interval_ms: int | None = setting(
        "log.flush.interval.ms",
        None,
        "fsync records older than this; unset leaves it to the OS.",
        group=FLUSH,
        type="long",
        update=CLUSTER_WIDE,
    )
    log_flush_scheduler_interval_ms: int = setting(
        "log.flush.scheduler.interval.ms",
        1000,
        "How often time-based work on logs is looked for.",
        group=FLUSH,
        check=at_least(10),
        type="long",
    )

    log_retention_hours: int = setting(
        "log.retention.hours", 168, "Age at which a segment is deleted.", group=RETENTION
    )
    log_retention_minutes: int | None = setting(
        "log.retention.minutes", None, "The same in minutes; wins over hours.", group=RETENTION
    )
    log_retention_ms: int | None = setting(
        "log.retention.ms",
        None,
        "The same in milliseconds; wins over both; -1 keeps for ever.",
        group=RETENTION,
        type="long",
        update=CLUSTER_WIDE,
    )
    log_retention_bytes: int = setting(
        "log.retention.bytes",
        -1,
        "Size of a partition above which its oldest segments go; -1 is no limit.",
        group=RETENTION,
        type="long",
        update=CLUSTER_WIDE,
    )
    log_retention_check_interval_ms: int = setting(
        "log.retention.check.interval.ms",
        300000,
        "How often segments are checked.",
        group=RETENTION,
        check=at_least(1),
        type="long",
    )

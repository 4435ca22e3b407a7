"""The settings of one topic, in Kafka's key names, each declared once.

The log reads them at every append and roll; DescribeConfigs, IncrementalAlterConfigs and the README's
table are made from `TOPIC_KEYS`. What a topic does not set itself comes from the broker's settings
(`BrokerConfig.topic_defaults()`), handed in as `base`. Idea: Kafka's `LogConfig` over `ConfigDef`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from broker.errors import ConfigError
from broker.records.compression import Codec
from broker.settings import Setting, at_least, between, one_of, parse_properties, setting, settings_of

__all__ = ["TOPIC_KEYS", "UNLIMITED", "LogConfig"]

UNLIMITED = 2**63 - 1
DAY_MS = 24 * 60 * 60 * 1000

CLEANUP, SEGMENTS, FLUSH, MESSAGES, REPLICATION = "cleanup", "segments", "flush", "messages", "replication"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LogConfig:
    """Every topic key; a field is the key with `_` for `.`. Sizes in bytes, times in ms."""

    cleanup_policy: tuple[str, ...] = setting(
        "cleanup.policy",
        ("delete",),
        "What becomes of old segments: delete them, or compact them to the last record of each key.",
        group=CLEANUP,
        check=one_of(("delete", "compact")),
    )
    retention_ms: int = setting(
        "retention.ms",
        7 * DAY_MS,
        "Age of its newest record at which a segment is deleted; -1 keeps for ever.",
        group=CLEANUP,
        check=at_least(-1),
        type="long",
    )
    retention_bytes: int = setting(
        "retention.bytes",
        -1,
        "Size of a partition above which its oldest segments are deleted; -1 is no limit.",
        group=CLEANUP,
        check=at_least(-1),
        type="long",
    )
    file_delete_delay_ms: int = setting(
        "file.delete.delay.ms",
        60_000,
        "Wait before the file of a deleted segment is unlinked.",
        group=CLEANUP,
        check=at_least(0),
        type="long",
    )
    delete_retention_ms: int = setting(
        "delete.retention.ms",
        DAY_MS,
        "How long compaction keeps tombstones.",
        group=CLEANUP,
        check=at_least(0),
        type="long",
    )
    min_cleanable_dirty_ratio: float = setting(
        "min.cleanable.dirty.ratio",
        0.5,
        "Share of a log that must be uncompacted before compaction starts.",
        group=CLEANUP,
        check=between(0, 1),
    )
    min_compaction_lag_ms: int = setting(
        "min.compaction.lag.ms",
        0,
        "A record is not compacted before this age.",
        group=CLEANUP,
        check=at_least(0),
        type="long",
    )
    max_compaction_lag_ms: int = setting(
        "max.compaction.lag.ms",
        UNLIMITED,
        "A record is open to compaction from this age, whatever the dirty ratio.",
        group=CLEANUP,
        check=at_least(1),
        type="long",
    )
    segment_bytes: int = setting(
        "segment.bytes", 1 << 30, "A segment is closed at this size.", group=SEGMENTS, check=at_least(14)
    )
    segment_ms: int = setting(
        "segment.ms", 7 * DAY_MS, "A segment is closed at this age.", group=SEGMENTS, check=at_least(1), type="long"
    )
    segment_jitter_ms: int = setting(
        "segment.jitter.ms",
        0,
        "A random part of this is taken off segment.ms, so that partitions do not roll together.",
        group=SEGMENTS,
        check=at_least(0),
        type="long",
    )
    segment_index_bytes: int = setting(
        "segment.index.bytes",
        10 << 20,
        "A segment is closed when an index is this large.",
        group=SEGMENTS,
        check=at_least(12),
    )
    index_interval_bytes: int = setting(
        "index.interval.bytes", 4096, "Log bytes between two index entries.", group=SEGMENTS, check=at_least(0)
    )
    preallocate: bool = setting(
        "preallocate", False, "Reserve the whole segment on disk when it is created.", group=SEGMENTS
    )
    flush_messages: int = setting(
        "flush.messages",
        UNLIMITED,
        "fsync after this many records; else the OS decides.",
        group=FLUSH,
        check=at_least(1),
        type="long",
    )
    flush_ms: int = setting(
        "flush.ms",
        UNLIMITED,
        "fsync what has waited this long; else the OS decides.",
        group=FLUSH,
        check=at_least(0),
        type="long",
    )
    max_message_bytes: int = setting(
        "max.message.bytes", 1_048_588, "Largest record batch taken, as sent.", group=MESSAGES, check=at_least(0)
    )
    compression_type: str = setting(
        "compression.type",
        "producer",
        "Codec batches are stored with: producer keeps them as they were sent, any other costs a recompression.",
        group=MESSAGES,
        check=one_of(("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")),
    )
    message_timestamp_type: str = setting(
        "message.timestamp.type",
        "CreateTime",
        "CreateTime keeps the producer's time, LogAppendTime stamps the broker's.",
        group=MESSAGES,
        check=one_of(("CreateTime", "LogAppendTime")),
    )
    message_timestamp_before_max_ms: int = setting(
        "message.timestamp.before.max.ms",
        UNLIMITED,
        "With CreateTime, a record may be this much older than the broker's clock.",
        group=MESSAGES,
        check=at_least(0),
        type="long",
    )
    message_timestamp_after_max_ms: int = setting(
        "message.timestamp.after.max.ms",
        3_600_000,
        "With CreateTime, a record may be this much newer than the broker's clock.",
        group=MESSAGES,
        check=at_least(0),
        type="long",
    )
    min_insync_replicas: int = setting(
        "min.insync.replicas",
        1,
        "In-sync replicas that acks=all needs, at most as many as there are.",
        group=REPLICATION,
        check=at_least(1),
    )
    unclean_leader_election_enable: bool = setting(
        "unclean.leader.election.enable",
        False,
        "Let a replica that lacks records lead when no other lives; loses them.",
        group=REPLICATION,
    )

    @classmethod
    def from_properties(cls, properties: Mapping[str, str], base: LogConfig | None = None) -> LogConfig:
        """`properties` (Kafka keys → text) over `base`, or over Kafka's defaults. Raises ConfigError."""
        config = parse_properties(cls, properties, base=base)
        if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
            raise ConfigError(
                f"min.compaction.lag.ms={config.min_compaction_lag_ms} is above "
                f"max.compaction.lag.ms={config.max_compaction_lag_ms}"
            )
        if not config.cleanup_policy:
            raise ConfigError("cleanup.policy=: name delete, compact or both")
        return config

    def to_properties(self) -> dict[str, str]:
        """Key → value as text, every key, as DescribeConfigs shows them."""
        return {key.name: key.format(getattr(self, key.attribute)) for key in TOPIC_KEYS.values()}

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def codec(self) -> Codec | None:
        """What batches are compressed with when they are appended; None for as they come."""
        name = self.compression_type
        if name == "producer":
            return None
        return Codec.NONE if name == "uncompressed" else Codec.from_name(name)

    @property
    def stamps_append_time(self) -> bool:
        """Whether the broker's clock replaces the producer's timestamps."""
        return self.message_timestamp_type == "LogAppendTime"


TOPIC_KEYS: Mapping[str, Setting] = settings_of(LogConfig)
"""Every topic key by name, in the order of declaration."""

"""What the settings of a topic mean to its log, which reads them at every append and roll.

They are declared in config/topic_settings.py. A key that a topic does not set comes from the broker's settings
(`BrokerConfig.topic_defaults()`), passed as `base`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from broker.config.topic_settings import UNLIMITED, TopicSettings
from broker.errors import ConfigError
from broker.records.compression import Codec
from broker.settings import parse_properties

REMOTE_STORAGE = "remote.storage.enable"
DERIVED = -2
"""A local.retention.* that is as the retention.* of its name."""

REMOVED_KEYS = {
    "message.format.version": "batches are of version 2 only",
    "message.downconversion.enable": "batches are given to clients as they are stored",
    "message.timestamp.difference.max.ms": "set message.timestamp.before.max.ms and message.timestamp.after.max.ms",
}
"""Keys that Kafka 3 accepted and Kafka 4 refuses as unknown, with what to do."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LogConfig(TopicSettings):
    """The settings of a topic in force."""

    @classmethod
    def from_properties(cls, properties: Mapping[str, str], base: LogConfig | None = None) -> LogConfig:
        """`properties` (Kafka key → text) over `base`, or over Kafka's defaults. Raises ConfigError."""
        for name in REMOVED_KEYS.keys() & properties.keys():
            raise ConfigError(f"unknown setting {name!r}: Kafka 4 has removed it; {REMOVED_KEYS[name]}")
        config = parse_properties(cls, properties, base=base)
        if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
            raise ConfigError(
                f"min.compaction.lag.ms={config.min_compaction_lag_ms} is above "
                f"max.compaction.lag.ms={config.max_compaction_lag_ms}"
            )
        if config.remote_storage_enable:
            config._check_archived()
        elif config.archive_topic_id and not config.remote_log_delete_on_disable:
            raise ConfigError("archive.topic.id needs remote.storage.enable=true: the records are in the archive")
        return config

    def _check_archived(self) -> None:
        """Raise ConfigError for what an archived topic cannot have."""
        if self.is_compacted:
            raise ConfigError(
                "remote.storage.enable=true with cleanup.policy=compact: compaction would rewrite segments that are "
                "archived; set cleanup.policy=delete"
            )
        for key, total, local in (
            ("retention.ms", self.retention_ms, self.local_retention_ms),
            ("retention.bytes", self.retention_bytes, self.local_retention_bytes),
        ):
            if local == DERIVED:
                continue
            if self.remote_log_copy_disable and local != total:
                raise ConfigError(
                    f"local.{key}={local} with remote.log.copy.disable=true: no more is archived, so the disk "
                    f"keeps what {key}={total} keeps; set it to -2"
                )
            if total != -1 and (local == -1 or local > total):
                raise ConfigError(f"local.{key}={local} must not be above {key}={total}; -2 is the same")

    def fit_for_archive(self) -> LogConfig:
        """Without the settings that an archived topic cannot have."""
        return dataclasses.replace(
            self, cleanup_policy=("delete",), local_retention_ms=DERIVED, local_retention_bytes=DERIVED
        )

    def check_change(self, before: LogConfig) -> None:
        """Raise ConfigError unless a topic with the settings `before` may get these."""
        if self.archive_topic_id != before.archive_topic_id:
            raise ConfigError("archive.topic.id cannot be changed: the topic would get the records of another one")
        if before.remote_storage_enable and not (self.remote_storage_enable or self.remote_log_delete_on_disable):
            raise ConfigError(
                "remote.storage.enable=false would leave records in the archive. To keep them and archive no more, set "
                "remote.storage.enable=true,remote.log.copy.disable=true; to delete them, set "
                "remote.storage.enable=false,remote.log.delete.on.disable=true"
            )

    @property
    def copies_segments(self) -> bool:
        """Whether closed segments go to the archive. Then only what is archived leaves the disk."""
        return self.remote_storage_enable and not self.remote_log_copy_disable

    @property
    def local_ms(self) -> int:
        """local.retention.ms as it counts: ms, or -1 for no limit."""
        derived = self.local_retention_ms == DERIVED or not self.copies_segments
        return self.retention_ms if derived else self.local_retention_ms

    @property
    def local_bytes(self) -> int:
        """local.retention.bytes as it counts: bytes, or -1 for no limit."""
        derived = self.local_retention_bytes == DERIVED or not self.copies_segments
        return self.retention_bytes if derived else self.local_retention_bytes

    @property
    def may_flush_appends(self) -> bool:
        """Whether an append may have to be on disk before it is acknowledged."""
        return self.flush_messages != UNLIMITED or self.flush_ms != UNLIMITED

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def codec(self) -> Codec | None:
        """The codec that batches are stored with; None keeps each batch's own."""
        name = self.compression_type
        if name == "producer":
            return None
        return Codec.NONE if name == "uncompressed" else Codec.from_name(name)

    @property
    def compression_level(self) -> int | None:
        """The level of `codec`; None for a codec without levels."""
        match self.codec:
            case Codec.GZIP:
                return self.compression_gzip_level
            case Codec.LZ4:
                return self.compression_lz4_level
            case Codec.ZSTD:
                return self.compression_zstd_level
        return None

    @property
    def stamps_append_time(self) -> bool:
        """Whether the broker's clock replaces the producer's timestamps."""
        return self.message_timestamp_type == "LogAppendTime"

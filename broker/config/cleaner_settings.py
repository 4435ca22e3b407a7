"""The broker keys of the log cleaner: when compaction runs, what it may take, and topics' defaults for it."""

from __future__ import annotations

import dataclasses

from broker.settings import UpdateMode, at_least, between, setting

__all__ = ["CleanerSettings"]

CLEANER = "cleaner"
CLUSTER_WIDE = UpdateMode.CLUSTER_WIDE


@dataclasses.dataclass(frozen=True, kw_only=True)
class CleanerSettings:
    """A part of `BrokerConfig`."""

    log_cleaner_enable: bool = setting(
        "log.cleaner.enable",
        True,
        "Compact the topics with cleanup.policy=compact, __consumer_offsets among them.",
        group=CLEANER,
    )
    log_cleaner_backoff_ms: int = setting(
        "log.cleaner.backoff.ms",
        15000,
        "Wait before logs are looked at again when none was due.",
        group=CLEANER,
        check=at_least(0),
        type="long",
        update=CLUSTER_WIDE,
    )
    log_cleaner_dedupe_buffer_size: int = setting(
        "log.cleaner.dedupe.buffer.size",
        134217728,
        "Memory for the keys of one compaction, about 150 bytes and the key each; a log with more takes several.",
        group=CLEANER,
        check=at_least(1 << 20),
        type="long",
        update=CLUSTER_WIDE,
    )
    log_cleaner_io_max_bytes_per_second: float = setting(
        "log.cleaner.io.max.bytes.per.second",
        1.7976931348623157e308,
        "Bound on what compaction reads and writes together.",
        group=CLEANER,
        check=between(1, 1.7976931348623157e308),
        update=CLUSTER_WIDE,
    )
    log_cleaner_min_cleanable_ratio: float = setting(
        "log.cleaner.min.cleanable.ratio",
        0.5,
        "Share of a log that must be uncompacted before compaction starts.",
        group=CLEANER,
        check=between(0, 1),
        update=CLUSTER_WIDE,
    )
    log_cleaner_delete_retention_ms: int = setting(
        "log.cleaner.delete.retention.ms",
        86400000,
        "How long compaction keeps tombstones.",
        group=CLEANER,
        check=at_least(0),
        type="long",
        update=CLUSTER_WIDE,
    )
    log_cleaner_min_compaction_lag_ms: int = setting(
        "log.cleaner.min.compaction.lag.ms",
        0,
        "A record is not compacted before this age.",
        group=CLEANER,
        check=at_least(0),
        type="long",
        update=CLUSTER_WIDE,
    )
    log_cleaner_max_compaction_lag_ms: int = setting(
        "log.cleaner.max.compaction.lag.ms",
        2**63 - 1,
        "A record is open to compaction from this age, whatever the ratio.",
        group=CLEANER,
        check=at_least(1),
        type="long",
        update=CLUSTER_WIDE,
    )

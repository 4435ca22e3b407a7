"""The settings of one topic, in Kafka's key names, each declared once.

DescribeConfigs, IncrementalAlterConfigs and the table in the documentation are made from `TOPIC_KEYS`. The broker's
settings that are the defaults of these take type, check and text from here (`default_of_topics`). `LogConfig`
(log/log_config.py) says what the values mean to a log. Idea: Kafka's `LogConfig` over `ConfigDef`.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping
from typing import Any, Final

from broker.settings import Long, Setting, UpdateMode, at_least, between, gzip_level, one_of, setting, settings_of

UNLIMITED = 2**63 - 1
DAY_MS = 24 * 60 * 60 * 1000

_cleanup = functools.partial(setting, group="cleanup")
_segments = functools.partial(setting, group="segments")
_flush = functools.partial(setting, group="flush")
_messages = functools.partial(setting, group="messages")
_replication = functools.partial(setting, group="replication")
_remote = functools.partial(setting, group="remote storage")


def _throttled_replicas(value: tuple[str, ...]) -> str | None:
    """Kafka's ThrottledReplicaListValidator."""
    if value == ("*",) or all(re.fullmatch(r"\d+:\d+", item) for item in value):
        return None
    return "name replicas as partition:broker, partition:broker, or all of them as *"


def _topic_id(value: str) -> str | None:
    if not value or re.fullmatch(r"[A-Za-z0-9_-]{22}", value, re.ASCII):
        return None
    return "expected the 22 characters of a topic id, as in `pykafka topics describe`"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TopicSettings:
    """Every topic key; a field's name is the key with `_` for `.`. Sizes in bytes, times in ms."""

    cleanup_policy: tuple[str, ...] = _cleanup(
        ("delete",),
        "What happens to old segments: delete them, or compact them to the last record of each key; empty keeps all.",
        one_of(("delete", "compact")),
    )
    retention_ms: Long = _cleanup(
        7 * DAY_MS, "Age of its newest record at which a segment is deleted; -1 keeps for ever.", at_least(-1)
    )
    retention_bytes: Long = _cleanup(
        -1, "Size of a partition above which its oldest segments are deleted; -1 is no limit.", at_least(-1)
    )
    file_delete_delay_ms: Long = _cleanup(60_000, "Delay before the file of a deleted segment is removed.", at_least(0))
    delete_retention_ms: Long = _cleanup(DAY_MS, "How long compaction keeps tombstones.", at_least(0))
    min_cleanable_dirty_ratio: float = _cleanup(
        0.5, "Share of a log that must be uncompacted before compaction starts.", between(0, 1)
    )
    min_compaction_lag_ms: Long = _cleanup(0, "A record is not compacted before this age.", at_least(0))
    max_compaction_lag_ms: Long = _cleanup(
        UNLIMITED, "A record is open to compaction from this age, whatever the dirty ratio.", at_least(1)
    )
    segment_bytes: int = _segments(1 << 30, "A segment is closed at this size.", at_least(14))
    segment_ms: Long = _segments(7 * DAY_MS, "A segment is closed at this age.", at_least(1))
    segment_jitter_ms: Long = _segments(
        0, "A random part of this is taken off segment.ms, so that partitions do not roll together.", at_least(0)
    )
    segment_index_bytes: int = _segments(10 << 20, "A segment is closed when an index is this large.", at_least(12))
    index_interval_bytes: int = _segments(4096, "Log bytes between two index entries.", at_least(0))
    preallocate: bool = _segments(False, "Reserve the whole segment on disk when it is created.")
    flush_messages: Long = _flush(UNLIMITED, "fsync after this many records; else the OS decides.", at_least(1))
    flush_ms: Long = _flush(UNLIMITED, "fsync what has waited this long; else the OS decides.", at_least(0))
    max_message_bytes: int = _messages(1_048_588, "Largest record batch accepted, as sent.", at_least(0))
    compression_type: str = _messages(
        "producer",
        "Codec batches are stored with: producer keeps them as they were sent, any other costs a recompression.",
        one_of(("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")),
    )
    compression_gzip_level: int = _messages(
        -1,
        "Level of what is recompressed as gzip: 1 (fast) to 9 (small), or -1 for zlib's own.",
        gzip_level,
    )
    compression_lz4_level: int = _messages(
        9,
        "Level of what is recompressed as lz4: 1 to 17; 9 is the fast compressor, any other the thorough one.",
        between(1, 17),
    )
    compression_zstd_level: int = _messages(
        3,
        "Level of what is recompressed as zstd: -131072 (fast) to 22 (small).",
        between(-131072, 22),
    )
    errors_deadletterqueue_group_enable: bool = _messages(
        False, "Whether share groups may write dead letters to the topic (KIP-1191)."
    )
    message_timestamp_type: str = _messages(
        "CreateTime",
        "CreateTime keeps the producer's time, LogAppendTime stamps the broker's.",
        one_of(("CreateTime", "LogAppendTime")),
    )
    message_timestamp_before_max_ms: Long = _messages(
        UNLIMITED, "With CreateTime, a record may be this much older than the broker's clock.", at_least(0)
    )
    message_timestamp_after_max_ms: Long = _messages(
        3_600_000, "With CreateTime, a record may be this much newer than the broker's clock.", at_least(0)
    )
    min_insync_replicas: int = _replication(
        1, "In-sync replicas that acks=all needs, at most as many as there are.", at_least(1)
    )
    unclean_leader_election_enable: bool = _replication(
        False, "Let a replica that lacks records lead when no other is alive; they are lost."
    )
    leader_replication_throttled_replicas: tuple[str, ...] = _replication(
        (),
        "Leaders send only leader.replication.throttled.rate for these replicas: partition:broker, …, or *.",
        _throttled_replicas,
    )
    follower_replication_throttled_replicas: tuple[str, ...] = _replication(
        (),
        "These replicas fetch only follower.replication.throttled.rate: partition:broker, …, or *.",
        _throttled_replicas,
    )
    remote_storage_enable: bool = _remote(
        False, "Keep closed segments in the archive (archive.url of the brokers), and read them from there."
    )
    local_retention_ms: Long = _remote(
        -2, "Age at which a segment that is archived leaves the disk; -2 is retention.ms.", at_least(-2)
    )
    local_retention_bytes: Long = _remote(
        -2,
        "Size of a partition on disk above which its oldest segments leave it, once they are archived; "
        "-2 is retention.bytes.",
        at_least(-2),
    )
    remote_log_copy_disable: bool = _remote(
        False,
        "Archive no more segments: what is archived stays readable, and the disk keeps what retention.* keep.",
    )
    remote_log_delete_on_disable: bool = _remote(
        False,
        "Let remote.storage.enable change from true to false, which deletes the archive: the log then starts where the "
        "disk does.",
    )
    archive_topic_id: str = _remote(
        "",
        "Id of the topic whose archive this one goes on with, for a topic that is made from the archive; empty: its "
        "own. `pykafka log restore` sets it. It cannot be changed.",
        _topic_id,
    )


TOPIC_KEYS: Final[Mapping[str, Setting]] = settings_of(TopicSettings)
"""Every topic key by name, in the order of declaration."""


def default_of_topics(name: str, group: str) -> Any:
    """Declares a broker's setting that is the default of the topic's `name`, in the same unit, changed at run time."""
    key = TOPIC_KEYS[name]
    return setting(key.default, key.doc, key.check, UpdateMode.CLUSTER_WIDE, group=group, topic=name)


def default_keys(cls: type[Any]) -> Mapping[str, Mapping[str, int]]:
    """Topic key → the keys of `cls` that are its default, in order of precedence, each with the factor to the topic
    key's unit (org.apache.kafka.storage.internals.log.LogConfig.TOPIC_CONFIG_SYNONYMS).

    Of several the one with the finest unit wins.
    """
    found: dict[str, dict[str, int]] = {}
    for field in sorted(dataclasses.fields(cls), key=lambda one: one.metadata.get("factor", 1)):
        if topic := field.metadata.get("topic"):
            found.setdefault(topic, {})[field.name.replace("_", ".")] = field.metadata.get("factor", 1)
    return dict(sorted(found.items()))

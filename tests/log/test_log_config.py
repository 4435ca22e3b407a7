"""Topic settings: Kafka's names and defaults, and what is refused."""

from __future__ import annotations

import dataclasses

import pytest

from broker.config.broker_config import BrokerConfig
from broker.config.topic_settings import TOPIC_KEYS
from broker.errors import ConfigError
from broker.log.log_config import LogConfig


def properties_of(config: LogConfig) -> dict[str, str]:
    return {key.name: key.format(getattr(config, key.attribute)) for key in TOPIC_KEYS.values()}


def test_the_defaults_are_kafkas() -> None:
    assert properties_of(LogConfig()) == {
        "cleanup.policy": "delete",
        "retention.ms": "604800000",
        "retention.bytes": "-1",
        "file.delete.delay.ms": "60000",
        "delete.retention.ms": "86400000",
        "min.cleanable.dirty.ratio": "0.5",
        "min.compaction.lag.ms": "0",
        "max.compaction.lag.ms": "9223372036854775807",
        "segment.bytes": "1073741824",
        "segment.ms": "604800000",
        "segment.jitter.ms": "0",
        "segment.index.bytes": "10485760",
        "index.interval.bytes": "4096",
        "preallocate": "false",
        "flush.messages": "9223372036854775807",
        "flush.ms": "9223372036854775807",
        "max.message.bytes": "1048588",
        "compression.type": "producer",
        "compression.gzip.level": "-1",
        "compression.lz4.level": "9",
        "compression.zstd.level": "3",
        "message.timestamp.type": "CreateTime",
        "message.timestamp.before.max.ms": "9223372036854775807",
        "message.timestamp.after.max.ms": "3600000",
        "min.insync.replicas": "1",
        "unclean.leader.election.enable": "false",
        "leader.replication.throttled.replicas": "",
        "follower.replication.throttled.replicas": "",
        "remote.storage.enable": "false",
        "local.retention.ms": "-2",
        "local.retention.bytes": "-2",
        "remote.log.copy.disable": "false",
        "remote.log.delete.on.disable": "false",
        "archive.topic.id": "",
        "errors.deadletterqueue.group.enable": "false",
    }


def test_a_field_is_the_key_with_underscores() -> None:
    assert [key.attribute for key in TOPIC_KEYS.values()] == [name.replace(".", "_") for name in TOPIC_KEYS]


def test_every_key_says_what_it_is() -> None:
    assert all(key.doc.endswith(".") and key.group for key in TOPIC_KEYS.values())


def test_text_becomes_values() -> None:
    config = LogConfig.from_properties(
        {"cleanup.policy": "compact, delete", "preallocate": "TRUE", "min.cleanable.dirty.ratio": "0.25"}
    )
    assert (config.cleanup_policy, config.preallocate, config.min_cleanable_dirty_ratio) == (
        ("compact", "delete"),
        True,
        0.25,
    )
    assert config.is_compacted


def test_properties_go_over_a_base() -> None:
    base = LogConfig(retention_ms=5, segment_ms=7)
    config = LogConfig.from_properties({"retention.ms": "6"}, base)
    assert (config.retention_ms, config.segment_ms) == (6, 7)


def test_properties_survive_the_way_there_and_back() -> None:
    config = LogConfig(retention_ms=5, cleanup_policy=("compact", "delete"), preallocate=True)
    assert LogConfig.from_properties(properties_of(config)) == config


def test_the_brokers_settings_give_the_defaults() -> None:
    defaults = LogConfig.from_properties(BrokerConfig().topic_defaults())
    assert defaults == LogConfig()


@pytest.mark.parametrize(
    ("properties", "complaint"),
    [
        ({"retention.m": "1"}, "did you mean 'retention.ms'"),
        ({"retention.ms": "a week"}, "retention.ms=a week: expected a value of type long"),
        ({"retention.ms": "-2"}, "must be at least -1"),
        ({"segment.bytes": "13"}, "must be at least 14"),
        ({"segment.bytes": "4294967296"}, "expected a value of type int"),
        ({"cleanup.policy": "shred"}, "'shred' is not one of delete, compact"),
        ({"compression.gzip.level": "0"}, "must lie between 1 and 9, or be -1"),
        ({"compression.zstd.level": "23"}, "must lie between -131072 and 22"),
        ({"leader.replication.throttled.replicas": "0:1,z"}, "partition:broker"),
        ({"remote.storage.enable": "true", "cleanup.policy": "compact"}, "set cleanup.policy=delete"),
        ({"remote.storage.enable": "true", "cleanup.policy": "compact,delete"}, "set cleanup.policy=delete"),
        ({"remote.storage.enable": "true", "retention.ms": "8", "local.retention.ms": "9"}, "above retention.ms=8"),
        ({"remote.storage.enable": "true", "retention.ms": "8", "local.retention.ms": "-1"}, "above retention.ms=8"),
        (
            {"remote.storage.enable": "true", "retention.bytes": "8", "local.retention.bytes": "9"},
            "local.retention.bytes=9 must not be above retention.bytes=8",
        ),
        (
            {"remote.storage.enable": "true", "remote.log.copy.disable": "true", "local.retention.ms": "9"},
            "set it to -2",
        ),
        ({"message.downconversion.enable": "true"}, "Kafka 4 has removed it"),
        ({"message.timestamp.type": "Now"}, "not one of CreateTime, LogAppendTime"),
        ({"preallocate": "yes"}, "expected a value of type boolean"),
        ({"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "9"}, "is above max.compaction.lag.ms"),
    ],
)
def test_what_is_wrong_is_said(properties: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        LogConfig.from_properties(properties)


def test_local_retention_is_retention_unless_it_is_set() -> None:
    config = LogConfig.from_properties(
        {"remote.storage.enable": "true", "retention.ms": "8", "local.retention.ms": "-2", "local.retention.bytes": "5"}
    )
    assert (config.local_ms, config.local_bytes) == (8, 5)


@pytest.mark.parametrize("settings", [{}, {"remote.storage.enable": "true", "remote.log.copy.disable": "true"}])
def test_without_copies_retention_counts_for_the_disk(settings: dict[str, str]) -> None:
    config = dataclasses.replace(LogConfig.from_properties(settings), retention_ms=8, local_retention_ms=5)
    assert (config.local_ms, config.local_bytes) == (8, -1)


def test_an_archive_is_turned_off_only_together_with_its_records() -> None:
    before = LogConfig(remote_storage_enable=True)
    with pytest.raises(ConfigError, match="set remote.storage.enable=true,remote.log.copy.disable=true"):
        LogConfig().check_change(before)
    LogConfig(remote_log_delete_on_disable=True).check_change(before)
    LogConfig(remote_storage_enable=True, remote_log_copy_disable=True).check_change(before)
    LogConfig().check_change(LogConfig())

"""All of the broker's settings together, read from a properties file and overrides, and checked against each other.

`BrokerConfig.load(file, overrides)` is what `pykafka broker start` calls. The README's table and
`conf/server.properties` are tested against the declarations in the files beside this one. Topic settings
live in `log/log_config.py`; the broker keys that give topics their defaults map to them in `topic_defaults`.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from pathlib import Path

from broker.config.basic_settings import BasicSettings
from broker.config.group_settings import GroupSettings
from broker.config.listener import Listener
from broker.config.log_settings import LogSettings
from broker.config.network_settings import NetworkSettings
from broker.config.zookeeper_settings import ZooKeeperSettings
from broker.errors import ConfigError
from broker.settings import parse_properties, read_properties_file, settings_of

__all__ = ["IGNORED_KEYS", "BrokerConfig"]

logger = logging.getLogger(__name__)

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class BrokerConfig(GroupSettings, ZooKeeperSettings, LogSettings, NetworkSettings, BasicSettings):
    """Every broker key; `settings_of(BrokerConfig)` lists them with their docs, the last base first."""

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

"""Topics, partition counts and topic settings of the target follow the source."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Mapping
from typing import Final, NamedTuple

from broker.client.admin import Admin, ResourceType
from broker.client.cluster_metadata import TopicMetadata, UnknownTopic
from broker.errors import BrokerError, ErrorCode
from broker.mirror.mirror_settings import MirrorSettings
from broker.protocol.described_config import ConfigEntry, ConfigSource
from broker.protocol.topic_partition import TopicPartition

logger = logging.getLogger("pykafka.mirror")

_TIMESTAMP_TYPE: Final = "message.timestamp.type"


class MirroredTopic(NamedTuple):
    """A topic of the source and its copy, as they are now."""

    source: TopicMetadata
    target: TopicMetadata

    def partitions(self) -> list[tuple[TopicPartition, TopicPartition]]:
        """(source, target) of each partition."""
        return [
            (TopicPartition(self.source.name, index), TopicPartition(self.target.name, index))
            for index in self.source.partitions
        ]


class TopicSync:
    """Creates and changes topics of the target; never deletes one."""

    def __init__(self, source: Admin, target: Admin, settings: MirrorSettings) -> None:
        self._source = source
        self._target = target
        self._settings = settings
        self._filter = settings.topic_filter
        self._config_filter = settings.config_filter
        self._policy = settings.policy
        self._configs_due: dict[str, float] = {}
        """When (monotonic seconds) the settings of each topic are compared again."""
        self._told: set[str] = set()

    def select(self) -> dict[str, TopicMetadata]:
        topics = self._source.cluster.topics()
        for name in self._filter.missing(topics):
            with contextlib.suppress(UnknownTopic):
                self._source.cluster.topic(name)  # raises where it may not be seen
            self._tell(f"there is no topic {name!r} on the source yet")
        return {
            name: topic
            for name, topic in sorted(topics.items())
            if not topic.internal and self._filter.accepts(name) and not self._policy.is_cycle(name)
        }

    def refresh(self) -> dict[str, MirroredTopic]:
        """Make the topics and partitions of the source on the target, with their settings. By name on the source."""
        selected = self.select()
        existing = self._target.cluster.topics()
        found: dict[str, MirroredTopic] = {}
        for name, topic in selected.items():
            remote = self._policy.remote_topic(name)
            known = existing.get(remote)
            count = len(topic.partitions)
            if known is None or len(known.partitions) < count:
                known = self._make(remote, count, new=known is None)
                self._sync_configs(name, remote, new=remote not in existing)
            elif self._settings.sync_topic_configs and time.monotonic() >= self._configs_due.get(name, 0.0):
                self._sync_configs(name, remote, new=False)
            found[name] = MirroredTopic(topic, known)
        return found

    def _make(self, remote: str, partitions: int, *, new: bool) -> TopicMetadata:
        """Create the topic, or add partitions to it; somebody else may do that meanwhile."""
        try:
            if new:
                self._target.create_topic(remote, partitions, self._settings.replication_factor)
            else:
                self._target.create_partitions(remote, partitions)
        except BrokerError as error:
            if error.code is not (ErrorCode.topic_already_exists if new else ErrorCode.invalid_partitions):
                raise
        what = "created topic %s with %d partitions" if new else "added partitions to topic %s: it has %d now"
        logger.info(what, remote, partitions)
        return self._target.cluster.topic(remote, lambda made: len(made.partitions) >= partitions)

    def _sync_configs(self, name: str, remote: str, *, new: bool) -> None:
        """Set what was set on the source, and reset what was not.

        A setting that the target does not know is left out. Records keep their timestamps only under CreateTime, so
        a new topic gets that where it is not the target's default.
        """
        self._configs_due[name] = time.monotonic() + self._settings.sync_topic_configs_interval_s
        source = self._source.describe_configs(ResourceType.TOPIC, name)
        target = self._target.describe_configs(ResourceType.TOPIC, remote)
        wanted = self._settable(source)
        for key in wanted.keys() - target.keys():
            self._tell(f"topic {name}: the target does not know the setting {key}; it is not copied")
        changes = {
            key: value
            for key, value in wanted.items()
            if key in target
            and (target[key].value != value or target[key].source is not ConfigSource.DYNAMIC_TOPIC_CONFIG)
        }
        gone = [key for key in self._settable(target) if key not in wanted]
        timestamps = target.get(_TIMESTAMP_TYPE)
        if timestamps is not None and timestamps.value != "CreateTime":
            if new:
                changes[_TIMESTAMP_TYPE] = "CreateTime"
            else:
                self._tell(
                    f"topic {remote} of the target has {_TIMESTAMP_TYPE}={timestamps.value}: its records get the time "
                    "at which they are mirrored; set CreateTime to keep their timestamps"
                )
        if changes or gone:
            self._target.alter_configs(ResourceType.TOPIC, remote, changes, delete=gone)
            what = [f"set {key}={value}" for key, value in changes.items()] + [f"reset {key}" for key in gone]
            logger.info("topic %s: %s", remote, ", ".join(what))

    def _settable(self, entries: Mapping[str, ConfigEntry]) -> dict[str, str]:
        """The settings that were set on the topic itself, without those that are not copied."""
        return {
            key: entry.value
            for key, entry in entries.items()
            if entry.source is ConfigSource.DYNAMIC_TOPIC_CONFIG
            and not (entry.read_only or entry.sensitive)
            and entry.value is not None
            and self._config_filter.accepts(key)
        }

    def _tell(self, message: str) -> None:
        if message not in self._told:
            self._told.add(message)
            logger.warning("%s", message)

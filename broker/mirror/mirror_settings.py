"""What a mirror does, with MirrorMaker's names for settings (KIP-382)."""

from __future__ import annotations

import dataclasses
from typing import Final

from broker.errors import ConfigError
from broker.mirror.replication_policy import GROUPS_EXCLUDE, TOPICS_EXCLUDE, NameFilter, ReplicationPolicy

CONFIG_PROPERTIES_EXCLUDE: Final = (
    r"follower\.replication\.throttled\.replicas",
    r"leader\.replication\.throttled\.replicas",
    r"message\.timestamp\.(difference|before|after)\.max\.ms",
    r"message\.timestamp\.type",
    r"unclean\.leader\.election\.enable",
    r"min\.insync\.replicas",
)
"""MirrorMaker's default, with the names that KIP-937 gave to the limits of timestamps."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MirrorSettings:
    """Intervals in seconds. Topic and group names may be regular expressions."""

    topics: tuple[str, ...]
    topics_exclude: tuple[str, ...] = TOPICS_EXCLUDE
    groups: tuple[str, ...] = (".*",)
    groups_exclude: tuple[str, ...] = GROUPS_EXCLUDE
    source_cluster_alias: str = "source"
    target_cluster_alias: str = "target"
    replication_policy: str = "identity"
    replication_policy_separator: str = "."
    replication_factor: int = -1
    sync_topic_configs: bool = True
    sync_topic_configs_interval_s: float = 600.0
    config_properties_exclude: tuple[str, ...] = CONFIG_PROPERTIES_EXCLUDE
    sync_group_offsets: bool = True
    emit_checkpoints_interval_s: float = 60.0
    refresh_topics_interval_s: float = 30.0
    commit_interval_s: float = 1.0
    auto_offset_reset: str = "earliest"

    def __post_init__(self) -> None:
        if not self.topics:
            raise ConfigError("--topics: name the topics to mirror, or a regular expression such as '.*'")
        if self.auto_offset_reset not in ("earliest", "latest"):
            raise ConfigError(f"--auto-offset-reset {self.auto_offset_reset}: must be earliest or latest")
        _ = self.topic_filter, self.group_filter, self.config_filter, self.policy  # raise ConfigError before connecting

    @property
    def topic_filter(self) -> NameFilter:
        return NameFilter.parse(self.topics, self.topics_exclude, "topics")

    @property
    def group_filter(self) -> NameFilter:
        return NameFilter.parse(self.groups, self.groups_exclude, "groups")

    @property
    def config_filter(self) -> NameFilter:
        """Accepts the names of settings that are copied."""
        return NameFilter.parse((".*",), self.config_properties_exclude, "config-properties")

    @property
    def policy(self) -> ReplicationPolicy:
        return ReplicationPolicy.parse(
            self.replication_policy,
            self.source_cluster_alias,
            self.target_cluster_alias,
            self.replication_policy_separator,
        )

    @property
    def transactional_id(self) -> str:
        """Two mirrors with the same aliases fence each other."""
        return f"pykafka-mirror.{self.source_cluster_alias}.{self.target_cluster_alias}"

"""What a mirror does, with MirrorMaker's names for settings: which topics and groups, under which names (KIP-382)."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from broker.errors import ConfigError
from broker.patterns.java import JavaPattern, UnsupportedPattern

TOPICS_EXCLUDE: Final = (r".*[\-\.]internal", r".*\.replica", "__.*")
GROUPS_EXCLUDE: Final = ("console-consumer-.*", "connect-.*", "__.*")
"""MirrorMaker's defaults."""

CONFIG_PROPERTIES_EXCLUDE: Final = (
    r"follower\.replication\.throttled\.replicas",
    r"leader\.replication\.throttled\.replicas",
    r"message\.timestamp\.(difference|before|after)\.max\.ms",
    r"message\.timestamp\.type",
    r"unclean\.leader\.election\.enable",
    r"min\.insync\.replicas",
)
"""MirrorMaker's default, with the names that KIP-937 gave to the limits of timestamps."""


POLICIES: Final = ("identity", "default")

_PATTERN: Final = re.compile(r"[\\^$*+?{}\[\]|()]")


class NameFilter(NamedTuple):
    """Names, or patterns that match a whole name; a name that matches `exclude` is left out in any case."""

    include: tuple[JavaPattern, ...]
    exclude: tuple[JavaPattern, ...] = ()

    @classmethod
    def parse(cls, include: Iterable[str], exclude: Iterable[str], option: str) -> NameFilter:
        """`option` is named in errors. Raises ConfigError for what is no pattern of Java, as MirrorMaker's are."""
        return cls(_compiled(include, f"--{option}"), _compiled(exclude, f"--{option}-exclude"))

    def accepts(self, name: str) -> bool:
        return any(pattern.fullmatch(name) for pattern in self.include) and not any(
            pattern.fullmatch(name) for pattern in self.exclude
        )

    def missing(self, existing: Iterable[str]) -> list[str]:
        """Plain names in `include` that are not among `existing`."""
        known = set(existing)
        plain = (pattern for pattern in self.include if not _PATTERN.search(pattern.pattern))
        return [one.pattern for one in plain if one.pattern not in known and not any(map(one.fullmatch, known))]


def _compiled(texts: Iterable[str], option: str) -> tuple[JavaPattern, ...]:
    found = []
    for text in texts:
        try:
            found.append(JavaPattern(text))
        except UnsupportedPattern as error:
            raise ConfigError(f"{option} {text}: {error} (a name or a regular expression is expected)") from None
    return tuple(found)


class ReplicationPolicy(NamedTuple):
    """MirrorMaker's IdentityReplicationPolicy (`prefix` is ""), or its DefaultReplicationPolicy."""

    prefix: str = ""
    """What is put before the name of a topic: the alias of the source, and a separator."""
    returning: str = ""
    """The prefix of topics that came from the target; they are not mirrored back."""

    @classmethod
    def parse(cls, name: str, source_alias: str, target_alias: str, separator: str) -> ReplicationPolicy:
        """Raises ConfigError for an unknown name."""
        if name not in POLICIES:
            raise ConfigError(f"--replication-policy {name}: must be one of {', '.join(POLICIES)}")
        if name == "identity":
            return cls()
        return cls(source_alias + separator, target_alias + separator)

    def remote_topic(self, topic: str) -> str:
        """The name on the target."""
        return self.prefix + topic

    def is_cycle(self, topic: str) -> bool:
        """Whether the topic of the source has come from the target, or from the source itself."""
        return bool(self.prefix) and topic.startswith((self.returning, self.prefix))


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

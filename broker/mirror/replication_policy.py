"""Which topics and groups are mirrored, and how a topic is called on the target (KIP-382)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from broker.errors import ConfigError

TOPICS_EXCLUDE: Final = (r".*[\-\.]internal", r".*\.replica", "__.*")
GROUPS_EXCLUDE: Final = ("console-consumer-.*", "connect-.*", "__.*")
"""MirrorMaker's defaults."""

POLICIES: Final = ("identity", "default")

_PATTERN: Final = re.compile(r"[\\^$*+?{}\[\]|()]")


class NameFilter(NamedTuple):
    """Names, or patterns that match a whole name; a name that matches `exclude` is left out in any case."""

    include: tuple[re.Pattern[str], ...]
    exclude: tuple[re.Pattern[str], ...] = ()

    @classmethod
    def parse(cls, include: Iterable[str], exclude: Iterable[str], option: str) -> NameFilter:
        """`option` is named in errors. Raises ConfigError for what is no regular expression."""
        return cls(_compiled(include, f"--{option}"), _compiled(exclude, f"--{option}-exclude"))

    def accepts(self, name: str) -> bool:
        return any(one.fullmatch(name) for one in self.include) and not any(one.fullmatch(name) for one in self.exclude)

    def missing(self, existing: Iterable[str]) -> list[str]:
        """Plain names in `include` that are not among `existing`."""
        known = set(existing)
        plain = (one.pattern for one in self.include if not _PATTERN.search(one.pattern))
        return [name for name in plain if name not in known and not any(map(re.compile(name).fullmatch, known))]


def _compiled(texts: Iterable[str], option: str) -> tuple[re.Pattern[str], ...]:
    found = []
    for text in texts:
        try:
            found.append(re.compile(text))
        except re.error as error:
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

"""The topics of a subscription: a list, a pattern, or all but some; Kafka's early `TopicFilter`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from broker.errors import ConfigError
from broker.patterns.java import JavaPattern, UnsupportedPattern

Pattern = re.Pattern[str] | JavaPattern


class TopicFilter(NamedTuple):
    """`names`, or every topic whose name fully matches `pattern`; without those that match `exclude`."""

    names: tuple[str, ...] = ()
    pattern: Pattern | None = None
    exclude: Pattern | None = None

    @classmethod
    def parse(
        cls, topics: Iterable[str] | None, pattern: str | Pattern | None, exclude: str | Pattern | None
    ) -> TopicFilter:
        """Check and compile the arguments; `exclude` alone means all other topics. Text is Python's regular expression.
        Raises ConfigError."""
        if topics is not None and pattern is not None:
            raise ConfigError("subscribe to topics or to a pattern, one of the two")
        if topics is None and pattern is None and exclude is None:
            raise ConfigError("subscribe to topics, to a pattern, or to all but those of exclude")
        if isinstance(topics, str):
            raise ConfigError(f"subscribe to a list of topics: [{topics!r}]")
        if topics is None and pattern is None:
            pattern = ".*"
        return cls(tuple(sorted(set(topics or ()))), _compiled(pattern), _compiled(exclude))

    def of(self, existing: Iterable[str]) -> list[str]:
        """The topics, sorted: names even if they do not exist, and the `existing` topics that match the pattern."""
        found = set(self.names)
        if self.pattern is not None:
            found.update(topic for topic in existing if self.pattern.fullmatch(topic))
        return sorted(topic for topic in found if self.exclude is None or not self.exclude.fullmatch(topic))


def java_pattern(pattern: str | None) -> JavaPattern | None:
    """A pattern of topics in Java's language. Raises ConfigError."""
    try:
        return None if pattern is None else JavaPattern(pattern)
    except UnsupportedPattern as error:
        raise ConfigError(f"the topic pattern {pattern!r} cannot be taken: {error}") from None


def _compiled(pattern: str | Pattern | None) -> Pattern | None:
    if not isinstance(pattern, str):
        return pattern
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"the topic pattern {pattern!r} is no regular expression: {error}") from None

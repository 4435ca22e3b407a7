"""The pattern of a consumer group's subscription (KIP-848): which topics it matches as a whole. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from broker.errors import BrokerError, ErrorCode
from broker.patterns.re2 import InvalidPattern, Re2Pattern


class TopicPattern:
    """One compiled pattern, in RE2's syntax as in Kafka."""

    def __init__(self, pattern: str) -> None:
        """It may take a while: call it in a thread. Raises BrokerError `invalid_regular_expression`."""
        self._pattern = pattern
        try:
            self._compiled = Re2Pattern(pattern)
        except InvalidPattern as error:
            raise self._refused(error) from None

    def _refused(self, why: InvalidPattern) -> BrokerError:
        told = f"SubscribedTopicRegex `{self._pattern}` is not a valid pattern: {why}"
        return BrokerError(ErrorCode.invalid_regular_expression, told)

    def matching(self, topics: Iterable[str]) -> frozenset[str]:
        """The topics that match. Internal ones never do. It may take a while: call it in a thread. Raises BrokerError
        `invalid_regular_expression` if it takes too long."""
        names = [topic for topic in topics if not topic.startswith("__")]
        try:
            matches = list(self._compiled.matching(names))
        except InvalidPattern as error:
            raise self._refused(error) from None
        return frozenset(name for name, does in zip(names, matches, strict=True) if does)

"""Which partitions a query reads: `subscribe`, `subscribePattern`, `assign`, and `filterPartitions` on top of them.

Parsed by read_options.py and applied by read/offset_reader.py. A stream's checkpoint holds its `Selection` as text, so
that a restart can distinguish a topic that is new in the cluster from one that is new in the options. Raises
ConfigError for options that select nothing or cannot be parsed.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass

from broker.errors import ConfigError
from broker.protocol.topic_partition import TopicPartition
from spark_connector.options.filter_options import Intervals, parse_intervals
from spark_connector.options.option_values import OptionValues
from spark_connector.options.range_limit import parse_assignment, parse_object

_STRATEGIES = ("subscribe", "subscribePattern", "assign")
_FILTER = "filterPartitions"
_FILTER_EXAMPLE = '0,2-5 or per topic {"topicA":"0,2-5","topicB":"1"}'


@dataclass(frozen=True)
class Subscribe:
    """Every partition of these topics."""

    topics: tuple[str, ...]

    def selects(self, tp: TopicPartition) -> bool:
        return tp.topic in self.topics


@dataclass(frozen=True)
class SubscribePattern:
    """Every partition of every topic whose whole name matches, except internal topics."""

    pattern: str

    def matches(self, topic: str) -> bool:
        return re.fullmatch(self.pattern, topic) is not None

    def selects(self, tp: TopicPartition) -> bool:
        return self.matches(tp.topic)


@dataclass(frozen=True)
class Assign:
    """Exactly these partitions, sorted."""

    partitions: tuple[TopicPartition, ...]

    def selects(self, tp: TopicPartition) -> bool:
        place = bisect_left(self.partitions, tp)
        return self.partitions[place : place + 1] == (tp,)


Subscription = Subscribe | SubscribePattern | Assign


@dataclass(frozen=True)
class Selection:
    """A subscription without the partitions that `filterPartitions` excludes.

    `text`: these options in a canonical form, for checkpoints.
    """

    subscription: Subscription
    partitions: Intervals | Mapping[str, Intervals] | None
    text: Mapping[str, str]

    def selects(self, tp: TopicPartition) -> bool:
        """Whether the options select `tp`, whether it exists or not."""
        return self.subscription.selects(tp) and self.keeps(tp)

    def keeps(self, tp: TopicPartition) -> bool:
        """Whether `tp` passes `filterPartitions`. If the filter is given per topic, other topics do not pass."""
        if self.partitions is None or isinstance(self.partitions, Intervals):
            wanted = self.partitions
        else:
            wanted = self.partitions.get(tp.topic, Intervals(()))
        return wanted is None or tp.partition in wanted


def parse_selection(values: OptionValues) -> Selection:
    """The selection of a query. Raises ConfigError."""
    given = [name for name in _STRATEGIES if name in values]
    if len(given) != 1:
        which = "One" if not given else "Only one"
        verb = "must" if not given else "can"
        raise ConfigError(
            f"{which} of the following options {verb} be specified for Kafka source: {', '.join(_STRATEGIES)}. "
            + ("Set e.g. 'subscribe' to a topic." if not given else f"Given: {', '.join(given)}.")
        )
    subscription = _subscription(given[0], values.text(given[0]) or "")
    text = {given[0]: _canonical(subscription)}
    if (filtered := values.text(_FILTER)) is not None:
        text[_FILTER] = filtered
    return Selection(subscription, _partitions(filtered), text)


def read_selection(text: Mapping[str, str]) -> Selection | None:
    """Parse a `Selection.text` from a checkpoint; None when it is empty or cannot be parsed."""
    try:
        return parse_selection(OptionValues(text)) if text else None
    except ConfigError:
        return None


def _subscription(name: str, text: str) -> Subscription:
    if name == "assign":
        return Assign(parse_assignment(name, text))
    if name == "subscribe":
        topics = tuple(dict.fromkeys(topic.strip() for topic in text.split(",") if topic.strip()))
        if not topics:
            raise ConfigError(f"No topics to subscribe to as specified value for option 'subscribe' is '{text}'")
        return Subscribe(topics)
    if not text:
        raise ConfigError(f"Pattern to subscribe is empty as specified value for option '{name}' is '{text}'")
    try:
        re.compile(text)
    except re.error as error:
        raise ConfigError(f"Option '{name}': '{text}' is not a regular expression: {error}") from None
    return SubscribePattern(text)


def _canonical(subscription: Subscription) -> str:
    if isinstance(subscription, SubscribePattern):
        return subscription.pattern
    if isinstance(subscription, Subscribe):
        return ",".join(sorted(subscription.topics))
    assigned: dict[str, list[int]] = {}
    for tp in subscription.partitions:
        assigned.setdefault(tp.topic, []).append(tp.partition)
    return json.dumps(assigned)


def _partitions(text: str | None) -> Intervals | Mapping[str, Intervals] | None:
    if text is None:
        return None
    if not text.startswith("{"):
        return parse_intervals(_FILTER, text, _FILTER_EXAMPLE)
    topics = parse_object(_FILTER, text, _FILTER_EXAMPLE)
    return {topic: parse_intervals(_FILTER, part, _FILTER_EXAMPLE) for topic, part in topics.items()}

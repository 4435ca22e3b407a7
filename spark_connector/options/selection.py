"""What a query reads: the partitions (`subscribe`, `subscribePattern`, `assign`, `filterPartitions`, and `partition` in
`where`), and where it starts and ends (`startingOffsets`, `endingTimestamp`, …).

Parsed for read_options.py, and applied by read/offset_reader.py, after Spark's `KafkaOffsetRangeLimit`. In JSON the
offset -1 means latest and -2 earliest, as in Spark. Timestamps are in ms. A stream's checkpoint holds its `Selection`
as text, so that a restart can distinguish a topic that is new in the cluster from one that is new in the options.

Raises ConfigError, with an example, for options that select nothing or cannot be parsed.
"""

from __future__ import annotations

import enum
import json
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from broker.errors import ConfigError
from broker.patterns.java import JavaPattern, UnsupportedPattern
from broker.protocol.topic_partition import TopicPartition
from spark_connector.errors import ConnectorError
from spark_connector.offset_store.base import Offsets
from spark_connector.options.option_values import OptionValues
from spark_connector.options.value_sets import Intervals, Where, parse_intervals

_STRATEGIES = ("subscribe", "subscribePattern", "assign")
_FILTER = "filterPartitions"
_java_pattern = lru_cache(16)(JavaPattern)
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
    """In Java's language, as Spark's own source takes it."""

    def matches(self, topic: str) -> bool:
        return _java_pattern(self.pattern).fullmatch(topic) is not None

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
    """A subscription without the partitions that `filterPartitions` and `where` exclude.

    `partitions`: what `filterPartitions` says; `where`: what `where` says of partitions. `text`: these options in a
    canonical form, for checkpoints.
    """

    subscription: Subscription
    partitions: Intervals | Mapping[str, Intervals] | None
    where: Intervals | None
    text: Mapping[str, str]

    def selects(self, tp: TopicPartition) -> bool:
        """Whether the options select `tp`, whether it exists or not."""
        return self.subscription.selects(tp) and self.keeps(tp) and self.passes(tp)

    def passes(self, tp: TopicPartition) -> bool:
        """Whether `tp` passes `where`."""
        return self.where is None or tp.partition in self.where

    def keeps(self, tp: TopicPartition) -> bool:
        """Whether `tp` passes `filterPartitions`. If the filter is given per topic, other topics do not pass."""
        if self.partitions is None or isinstance(self.partitions, Intervals):
            wanted = self.partitions
        else:
            wanted = self.partitions.get(tp.topic, Intervals(()))
        return wanted is None or tp.partition in wanted


def where_of(values: OptionValues) -> Where:
    """The option `where`, parsed. Raises ConfigError."""
    text = values.text("where")
    if text is None:
        return Where()
    from spark_connector.options.where import parse_where

    return parse_where(text)


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
    where = where_of(values)
    if where.partition_terms:
        text["where"] = where.partition_terms
    return Selection(subscription, _partitions(filtered), where.partitions, text)


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
        _java_pattern(text)
    except UnsupportedPattern as error:
        raise ConfigError(f"Option '{name}': '{text}' cannot be taken: {error}") from None
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


LATEST = -1
EARLIEST = -2

_MAX_LONG = 2**63 - 1
_OFFSETS_EXAMPLE = '{"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}'
_TIMESTAMPS_EXAMPLE = '{"topicA":{"0":123456789,"1":123456789},"topicB":{"0":123456789,"1":123456789}}'
_ASSIGNMENT_EXAMPLE = '{"topicA":[0,1],"topicB":[0,1]}'


class Position(enum.Enum):
    """A position known by name; planning looks up its offset."""

    EARLIEST = "earliest"
    LATEST = "latest"
    COMMITTED = "committed"


@dataclass(frozen=True)
class SpecificOffsets:
    """An offset per partition; may hold LATEST and EARLIEST."""

    offsets: Offsets


@dataclass(frozen=True)
class Timestamps:
    """A timestamp (ms) per partition, or one for all. `latest_if_none`: take the end where no record is so late."""

    timestamps: Mapping[TopicPartition, int] | int
    latest_if_none: bool = False

    def of(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The timestamps of those `partitions` that have one."""
        if isinstance(self.timestamps, int):
            return dict.fromkeys(partitions, self.timestamps)
        return {tp: self.timestamps[tp] for tp in partitions if tp in self.timestamps}


OffsetRangeLimit = Position | SpecificOffsets | Timestamps


def parse_offsets(option: str, text: str) -> dict[TopicPartition, int]:
    """`{"t":{"0":23,"1":-1}}`. Raises ConfigError."""
    offsets = _parse_per_partition(option, text, _OFFSETS_EXAMPLE)
    for tp, offset in offsets.items():
        if offset < EARLIEST:
            raise ConfigError(
                f"Option '{option}': offset {offset} of {tp} is negative; -1 means latest and -2 earliest, "
                "no other negative number has a meaning"
            )
    return offsets


def parse_timestamps(option: str, text: str) -> dict[TopicPartition, int]:
    """`{"t":{"0":1700000000000}}`, milliseconds. Raises ConfigError."""
    timestamps = _parse_per_partition(option, text, _TIMESTAMPS_EXAMPLE)
    for tp, timestamp in timestamps.items():
        if timestamp < 0:
            raise ConfigError(f"Option '{option}': timestamp {timestamp} of {tp} must not be negative")
    return timestamps


def parse_assignment(option: str, text: str) -> tuple[TopicPartition, ...]:
    """`{"t":[0,1]}`, sorted, without duplicates. Raises ConfigError."""
    partitions: set[TopicPartition] = set()
    for topic, indexes in parse_object(option, text, _ASSIGNMENT_EXAMPLE).items():
        if not isinstance(indexes, list) or not all(_is_long(index) and index >= 0 for index in indexes):
            raise _wrong_shape(option, text, _ASSIGNMENT_EXAMPLE)
        partitions.update(TopicPartition(topic, index) for index in indexes)
    if not partitions:
        raise ConfigError(f"No topicpartitions to assign as specified value for option '{option}' is '{text}'")
    return tuple(sorted(partitions))


def _parse_per_partition(option: str, text: str, example: str) -> dict[TopicPartition, int]:
    result = parse_nested(option, text, example)
    if not all(_is_long(value) for value in result.values()):
        raise _wrong_shape(option, text, example)
    return result


def parse_nested(option: str, text: str, example: str) -> dict[TopicPartition, Any]:
    """`{"t":{"0":any,"1":any}}` by partition. Raises ConfigError."""
    result: dict[TopicPartition, Any] = {}
    for topic, values in parse_object(option, text, example).items():
        if not isinstance(values, dict):
            raise _wrong_shape(option, text, example)
        for index, value in values.items():
            if not index.isascii() or not index.isdigit():
                raise _wrong_shape(option, text, example)
            result[TopicPartition(topic, int(index))] = value
    return result


def parse_object(option: str, text: str, example: str) -> dict[str, Any]:
    """A JSON object. Raises ConfigError."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"Option '{option}' is not JSON ({error}). Expected e.g. {example}, got {text}") from None
    if not isinstance(value, dict):
        raise _wrong_shape(option, text, example)
    return value


def _is_long(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -_MAX_LONG <= value <= _MAX_LONG


def _wrong_shape(option: str, text: str, example: str) -> ConfigError:
    return ConfigError(f"Option '{option}': Expected e.g. {example}, got {text}")


def check_limits(start: OffsetRangeLimit, end: OffsetRangeLimit) -> None:
    """Check that start and end name the same partitions, and that no start lies after its end.

    Raises ConnectorError with Spark's conditions. Positions and limits of different kinds are compared later, as
    offsets.
    """
    if isinstance(start, SpecificOffsets) and isinstance(end, SpecificOffsets):
        _check_pairs(start.offsets, end.offsets, "offset")
    elif isinstance(start, Timestamps) and isinstance(end, Timestamps):
        starts, ends = start.timestamps, end.timestamps
        if not isinstance(starts, int) and not isinstance(ends, int):
            _check_pairs(starts, ends, "timestamp")


def _check_pairs(start: Offsets, end: Offsets, what: str) -> None:
    if start.keys() != end.keys():
        raise ConnectorError(
            "MISMATCHED_TOPIC_PARTITIONS_BETWEEN_START_OFFSET_AND_END_OFFSET",
            "The specified start offset and end offset should have the same topic-partitions. "
            f"Topic-partitions for start offset: {format_partitions(start)}, "
            f"topic-partitions for end offset: {format_partitions(end)}.",
        )
    for tp in sorted(start):
        if start[tp] > end[tp] >= 0:
            raise ConnectorError(
                f"UNRESOLVED_START_{what.upper()}_GREATER_THAN_END_{what.upper()}",
                f"The specified start {what} {start[tp]} is greater than the end {what} {end[tp]} "
                f"for topic {tp.topic} partition {tp.partition}.",
            )


def format_partitions(partitions: Mapping[TopicPartition, object] | set[TopicPartition]) -> str:
    """`[t-0, t-1]`, sorted, for messages."""
    return f"[{', '.join(map(str, sorted(partitions)))}]"

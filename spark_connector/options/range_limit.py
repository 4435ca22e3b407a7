"""Where a read starts and ends: the values of `startingOffsets`, `endingTimestamp` and similar options.

Built by read_options.py and resolved to offsets by read/offset_reader.py, after Spark's `KafkaOffsetRangeLimit`. This
module has the three kinds of limits, their JSON forms, and the checks that need no broker. In JSON the offset -1 means
latest and -2 earliest, as in Spark. Timestamps are in ms. JSON of another shape raises ConfigError with an example.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from broker.errors import ConfigError
from broker.protocol.topic_partition import TopicPartition
from spark_connector.errors import ConnectorError
from spark_connector.offset_store.base import Offsets

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

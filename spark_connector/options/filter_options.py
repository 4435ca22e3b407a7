"""Options `filter…`: the filters of a read, given by the user, because Spark's push-down cannot be used (see pushDown).

`filterOffsets` and, in batch, `filterTimestampFrom` narrow the ranges that tasks are planned for
(read/offset_reader.py, read/planning.py). Timestamps, keys and headers are then checked for every row on the executor
(read/arrow_batches.py), so these filters are exact. `filterPartitions` belongs to the subscription
(subscription_options.py).

`pushDown=true` is refused: PySpark 4.3 keeps the plan of a pushed filter for every later query on the same DataFrame,
which then silently misses rows (shown by tests/spark_connector/test_push_down.py). Raises ConfigError.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from broker.errors import ConfigError
from broker.protocol.topic_partition import TopicPartition
from spark_connector.options.option_values import OptionValues
from spark_connector.options.range_limit import parse_nested

_OFFSETS_EXAMPLE = '100-199 or per partition {"topicA":{"0":"100-199","1":"0-9,50-"}}'
_SQL_BYTES = re.compile(r"[xX]'((?:[0-9a-fA-F]{2})*)'")


@dataclass(frozen=True)
class HeaderFilter:
    """Passes records that have a header of this name whose value begins with `prefix`."""

    name: str
    prefix: bytes


@dataclass(frozen=True)
class ReadFilters:
    """The filters of one read; None where there is no filter. Timestamps in ms, `timestamp_until` is exclusive."""

    offsets: Intervals | Mapping[TopicPartition, Intervals] | None = None
    timestamp_from: int | None = None
    timestamp_until: int | None = None
    key_prefix: bytes | None = None
    header: HeaderFilter | None = None

    def offsets_of(self, tp: TopicPartition) -> Intervals | None:
        """The offsets of `tp` that pass. If the option names partitions, no offset of another partition passes."""
        if self.offsets is None or isinstance(self.offsets, Intervals):
            return self.offsets
        return self.offsets.get(tp, Intervals(()))


def parse_filters(values: OptionValues, *, stream: bool) -> ReadFilters:
    """Raises ConfigError."""
    if stream and "filterOffsets" in values:
        raise ConfigError(
            "Option 'filterOffsets' is for batch queries: a stream starts where 'startingOffsets' says and has no end"
        )
    first, until = (values.optional_long(f"filterTimestamp{which}", least=0) for which in ("From", "Until"))
    if first is not None and until is not None and first >= until:
        raise ConfigError(
            f"filterTimestampFrom({first}) must be below filterTimestampUntil({until}), which is exclusive"
        )
    return ReadFilters(_offsets(values.text("filterOffsets")), first, until, _key_prefix(values), _header(values))


def refuse_push_down(values: OptionValues) -> None:
    """Raise ConfigError for `pushDown=true`."""
    if values.boolean("pushDown"):
        raise ConfigError(
            "Option 'pushDown': PySpark 4.1 to 4.3 keep a plan with pushed filters for every later query on the same "
            "DataFrame, which then silently misses rows, so filters are never pushed down. Use the options columns, "
            "filterPartitions, filterOffsets, filterTimestampFrom, filterTimestampUntil, filterKeyPrefix and "
            "filterHeader instead"
        )


def _offsets(text: str | None) -> Intervals | Mapping[TopicPartition, Intervals] | None:
    if text is None:
        return None
    name = "filterOffsets"
    if not text.startswith("{"):
        return parse_intervals(name, text, _OFFSETS_EXAMPLE)
    partitions = parse_nested(name, text, _OFFSETS_EXAMPLE)
    return {tp: parse_intervals(name, part, _OFFSETS_EXAMPLE) for tp, part in partitions.items()}


def _key_prefix(values: OptionValues) -> bytes | None:
    text = values.text("filterKeyPrefix")
    if text is not None and not (prefix := _bytes(text)):
        raise ConfigError("Option 'filterKeyPrefix' is empty: give the first characters, or bytes like X'cafe'")
    return None if text is None else prefix


def _header(values: OptionValues) -> HeaderFilter | None:
    text = values.text("filterHeader")
    if text is None:
        return None
    name, _, prefix = text.partition("=")
    if not name.strip():
        raise ConfigError(f"Option 'filterHeader' must be a name, or a name=prefix of its value, not '{text}'")
    return HeaderFilter(name.strip(), _bytes(prefix.strip()))


def _bytes(text: str) -> bytes:
    """UTF-8, or bytes as SQL writes them: X'cafe'."""
    match = _SQL_BYTES.fullmatch(text)
    return bytes.fromhex(match[1]) if match else text.encode()


_PART = re.compile(r"(?P<only>\d{1,18})|(?P<first>\d{1,18})?\s*-\s*(?P<last>\d{1,18})?", re.ASCII)
_NO_END = 2**63 - 1


@dataclass(frozen=True)
class Intervals:
    """Sets of integers as users write them: `0,2-5`, both ends included; `100-` has no end, `-99` begins at 0.

    `parts`: half-open ranges (first, last + 1), sorted and disjoint.
    """

    parts: tuple[tuple[int, int], ...]

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and any(first <= number < end for first, end in self.parts)

    def cut(self, start: int, end: int) -> list[tuple[int, int]]:
        """The parts of [start, end) that are in the set, as non-empty half-open ranges in order."""
        cuts = ((max(start, first), min(end, until)) for first, until in self.parts)
        return [(first, until) for first, until in cuts if first < until]


def parse_intervals(option: str, text: object, example: str) -> Intervals:
    """Raises ConfigError, which names the option, the value given and an example."""
    parts: list[tuple[int, int]] = []
    for piece in text.split(",") if isinstance(text, str) else [None]:
        match = None if piece is None else _PART.fullmatch(piece.strip())
        if match is None or piece is None or not any(match.groups()):
            raise ConfigError(f"Option '{option}': Expected e.g. {example}, got {text}")
        first = int(match["only"] or match["first"] or 0)
        last = int(match["only"] or match["last"] or _NO_END - 1)
        if first > last:
            raise ConfigError(f"Option '{option}': {piece.strip()} runs backwards, in {text}")
        parts.append((first, last + 1))
    merged: list[tuple[int, int]] = []
    for first, end in sorted(parts):
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((first, end))
    return Intervals(tuple(merged))

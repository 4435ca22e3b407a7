"""Which records pass: `where`, `filterOffsets`, `filterTimestampFrom`, `filterKey`, … Parsed for read_options.py.

All conditions hold together: `where` and the options `filter…` make one set of offsets, one of timestamps and one of
keys. Partitions are selected before (selection.py). What cannot be true lets nothing pass, and is no error.

Filters are given by the user, because Spark's push-down cannot be used: PySpark 4.3 keeps the plan of a pushed filter
for every later query on the same DataFrame, which then silently misses rows (shown by
tests/spark_connector/test_push_down.py). Offsets and, in batch, timestamps narrow the ranges that tasks are planned for
(read/planning.py, read/offset_reader.py); keys narrow the partitions if `filterKeyPartitioner` is set. Timestamps, keys
and headers are then checked for every row on the executor (read/row_filter.py), so these filters are exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from broker.errors import ConfigError
from broker.protocol.topic_partition import TopicPartition
from broker.records.key_hash import partition_of_key
from spark_connector.options.option_values import OptionValues
from spark_connector.options.selection import parse_nested, where_of
from spark_connector.options.value_sets import LOWEST, NO_END, Intervals, KeySet, parse_bytes, parse_intervals

_OFFSETS_EXAMPLE = '100-199 or per partition {"topicA":{"0":"100-199","1":"0-9,50-"}}'
_PARTITIONER = "filterKeyPartitioner"


@dataclass(frozen=True)
class HeaderFilter:
    """Passes records that have a header of this name whose value begins with `prefix`."""

    name: str
    prefix: bytes


@dataclass(frozen=True)
class ReadFilters:
    """The filters of one read; None where there is no filter. Timestamps in ms.

    `by_key`: a key is only in the partition that murmur2 gives it. `timestamps_grow`: no record has an
    earlier timestamp than one before it. `of_stream`: a partition that is left out for a while would be read from its
    beginning when it is back.
    """

    offsets: Intervals | Mapping[TopicPartition, Intervals] | None = None
    timestamps: Intervals | None = None
    keys: KeySet | None = None
    header: HeaderFilter | None = None
    by_key: bool = False
    timestamps_grow: bool = False
    of_stream: bool = False

    @property
    def of_rows(self) -> bool:
        """Whether a row may be left out by its timestamp, key or headers."""
        return (self.timestamps, self.keys, self.header) != (None, None, None)

    def offsets_of(self, tp: TopicPartition) -> Intervals | None:
        """The offsets of `tp` that pass. If the option names partitions, no offset of another partition passes."""
        if self.offsets is None or isinstance(self.offsets, Intervals):
            return self.offsets
        return self.offsets.get(tp, Intervals(()))

    def may_hold(self, tp: TopicPartition, partitions: int) -> bool:
        """Whether records of `tp`, one of so many partitions of its topic, can pass by timestamp and key. A stream
        keeps all partitions where nothing can pass: only murmur2 selects some of them."""
        if self.timestamps is not None and not self.timestamps.parts:
            return self.of_stream
        keys = self.keys.any if self.keys else None
        if self.of_stream and not (self.by_key and keys):
            return True
        here = (not self.by_key or partition_of_key(key, partitions) == tp.partition for key in keys or ())
        return keys is None or any(here)


def parse_filters(values: OptionValues, *, stream: bool) -> ReadFilters:
    """Raises ConfigError."""
    where = where_of(values)
    if stream and where.offsets is not None:
        raise ConfigError(
            "Option 'where': offset is for batch queries: a stream starts where 'startingOffsets' says and has no end"
        )
    first, until = (values.optional_long(f"filterTimestamp{which}", least=0) for which in ("From", "Until"))
    if first is not None and until is not None and first >= until:
        raise ConfigError(
            f"filterTimestampFrom({first}) must be below filterTimestampUntil({until}), which is exclusive"
        )
    timestamps = where.timestamps
    if first is not None or until is not None:
        given = Intervals.of([(LOWEST if first is None else first, NO_END if until is None else until)])
        timestamps = given if timestamps is None else given & timestamps
    keys = where.keys
    for other in (_keys(values), _key_prefix(values)):
        keys = other if keys is None else keys if other is None else keys & other
    return ReadFilters(
        _offsets(values.text("filterOffsets"), where.offsets),
        timestamps,
        keys,
        _header(values),
        by_key=_by_key(values, keys),
        timestamps_grow=values.boolean("timestampsGrow"),
        of_stream=stream,
    )


def refuse_push_down(values: OptionValues) -> None:
    """Raise ConfigError for `pushDown=true`."""
    if values.boolean("pushDown"):
        raise ConfigError(
            "Option 'pushDown': PySpark 4.1 to 4.3 keep a plan with pushed filters for every later query on the same "
            "DataFrame, which then silently misses rows, so filters are never pushed down. Use the options columns, "
            "where and filter… instead"
        )


def _offsets(text: str | None, where: Intervals | None) -> Intervals | Mapping[TopicPartition, Intervals] | None:
    if text is None:
        return where
    name = "filterOffsets"
    if not text.startswith("{"):
        given = parse_intervals(name, text, _OFFSETS_EXAMPLE)
        return given if where is None else given & where
    partitions = parse_nested(name, text, _OFFSETS_EXAMPLE)
    each = {tp: parse_intervals(name, part, _OFFSETS_EXAMPLE) for tp, part in partitions.items()}
    return each if where is None else {tp: given & where for tp, given in each.items()}


def _keys(values: OptionValues) -> KeySet | None:
    text = values.text("filterKey")
    if text is None:
        return None
    keys = [key.strip() for key in text.split(",")]
    if not all(keys):
        raise ConfigError(
            "Option 'filterKey' has an empty key: give one or several, separated by commas, as text or bytes like "
            "X'cafe'. The key of no bytes is X''; a key with a comma is written as bytes"
        )
    return KeySet(frozenset(map(parse_bytes, keys)))


def _key_prefix(values: OptionValues) -> KeySet | None:
    text = values.text("filterKeyPrefix")
    if text is not None and not (prefix := parse_bytes(text)):
        raise ConfigError("Option 'filterKeyPrefix' is empty: give the first characters, or bytes like X'cafe'")
    return None if text is None else KeySet(prefix=prefix)


def _by_key(values: OptionValues, keys: KeySet | None) -> bool:
    text = values.text(_PARTITIONER)
    if text is None:
        return False
    if text.lower() != "murmur2":
        raise ConfigError(f"Option '{_PARTITIONER}' must be murmur2, not '{text}'; leave it out to read all partitions")
    if keys is None or keys.any is None:
        raise ConfigError(
            f"Option '{_PARTITIONER}' has no effect without 'filterKey', or key = or key IN in option 'where'"
        )
    return True


def _header(values: OptionValues) -> HeaderFilter | None:
    text = values.text("filterHeader")
    if text is None:
        return None
    name, _, prefix = text.partition("=")
    if not name.strip():
        raise ConfigError(f"Option 'filterHeader' must be a name, or a name=prefix of its value, not '{text}'")
    return HeaderFilter(name.strip(), parse_bytes(prefix.strip()))

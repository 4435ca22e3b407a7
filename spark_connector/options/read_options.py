"""The options of a read, checked and typed: Spark's map of strings in, one frozen value out.

Called by source.py at `load()` and again when Spark asks for a reader, so a wrong option fails on the driver at once.
The value is small and picklable: it is sent to every executor. Names, defaults, precedence and conditions are those of
Spark's `KafkaSourceProvider`. It differs from Spark where an error comes earlier or is clearer:

- an unknown option is an error that suggests the nearest name (Spark ignores it);
- `ending*` in a stream is an error for all three options (Spark accepts `endingTimestamp`);
- an option that the other options leave without effect is an error. One that has an effect only in the other kind of
  query is a warning, as in Spark, so that one set of options can serve both.

Raises ConfigError, and ConnectorError under Spark's condition names for ranges that contradict each other.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from broker.client.client_settings import ClientSettings
from broker.errors import ConfigError
from spark_connector.formats.value_format import ReadFormats
from spark_connector.offset_store.base import STORE_KINDS, check_group
from spark_connector.options.column_options import parse_columns, parse_formats
from spark_connector.options.filter_options import ReadFilters, parse_filters, refuse_push_down
from spark_connector.options.option_table import OPTIONS, check_names
from spark_connector.options.option_values import OptionValues
from spark_connector.options.range_limit import (
    EARLIEST,
    LATEST,
    OffsetRangeLimit,
    Position,
    SpecificOffsets,
    Timestamps,
    check_limits,
    parse_offsets,
    parse_timestamps,
)
from spark_connector.options.subscription_options import Selection, Subscription, parse_selection

logger = logging.getLogger("pykafka.spark")

_FETCH_BYTES = 4 << 20  # the input of one decode; the column decoder is fastest with 1 to 4 MB at a time

_STREAM_REFUSES = {
    "endingOffsets": "ending offset not valid in streaming queries",
    "endingOffsetsByTimestamp": "ending timestamp not valid in streaming queries",
    "endingTimestamp": "ending timestamp not valid in streaming queries",
}
_NEEDS_ONE_OF = {
    "startingOffsetsByTimestampStrategy": ("startingTimestamp", "startingOffsetsByTimestamp"),
    "offsetStore.path": ("offsetStore",),
    "offsetStore.zookeeper.connect": ("offsetStore",),
}
_REJECTED_PROPERTIES = {
    "auto.offset.reset": "is not supported. Instead set the source option 'startingOffsets' to 'earliest' or 'latest' "
    "to specify where to start. A stream keeps its offsets in its checkpoint; 'startingOffsets' only applies when a "
    "new query is started, resuming always picks up where the query left off.",
    "key.deserializer": "is not supported as keys are binary columns. "
    "Use DataFrame operations to explicitly deserialize the keys.",
    "value.deserializer": "is not supported as values are binary columns. "
    "Use DataFrame operations to explicitly deserialize the values.",
    "enable.auto.commit": "is not supported; options 'offsetStore' and 'group' publish a stream's progress.",
    "interceptor.classes": "is not supported.",
}


class Mode(enum.Enum):
    """The kind of query that options are checked for; ANY at `load()`, where Spark does not tell it yet."""

    ANY = "any"
    BATCH = "batch"
    STREAM = "stream"


@dataclass(frozen=True)
class SourceOptions:
    """The options of one read. Durations in ms, counts in offsets, bytes as stored in the log (compressed)."""

    selection: Selection
    starting: OffsetRangeLimit
    ending: OffsetRangeLimit
    fail_on_data_loss: bool
    columns: tuple[str, ...]
    filters: ReadFilters
    formats: ReadFormats
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    max_bytes_per_trigger: int | None
    max_bytes_per_partition: int | None
    min_bytes_per_partition: int  # never above max_bytes_per_partition
    min_partitions: int | None
    max_records_per_partition: int | None
    max_prefetched_records: int
    num_retries: int
    retry_interval_ms: int
    poll_timeout_ms: int
    client: ClientSettings
    offset_store: str | None
    store_options: Mapping[str, str] = field(repr=False)  # may hold passwords
    group: str | None

    @property
    def subscription(self) -> Subscription:
        """Topics or partitions, without `filterPartitions`."""
        return self.selection.subscription


def parse_options(options: Mapping[str, str], mode: Mode) -> SourceOptions:
    """Check and parse Spark's options for `mode`. Raises ConfigError, ConnectorError."""
    if not options:
        raise ConfigError(
            "No option at all was given. Spark hands the OPTIONS of CREATE TABLE … USING pykafka to no query: say "
            "SELECT … FROM t WITH (`kafka.bootstrap.servers` = '…', subscribe = '…'), or use "
            "CREATE TEMPORARY VIEW … USING pykafka OPTIONS (…)"
        )
    check_names(options)
    values = OptionValues(options)
    selection = parse_selection(values)
    refuse_push_down(values)
    starting, ending = _limits(values, mode)
    if mode is Mode.STREAM:
        for name, why in _STREAM_REFUSES.items():
            if name in values:
                raise ConfigError(f"{why} (option '{name}')")
    offset_store, group = _store(values, starting)
    plain = values.plain(OPTIONS)
    minimum, maximum = plain["min_offsets_per_trigger"], plain["max_offsets_per_trigger"]
    if minimum is not None and maximum is not None and minimum > maximum:
        raise ConfigError(
            f"The value of minOffsetsPerTrigger({minimum}) is higher than the maxOffsetsPerTrigger({maximum})."
        )
    if (most_bytes := plain["max_bytes_per_partition"]) is not None:
        plain["min_bytes_per_partition"] = min(plain["min_bytes_per_partition"], most_bytes)
    _check_effects(values, mode, from_committed=starting is Position.COMMITTED)
    columns = parse_columns(values)
    client_id = "spark-kafka-relation" if mode is Mode.BATCH else "spark-kafka-source"
    ours = {"client.id": values.text("groupIdPrefix") or client_id, "max.partition.fetch.bytes": str(_FETCH_BYTES)}
    client, _ = values.client_settings("consumer", ours, _REJECTED_PROPERTIES)
    return SourceOptions(
        selection=selection,
        starting=starting,
        ending=ending,
        columns=columns,
        filters=parse_filters(values, stream=mode is Mode.STREAM),
        formats=parse_formats(values, columns, selection),
        client=client,
        offset_store=offset_store,
        store_options=values.store_options(),
        group=group,
        **plain,
    )


def _check_effects(values: OptionValues, mode: Mode, *, from_committed: bool) -> None:
    """Raise ConfigError, or log a warning, for options that are valid but have no effect."""
    for name, needed in _NEEDS_ONE_OF.items():
        if name in values and not any(one in values for one in needed):
            raise ConfigError(f"Option '{name}' has no effect without {' or '.join(map(repr, needed))}")
    if mode is Mode.STREAM and "maxTriggerDelay" in values and "minOffsetsPerTrigger" not in values:
        raise ConfigError("Option 'maxTriggerDelay' has no effect without 'minOffsetsPerTrigger', which it limits")
    if mode is Mode.BATCH:
        for option in OPTIONS:
            if option.scope == "stream" and option.name in values:
                logger.warning("%s option ignored in batch queries", option.name)
        if "offsetStore" in values and not from_committed:
            logger.warning("offsetStore option ignored in batch queries that do not start from committed offsets")
    if mode is not Mode.ANY and "kafka.group.id" in values and "offsetStore" not in values:
        logger.warning("kafka.group.id option ignored: a read forms no group, and no offsetStore uses the name")


def _limits(values: OptionValues, mode: Mode) -> tuple[OffsetRangeLimit, OffsetRangeLimit]:
    starting = _limit(values, "starting", Position.LATEST if mode is Mode.STREAM else Position.EARLIEST)
    ending = _limit(values, "ending", Position.LATEST)
    if mode is Mode.BATCH:
        _refuse(starting, Position.LATEST, LATEST, "starting", "latest")
        _refuse(ending, Position.EARLIEST, EARLIEST, "ending", "earliest")
        check_limits(starting, ending)
    if ending is Position.COMMITTED:
        raise ConfigError("Option 'endingOffsets' must be latest or JSON; committed only makes sense as a start")
    return starting, ending


def _limit(values: OptionValues, which: str, unset: Position) -> OffsetRangeLimit:
    """In Spark's precedence: one timestamp, timestamps per partition, offsets."""
    strategy = values.one_of("startingOffsetsByTimestampStrategy", ("error", "latest"))
    latest_if_none = which == "ending" or strategy == "latest"
    if (timestamp := values.optional_long(f"{which}Timestamp", least=0)) is not None:
        return Timestamps(timestamp, latest_if_none)
    name = f"{which}OffsetsByTimestamp"
    if (text := values.text(name)) is not None:
        return Timestamps(parse_timestamps(name, text), latest_if_none)
    name = f"{which}Offsets"
    text = values.text(name)
    if text is None:
        return unset
    if text.lower() in {position.value for position in Position}:
        return Position(text.lower())
    if not text.startswith("{"):
        raise ConfigError(
            f"Option '{name}' must be earliest, latest, committed or JSON like {{\"t\":{{\"0\":23}}}}, not '{text}'"
        )
    return SpecificOffsets(parse_offsets(name, text))


def _refuse(limit: OffsetRangeLimit, position: Position, number: int, which: str, word: str) -> None:
    if limit is position:
        raise ConfigError(f"{which} offset can't be {word} for batch queries on Kafka (option '{which}Offsets')")
    if isinstance(limit, SpecificOffsets):
        for tp, offset in limit.offsets.items():
            if offset == number:
                raise ConfigError(f"{which}Offsets for {tp} can't be {word} for batch queries on Kafka")


def _store(values: OptionValues, starting: OffsetRangeLimit) -> tuple[str | None, str | None]:
    """The kind of the offset store, and the group."""
    kind = (values.text("offsetStore") or "").lower() or None
    group = values.text("group") or values.text("kafka.group.id") or None
    if kind is not None and kind not in STORE_KINDS:
        raise ConfigError(f"Option 'offsetStore' must be one of {', '.join(STORE_KINDS)}, not '{kind}'")
    if kind is not None and group is None:
        raise ConfigError("Option 'offsetStore' needs option 'group': the name under which the offsets are kept")
    if kind is None and "group" in values:
        raise ConfigError(f"Option 'group' needs option 'offsetStore': one of {', '.join(STORE_KINDS)}")
    if starting is Position.COMMITTED and kind is None:
        raise ConfigError("startingOffsets=committed needs options 'offsetStore' and 'group': the committed offsets")
    if kind is not None and group is not None:
        check_group(group)
    return kind, group

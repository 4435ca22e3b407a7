"""The options of a read, checked and typed: Spark's text map in, one frozen value out.

Called by source.py at `load()` and again when Spark asks for a reader, so that a wrong option fails on
the driver at once. The value is small and picklable: it travels to every executor. Same names, defaults,
precedence and conditions as Spark's `KafkaSourceProvider`; departures, all towards an early, clear error:

- an option that does not exist is an error with the nearest name (Spark ignores it);
- `ending*` in a stream is an error for all three (Spark overlooks `endingTimestamp`);
- what has no effect with the other options is an error, what has one in the other kind of query a warning (effects.py).

Everything wrong raises ConfigError, contradicting ranges ConnectorError under Spark's condition names.

Options `maxBytesPerTrigger`, `maxBytesPerPartition` and `minBytesPerPartition`: limits by what records take in the
log, compressed.

Parsed by read_options.py, kept by read/planning.py with the estimates of read/record_bytes.py. Raises ConfigError.

Options that are right by themselves and have no effect with the others, or in this kind of query.

Called by read_options.py, last. What can never have an effect as it stands is refused: the user meant something by it.
What has one in the other kind of query is only warned about, as in Spark, so that one set of options can serve both.
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
from spark_connector.options.option_table import check_names
from spark_connector.options.option_values import OptionValues
from spark_connector.options.range_limit import (
    EARLIEST,
    LATEST,
    OffsetRangeLimit,
    Position,
    SpecificOffsets,
    TimestampForAll,
    Timestamps,
    check_limits,
    parse_offsets,
    parse_timestamps,
)
from spark_connector.options.subscription_options import (
    Assign,
    Selection,
    Subscribe,
    SubscribePattern,
    Subscription,
    parse_selection,
)

__all__ = [
    "Assign",
    "ByteLimits",
    "Mode",
    "SourceOptions",
    "Subscribe",
    "SubscribePattern",
    "Subscription",
    "check_effects",
    "parse_byte_limits",
    "parse_options",
]

_FETCH_BYTES = 4 << 20  # what one decode is given; the column decoder is fastest with 1 to 4 MB at a time

_STREAM_REFUSES = {
    "endingOffsets": "ending offset not valid in streaming queries",
    "endingOffsetsByTimestamp": "ending timestamp not valid in streaming queries",
    "endingTimestamp": "ending timestamp not valid in streaming queries",
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
    """What the options are checked for; ANY where Spark does not say yet (`load()`)."""

    ANY = "any"
    BATCH = "batch"
    STREAM = "stream"


@dataclass(frozen=True)
class SourceOptions:
    """The options of one read. Durations in ms, counts in offsets."""

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
    byte_limits: ByteLimits
    min_partitions: int | None
    max_records_per_partition: int | None
    max_prefetched_records: int
    num_retries: int
    retry_interval_ms: int
    poll_timeout_ms: int
    client: ClientSettings
    offset_store: str | None
    store_options: Mapping[str, str] = field(repr=False)  # there may be passwords among them
    group: str | None

    @property
    def subscription(self) -> Subscription:
        """Topics or partitions, without `filterPartitions`."""
        return self.selection.subscription


def parse_options(options: Mapping[str, str], mode: Mode) -> SourceOptions:
    """Check and read Spark's options for `mode`. Raises ConfigError, ConnectorError."""
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
    minimum = values.optional_long("minOffsetsPerTrigger")
    maximum = values.optional_long("maxOffsetsPerTrigger")
    if minimum is not None and maximum is not None and minimum > maximum:
        raise ConfigError(
            f"The value of minOffsetsPerTrigger({minimum}) is higher than the maxOffsetsPerTrigger({maximum})."
        )
    check_effects(
        values,
        batch=mode is Mode.BATCH,
        stream=mode is Mode.STREAM,
        from_committed=starting is Position.COMMITTED,
    )
    columns = parse_columns(values)
    return SourceOptions(
        selection=selection,
        starting=starting,
        ending=ending,
        fail_on_data_loss=values.boolean("failOnDataLoss"),
        columns=columns,
        filters=parse_filters(values, stream=mode is Mode.STREAM),
        formats=parse_formats(values, columns, selection),
        max_offsets_per_trigger=maximum,
        min_offsets_per_trigger=minimum,
        max_trigger_delay_ms=values.duration_ms("maxTriggerDelay"),
        byte_limits=parse_byte_limits(values),
        min_partitions=values.optional_long("minPartitions"),
        max_records_per_partition=values.optional_long("maxRecordsPerPartition"),
        max_prefetched_records=values.long("maxPrefetchedRecords", least=0),
        num_retries=values.long("fetchOffset.numRetries", least=1),
        retry_interval_ms=values.long("fetchOffset.retryIntervalMs", least=0),
        poll_timeout_ms=values.long("kafkaConsumer.pollTimeoutMs", least=1),
        client=_client_settings(values, mode),
        offset_store=offset_store,
        store_options=values.store_options(),
        group=group,
    )


def _client_settings(values: OptionValues, mode: Mode) -> ClientSettings:
    """The user's `kafka.*` over what suits a Spark task. Equal options give equal, hashable settings."""
    properties = values.kafka_properties()
    for name, why in _REJECTED_PROPERTIES.items():
        if name in properties:
            raise ConfigError(f"Kafka option '{name}' {why}")
    if not properties.get("bootstrap.servers"):
        raise ConfigError(
            "Option 'kafka.bootstrap.servers' must be specified for configuring Kafka consumer, e.g. 'localhost:9092'"
        )
    name = "spark-kafka-relation" if mode is Mode.BATCH else "spark-kafka-source"
    ours = {"client.id": values.text("groupIdPrefix") or name, "max.partition.fetch.bytes": str(_FETCH_BYTES)}
    try:
        return ClientSettings.from_properties({**ours, **properties})
    except ConfigError as error:
        raise ConfigError(f"Options of the Kafka client ('kafka.*'): {error}") from None


def _limits(values: OptionValues, mode: Mode) -> tuple[OffsetRangeLimit, OffsetRangeLimit]:
    first = Position.LATEST if mode is Mode.STREAM else Position.EARLIEST
    starting = _limit(values, "starting", first)
    ending = _limit(values, "ending", Position.LATEST)
    if mode is Mode.BATCH:
        _refuse(starting, Position.LATEST, LATEST, "starting", "latest")
        _refuse(ending, Position.EARLIEST, EARLIEST, "ending", "earliest")
        check_limits(starting, ending)
    if ending is Position.COMMITTED:
        raise ConfigError("Option 'endingOffsets' must be latest or JSON; committed only makes sense as a start")
    return starting, ending


def _limit(values: OptionValues, which: str, unset: Position) -> OffsetRangeLimit:
    """Spark's precedence: one timestamp, timestamps per partition, offsets."""
    strategy = values.one_of("startingOffsetsByTimestampStrategy", ("error", "latest"))
    latest_if_none = which == "ending" or strategy == "latest"
    if (timestamp := values.optional_long(f"{which}Timestamp", least=0)) is not None:
        return TimestampForAll(timestamp, latest_if_none)
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
    kind = (values.text("offsetStore") or "").lower() or None
    group = values.text("group") or values.text("kafka.group.id") or None
    if kind is not None and kind not in STORE_KINDS:
        raise ConfigError(f"Option 'offsetStore' must be one of {', '.join(STORE_KINDS)}, not '{kind}'")
    if kind is not None and group is None:
        raise ConfigError("Option 'offsetStore' needs option 'group': the name under which the offsets are kept")
    if kind is None and "group" in values:
        raise ConfigError(f"Option 'group' needs option 'offsetStore': one of {', '.join(STORE_KINDS)}")
    if starting is Position.COMMITTED and kind is None:
        raise ConfigError("startingOffsets=committed needs options 'offsetStore' and 'group' to say committed where")
    if kind is not None and group is not None:
        check_group(group)
    return kind, group


@dataclass(frozen=True)
class ByteLimits:
    """In bytes, None where there is no limit: of a micro-batch, and of the range one task reads.

    `shared`: ranges of fewer bytes are read together by one task, up to that many; 0 for a task per range.
    """

    per_trigger: int | None
    per_partition: int | None
    shared: int


def parse_byte_limits(values: OptionValues) -> ByteLimits:
    """Sizes like Spark writes them: `64m`, `1g`; a bare number is bytes."""
    most = values.optional_bytes("maxBytesPerPartition")
    least = values.bytes("minBytesPerPartition")
    return ByteLimits(values.optional_bytes("maxBytesPerTrigger"), most, least if most is None else min(least, most))


logger = logging.getLogger("pykafka.spark")

_STREAM_ONLY = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "maxBytesPerTrigger")
_NEEDS_ONE_OF = {
    "startingOffsetsByTimestampStrategy": ("startingTimestamp", "startingOffsetsByTimestamp"),
    "offsetStore.path": ("offsetStore",),
    "offsetStore.zookeeper.connect": ("offsetStore",),
}


def check_effects(values: OptionValues, *, batch: bool, stream: bool, from_committed: bool) -> None:
    """Raise ConfigError, or log a warning. Neither `batch` nor `stream` where it is not known yet which it will be."""
    for name, needed in _NEEDS_ONE_OF.items():
        if name in values and not any(one in values for one in needed):
            raise ConfigError(f"Option '{name}' has no effect without {' or '.join(map(repr, needed))}")
    if stream and "maxTriggerDelay" in values and "minOffsetsPerTrigger" not in values:
        raise ConfigError("Option 'maxTriggerDelay' has no effect without 'minOffsetsPerTrigger', which it limits")
    if batch:
        for name in _STREAM_ONLY:
            if name in values:
                logger.warning("%s option ignored in batch queries", name)
        if "offsetStore" in values and not from_committed:
            logger.warning("offsetStore option ignored in batch queries that do not start from committed offsets")
    if (batch or stream) and "kafka.group.id" in values and "offsetStore" not in values:
        logger.warning("kafka.group.id option ignored: reading forms no group, and there is no offsetStore to name it")

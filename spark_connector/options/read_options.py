"""The options of a read, checked and typed: Spark's map of strings in, one frozen value out.

Called by source.py at `load()` and again when Spark asks for a reader, so a wrong option fails on the driver at once.
The value is small and picklable: it is sent to every executor. Names, defaults, precedence and conditions are those of
Spark's `KafkaSourceProvider`. It differs from Spark where an error comes earlier or is clearer:

- an unknown option is an error that suggests the nearest name (Spark ignores it);
- `ending*` in a stream is an error for all three options (Spark accepts `endingTimestamp`);
- an option that the other options leave without effect is an error. One that has an effect only in the other kind of
  query is a warning, as in Spark, so that one set of options can serve both.

Spark does not tell a Python source which columns a query uses, so a user who wants speed names them (`columns`): other
columns are not decoded. A schema written in an option is parsed here, so that a wrong one fails at `load()`. A schema
in a file or a registry is only located here; formats/record_decoder.py loads it.

Raises ConfigError, and ConnectorError under Spark's condition names for ranges that contradict each other.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from broker.client.client_settings import ClientSettings
from broker.errors import ConfigError
from broker.protocol.topic_partition import TopicPartition
from spark_connector.formats.placeholder import OPTION as PLACEHOLDER
from spark_connector.formats.placeholder import Placeholder
from spark_connector.formats.value_format import (
    BINARY,
    SINGLE_OBJECT,
    VALUE_FORMATS,
    ColumnFormat,
    ParseMode,
    ProtobufRules,
    ReadFormats,
    SchemaFile,
    SchemaSubject,
)
from spark_connector.offset_store.base import STORE_KINDS, check_group
from spark_connector.options.archive_options import ArchiveOptions, parse_archive
from spark_connector.options.option_table import (
    OPTIONS,
    PROTOBUF_RULES,
    check_names,
    did_you_mean,
)
from spark_connector.options.option_values import OptionValues, check_rows
from spark_connector.options.read_filters import ReadFilters, parse_filters, refuse_push_down
from spark_connector.options.registry_options import avro_encoding, file_names, refuse_login, registry_settings
from spark_connector.options.selection import (
    EARLIEST,
    LATEST,
    Assign,
    OffsetRangeLimit,
    Position,
    Selection,
    SpecificOffsets,
    Subscribe,
    Subscription,
    Timestamps,
    check_limits,
    parse_offsets,
    parse_selection,
    parse_timestamps,
)

logger = logging.getLogger("pykafka.spark")

_FETCH_BYTES = 4 << 20  # the input of one decode; the column decoder is fastest with 1 to 4 MB at a time

_NO_BROKER = "no-broker.invalid:9092"
"""In place of addresses where only the archive is read. No such name can exist."""

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
    delegation_token: str
    offset_store: str | None
    store_options: Mapping[str, str] = field(repr=False)  # may hold passwords
    group: str | None
    archive: ArchiveOptions | None = None
    """Where archived records come from the store; None: from the brokers, as all others."""

    @property
    def subscription(self) -> Subscription:
        """Topics or partitions, without `filterPartitions`."""
        return self.selection.subscription

    def fits_one_task(self, records: int, most: int) -> bool:
        """Whether so many offsets are at most `most`, and the options ask for no more than one task for them."""
        most = min(most, self.max_records_per_partition or records)
        return 0 < records <= most and (self.min_partitions or 1) == 1


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
    if "history" in values:  # source.py takes it out, with all that belongs to it
        raise ConfigError("Option 'history' is for reads: it cannot be used in a load")
    selection = parse_selection(values)
    refuse_push_down(values)
    starting, ending = _limits(values, mode)
    formats = {name: values.word(f"{name}Format") for name in ("key", "value")}
    formats = {name: one for name, one in formats.items() if one != BINARY.name}
    check_rows(values, OPTIONS, mode.value, formats)
    offset_store, group = _store(values, starting)
    plain = values.plain(option for option in OPTIONS if not option.formats)
    minimum, maximum = plain["min_offsets_per_trigger"], plain["max_offsets_per_trigger"]
    if minimum is not None and maximum is not None and minimum > maximum:
        raise ConfigError(
            f"The value of minOffsetsPerTrigger({minimum}) is higher than the maxOffsetsPerTrigger({maximum})."
        )
    if (most_bytes := plain["max_bytes_per_partition"]) is not None:
        plain["min_bytes_per_partition"] = min(plain["min_bytes_per_partition"], most_bytes)
    _warn_of_no_effect(values, mode, from_committed=starting is Position.COMMITTED)
    columns = parse_columns(values)
    client_id = "spark-kafka-relation" if mode is Mode.BATCH else "spark-kafka-source"
    ours = {"client.id": values.text("groupIdPrefix") or client_id, "max.partition.fetch.bytes": str(_FETCH_BYTES)}
    archive = parse_archive(values)
    if archive is not None and archive.only and not _asks_brokers(values, offset_store):
        ours["bootstrap.servers"] = _NO_BROKER
    client, _ = values.client_settings("consumer", ours, _REJECTED_PROPERTIES)
    return SourceOptions(
        selection=selection,
        starting=starting,
        ending=ending,
        columns=columns,
        filters=parse_filters(values, stream=mode is Mode.STREAM),
        formats=parse_formats(values, formats, columns, selection),
        client=client,
        offset_store=offset_store,
        store_options=values.store_options(),
        group=group,
        archive=archive,
        **plain,
    )


def _asks_brokers(values: OptionValues, offset_store: str | None) -> bool:
    """Whether a read of the archive only has another use for a broker."""
    return offset_store == "group" or "badRecordsTopic" in values


def _warn_of_no_effect(values: OptionValues, mode: Mode, *, from_committed: bool) -> None:
    """For options that the other kind of query would use."""
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
    latest_if_none = which == "ending" or values.word("startingOffsetsByTimestampStrategy") == "latest"
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


COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
"""Every column of Spark's own Kafka source, in its order; headers only with includeHeaders."""

_BY_NAME = {name.lower(): name for name in COLUMNS}


def parse_columns(values: OptionValues) -> tuple[str, ...]:
    """The columns in the order of the option `columns`; those of Spark's own source when it is not set."""
    include_headers = values.boolean("includeHeaders")
    text = values.text("columns")
    if text is None:
        return COLUMNS if include_headers else COLUMNS[:-1]
    columns = tuple(_known_column(name.strip()) for name in text.split(","))
    for name in columns:
        if columns.count(name) > 1:
            raise ConfigError(f"Option 'columns' names '{name}' twice")
    if "includeHeaders" in values and include_headers != ("headers" in columns):
        raise ConfigError(
            f"Option 'includeHeaders' is {str(include_headers).lower()}, option 'columns' says otherwise: '{text}'. "
            "Leave out 'includeHeaders'; 'columns' may name headers like any other column."
        )
    return columns


def _known_column(name: str) -> str:
    """The column as Spark spells it; `name` is in any case, as everywhere in Spark."""
    known = _BY_NAME.get(name.lower())
    if known is not None:
        return known
    if not name:
        raise ConfigError(f"Option 'columns' has an empty name. Columns are: {', '.join(COLUMNS)}")
    hint = f"{did_you_mean(name, _BY_NAME)} Columns are: {', '.join(COLUMNS)}".lstrip()
    raise ConfigError(f"Option 'columns': unknown column '{name}'. {hint}")


def parse_formats(
    values: OptionValues, names: Mapping[str, str], columns: Sequence[str], selection: Selection
) -> ReadFormats:
    """`names`: the formats of `key` and `value`, where they are decoded."""
    registries: list[str] = []
    made = {column: _format(values, column, name, columns, registries) for column, name in names.items()}
    if not made:
        return ReadFormats()
    if any(VALUE_FORMATS[name].opaque for name in names.values()):
        # The registry may be there for these alone, so JSON beside them is read with and without a prefix.
        made = {name: replace(one, is_plain_too=one.name == "json") for name, one in made.items()}
    mode = ParseMode(values.word("mode"))
    formats = ReadFormats(
        made.get("key", BINARY),
        made.get("value", BINARY),
        mode,
        values.text("columnNameOfCorruptRecord") or "_corrupt_record",
        _bad_records_topic(values, mode, selection),
        registry_settings(values, registries),
        Placeholder.parse(values.text(PLACEHOLDER) or ""),
    )
    for name in formats.corrupt_columns.values():
        if name in COLUMNS:
            raise ConfigError(f"Option 'columnNameOfCorruptRecord': there is a column '{name}' already")
    return formats


def subscribed_topics(selection: Selection) -> tuple[str, ...] | None:
    """The topics that the options name; None for a pattern."""
    match selection.subscription:
        case Subscribe(topics):
            return topics
        case Assign(partitions):
            return tuple(dict.fromkeys(tp.topic for tp in partitions))
    return None


def _format(
    values: OptionValues, column: str, name: str, columns: Sequence[str], registries: list[str]
) -> ColumnFormat:
    """The format of `column`. If its schema is in a registry, appends the registry's address to `registries`."""
    if column not in columns:
        raise ConfigError(f"Option '{column}Format' has no effect: option 'columns' leaves out {column}")
    format, option = VALUE_FORMATS[name], f"{column}Schema"
    text = values.text(option)
    if not text and format.schema and not (format.registered and values.has_registry):
        raise ConfigError(f"Option '{column}Format'={name} needs option '{option}': {format.schema}")
    made = ColumnFormat(name)
    if name == "csv":
        made = replace(made, separator=_separator(values))
    elif name == "avro":
        made = replace(made, most_levels=values.long("recursiveFieldMaxDepth"))
        if (encoding := values.word(f"{column}Encoding")) == SINGLE_OBJECT and text:
            text, *others = file_names(text)
            made = replace(made, writers=tuple(map(SchemaFile, others)))
        made = replace(made, encoding=encoding)
    elif name == "protobuf":
        rules = ProtobufRules(**values.plain(PROTOBUF_RULES))
        made = replace(made, message=values.text(f"{column}Message"), rules=rules)
    avro_encoding(values, column, None)
    if not text:
        return replace(made, schema=SchemaSubject() if format.schema else None)
    refuse_login(option, text)
    # These imports load fastavro, fsspec and an HTTP client, which reads without formats do not need.
    from spark_connector.formats.record_decoder import column_decoder
    from spark_connector.formats.schema_text import parse_registry_url, parse_schema_text

    try:
        if (found := parse_registry_url(text)) is not None:
            avro_encoding(values, column, found[1])
            if not format.registered:
                raise ConfigError(f"schemas of format {name} cannot come from a registry: {format.schema}")
            registries.append(found[0])
            return replace(made, schema=found[1])
        if name == "protobuf":
            if not made.message:
                raise ConfigError(f"a file needs option '{column}Message': which of its messages the {column} is")
            return replace(made, schema=SchemaFile(text))
        made = replace(made, schema=parse_schema_text(text, avro=name == "avro"))
        if not isinstance(made.schema, SchemaFile):
            column_decoder(made)
    except ConfigError as error:
        raise ConfigError(f"Option '{option}': {error}") from None
    return made


def _separator(values: OptionValues) -> str:
    text = values.text("sep")
    if text is None:
        return ","
    separator = {"\\t": "\t"}.get(text, text)
    if len(separator) != 1 or not separator.isascii() or separator in '"\\\r\n\0':
        raise ConfigError(f"Option 'sep' must be one ASCII character, a tab written as \\t, not '{text}'")
    return separator


def _bad_records_topic(values: OptionValues, mode: ParseMode, selection: Selection) -> str | None:
    topic = values.text("badRecordsTopic")
    if topic is None:
        return None
    if mode is ParseMode.FAILFAST:
        raise ConfigError("Option 'badRecordsTopic' has no effect in mode FAILFAST: the first bad record ends the read")
    is_read = selection.subscription.selects(TopicPartition(topic, 0)) or topic in (subscribed_topics(selection) or ())
    if not topic or is_read:
        raise ConfigError(f"Option 'badRecordsTopic' must name a topic that is not itself read, not '{topic}'")
    return topic

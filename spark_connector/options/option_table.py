"""Every option of `format("pykafka")`, declared once: name, meaning, default, the queries it applies to, what it needs,
and whether loads keep it.

read_options.py and write_options.py take all this from here and refuse every other name; option_values.py parses the
values and refuses options without effect, and loads/reading.py keeps those that decide what a load reads. The reference
tables of the documentation are made from here (`make reference`). Names, defaults and meaning are those of Spark's own
Kafka source and sink. An option that Spark does not have is marked `(ours)`. Names match in any case, as in Spark.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from typing import Final

from broker.errors import ConfigError
from spark_connector.formats.placeholder import OPTION as PLACEHOLDER
from spark_connector.formats.value_format import (
    FORMATS,
    MOST_LEVELS,
    MOST_PROTOBUF_LEVELS,
    REGISTERED,
    SCHEMA_FORMATS,
    ParseMode,
    ProtobufRules,
)
from spark_connector.options.option import Option, each
from spark_connector.options.registry_option_table import AVRO_ENCODING, REGISTRY_ACCESS, REGISTRY_KIND, REGISTRY_URL

KAFKA_PREFIX = "kafka."
"""Options with this prefix that are not in a table are properties of the Kafka client (`kafka.security.protocol`)."""


ARCHIVE_PREFIX = "archive.option."
"""Options with this prefix are storage options for the archive."""

SERVERS = Option("kafka.bootstrap.servers", "required; `host:port` of one or more brokers, to find the others")

TOKEN_AUTO: Final = "auto"
DELEGATION_TOKEN = Option(
    "delegationToken",
    "auto: tasks log in by a delegation token that the driver asks the brokers for, and get no password; without a "
    "token, as without the option. never: tasks log in as the driver does (ours; docs/how-to/delegation-tokens.md)",
    "never",
    kind="word",
    choices=(TOKEN_AUTO, "never"),
)


_FROM_PROTOBUF = (
    Option(
        "recursive.fields.max.depth",
        "for protobuf: levels to keep of a message that contains itself, 1 to 10; what lies deeper is left out. -1 and "
        "0 refuse such a message (ours, as in from_protobuf)",
        "-1",
        kind="long",
        least=-1,
        most=MOST_PROTOBUF_LEVELS,
    ),
    Option("enums.as.ints", "for protobuf: enums as numbers, not as names (ours, as in from_protobuf)", "false"),
    Option(
        "emit.default.values",
        "for protobuf: zero, not null, for fields of proto3 without `optional` that are not in a message (ours, as in "
        "from_protobuf)",
        "false",
    ),
    Option(
        "upcast.unsigned.ints",
        "for protobuf: uint32 as bigint and uint64 as decimal(20,0), which never turn negative (ours, as "
        "in from_protobuf)",
        "false",
    ),
    Option(
        "unwrap.primitive.wrapper.types",
        "for protobuf: `google.protobuf.Int32Value` and the like as the value in them (ours, as in from_protobuf)",
        "false",
    ),
    Option(
        "retain.empty.message.types",
        "for protobuf: messages without fields as a struct of one null field; otherwise they are left out (ours, as in "
        "from_protobuf)",
        "false",
    ),
)
PROTOBUF_RULES = tuple(
    row._replace(kind=row.kind or "boolean", formats=("protobuf",), kept="values", into=field.name)
    for row, field in zip(_FROM_PROTOBUF, dataclasses.fields(ProtobufRules), strict=True)
)

_FILTERS = (
    Option(
        "where",
        "read only records that meet this condition: comparisons of `partition`, `offset` (batch), `timestamp` and "
        "`key` with constants, joined by AND, as in `timestamp >= '2026-11-25T08:00Z' AND key IN ('a', X'cafe')`. It "
        "holds together with the options `filter…` (ours; docs/how-to/value-formats.md, section Read less)",
    ),
    Option(
        "filterPartitions",
        'read only these partitions: `0,2-5` of every topic, or `{"topicA":"0,2-5"}`, which leaves out all other '
        "topics (ours)",
    ),
    Option(
        "filterOffsets",
        'read only these offsets, both ends included: `100-199`, `100-`, or `{"topicA":{"0":"100-199"}}`, which leaves '
        "out all other partitions (ours)",
        scope="batch",
        in_stream="Option 'filterOffsets' is for batch queries: a stream starts where 'startingOffsets' says and has "
        "no end",
    ),
    Option(
        "filterTimestampFrom",
        "milliseconds: read only records with this timestamp or a later one; a batch does not fetch what lies before "
        "the first such record (ours)",
    ),
    Option(
        "filterTimestampUntil",
        "milliseconds, exclusive: read only records with an earlier timestamp. All records are fetched, because "
        "timestamps need not grow, unless `timestampsGrow` says they do (ours)",
    ),
    Option(
        "filterKey",
        "read only records with this key, or one of several, comma-separated: text, or bytes like `X'cafe'` (ours)",
    ),
    Option("filterKeyPrefix", "read only records whose key begins with this: text, or bytes like `X'cafe'` (ours)"),
    Option(
        "filterKeyPartitioner",
        "`murmur2`: read only the partitions in which Java's default partitioner, Spark and pykafka put the keys of "
        "`filterKey` or `where`. Records are missed if others wrote them elsewhere (librdkafka does, unless its "
        "`partitioner` is `murmur2_random`), or while the topic had fewer partitions; neither can be seen. Not for "
        "loads (ours)",
    ),
    Option("filterHeader", "read only records with a header of this `name`, or `name=prefix` of its value (ours)"),
)
_OF_HISTORY = (
    Option("catalog", "the catalog of an Iceberg table in `history`, a name of pyiceberg's configuration (ours)"),
    Option(
        "historyColumn",
        "add a boolean column of this name: true for rows of the table in `history`, false for records of the topics "
        "(ours)",
    ),
    Option(
        "historyStorageSecrets",
        "storage options for the table in `history`, as a JSON object of texts; what the environment says by default. "
        "Spark hides it in plans and logs, by its name (ours)",
    ),
)
_FOR_ANY_FORMAT = (
    Option(
        "mode",
        "what happens to a record that cannot be decoded: PERMISSIVE (the column is null as a whole, with its bytes in "
        "`_corrupt_record`; from_json would keep the fields that fit), DROPMALFORMED or FAILFAST. A load without it "
        "fails, unless it is said otherwise what becomes of them (ours; docs/how-to/value-formats.md)",
        "PERMISSIVE",
        choices=tuple(mode.value for mode in ParseMode),
    ),
    Option(
        "columnNameOfCorruptRecord",
        "column for the bytes of bad values in mode PERMISSIVE; for bad keys `_key` is appended (ours)",
        "_corrupt_record",
        needs=("mode",),
        being=("PERMISSIVE",),
    ),
    Option(
        PLACEHOLDER,
        "Debezium's property of this name: a record that holds the placeholder, in any form that Debezium's connectors "
        "write, is a bad record. In loads it is `__debezium_unavailable_value`, Debezium's default, if unset; with an "
        "empty text placeholders are values (ours; docs/how-to/change-data-capture.md)",
    ),
)
_MESSAGES = (
    Option(
        "valueMessage",
        "for protobuf: the message, by its full name, or its short one if no other has it; needed with a file, by "
        "default the first of a registry's schema (ours)",
    ),
    Option("keyMessage", "the same for the column `key` (ours)"),
)
_DECODING = (
    Option(
        "valueFormat",
        "binary, string, json, avro, protobuf or csv: what the column `value` is decoded to (ours; "
        "docs/how-to/value-formats.md)",
        "binary",
        choices=FORMATS,
    ),
    Option("keyFormat", "the same for the column `key` (ours)", "binary", choices=FORMATS),
    Option(
        "valueSchema",
        "for json and csv: a schema as Spark's DDL or JSON, for json also a JSON Schema; for avro: an Avro schema; or "
        "a file that holds it, any fsspec URL (`.ddl`, `.json`, `.avsc`). For protobuf: a file of `protoc "
        "--include_imports --descriptor_set_out`. For avro, json and protobuf also "
        "`http(s)://registry/subjects/NAME/versions/latest`; if unset and `schema.registry.url` is set: the latest of "
        "subject `<topic>-value` (ours)",
        formats=SCHEMA_FORMATS,
    ),
    Option("keySchema", "the same for the column `key`, subject `<topic>-key` (ours)", formats=SCHEMA_FORMATS),
    *each(_MESSAGES, formats=("protobuf",)),
    *PROTOBUF_RULES,
    Option(
        "recursiveFieldMaxDepth",
        "for avro: levels to keep of a record that contains itself, 1 to 15; what lies deeper is left out. -1 and 0 "
        "refuse such a schema (ours, as in from_avro)",
        "-1",
        kind="long",
        least=-1,
        most=MOST_LEVELS,
        formats=("avro",),
    ),
    *each(_FOR_ANY_FORMAT, formats=FORMATS),
    Option(
        "sep", "separator of csv fields; a tab is written as backslash t (ours, as in from_csv)", ",", formats=("csv",)
    ),
    Option(
        REGISTRY_URL,
        "schema registry, `http(s)://host:port`, several addresses of one registry separated by commas; avro and "
        "protobuf are then in Confluent's wire format, and so is json, with the id of a JSON schema (JSON_SR); beside "
        "avro and protobuf, json is also read without it (ours)",
        formats=REGISTERED,
    ),
    REGISTRY_KIND,
    *AVRO_ENCODING,
)

OPTIONS: tuple[Option, ...] = (
    SERVERS,
    Option("subscribe", "topics, comma-separated; set exactly one of subscribe, subscribePattern, assign"),
    Option(
        "subscribePattern",
        "Java regular expression that must match a topic's **whole** name (Spark's own source searches inside the "
        "name: there `topic1` also selects `mytopic12`); internal topics are left out",
    ),
    Option(
        "assign",
        'partitions as JSON: `{"topicA":[0,1],"topicB":[2]}`. A partition that does not exist is an error when the '
        "query starts (Spark's own source silently leaves it out)",
    ),
    Option(
        "startingOffsets",
        'earliest, latest (stream only), committed (read from `offsetStore`, ours) or JSON `{"t":{"0":23,"1":-2}}` '
        "that names all partitions; -2 is earliest, -1 is latest. A stream uses it only when it has no checkpoint, and "
        "for topics that join later; for these, latest means the time when the query began",
        "earliest (batch), latest (stream)",
    ),
    Option("startingTimestamp", "milliseconds, for all partitions; wins over the other starting options"),
    Option(
        "startingOffsetsByTimestamp",
        'milliseconds as JSON `{"t":{"0":1700000000000}}` that names all partitions; wins over `startingOffsets`',
    ),
    Option(
        "startingOffsetsByTimestampStrategy",
        "what to do where no record is at or after the timestamp: error, or latest to start at the end",
        "error",
        choices=("error", "latest"),
        needs=("startingTimestamp", "startingOffsetsByTimestamp"),
    ),
    Option(
        "endingOffsets",
        "latest, or JSON that names all partitions, -1 is latest; exclusive. If an offset lies beyond the end of a "
        "partition, the task waits for the records and fails after `kafkaConsumer.pollTimeoutMs`; with "
        "`failOnDataLoss` false it reads what is there at once and logs a warning",
        "latest",
        "batch",
        in_stream="ending offset not valid in streaming queries (option 'endingOffsets')",
    ),
    Option(
        "endingTimestamp",
        "milliseconds, for all partitions; where no record is at or after it, latest",
        scope="batch",
        in_stream="ending timestamp not valid in streaming queries (option 'endingTimestamp')",
    ),
    Option(
        "endingOffsetsByTimestamp",
        'milliseconds as JSON `{"t":{"0":1700000000000}}` that names all partitions',
        scope="batch",
        in_stream="ending timestamp not valid in streaming queries (option 'endingOffsetsByTimestamp')",
    ),
    Option(
        "failOnDataLoss",
        "false: skip records that are gone and log a warning, instead of failing the query; a stream counts per topic "
        "what it skipped, in `skipped` of its offsets (`endOffset` of a progress report)",
        "true",
        kind="boolean",
    ),
    Option(
        "maxOffsetsPerTrigger",
        "at most this many offsets per micro-batch over all partitions, shared in proportion to backlog; a hard cap "
        "(Spark's own source rounds up to one per partition). Batch: ignored with a warning",
        scope="stream",
        kind="optional_long",
    ),
    Option(
        "minOffsetsPerTrigger",
        "wait until this many offsets are new; availableNow does not wait. Batch: ignored with a warning",
        scope="stream",
        kind="optional_long",
    ),
    Option(
        "maxTriggerDelay",
        "longest wait for `minOffsetsPerTrigger`. Batch: ignored with a warning",
        "15m",
        "stream",
        kind="duration_ms",
        needs=("minOffsetsPerTrigger",),
    ),
    Option(
        "maxBytesPerTrigger",
        "at most about this many bytes per micro-batch (`64m`), as stored in the log, but at least one record; "
        "estimated from the sizes of the logs. Both this and `maxOffsetsPerTrigger` hold. Batch: ignored with a "
        "warning (ours)",
        scope="stream",
        kind="optional_bytes",
    ),
    Option("minPartitions", "at least about this many tasks: large ranges are split", kind="optional_long"),
    Option(
        "maxRecordsPerPartition",
        "split ranges into tasks of at most this many offsets; not a rate limit",
        kind="optional_long",
    ),
    Option(
        "maxBytesPerPartition",
        "split ranges into tasks of at most about this many bytes (`64m`), estimated in the same way; not a rate limit "
        "(ours)",
        kind="optional_bytes",
    ),
    Option(
        "minBytesPerPartition",
        "ranges with fewer bytes, estimated in the same way, share a task up to this size, because every task costs "
        "about 30 ms; `minPartitions` and `maxRecordsPerPartition` take precedence; 0: one task per range (ours)",
        "1m",
        kind="bytes",
    ),
    Option(
        "maxPrefetchedRecords",
        "the driver's Python process reads a micro-batch of at most this many offsets (and 1 MiB) itself and hands the "
        "rows to Spark with the plan, without a Python task; not if `minPartitions` is above 1; 0: never. Batch: "
        "ignored with a warning (ours)",
        "1000",
        "stream",
        kind="long",
    ),
    Option("includeHeaders", "add the column `headers`", "false"),
    Option(
        "columns",
        "columns to return, comma-separated, in this order; other columns are not decoded (ours)",
        "all but headers",
    ),
    *each(_FILTERS, kept="rows"),
    Option(
        "timestampsGrow",
        "true: no record has an earlier timestamp than one before it in its partition, so that a batch ends at the "
        "first record that is too late for `where` or `filterTimestampUntil`; false: it reads on (ours)",
        "false",
        "batch",
        in_stream="Option 'timestampsGrow' is for batch queries: it sets where they end, and a stream has no end",
    ),
    Option(
        "pushDown",
        "true is refused: PySpark 4.3 would return wrong rows (docs/decisions.md); use `where`, `filter…` (ours)",
        "false",
        "batch",
    ),
    Option(
        "groupIdPrefix",
        "client id that brokers log, unless `kafka.client.id` is set; no group is formed",
        "spark-kafka-relation (batch), spark-kafka-source (stream)",
    ),
    DELEGATION_TOKEN,
    Option("kafka.group.id", "default of `group`; a read needs no group and forms none"),
    Option("fetchOffset.numRetries", "how often the driver tries to look up offsets", "3", kind="long", least=1),
    Option("fetchOffset.retryIntervalMs", "wait between two of these tries, ms", "1000", kind="long"),
    Option(
        "kafkaConsumer.pollTimeoutMs",
        "how long a task waits for records that should be there, ms",
        "120000",
        kind="long",
        least=1,
    ),
    Option(
        "offsetStore",
        "where `startingOffsets=committed` is read from and where a stream reports its progress: zookeeper, files or "
        "group (ours)",
    ),
    Option(
        "offsetStore.path",
        "directory of the store `files`, any fsspec URL; it keeps the newest 100 commits of a group (ours)",
        needs=("offsetStore",),
    ),
    Option(
        "offsetStore.zookeeper.connect",
        "ensemble of the store `zookeeper`, `host:port,…/chroot` (ours)",
        needs=("offsetStore",),
    ),
    Option(
        "group", "name under which the offset store keeps the offsets; with `history`, the group of the loads (ours)"
    ),
    Option(
        "archive",
        "from where to read archived records: broker, like all others; direct, from the store, and the rest from the "
        "brokers; only, what is archived from the store, without any broker. The store asks for no ACLs, and wants "
        "credentials of the reader's own (ours; docs/how-to/archive.md)",
        "broker",
        choices=("broker", "direct", "only"),
    ),
    Option(
        "archive.url",
        "where the archive is: `s3://…`, `hdfs://…`, `file:///…`, as the brokers' `archive.url`, from which `direct` "
        "takes it by default (ours)",
        needs=("archive",),
        being=("direct", "only"),
    ),
    Option(
        "archive.cluster",
        "id of the cluster whose archive `only` reads; needed where several there have a topic of the name (ours)",
        needs=("archive",),
        being=("only",),
    ),
    Option(
        "archive.option.*",
        "storage options for the archive, each by the name that fsspec's users know: `archive.option.endpoint_url`. "
        "What is not given comes from the environment of driver and executors. `archive.option.secret.NAME` is the "
        "same, by a name that Spark hides in plans (ours)",
        needs=("archive",),
        being=("direct", "only"),
    ),
    Option(
        "history",
        "a table that loads fill from these topics: `iceberg:NAMESPACE.TABLE`, `delta:URL` or the directory of loads "
        "into parquet files. The read returns the table's rows at one moment, and the topics' records after that "
        "moment's offsets: each record once (ours; docs/how-to/history-and-tail.md)",
    ),
    *each(_OF_HISTORY, needs=("history",)),
    *each(_DECODING, kept="values"),
    Option(
        "badRecordsTopic",
        "topic that bad records are also written to, at least once; it must exist (ours)",
        formats=FORMATS,
    ),
    *REGISTRY_ACCESS,
)

SPARKS_OWN = frozenset({"checkpointlocation", "queryname", "outputmode"})
"""Options that Spark passes to every sink. They do not concern this one."""

_CATALOG_NAMES = {"provider", "owner", "comment", "location", "external", "is_managed_location", "collation"}
_CATALOG_PREFIX = "option."
"""Spark's catalog adds these names to the options of `CREATE TABLE … USING pykafka`, and each option a second time with
this prefix (Spark's `TableCatalog`)."""
_PREFIXES = (KAFKA_PREFIX, _CATALOG_PREFIX)


def check_names(names: Iterable[str], declared: Iterable[Option] = OPTIONS) -> None:
    """Raise ConfigError for the first option that is not `declared`, with the names that are similar.

    Client properties (`kafka.…`) are checked by the client, and names that a catalog adds are ignored.
    """
    known = {option.name.lower(): option.name for option in declared}
    prefixes = (*_PREFIXES, *(name[:-1] for name in known if name.endswith("*")))
    for name in names:
        lower = name.lower()
        if lower in known or lower.startswith(prefixes) or lower in _CATALOG_NAMES:
            continue
        raise ConfigError(
            f"Unknown option '{name}' for format pykafka. {did_you_mean(name, known) or _hint(lower, known)}"
        )


def did_you_mean(name: str, known: Mapping[str, str]) -> str:
    """A question with the one or two names that are similar; empty if there is none. `known`: lower case → name."""
    close = difflib.get_close_matches(name.lower(), known, n=2, cutoff=0.6)
    return f"Did you mean {' or '.join(repr(known[match]) for match in close)}?" if close else ""


def _hint(lower: str, known: Mapping[str, str]) -> str:
    if f"{KAFKA_PREFIX}{lower}" in known or "." in lower:
        return f"Options of the Kafka client begin with '{KAFKA_PREFIX}': '{KAFKA_PREFIX}{lower}'?"
    return f"Options are: {', '.join(known.values())}, and '{KAFKA_PREFIX}*' for the client."

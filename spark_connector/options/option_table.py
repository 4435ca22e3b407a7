"""Every option of `format("pykafka")`, declared once: name, default, where it has an effect, what it means.

read_options.py takes names and defaults from here and refuses what is not here; the table in the README is
checked against it. Names, defaults and meaning are those of Spark's own Kafka source; options that
source does not have are marked in their text. Names are matched in any case, like all of Spark's.

Every option of a write with `format("pykafka")`, declared once; the README's second table is made of it.

write_options.py takes names and defaults from here. Names and meaning are those of Spark's own Kafka sink; what
that does not have is marked in the text. `kafka.*` are properties of the producer.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from broker.errors import ConfigError

__all__ = ["KAFKA_PREFIX", "OPTIONS", "SPARKS_OWN", "WRITE_OPTIONS", "Option", "check_names", "default"]

KAFKA_PREFIX = "kafka."
"""Options that begin with it, and are not in the table, are properties of the client (`kafka.security.protocol`)."""


class Option(NamedTuple):
    """One row: `default` as a user would write it (None: unset), `scope` is batch, stream or both."""

    name: str
    default: str | None
    scope: str
    meaning: str


OPTIONS: tuple[Option, ...] = (
    Option(
        "kafka.bootstrap.servers", None, "both", "required; `host:port` of one or more brokers, to find the others by"
    ),
    Option("subscribe", None, "both", "topics, comma-separated; exactly one of subscribe, subscribePattern, assign"),
    Option(
        "subscribePattern",
        None,
        "both",
        "Python regular expression that a topic's **whole** name must match (Spark's own source searches inside the "
        "name: there `topic1` also takes `mytopic12`); internal topics are left out",
    ),
    Option(
        "assign",
        None,
        "both",
        'partitions as JSON: `{"topicA":[0,1],"topicB":[2]}`. One that does not exist is an error when a query starts '
        "(Spark's own source leaves it out and says nothing)",
    ),
    Option(
        "startingOffsets",
        "earliest (batch), latest (stream)",
        "both",
        'earliest, latest (stream only), committed (from `offsetStore`, ours) or JSON `{"t":{"0":23,"1":-2}}` that '
        "names all partitions, -2 earliest, -1 latest; a stream takes it only when it has no checkpoint, and for "
        "topics that come to it later, where latest means when the query began",
    ),
    Option("startingTimestamp", None, "both", "milliseconds, for all partitions; wins over the other starting options"),
    Option(
        "startingOffsetsByTimestamp",
        None,
        "both",
        'milliseconds as JSON `{"t":{"0":1700000000000}}` that names all partitions; wins over `startingOffsets`',
    ),
    Option(
        "startingOffsetsByTimestampStrategy",
        "error",
        "both",
        "where no record is that young: error, or latest to start at the end",
    ),
    Option(
        "endingOffsets",
        "latest",
        "batch",
        "latest or JSON that names all partitions, -1 latest; exclusive. Beyond the end of a partition: a task waits "
        "for the records and fails after `kafkaConsumer.pollTimeoutMs`; with `failOnDataLoss` false what is there is "
        "read at once, with a warning",
    ),
    Option("endingTimestamp", None, "batch", "milliseconds, for all partitions; no record that young means latest"),
    Option(
        "endingOffsetsByTimestamp",
        None,
        "batch",
        'milliseconds as JSON `{"t":{"0":1700000000000}}` that names all partitions',
    ),
    Option(
        "failOnDataLoss",
        "true",
        "both",
        "false: skip records that are gone, with a warning, instead of failing the query; a stream adds up per topic "
        "what it skipped, in `skipped` of its offsets (`endOffset` of a progress report)",
    ),
    Option(
        "maxOffsetsPerTrigger",
        None,
        "stream",
        "at most so many offsets per micro-batch over all partitions, shared by backlog; a hard cap (Spark's own "
        "source rounds up to one per partition). Batch: ignored with a warning",
    ),
    Option(
        "minOffsetsPerTrigger",
        None,
        "stream",
        "wait until so many offsets are new; availableNow does not wait. Batch: ignored with a warning",
    ),
    Option(
        "maxTriggerDelay", "15m", "stream", "longest wait for `minOffsetsPerTrigger`. Batch: ignored with a warning"
    ),
    Option(
        "maxBytesPerTrigger",
        None,
        "stream",
        "at most about so many bytes per micro-batch (`64m`), as they lie in the log, one record at least; estimated "
        "from the logs' sizes. Holds together with `maxOffsetsPerTrigger`. Batch: ignored with a warning (ours)",
    ),
    Option("minPartitions", None, "both", "about so many tasks at least: large ranges are split"),
    Option("maxRecordsPerPartition", None, "both", "split ranges into tasks of at most so many offsets; no rate limit"),
    Option(
        "maxBytesPerPartition",
        None,
        "both",
        "split ranges into tasks of at most about so many bytes (`64m`), estimated likewise; no rate limit (ours)",
    ),
    Option(
        "minBytesPerPartition",
        "1m",
        "both",
        "ranges of fewer bytes, estimated likewise, are read together by one task up to so many, for a task costs some "
        "30 ms whatever it reads; `minPartitions` and `maxRecordsPerPartition` go first; 0: a task per range (ours)",
    ),
    Option(
        "maxPrefetchedRecords",
        "1000",
        "stream",
        "a micro-batch of at most so many offsets (and 1 MiB) is read by the driver's Python process, which hands the "
        "rows to Spark with the plan: no Python task at all; not with `minPartitions` above 1; 0: never (ours)",
    ),
    Option("includeHeaders", "false", "both", "add the column `headers`"),
    Option(
        "columns",
        "all but headers",
        "both",
        "columns to give, comma-separated, in that order: what is not named is not decoded (ours)",
    ),
    Option(
        "filterPartitions",
        None,
        "both",
        'read only these partitions: `0,2-5` of every topic, or `{"topicA":"0,2-5"}`, which leaves other topics out '
        "(ours)",
    ),
    Option(
        "filterOffsets",
        None,
        "batch",
        'read only these offsets, both ends included: `100-199`, `100-`, or `{"topicA":{"0":"100-199"}}`, which leaves '
        "other partitions out (ours)",
    ),
    Option(
        "filterTimestampFrom",
        None,
        "both",
        "milliseconds: read only records that old or younger; a batch does not even fetch what lies before the first "
        "such record (ours)",
    ),
    Option(
        "filterTimestampUntil",
        None,
        "both",
        "milliseconds, exclusive: read only older records. All are fetched, since timestamps need not grow; to fetch "
        "less add `endingTimestamp` (ours)",
    ),
    Option(
        "filterKeyPrefix", None, "both", "read only records whose key begins so: text, or bytes like `X'cafe'` (ours)"
    ),
    Option(
        "filterHeader",
        None,
        "both",
        "read only records with a header of this `name`, or `name=prefix` of its value (ours)",
    ),
    Option(
        "pushDown",
        "false",
        "batch",
        "true is refused: PySpark 4.3 would give wrong rows (docs/decisions.md); use `columns` and `filter…` (ours)",
    ),
    Option(
        "groupIdPrefix",
        "spark-kafka-relation (batch), spark-kafka-source (stream)",
        "both",
        "client id that brokers log, unless `kafka.client.id` is set; no group is formed",
    ),
    Option("kafka.group.id", None, "both", "default of `group`; no group is formed, reading needs none"),
    Option("fetchOffset.numRetries", "3", "both", "how often the driver tries to look up offsets"),
    Option("fetchOffset.retryIntervalMs", "1000", "both", "wait between two of these tries, ms"),
    Option(
        "kafkaConsumer.pollTimeoutMs", "120000", "both", "how long a task waits for records that should be there, ms"
    ),
    Option(
        "offsetStore",
        None,
        "both",
        "where `startingOffsets=committed` is read from and a stream reports its progress: zookeeper, files or group "
        "(ours)",
    ),
    Option(
        "offsetStore.path",
        None,
        "both",
        "directory of the store `files`, any fsspec URL; it keeps a group's newest 100 commits (ours)",
    ),
    Option(
        "offsetStore.zookeeper.connect", None, "both", "ensemble of the store `zookeeper`, `host:port,…/chroot` (ours)"
    ),
    Option("group", None, "both", "name under which the offset store keeps the offsets (ours)"),
    Option(
        "valueFormat",
        "binary",
        "both",
        "binary, string, json, avro or csv: what the column `value` is decoded to (ours; section Value formats)",
    ),
    Option("keyFormat", "binary", "both", "the same of the column `key` (ours)"),
    Option(
        "valueSchema",
        None,
        "both",
        "of json and csv: Spark's DDL or schema in JSON; of avro: an Avro schema, or "
        "`http(s)://registry/subjects/NAME/versions/latest`; or a file with it, any fsspec URL (`.ddl`, `.json`, "
        "`.avsc`). Unset with `schema.registry.url`: the latest of subject `<topic>-value` (ours)",
    ),
    Option("keySchema", None, "both", "the same of the column `key`, subject `<topic>-key` (ours)"),
    Option(
        "mode",
        "PERMISSIVE",
        "both",
        "what becomes of a record that cannot be decoded: PERMISSIVE (null, its bytes in `_corrupt_record`), "
        "DROPMALFORMED or FAILFAST (ours, as in from_json)",
    ),
    Option(
        "columnNameOfCorruptRecord",
        "_corrupt_record",
        "both",
        "column for the bytes of bad values in mode PERMISSIVE; with `_key` after it, for those of bad keys (ours)",
    ),
    Option(
        "badRecordsTopic",
        None,
        "both",
        "topic that bad records are also written to, at least once; it must exist (ours)",
    ),
    Option("sep", ",", "both", "between the fields of csv; a tab is written as backslash t (ours, as in from_csv)"),
    Option(
        "schema.registry.url",
        None,
        "both",
        "schema registry, `http(s)://host:port`, several addresses of one separated by commas; avro data is then in "
        "Confluent's wire format (ours)",
    ),
    Option("schema.registry.basic.auth.user.info", None, "both", "`user:password` for the registry (ours)"),
    Option("schema.registry.bearer.auth.token", None, "both", "token for the registry (ours)"),
    Option(
        "schema.registry.ssl.ca.location", None, "both", "certificates that an https registry is trusted by, PEM (ours)"
    ),
)

CATALOG_NAMES = frozenset({"provider", "owner", "comment", "location", "external", "is_managed_location", "collation"})
"""What Spark's catalog puts among the options of `CREATE TABLE … USING pykafka` (Spark's `TableCatalog`), beside each
option once more with `option.` before it."""

CATALOG_PREFIX = "option."

_BY_NAME = {option.name.lower(): option for option in OPTIONS}


def default(name: str) -> str:
    """The default of an option that has one and the same in batch and stream."""
    value = _BY_NAME[name.lower()].default
    assert value is not None
    return value


def check_names(names: Iterable[str], declared: Iterable[Option] = OPTIONS) -> None:
    """Raise ConfigError for the first option that is not `declared`, with the names that come close.

    Client properties (`kafka.…`) are not checked here; the client knows them. What a catalog adds is let pass.
    """
    known = {option.name.lower(): option.name for option in declared}
    for name in names:
        lower = name.lower()
        if lower in known or lower.startswith((KAFKA_PREFIX, CATALOG_PREFIX)) or lower in CATALOG_NAMES:
            continue
        close = difflib.get_close_matches(lower, known, n=2, cutoff=0.6)
        hint = f"Did you mean {' or '.join(repr(known[match]) for match in close)}?" if close else _hint(lower, known)
        raise ConfigError(f"Unknown option '{name}' for format pykafka. {hint}")


def _hint(lower: str, known: Mapping[str, str]) -> str:
    if f"{KAFKA_PREFIX}{lower}" in known or "." in lower:
        return f"Options of the Kafka client begin with '{KAFKA_PREFIX}': '{KAFKA_PREFIX}{lower}'?"
    return f"Options are: {', '.join(known.values())}, and '{KAFKA_PREFIX}*' for the client."


WRITE_OPTIONS: tuple[Option, ...] = (
    Option(
        "kafka.bootstrap.servers", None, "both", "required; `host:port` of one or more brokers, to find the others by"
    ),
    Option("topic", None, "both", "topic of all rows; wins over a column `topic`. One of the two must be there"),
    Option(
        "delivery",
        "at-least-once (batch), exactly-once (stream)",
        "both",
        "exactly-once: rows are written in transactions, which readers of committed data see when all tasks have "
        "succeeded; at-least-once: a task or batch that is repeated writes its rows again, as Spark's own sink "
        "does (ours)",
    ),
    Option(
        "transactionalIdPrefix",
        "pykafka-sink",
        "both",
        "begins the transactional ids and the group of an exactly-once write, for brokers that grant rights by "
        "prefix (ours)",
    ),
    Option(
        "txnAppId",
        None,
        "batch",
        "names an exactly-once write, so that one which is repeated writes nothing: inside `foreachBatch` with the "
        "query and the batch, elsewhere, over Spark Connect and from threads of your own with `txnVersion`. Each write "
        "in the function needs a name of its own (ours; Delta calls its options so)",
    ),
    Option(
        "txnVersion",
        None,
        "batch",
        "a number that grows with every write of `txnAppId`, such as the batch's id: the last one or a lower one is "
        "not written again (ours)",
    ),
    Option(
        "includeHeaders",
        None,
        "both",
        "false: leave a column `headers` unwritten; true: it must be there; unset: write it if it is there",
    ),
)

SPARKS_OWN = frozenset({"checkpointlocation", "queryname", "outputmode"})
"""Options that Spark hands to every sink; they say nothing about this one."""

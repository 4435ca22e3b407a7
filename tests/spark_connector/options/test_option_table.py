"""Every option of Spark's own Kafka source and what it does here, in one table: name, default, scope, value, errors.

Precedence between options and the texts of errors that concern several are in test_read_options.py; options that only
this source has are tested beside their parsers, and by the laws here that hold for all.
"""

from __future__ import annotations

import logging
import re
from operator import attrgetter
from typing import NamedTuple

import pytest

from broker.errors import ConfigError
from broker.protocol.topic_partition import TopicPartition
from spark_connector.errors import ConnectorError
from spark_connector.options.option import Option
from spark_connector.options.option_table import OPTIONS
from spark_connector.options.read_options import Mode, SourceOptions, parse_options
from spark_connector.options.selection import Assign, Position, SpecificOffsets, Subscribe, SubscribePattern, Timestamps

T0 = TopicPartition("t", 0)
TIMES = '{"t":{"0":5}}'
LONG = r"must be a whole number, not 'x'"
POSITIVE = r"must be positive, not 0"
COUNT = {"0": POSITIVE, "x": LONG}


class Each(NamedTuple):
    """Where batch and stream differ."""

    batch: object
    stream: object


class Case(NamedTuple):
    """An option with a value and what it becomes, and values it does not take (`wrong`).

    `sees`: the path of what shows it; None for the field of its name. `unset`: what a read without it shows. `default`,
    `scope`: as Spark has them. `needs`: other options. `elsewhere`: what becomes of it in the other kind of query.
    """

    name: str
    given: str
    parsed: object
    wrong: dict[str, str]
    sees: str | None = None
    unset: object = None
    default: str | None = None
    scope: str = "both"
    needs: dict[str, str] = {}  # noqa: RUF012
    elsewhere: str = "same"

    def seen(self, options: SourceOptions) -> object:
        match self.name:
            case "startingOffsetsByTimestampStrategy":
                return isinstance(options.starting, Timestamps) and options.starting.latest_if_none
            case "includeHeaders":
                return "headers" in options.columns
        (row,) = (row for row in OPTIONS if row.name == self.name)
        return attrgetter(self.sees or row.field)(options)


BEGIN = Each(Position.EARLIEST, Position.LATEST)
SUBSCRIBED = Subscribe(("t",))
CASES = [
    Case(
        "kafka.bootstrap.servers",
        "a:1, b:2",
        ("a:1", "b:2"),
        {" ": "must be specified for configuring Kafka consumer", "localhost:": "is not host or host:port"},
        sees="client.bootstrap_servers",
        unset=("localhost:9092",),
    ),
    Case(
        "subscribe",
        " a , b,a",
        Subscribe(("a", "b")),
        {" , ": "No topics to subscribe to as specified value for option 'subscribe' is ','"},
        sees="subscription",
        unset=SUBSCRIBED,
    ),
    Case(
        "subscribePattern",
        "topic[0-9]+",
        SubscribePattern("topic[0-9]+"),
        {" ": "Pattern to subscribe is empty", "a(": r"'a\(' cannot be taken", r"\bx": "is not supported"},
        sees="subscription",
        unset=SUBSCRIBED,
    ),
    Case(
        "assign",
        '{"t":[0,0]}',
        Assign((T0,)),
        {
            "t": "Option 'assign' is not JSON.*Expected e.g.",
            "{}": "No topicpartitions to assign",
            '{"t":0}': "Option 'assign': Expected e.g. .*got",
            "[]": "Expected e.g.",
        },
        sees="subscription",
        unset=SUBSCRIBED,
    ),
    Case("startingTimestamp", "5", Timestamps(5), {"x": LONG, "-1": "must be at least 0"}, "starting", BEGIN),
    Case(
        "startingOffsetsByTimestamp",
        TIMES,
        Timestamps({T0: 5}),
        {"5": "Expected e.g.", '{"t":{"0":-2}}': "must not be negative"},
        "starting",
        BEGIN,
    ),
    Case(
        "startingOffsets",
        '{"t":{"0":-2}}',
        SpecificOffsets({T0: -2}),
        {
            "newest": "must be earliest, latest, committed or JSON .* not 'newest'",
            '{"t":{"0":-3}}': "offset -3 of t-0 is negative",
        },
        "starting",
        BEGIN,
        "earliest (batch), latest (stream)",
    ),
    Case(
        "startingOffsetsByTimestampStrategy",
        "LATEST",
        True,
        {"skip": "must be error or latest, not 'skip'"},
        unset=False,
        default="error",
        needs={"startingTimestamp": "5"},
    ),
    Case(
        "endingTimestamp",
        "5",
        Timestamps(5, True),
        {"x": LONG},
        "ending",
        Position.LATEST,
        scope="batch",
        elsewhere="ending timestamp not valid in streaming queries",
    ),
    Case(
        "endingOffsetsByTimestamp",
        TIMES,
        Timestamps({T0: 5}, True),
        {"x": "is not JSON"},
        "ending",
        Position.LATEST,
        scope="batch",
        elsewhere="ending timestamp not valid in streaming queries",
    ),
    Case(
        "endingOffsets",
        '{"t":{"0":-1}}',
        SpecificOffsets({T0: -1}),
        {"earliest": "ending offset can't be earliest for batch", '{"t":{"0":-2}}': "t-0 can't be earliest for batch"},
        "ending",
        Position.LATEST,
        "latest",
        "batch",
        elsewhere="ending offset not valid in streaming queries",
    ),
    Case("failOnDataLoss", "False", False, {"no": "must be true or false, not 'no'"}, unset=True, default="true"),
    Case("kafkaConsumer.pollTimeoutMs", "512", 512, COUNT, unset=120_000, default="120000"),
    Case("fetchOffset.numRetries", "5", 5, COUNT, unset=3, default="3"),
    Case(
        "fetchOffset.retryIntervalMs",
        "0",
        0,
        {"-1": "must be at least 0", "x": LONG},
        unset=1000,
        default="1000",
    ),
    Case(
        "maxOffsetsPerTrigger",
        "7",
        7,
        {**COUNT, "99999999999999999999": "fit in 64 bits"},
        scope="stream",
        elsewhere="ignored",
    ),
    Case(
        "minOffsetsPerTrigger",
        "7",
        7,
        {**COUNT, "-5": r"must be positive, not -5"},
        scope="stream",
        elsewhere="ignored",
    ),
    Case(
        "maxTriggerDelay",
        "90s",
        90_000,
        {"soon": "must be a time like 500ms, 10s, 15m or 2h, not 'soon'"},
        unset=900_000,
        default="15m",
        scope="stream",
        needs={"minOffsetsPerTrigger": "1"},
        elsewhere="ignored",
    ),
    Case("minPartitions", "7", 7, COUNT),
    Case("maxRecordsPerPartition", "7", 7, {"0": POSITIVE, "1.5": "must be a whole number"}),
    Case("includeHeaders", "TRUE", True, {"1": "must be true or false, not '1'"}, unset=False, default="false"),
    Case(
        "groupIdPrefix",
        "nightly",
        "nightly",
        {},
        "client.client_id",
        Each("spark-kafka-relation", "spark-kafka-source"),
        "spark-kafka-relation (batch), spark-kafka-source (stream)",
    ),
    Case("kafka.group.id", "g", "g", {"a/b": "group 'a/b' cannot be used"}, "group", needs={"offsetStore": "group"}),
]

MINIMUM = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "t"}
IDS = [case.name for case in CASES]

OWN = {
    *("where", "timestampsGrow", "filterKey", "filterKeyPartitioner"),
    *("columns", "filterPartitions", "filterOffsets", "filterTimestampFrom", "filterTimestampUntil"),
    *("filterKeyPrefix", "filterHeader", "pushDown", "maxBytesPerTrigger", "maxBytesPerPartition"),
    *("offsetStore", "offsetStore.path", "offsetStore.zookeeper.connect", "group"),
}


def parse(mode: Mode, options: dict[str, str]) -> SourceOptions:
    given = {**MINIMUM, **options}
    if {"assign", "subscribePattern"} & {name.lower().replace("pattern", "Pattern") for name in options}:
        del given["subscribe"]
    return parse_options(given, mode)


def main_mode(case: Case) -> Mode:
    return Mode.STREAM if case.scope == "stream" else Mode.BATCH


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_the_table_has_sparks_name_default_and_scope(case: Case) -> None:
    (row,) = (row for row in OPTIONS if row.name == case.name)
    assert (row.default, row.scope) == (case.default, case.scope)
    assert "(ours)" not in row.meaning


def test_the_table_has_every_option_and_says_which_are_ours() -> None:
    names = {row.name for row in OPTIONS}
    assert names >= set(IDS) | OWN
    ours = {row.name for row in OPTIONS if "ours" in row.meaning and row.name != "startingOffsets"}
    assert ours | set(IDS) == names
    assert {row.scope for row in OPTIONS} == {"both", "batch", "stream"}


@pytest.mark.parametrize("case", CASES, ids=IDS)
@pytest.mark.parametrize("mode", [Mode.BATCH, Mode.STREAM])
def test_unset_it_has_sparks_default(case: Case, mode: Mode) -> None:
    needs = {} if case.name == "kafka.group.id" else case.needs
    unset = case.unset if not isinstance(case.unset, Each) else getattr(case.unset, mode.value)
    assert case.seen(parse(mode, needs)) == unset


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_it_is_found_under_its_name_in_any_case(case: Case) -> None:
    for name in (case.name, case.name.lower(), case.name.upper(), case.name.swapcase()):
        if name.lower() != "kafka.bootstrap.servers" or name == case.name:
            assert case.seen(parse(main_mode(case), {**case.needs, name: case.given})) == case.parsed
    assert parse_options({"KAFKA.Bootstrap.SERVERS": "h:1", "SUBSCRIBE": "t"}, Mode.BATCH).client.bootstrap_servers


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_in_the_other_kind_of_query_it_does_the_same_or_warns_or_is_refused(
    case: Case, caplog: pytest.LogCaptureFixture
) -> None:
    other = Mode.BATCH if main_mode(case) is Mode.STREAM else Mode.STREAM
    options = {**case.needs, case.name: case.given}
    if case.elsewhere in {"same", "ignored"}:
        with caplog.at_level(logging.WARNING, "pykafka.spark"):
            assert case.seen(parse(other, options)) == case.parsed
        warned = f"{case.name} option ignored in batch queries" in caplog.text
        assert warned == (case.elsewhere == "ignored")
    else:
        with pytest.raises(ConfigError, match=f"{case.elsewhere} .*'{case.name}'"):
            parse(other, options)
    assert case.seen(parse(Mode.ANY, options)) == case.parsed, "load() does not know yet"


WRONG = [(case, value, message) for case in CASES for value, message in case.wrong.items()]


@pytest.mark.parametrize(("case", "value", "message"), WRONG, ids=[f"{case.name}={value}" for case, value, _ in WRONG])
def test_a_wrong_value_is_named(case: Case, value: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        parse(main_mode(case), {**case.needs, case.name: value})
    assert case.name in str(raised.value) or value.strip(" ") in str(raised.value)


@pytest.mark.parametrize("name", sorted({row.name for row in OPTIONS if not row.name.startswith("kafka.")}))
def test_a_slip_in_any_name_is_refused_with_the_right_one(name: str) -> None:
    slip = name[:-2] + name[-1]
    if slip.lower() in {row.name.lower() for row in OPTIONS}:
        return
    with pytest.raises(ConfigError, match=rf"Unknown option '{re.escape(slip)}'.*Did you mean.*'{re.escape(name)}'"):
        parse(Mode.ANY, {slip: "1"})


@pytest.mark.parametrize(
    "name", ["auto.offset.reset", "key.deserializer", "value.deserializer", "enable.auto.commit", "interceptor.classes"]
)
@pytest.mark.parametrize("mode", Mode)
def test_properties_that_the_source_sets_itself_are_refused(name: str, mode: Mode) -> None:
    for given in (f"kafka.{name}", f"Kafka.{name.upper()}"):
        with pytest.raises(ConfigError, match=f"Kafka option '{name}' is not supported"):
            parse(mode, {given: "x"})


@pytest.mark.parametrize("row", [row for row in OPTIONS if row.formats or row.needs], ids=lambda row: row.name)
def test_an_option_without_effect_is_refused(row: Option) -> None:
    name, mode = row.name.replace("*", "x"), Mode.STREAM if row.scope == "stream" else Mode.BATCH
    own = "value" if name.startswith("value") else "key"
    needed = f"{own}Format" if row.formats else row.needs[-1]
    with pytest.raises(ConfigError, match=f"Option '{name}' has no effect: it needs .*'{needed}'"):
        parse(mode, {name: row.choices[-1] if row.choices else "1"})


@pytest.mark.parametrize("mode", Mode)
def test_a_group_id_that_no_one_uses_is_warned_about_as_in_spark(mode: Mode, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "pykafka.spark"):
        parse(mode, {"kafka.group.id": "g"})
    assert ("kafka.group.id option ignored" in caplog.text) == (mode is not Mode.ANY), "once per query"


def test_errors_of_a_condition_begin_with_its_name() -> None:
    with pytest.raises(ConnectorError, match=r"^\[UNRESOLVED_START_TIMESTAMP_GREATER_THAN_END_TIMESTAMP\]"):
        parse(Mode.BATCH, {"startingOffsetsByTimestamp": '{"t":{"0":9}}', "endingOffsetsByTimestamp": TIMES})


SPARK_HIDES = re.compile("(?i)secret|password|token|access[.]?key|url")
"""The defaults of spark.redaction.regex and spark.sql.redaction.options.regex, together."""
SHOWN = {"schema.registry.basic.auth.user.info"}
"""Confluent's name. docs/how-to/secured-cluster.md says what to set."""


def test_spark_hides_options_with_secrets_by_their_names() -> None:
    words = r"[Ss]torage|auth\.(?!.*(source|endpoint|client\.id|scope|cluster|pool))|registry\.url"
    secret = {option.name for option in OPTIONS if re.search(words, option.name)}
    assert len(secret) == 5
    assert {name for name in secret if not SPARK_HIDES.search(name)} == SHOWN

"""Every option of Spark's own Kafka source and what it does here, in one table: name, default, scope, value, errors.

Precedence between options and the texts of errors that concern several are in test_read_options.py; options that only
this source has are tested beside their parsers, and by the laws here that hold for all.
"""

from __future__ import annotations

import logging
import re

import pytest

from broker.errors import ConfigError
from spark_connector.errors import ConnectorError
from spark_connector.options.option_table import OPTIONS
from spark_connector.options.read_options import Mode, SourceOptions, parse_options
from tests.support.option_cases import CASES, TIMES, Case

MINIMUM = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "t"}
IDS = [case.name for case in CASES]

OWN = {
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
    assert case.seen(parse(mode, needs)) == case.unset[mode is Mode.STREAM]


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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"startingOffsetsByTimestampStrategy": "latest"},
            "no effect without 'startingTimestamp' or 'startingOffsetsBy",
        ),
        ({"offsetStore.path": "/x"}, "'offsetStore.path' has no effect without 'offsetStore'"),
        ({"offsetStore.zookeeper.connect": "h:1"}, "no effect without 'offsetStore'"),
        ({"maxTriggerDelay": "5s"}, "'maxTriggerDelay' has no effect without 'minOffsetsPerTrigger'"),
    ],
)
def test_an_option_without_effect_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(Mode.STREAM, options)


@pytest.mark.parametrize("mode", Mode)
def test_a_group_id_that_no_one_uses_is_warned_about_as_in_spark(mode: Mode, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "pykafka.spark"):
        parse(mode, {"kafka.group.id": "g"})
    assert ("kafka.group.id option ignored" in caplog.text) == (mode is not Mode.ANY), "once per query"


def test_errors_of_a_condition_begin_with_its_name() -> None:
    with pytest.raises(ConnectorError, match=r"^\[UNRESOLVED_START_TIMESTAMP_GREATER_THAN_END_TIMESTAMP\]"):
        parse(Mode.BATCH, {"startingOffsetsByTimestamp": '{"t":{"0":9}}', "endingOffsetsByTimestamp": TIMES})

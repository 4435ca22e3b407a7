"""The options of a load about bad records: what they take, and what they refuse before anything is opened."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import ConfigError
from broker.protocol.topic_partition import TopicPartition
from spark_connector.formats.value_format import ParseMode
from spark_connector.loads.bad_record_options import DeadLetterPlace, MaxBad
from spark_connector.loads.record import LoadRange, LoadRecord
from spark_connector.loads.request import LoadRequest, Target

JSON = {"valueFormat": "json", "valueSchema": "n INT"}


def request(to: str = "/data", format: str | None = None, **arguments: object) -> LoadRequest:
    options = {**JSON, **arguments.pop("options", {})}  # type: ignore[dict-item]
    given_: dict[str, object] = {"bootstrap_servers": "b:1", "topic": "t", "options": options, **arguments}
    return LoadRequest.build(Target(to, "g", format=format), **given_)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["delta:/data/bad", "delta:s3://lake/bad", "iceberg:lake.orders_bad", "topic:bad"])
def test_places(text: str) -> None:
    place = DeadLetterPlace.parse(text)
    assert str(place) == text
    assert place.is_table is not text.startswith("topic:")


@pytest.mark.parametrize("text", ["", "bad", "/data/bad", "s3://lake/bad", "delta:", "topic: ", "sql:sqlite:///x"])
def test_other_places_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"must be topic:NAME, delta:URL or iceberg:NAMESPACE.TABLE"):
        DeadLetterPlace.parse(text)


def test_a_plain_directory_is_refused_with_a_way_out() -> None:
    with pytest.raises(ConfigError, match="delta:/data/bad$"):
        DeadLetterPlace.parse("/data/bad")


@pytest.mark.parametrize(
    ("limit", "bad", "read", "exceeded"),
    [
        ("0", 0, 10, False),
        ("0", 1, 10, True),
        (100, 100, 100, False),
        ("100", 101, 1000, True),
        ("0.1%", 1, 1000, False),
        ("0.1%", 2, 1999, True),
        (" 10 % ", 1, 10, False),
        ("10%", 1, 9, True),
        ("0%", 0, 0, False),
        ("100%", 5, 5, False),
    ],
)
def test_limits(limit: str | int, bad: int, read: int, exceeded: bool) -> None:
    assert MaxBad.parse(limit).is_exceeded(bad, read) is exceeded


@given(st.integers(0, 100_000), st.integers(0, 10**12), st.integers(0, 10**12))
def test_a_share_is_exact_however_large_the_load_is(thousandths: int, bad: int, read: int) -> None:
    limit = MaxBad.parse(f"{thousandths / 1000:.3f}%")
    assert limit.is_exceeded(bad, read) is (Fraction(bad) > Fraction(thousandths, 100_000) * read)


@pytest.mark.parametrize("text", ["", "-1", "1.5", "101%", "many", "%", "1/0", "-0.1%"])
def test_other_limits_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"max_bad .* must be a number of records"):
        MaxBad.parse(text)


@pytest.mark.parametrize("mode", [None, "PERMISSIVE", "dropmalformed"])
def test_with_a_table_bad_records_leave_the_rows_whatever_the_mode_is(mode: str | None) -> None:
    made = request(dead_letters="delta:/bad", options={} if mode is None else {"mode": mode})
    assert made.tasks_source.formats.mode is ParseMode.DROPMALFORMED
    assert made.reading == request(dead_letters="delta:/other").reading
    assert "mode" not in made.reading
    assert made.reading != request().reading


def test_a_topic_is_the_option_of_the_reader() -> None:
    made = request(dead_letters="topic:bad")
    assert made.source.formats.bad_records_topic == "bad"
    assert made.dead_letter_table is None
    assert made.reading == request().reading


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"dead_letters": "delta:/bad", "options": {"mode": "FAILFAST"}}, "no effect in mode FAILFAST"),
        ({"max_bad": "1", "options": {"mode": "FAILFAST"}}, "no effect in mode FAILFAST"),
        ({"dead_letters": "delta:/bad", "options": {"columnNameOfCorruptRecord": "raw"}}, "has no effect beside"),
        ({"dead_letters": "delta:/bad", "options": {"badRecordsTopic": "b"}}, "has no effect beside"),
        ({"dead_letters": "topic:b", "options": {"badRecordsTopic": "b"}}, "both name a topic"),
        ({"dead_letters": "topic:b", "max_bad": "1"}, "does not go with a topic"),
        ({"max_bad": "1", "options": {"badRecordsTopic": "b"}}, "does not go with a topic"),
    ],
)
def test_what_does_not_go_together_is_refused(arguments: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        request(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("given_", [{"dead_letters": "delta:/bad"}, {"max_bad": "1"}, {"dead_letters": "topic:b"}])
def test_without_a_format_nothing_is_bad(given_: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="no record is decoded"):
        LoadRequest.build(Target("/data", "g"), bootstrap_servers="b:1", topic="t", **given_)  # type: ignore[arg-type]


def test_records_tell_bad_rows_and_older_ones_are_read_as_ever() -> None:
    record = LoadRecord("g-000001-0a0b0c0d", "/data", "delta", "table", 0, (LoadRange("t", 0, 0, 5, None, 3),))
    assert record.bad_rows is None
    counted = replace(record.with_bad_rows({}), dead_letters=("delta:/bad",), about="g-000002-0a0b0c0d")
    assert counted.bad_rows == 0
    counted = counted.with_bad_rows({TopicPartition("t", 0): 2})
    document = json.loads(json.dumps(counted.to_json()))
    assert (document["rows"], document["bad_rows"]) == (3, 2)
    assert LoadRecord.from_json(document, "here") == counted
    older = json.loads(json.dumps(record.to_json()))
    assert not {"about", "bad_rows"} & older.keys(), "older code knows none of it"
    assert "bad" not in older["ranges"][0], "older code knows none of it"
    del older["dead_letters"]
    assert LoadRecord.from_json(older, "here") == record

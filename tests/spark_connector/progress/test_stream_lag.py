"""From progress reports to lag."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.protocol.topic_partition import TopicPartition
from spark_connector.progress.stream_lag import QueryLag, SourceLag, query_lag
from tests.spark_connector.progress.reports import Where, as_text, offset, report, source


def lag_of(*sources: Any, **sizes: Any) -> SourceLag:
    (found,) = query_lag(report(*sources), **sizes).sources
    return found


START = offset({"t": {0: 0, 1: 0}})
END = offset({"t": {0: 12, 1: 8}})
LATEST = offset({"t": {0: 30, 1: 9}, "u": {0: 5}})


@pytest.mark.parametrize("form", [as_text, lambda document: document], ids=["text", "object"])
def test_lag_is_what_lies_between_end_and_latest(form: Any) -> None:
    lag = lag_of(source(form(START), form(END), form(LATEST)))
    assert {topic.topic: dict(topic.offsets_behind) for topic in lag.topics} == {"t": {0: 18, 1: 1}, "u": {0: 5}}
    assert lag.total == 24


def test_metrics_have_the_names_and_figures_of_sparks_own_source() -> None:
    lag = lag_of(source(START, END, LATEST))
    assert lag.metrics() == {
        "minOffsetsBehindLatest": 1,
        "maxOffsetsBehindLatest": 18,
        "avgOffsetsBehindLatest": 8.0,
    }


def test_rows_and_rates_are_sparks() -> None:
    lag = lag_of(source(START, END, LATEST))
    assert (lag.num_input_rows, lag.input_rows_per_second, lag.processed_rows_per_second) == (20, 10.5, 24.25)
    lag = lag_of({"endOffset": END})  # Spark leaves out rates that are no number
    assert (lag.num_input_rows, lag.input_rows_per_second, lag.processed_rows_per_second) == (0, 0.0, 0.0)


def test_a_batch_repeated_after_a_crash_has_no_latest_offset_and_unknown_lag() -> None:
    lag = lag_of(source(START, END), estimate=lambda read, ends: pytest.fail("nothing to ask for"))
    assert lag.topics == ()
    assert lag.total is None
    assert lag.metrics() == {}
    assert lag.bytes_behind is None
    assert lag.end == {TopicPartition("t", 0): 12, TopicPartition("t", 1): 8}


def test_the_first_batch_begins_where_its_end_says() -> None:
    lag = lag_of(source(None, offset({"t": {0: 12}}, init={"t": {0: 7}}), LATEST))
    assert lag.start == {TopicPartition("t", 0): 7}


def test_what_was_passed_over_is_told_by_topic() -> None:
    assert lag_of(source(START, END, LATEST)).skipped == {}
    assert lag_of(source(START, offset({"t": {0: 12}, "u": {0: 1}}, t=120))).skipped == {"t": 120}


def test_a_log_that_ends_before_what_was_read_is_no_negative_lag() -> None:
    lag = lag_of(source(START, END, offset({"t": {0: 3, 1: 9}})))
    assert lag.metrics()["minOffsetsBehindLatest"] == 0
    assert lag.total == 1


def test_bytes_are_offsets_times_the_average_record() -> None:
    sizes = {TopicPartition("t", 0): 100.0, TopicPartition("t", 1): 10.0, TopicPartition("u", 0): 1.5}
    lag = lag_of(source(START, END, LATEST), estimate=lambda read, ends: sizes)
    assert [topic.bytes_behind for topic in lag.topics] == [1810, 8]
    assert lag.metrics()["estimatedTotalBytesBehindLatest"] == lag.bytes_behind == 1818


def test_bytes_of_an_unknown_size_are_unknown_unless_nothing_is_behind() -> None:
    lag = lag_of(source(START, END, LATEST), estimate=lambda read, ends: {TopicPartition("t", 0): 1.0})
    assert [topic.bytes_behind for topic in lag.topics] == [None, None]
    assert lag.bytes_behind is None
    caught_up = lag_of(source(START, END, END), estimate=lambda read, ends: {})
    assert caught_up.bytes_behind == 0


@pytest.mark.parametrize(
    "end", [None, "5", 7, {"t": {"0": 4}}, as_text({"v": 99, "topics": {}}), "{", [], "[" * 100_000, {"v": 1}]
)
def test_sources_of_other_formats_are_left_out(end: Any) -> None:
    lag = query_lag(report(source(START, end, LATEST), source(START, END, LATEST)))
    assert [one.index for one in lag.sources] == [1]


def test_a_query_is_known_by_its_name_or_id() -> None:
    assert query_lag(report(name="flights")).label == "flights"
    assert query_lag(report()).label == report()["id"]
    assert query_lag({}) == QueryLag("None", "None", None, 0, "", ())


WHERE = st.dictionaries(
    st.sampled_from("abc"), st.dictionaries(st.integers(0, 5), st.integers(0, 2**62), min_size=1), min_size=1
)


@given(WHERE, WHERE)
def test_lag_agrees_with_sparks_formula(end: Where, latest: Where) -> None:
    metrics = lag_of(source(None, offset(end), offset(latest))).metrics()
    behind = [
        max(value - end.get(topic, {}).get(partition, 0), 0)
        for topic, partitions in latest.items()
        for partition, value in partitions.items()
    ]
    assert metrics == {
        "minOffsetsBehindLatest": min(behind),
        "maxOffsetsBehindLatest": max(behind),
        "avgOffsetsBehindLatest": sum(behind) / len(behind),
    }

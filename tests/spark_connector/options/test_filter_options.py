"""The options `filter…`: what may be written, what it means, and what is refused and why."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import ConfigError
from broker.protocol.topic_partition import TopicPartition
from spark_connector.options.read_options import Mode, SourceOptions, parse_options
from spark_connector.options.selection import (
    HeaderFilter,
    Intervals,
    ReadFilters,
    Selection,
    parse_intervals,
    read_selection,
)

T0, T3, U0 = TopicPartition("t", 0), TopicPartition("t", 3), TopicPartition("u", 0)


def parse(mode: Mode = Mode.BATCH, /, **options: str) -> SourceOptions:
    return parse_options({"kafka.bootstrap.servers": "h:1", "subscribe": "t,u", **options}, mode)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("3", ((3, 4),)),
        ("0,2-5", ((0, 1), (2, 6))),
        (" 5 - 7 , 1", ((1, 2), (5, 8))),
        ("0-3,2-9,10", ((0, 11),)),
        ("100-", ((100, 2**63 - 1),)),
        ("-4", ((0, 5),)),
        ("0", ((0, 1),)),
    ],
)
def test_intervals(text: str, parts: tuple[tuple[int, int], ...]) -> None:
    assert parse_intervals("filterOffsets", text, "1-2") == Intervals(parts)


@pytest.mark.parametrize("text", ["", "-", "a", "1-2-3", "1,,2", "1;2", "0x3", "٣", "9" * 19, None, 5, ["1"]])
def test_what_is_no_interval_is_refused(text: object) -> None:
    with pytest.raises(ConfigError, match=r"Option 'filterOffsets': Expected e.g. 1-2, got"):
        parse_intervals("filterOffsets", text, "1-2")


def test_an_interval_that_runs_backwards_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'filterPartitions': 5-2 runs backwards, in 0,5-2"):
        parse(filterPartitions="0,5-2")


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1), st.integers(-2, 35), st.integers(-2, 35)
)
def test_a_cut_holds_what_is_in_both(pairs: list[tuple[int, int]], start: int, end: int) -> None:
    wanted = parse_intervals("o", ",".join(f"{min(pair)}-{max(pair)}" for pair in pairs), "")
    named = {n for pair in pairs for n in range(min(pair), max(pair) + 1)}
    assert {n for n in range(-3, 40) if n in wanted} == named
    cut = wanted.cut(start, end)
    assert [n for first, until in cut for n in range(first, until)] == sorted(named & set(range(start, end)))
    assert all(first < until for first, until in cut)


def test_partitions_of_every_topic_or_per_topic() -> None:
    every = parse(filterPartitions="0,2").selection
    assert [every.selects(tp) for tp in (T0, T3, U0)] == [True, False, True]
    per_topic = parse(filterPartitions='{"t":"2-"}').selection
    assert [per_topic.selects(tp) for tp in (T0, T3, U0)] == [False, True, False]
    assert parse().selection.selects(T3)
    assert not parse(filterPartitions="0-9").selection.selects(TopicPartition("other", 0))


@pytest.mark.parametrize(
    "options",
    [{"subscribe": "t"}, {"subscribePattern": "t|x", "filterPartitions": "0-3"}, {"assign": '{"t":[0,3]}'}],
)
def test_a_selection_comes_back_from_its_text(options: dict[str, str]) -> None:
    made: Selection = parse_options({"kafka.bootstrap.servers": "h:1", **options}, Mode.STREAM).selection
    again = read_selection(made.text)
    assert again == made
    assert again is not None
    assert [again.selects(tp) for tp in (T0, T3, U0)] == [True, True, False]
    assert read_selection({}) is None
    assert read_selection({"subscribe": " "}) is None


def test_offsets_of_all_partitions_or_of_each() -> None:
    assert parse(filterOffsets="5-9").filters.offsets_of(T0) == Intervals(((5, 10),))
    each = parse(filterOffsets='{"t":{"0":"5-9"}}').filters
    assert each.offsets_of(T0) == Intervals(((5, 10),))
    assert each.offsets_of(U0) == Intervals(()), "of a partition that is not named nothing passes"
    assert parse().filters.offsets_of(T0) is None


def test_the_other_filters() -> None:
    options = parse(filterTimestampFrom="5", filterTimestampUntil="9", filterKeyPrefix="ä", filterHeader=" type = a=b ")
    assert options.filters == ReadFilters(None, 5, 9, "ä".encode(), HeaderFilter("type", b"a=b"))
    assert parse(filterKeyPrefix="X'00fF'").filters.key_prefix == b"\x00\xff"
    assert parse(filterHeader="h=X'00'").filters.header == HeaderFilter("h", b"\0")
    assert parse(filterHeader="h").filters.header == HeaderFilter("h", b"")
    assert pickle.loads(pickle.dumps(options)) == options


def test_a_stream_has_no_offset_filter_and_no_need_of_one() -> None:
    assert parse(Mode.ANY, filterOffsets="0-9").filters.offsets is not None
    with pytest.raises(ConfigError, match=r"'filterOffsets' is for batch queries: a stream starts where 'startingOff"):
        parse(Mode.STREAM, filterOffsets="0-9")
    assert parse(Mode.STREAM, pushDown="false", filterKeyPrefix="k").filters.key_prefix == b"k"

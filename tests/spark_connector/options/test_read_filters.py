"""The options `filter…`: what may be written, what it means, and what is refused and why."""

from __future__ import annotations

import pickle

import pytest

from broker.errors import ConfigError
from broker.protocol.topic_partition import TopicPartition
from broker.records.key_hash import partition_of_key
from spark_connector.options.read_filters import HeaderFilter, ReadFilters
from spark_connector.options.read_options import Mode, SourceOptions, parse_options
from spark_connector.options.selection import Selection, read_selection
from spark_connector.options.value_sets import LOWEST, NO_END, Intervals, KeySet

T0, T3, U0 = TopicPartition("t", 0), TopicPartition("t", 3), TopicPartition("u", 0)


def parse(mode: Mode = Mode.BATCH, /, **options: str) -> SourceOptions:
    return parse_options({"kafka.bootstrap.servers": "h:1", "subscribe": "t,u", **options}, mode)


def test_an_interval_that_runs_backwards_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'filterPartitions': 5-2 runs backwards, in 0,5-2"):
        parse(filterPartitions="0,5-2")


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
    times = Intervals(((5, 9),))
    assert options.filters == ReadFilters(None, times, KeySet(prefix="ä".encode()), HeaderFilter("type", b"a=b"))
    assert parse(filterTimestampFrom="5").filters.timestamps == Intervals(((5, NO_END),))
    assert parse(filterTimestampUntil="5").filters.timestamps == Intervals(((LOWEST, 5),))
    assert parse(filterKeyPrefix="X'00fF'").filters.keys == KeySet(prefix=b"\x00\xff")
    assert parse(filterHeader="h=X'00'").filters.header == HeaderFilter("h", b"\0")
    assert parse(filterHeader="h").filters.header == HeaderFilter("h", b"")
    assert pickle.loads(pickle.dumps(options)) == options


def test_one_key_or_several() -> None:
    assert parse(filterKey="a").filters.keys == KeySet(frozenset([b"a"]))
    assert parse(filterKey=" a, X'00' ,X'' ").filters.keys == KeySet(frozenset([b"a", b"\0", b""]))
    assert parse(filterKey="a,b,ab", filterKeyPrefix="a").filters.keys == KeySet(frozenset([b"a", b"ab"]))


def test_where_and_the_filters_hold_together() -> None:
    filters = parse(
        where="timestamp >= 7 AND key LIKE 'a%' AND offset < 8 AND key <> 'ab'",
        filterTimestampUntil="9",
        filterKey="a,ab,b",
        filterOffsets='{"t":{"0":"5-20"}}',
    ).filters
    assert filters.timestamps == Intervals(((7, 9),))
    assert filters.keys == KeySet(frozenset([b"a"]))
    assert filters.offsets_of(T0) == Intervals(((5, 8),))
    assert filters.offsets_of(U0) == Intervals(())
    assert parse(where="offset < 8", filterOffsets="5-20").filters.offsets == Intervals(((5, 8),))
    assert parse(where="key = 'a'", filterHeader="h").filters == ReadFilters(
        keys=KeySet(frozenset([b"a"])), header=HeaderFilter("h", b"")
    )


@pytest.mark.parametrize(
    "options",
    [
        {"where": "timestamp > 5 AND timestamp < 5"},
        {"where": "timestamp < 5", "filterTimestampFrom": "5"},
        {"where": "key = 'a' AND key = 'b'"},
        {"where": "key = 'a'", "filterKeyPrefix": "b"},
        {"where": "key LIKE 'a%'", "filterKeyPrefix": "b"},
        {"where": "key = 'a'", "filterKey": "b", "filterKeyPartitioner": "murmur2"},
    ],
)
def test_no_partition_can_hold_what_cannot_be(options: dict[str, str]) -> None:
    filters = parse(Mode.BATCH, **options).filters
    assert not any(filters.may_hold(tp, 4) for tp in (T0, T3, U0))


def test_a_key_is_in_one_partition_if_the_partitioner_is_known() -> None:
    def may_hold(partitions: int, **options: str) -> list[int]:
        filters = parse(Mode.ANY, **options).filters
        return [p for p in range(partitions) if filters.may_hold(TopicPartition("t", p), partitions)]

    assert may_hold(8, filterKey="user-42") == list(range(8))
    one = may_hold(8, filterKey="user-42", filterKeyPartitioner="Murmur2")
    assert one == [partition_of_key(b"user-42", 8)]
    assert may_hold(8, where="key = 'user-42'", filterKeyPartitioner="murmur2") == one
    several = may_hold(8, where="key IN ('user-42', 'a', 'b')", filterKeyPartitioner="murmur2")
    assert several == sorted({partition_of_key(key, 8) for key in (b"user-42", b"a", b"b")})


def test_where_selects_partitions() -> None:
    selection = parse(where="partition IN (0, 2) AND key = 'a'", filterPartitions="0-2").selection
    assert [selection.selects(tp) for tp in (T0, T3, U0)] == [True, False, True]
    assert not parse(where="partition = 3", filterPartitions="0-2").selection.selects(T3)
    assert selection.text["where"] == "partition IN (0, 2)", "a stream's checkpoint has no keys"
    again = read_selection(selection.text)
    assert again == selection
    assert "where" not in parse(where="key = 'a'").selection.text


def test_what_a_stream_has_no_use_for_is_refused() -> None:
    assert parse(Mode.ANY, filterOffsets="0-9").filters.offsets is not None
    with pytest.raises(ConfigError, match=r"'filterOffsets' is for batch queries: a stream starts where 'startingOff"):
        parse(Mode.STREAM, filterOffsets="0-9")
    with pytest.raises(ConfigError, match=r"'where': offset is for batch queries: a stream starts where 'startingOff"):
        parse(Mode.STREAM, where="key = 'a' AND offset > 9")
    with pytest.raises(ConfigError, match=r"'timestampsGrow' is for batch queries: it sets where they end"):
        parse(Mode.STREAM, timestampsGrow="true")
    assert parse(Mode.STREAM, pushDown="false", filterKeyPrefix="k").filters.keys == KeySet(prefix=b"k")
    assert parse(Mode.STREAM, where="key = 'k'", filterKeyPartitioner="murmur2").filters.by_key


def test_timestamps_grow_if_the_user_says_so() -> None:
    given = [parse().filters, parse(timestampsGrow="TRUE").filters, parse(timestampsGrow="false").filters]
    assert [filters.timestamps_grow for filters in given] == [False, True, False]

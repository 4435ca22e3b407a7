"""One row per rule and per past bug of Spark's range calculator, and the laws that hold for any input."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.protocol.topic_partition import TopicPartition
from spark_connector.errors import ConnectorError, DataLoss
from spark_connector.options.read_filters import ReadFilters
from spark_connector.options.value_sets import parse_intervals
from spark_connector.read.planning import (
    OffsetRange,
    batch_ranges,
    keep_offsets,
    limit_bytes,
    limit_offsets,
    share_tasks,
    split_ranges,
    stream_ranges,
)

T1, T2, T3 = (TopicPartition(topic, 1) for topic in ("t1", "t2", "t3"))
Rows = list[tuple[TopicPartition, int, int]]

SPLITS: list[tuple[str, int | None, int | None, Rows, Rows]] = [
    ("one range per partition", None, None, [(T1, 1, 2)], [(T1, 1, 2)]),
    ("empty ranges are left out", None, None, [(T1, 1, 2), (T2, 1, 1)], [(T1, 1, 2)]),
    ("backward ranges are left out", None, None, [(T1, 5, 2), (T2, 1, 2)], [(T2, 1, 2)]),
    ("nothing at all", 4, 4, [(T1, 3, 3)], []),
    (
        "as many partitions as wanted",
        3,
        None,
        [(T1, 1, 2), (T2, 1, 2), (T3, 1, 2)],
        [(T1, 1, 2), (T2, 1, 2), (T3, 1, 2)],
    ),
    ("as many as wanted, however skewed", 2, None, [(T1, 1, 2), (T2, 1, 101)], [(T1, 1, 2), (T2, 1, 101)]),
    ("more wanted than there are offsets", 8, None, [(T1, 1, 4)], [(T1, 1, 2), (T1, 2, 3), (T1, 3, 4)]),
    ("one partition to four", 4, None, [(T1, 1, 5)], [(T1, 1, 2), (T1, 2, 3), (T1, 3, 4), (T1, 4, 5)]),
    (
        "skewed partitions",
        4,
        None,
        [(T1, 1, 5), (T2, 1, 21)],
        [(T1, 1, 5), (T2, 1, 7), (T2, 7, 14), (T2, 14, 21)],
    ),
    (
        "SPARK-30656: empty ranges ignored, the rest split",
        4,
        None,
        [(T1, 1, 1), (T2, 1, 21)],
        [(T2, 1, 6), (T2, 6, 11), (T2, 11, 16), (T2, 16, 21)],
    ),
    (
        "SPARK-30656: very skewed",
        4,
        None,
        [(T1, 1, 2), (T2, 1, 1001)],
        [(T1, 1, 2), (T2, 1, 334), (T2, 334, 667), (T2, 667, 1001)],
    ),
    (
        "SPARK-30656: fewer wanted than there are",
        1,
        None,
        [(T1, 1, 5), (T2, 1, 21)],
        [(T1, 1, 5), (T2, 1, 21)],
    ),
    ("not a multiple", 3, None, [(T1, 1, 11)], [(T1, 1, 4), (T1, 4, 7), (T1, 7, 11)]),
    (
        "SPARK-28489: never drop offsets",
        6,
        None,
        [(T1, 0, 10), (T2, 0, 10), (T3, 0, 1)],
        [(T1, 0, 3), (T1, 3, 6), (T1, 6, 10), (T2, 0, 3), (T2, 3, 6), (T2, 6, 10), (T3, 0, 1)],
    ),
    (
        "SPARK-36576: only large ranges",
        9,
        None,
        [(T1, 0, 10000), (T2, 0, 15000), (T3, 0, 20000)],
        [(T1, i, i + 5000) for i in range(0, 10000, 5000)]
        + [(T2, i, i + 5000) for i in range(0, 15000, 5000)]
        + [(T3, i, i + 5000) for i in range(0, 20000, 5000)],
    ),
    (
        "SPARK-36576: one small, two large",
        6,
        None,
        [(T1, 0, 500), (T2, 0, 12000), (T3, 0, 15001)],
        [(T1, 0, 500), (T2, 0, 6000), (T2, 6000, 12000), (T3, 0, 5000), (T3, 5000, 10000), (T3, 10000, 15001)],
    ),
    (
        "SPARK-36576: two small, one large",
        6,
        None,
        [(T1, 0, 1), (T2, 0, 1), (T3, 0, 10000)],
        [(T1, 0, 1), (T2, 0, 1), *((T3, i, i + 2500) for i in range(0, 10000, 2500))],
    ),
    ("SPARK-49259: exactly the most", None, 4, [(T1, 1, 5)], [(T1, 1, 5)]),
    ("SPARK-49259: one above the most", None, 4, [(T1, 1, 6)], [(T1, 1, 3), (T1, 3, 6)]),
    (
        "SPARK-49259: several partitions",
        None,
        20,
        [(T1, 1, 40), (T2, 1, 50), (T3, 1, 60)],
        [
            (T1, 1, 20),
            (T1, 20, 40),
            (T2, 1, 17),
            (T2, 17, 33),
            (T2, 33, 50),
            (T3, 1, 20),
            (T3, 20, 40),
            (T3, 40, 60),
        ],
    ),
    ("SPARK-49259: low minPartitions", 1, 20, [(T1, 1, 40)], [(T1, 1, 20), (T1, 20, 40)]),
    (
        "SPARK-49259: high minPartitions",
        4,
        20,
        [(T1, 1, 40)],
        [(T1, 1, 10), (T1, 10, 20), (T1, 20, 30), (T1, 30, 40)],
    ),
]


def ranges(rows: Rows) -> list[OffsetRange]:
    return [OffsetRange(*row) for row in rows]


@pytest.mark.parametrize(
    ("min_partitions", "max_records", "given", "planned"), [row[1:] for row in SPLITS], ids=[row[0] for row in SPLITS]
)
def test_ranges_are_split_as_spark_splits_them(
    min_partitions: int | None, max_records: int | None, given: Rows, planned: Rows
) -> None:
    assert split_ranges(ranges(given), min_partitions=min_partitions, max_records=max_records) == ranges(planned)


@given(
    st.lists(st.tuples(st.integers(0, 10**12), st.integers(-5, 10**5)), max_size=8),
    st.none() | st.integers(1, 64),
    st.none() | st.integers(1000, 10**6),
)
def test_tasks_cover_each_range_exactly_once(
    rows: list[tuple[int, int]], min_partitions: int | None, max_records: int | None
) -> None:
    whole = [OffsetRange(TopicPartition("t", i), start, start + size) for i, (start, size) in enumerate(rows)]
    parts = split_ranges(whole, min_partitions=min_partitions, max_records=max_records)
    assert all(part.size > 0 for part in parts)
    if max_records is not None:
        assert all(part.size <= max_records for part in parts)
    for r in whole:
        mine = [part for part in parts if part.tp == r.tp]
        assert sum(part.size for part in mine) == max(r.size, 0)
        edges = [edge for part in mine for edge in (part.from_offset, part.until_offset)]
        assert edges == sorted(edges)
        if mine:
            assert (edges[0], edges[-1]) == (r.from_offset, r.until_offset)


def test_partitions_with_a_limit_of_their_own_are_split_by_it() -> None:
    whole = [OffsetRange(T1, 0, 6), OffsetRange(T2, 0, 6), OffsetRange(T3, 0, 2)]
    t1, t3 = [OffsetRange(T1, 0, 3), OffsetRange(T1, 3, 6)], [OffsetRange(T3, 0, 2)]
    assert split_ranges(whole, most_of={T1: 4}) == [*t1, OffsetRange(T2, 0, 6), *t3]
    t2 = [OffsetRange(T2, first, first + 2) for first in (0, 2, 4)]
    assert split_ranges(whole, max_records=3, most_of={T1: 4, T2: 2}) == [*t1, *t2, *t3]


def offsets(*values: int) -> dict[TopicPartition, int]:
    return {TopicPartition("t", i): value for i, value in enumerate(values)}


@pytest.mark.parametrize(
    ("cap", "start", "end", "limited"),
    [
        pytest.param(10, (0, 0), (3, 4), (3, 4), id="all of it fits"),
        pytest.param(10, (0, 0), (100, 300), (3, 7), id="in proportion to backlog"),
        pytest.param(10, (0, 0), (1, 10**15), (1, 9), id="a small backlog is not starved by a huge one"),
        pytest.param(10, (5, 5), (5, 100), (5, 15), id="no data, no share"),
        pytest.param(1, (0, 0, 0), (9, 9, 9), (1, 0, 0), id="less than one each: the first one's turn"),
        pytest.param(1, (1, 0, 0), (9, 9, 9), (1, 1, 0), id="then the second one's"),
        pytest.param(1, (1, 1, 0), (9, 9, 9), (1, 1, 1), id="then the third one's"),
        pytest.param(7, (0, 0), (2**62, 2**62), (4, 3), id="SPARK-26718: no overflow"),
        pytest.param(2, (0, 0), (1, 1), (1, 1), id="one each is all there is"),
        pytest.param(50, (0, 0, 0), (3, 4, 100), (2, 3, 45), id="what rounding leaves goes to the first ones"),
        pytest.param(6, (0, 0, 0), (1, 5, 5), (1, 3, 2), id="but not to one whose backlog is taken"),
        pytest.param(3, (0, 0, 5), (10, 10, 5), (2, 1, 5), id="nor to one without data"),
        pytest.param(3, (9, 0), (4, 9), (4, 3), id="a shrunken partition is left to the data-loss check"),
    ],
)
def test_a_trigger_is_capped(cap: int, start: tuple[int, ...], end: tuple[int, ...], limited: tuple[int, ...]) -> None:
    assert limit_offsets(cap, offsets(*start), offsets(*end)) == offsets(*limited)


@given(
    st.integers(1, 10**6), st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)), min_size=1, max_size=30)
)
def test_the_cap_is_hard_and_fully_used(cap: int, rows: list[tuple[int, int]]) -> None:
    start = offsets(*(row[0] for row in rows))
    end = offsets(*(row[0] + row[1] for row in rows))
    limited = limit_offsets(cap, start, end)
    assert all(start[tp] <= limited[tp] <= end[tp] for tp in end)
    assert sum(limited.values()) - sum(start.values()) == min(cap, sum(end.values()) - sum(start.values()))


@given(st.integers(1, 40), st.lists(st.integers(1, 50), min_size=1, max_size=20))
def test_every_partition_gets_its_turn(cap: int, sizes: list[int]) -> None:
    at, end = offsets(*(0 for _ in sizes)), offsets(*sizes)
    idle = dict.fromkeys(end, 0)
    while at != end:
        after = limit_offsets(cap, at, end)
        for tp in end:
            idle[tp] = 0 if after[tp] > at[tp] or at[tp] == end[tp] else idle[tp] + 1
            assert idle[tp] <= -(-len(end) // cap), "rounds without progress"
        at = after


@pytest.mark.parametrize(
    ("cap", "sizes", "start", "end", "limited"),
    [
        pytest.param(100, (10, 20), (0, 0), (2, 4), (2, 4), id="all of it fits"),
        pytest.param(99, (10, 20), (0, 0), (2, 4), (2, 3), id="a byte too much"),
        pytest.param(30, (10, 20), (0, 0), (1, 1), (1, 1), id="one each is all there is"),
        pytest.param(1000, (10, 1), (0, 0), (100, 1000), (50, 497), id="in proportion to backlog"),
        pytest.param(30, (10, 20), (0, 0), (5, 5), (1, 1), id="one each fits exactly"),
        pytest.param(29, (10, 20), (0, 0), (5, 5), (1, 0), id="one each does not fit: the first one's turn"),
        pytest.param(
            15, (10, 20), (1, 0), (5, 5), (1, 1), id="then the second one's, though it is larger than the cap"
        ),
        pytest.param(20, (10, 10, 10), (0, 0, 0), (9, 9, 9), (1, 1, 0), id="as many as fit"),
        pytest.param(
            25, (10, 50, 10), (0, 0, 0), (9, 9, 9), (1, 0, 0), id="a large one is not skipped for a small one"
        ),
        pytest.param(30, (10, 10), (9, 0), (4, 9), (4, 3), id="a shrunken partition is left to the data-loss check"),
        pytest.param(30, (10, 10), (0, 5), (9, 5), (3, 5), id="no data, no share"),
    ],
)
def test_a_trigger_is_capped_by_bytes(
    cap: int, sizes: tuple[int, ...], start: tuple[int, ...], end: tuple[int, ...], limited: tuple[int, ...]
) -> None:
    assert limit_bytes(cap, offsets(*sizes), offsets(*start), offsets(*end)) == offsets(*limited)


def test_the_caps_leave_a_partition_whose_start_is_not_known_to_the_data_loss_check() -> None:
    start, end = offsets(0), offsets(9, 9)
    assert limit_offsets(3, start, end) == limit_bytes(30, offsets(10), start, end) == offsets(3, 9)


def test_ranges_of_a_batch_are_in_the_order_of_partitions_and_may_be_empty() -> None:
    expected = [OffsetRange(T1, 5, 5), OffsetRange(T2, 1, 9)]
    assert batch_ranges({T2: 1, T1: 5}, {T2: 9, T1: 5}) == expected
    assert stream_ranges({T2: 1, T1: 5}, {T2: 9, T1: 5}, fail_on_data_loss=True) == expected


def test_only_the_offsets_that_a_filter_lets_pass_are_kept() -> None:
    ranges = [OffsetRange(T1, 0, 10), OffsetRange(T2, 0, 10)]
    assert keep_offsets(ranges, ReadFilters()) == ranges
    some = ReadFilters({T1: parse_intervals("filterOffsets", "3-4,8-", "")})
    assert keep_offsets(ranges, some) == [OffsetRange(T1, 3, 5), OffsetRange(T1, 8, 10)]


def test_a_batch_that_starts_after_its_end_is_refused() -> None:
    with pytest.raises(ConnectorError, match=r"^\[RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET\].*start offset 9.*5"):
        batch_ranges({T1: 9}, {T1: 5})


@pytest.mark.parametrize(
    ("start", "end", "condition"),
    [
        pytest.param({T1: 1, T2: 1}, {T1: 2}, "PARTITIONS_DELETED", id="deleted"),
        pytest.param({T1: 1}, {T1: 2, T2: 1}, "INITIAL_OFFSET_NOT_FOUND_FOR_PARTITIONS", id="not placed"),
        pytest.param({T1: 1, T2: 9}, {T1: 2, T2: 8}, "PARTITION_OFFSET_CHANGED", id="runs backwards"),
    ],
)
def test_data_loss_fails_the_query_or_is_skipped_with_a_warning(
    start: dict[TopicPartition, int],
    end: dict[TopicPartition, int],
    condition: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(DataLoss, match=rf"^\[KAFKA_DATA_LOSS.{condition}\].*t2-1"):
        stream_ranges(start, end, fail_on_data_loss=True)
    with caplog.at_level(logging.WARNING, "pykafka.spark"):
        assert stream_ranges(start, end, fail_on_data_loss=False) == [OffsetRange(T1, 1, 2)]
    assert condition in caplog.text


def ranges_of_sizes(*sizes: int) -> list[OffsetRange]:
    """A range of so many offsets in each of as many partitions."""
    return [OffsetRange(TopicPartition("t", partition), 10, 10 + size) for partition, size in enumerate(sizes)]


@pytest.mark.parametrize(
    ("sizes", "options", "expected"),
    [
        pytest.param([1] * 5, {}, [[0, 1, 2, 3, 4]], id="tiny ones share a task"),
        pytest.param([60, 50, 40, 10, 20], {}, [[0], [1, 2, 3], [4]], id="up to the bytes of a task, in order"),
        pytest.param([1, 100, 1, 500, 1], {}, [[0, 2, 4], [1], [3]], id="large ones have a task each"),
        pytest.param([1] * 5, {"min_partitions": 3}, [[0, 1], [2], [3, 4]], id="as many tasks as asked for"),
        pytest.param([1] * 3, {"min_partitions": 9}, [[0], [1], [2]], id="and as there are ranges"),
        pytest.param([1, 200, 1], {"min_partitions": 2}, [[0, 2], [1]], id="large ones count"),
        pytest.param([10] * 5, {"max_records": 25}, [[0, 1], [2, 3], [4]], id="never more records than asked for"),
        pytest.param([10] * 4, {"max_records": 20}, [[0, 1], [2, 3]], id="exactly the records asked for"),
        pytest.param(
            [40, 40, 20, 90], {"min_partitions": 3}, [[0], [1, 2], [3]], id="the task of most ranges is split"
        ),
        pytest.param([], {}, [], id="nothing at all"),
    ],
)
def test_small_ranges_share_a_task(sizes: list[int], options: dict[str, int], expected: list[list[int]]) -> None:
    ranges = ranges_of_sizes(*sizes)
    tasks = share_tasks(ranges, {one.tp: 1 for one in ranges}, least_bytes=100, **options)
    assert [[one.tp.partition for one in task] for task in tasks] == expected


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(1, 1000), max_size=30),
    record_bytes=st.integers(1, 50),
    least_bytes=st.integers(1, 10_000),
    min_partitions=st.none() | st.integers(1, 40),
    max_records=st.none() | st.integers(1, 500),
)
def test_tasks_hold_exactly_the_ranges_and_keep_to_all_limits(
    sizes: list[int], record_bytes: int, least_bytes: int, min_partitions: int | None, max_records: int | None
) -> None:
    ranges = split_ranges(ranges_of_sizes(*sizes), max_records=max_records, min_partitions=min_partitions)
    estimate = {one.tp: record_bytes for one in ranges}
    tasks = share_tasks(
        ranges, estimate, least_bytes=least_bytes, min_partitions=min_partitions, max_records=max_records
    )
    assert sorted(one for task in tasks for one in task) == sorted(ranges)
    assert len(tasks) >= min(min_partitions or 0, len(ranges))
    for task in tasks:
        records = sum(one.size for one in task)
        assert len(task) == 1 or records * record_bytes <= least_bytes
        assert records <= (max_records or records)
    assert all((one,) in tasks for one in ranges if one.size * record_bytes >= least_bytes), "large ones stay alone"

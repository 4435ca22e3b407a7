"""Our planning against Spark's rules, written down independently: the same splits, and a cap that differs as it should.

Departures: numbers of tasks are exact, where Spark's doubles may round a half down; ranges are small or large one by
one, where Spark asks per partition; `maxOffsetsPerTrigger` is a cap.
"""

from __future__ import annotations

import json

from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from broker.protocol.topic_partition import TopicPartition
from spark_connector.read.planning import OffsetRange, batch_ranges, limit_offsets, split_ranges, stream_ranges
from spark_connector.read.stream_offset import StreamOffset, plan_start
from tests.support.spark_planning import Span, SplitBySpark, rate_limited

sizes = st.one_of(st.integers(-2, 5), st.integers(0, 200), st.integers(0, 10**5))
rows = st.lists(st.tuples(st.integers(0, 2**40), sizes), max_size=12)


def spans_of(rows: list[tuple[int, int]]) -> list[Span]:
    return [(name, start, start + size) for name, (start, size) in enumerate(rows)]


@settings(max_examples=150, deadline=None)
@given(rows, st.none() | st.integers(1, 64), st.none() | st.integers(1, 64) | st.integers(100, 10**5))
def test_the_same_splits_as_spark(
    rows: list[tuple[int, int]], min_partitions: int | None, max_records: int | None
) -> None:
    assume(max_records is None or sum(max(size, 0) for _, size in rows) // max_records < 2000)
    spark = SplitBySpark(min_partitions, max_records)
    expected = spark.split(spans_of(rows))
    whole = [OffsetRange(TopicPartition("t", name), start, until) for name, start, until in spans_of(rows)]
    ours = split_ranges(whole, min_partitions=min_partitions, max_records=max_records)
    event(f"doubtful: {spark.doubtful}, split: {len(expected) > len(rows)}")
    if not spark.doubtful:
        assert [(r.tp.partition, r.from_offset, r.until_offset) for r in ours] == expected


def test_what_spark_rounds_by_the_last_bit_of_a_double_is_exact_here() -> None:
    """15 of 22 offsets are seven and a half of eleven tasks; in doubles a little less."""
    spark, spans = SplitBySpark(min_partitions=11), [(0, 0, 15), (1, 0, 7)]
    whole = [OffsetRange(TopicPartition("t", name), start, until) for name, start, until in spans]
    ours = split_ranges(whole, min_partitions=11)
    assert [sum(span[0] == name for span in spark.split(spans)) for name in (0, 1)] == [7, 4]
    assert [sum(part.tp.partition == name for part in ours) for name in (0, 1)] == [8, 4]
    assert spark.doubtful


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 10**6), rows)
def test_a_capped_trigger_differs_from_spark_by_at_most_one_offset_a_partition_and_the_cap_holds(
    cap: int, rows: list[tuple[int, int]]
) -> None:
    start = {name: first for name, first, _ in spans_of(rows)}
    end = {name: until for name, _, until in spans_of(rows)}
    spark = rate_limited(cap, start, end)
    tps = {name: TopicPartition("t", name) for name in start}
    limited = limit_offsets(cap, {tps[n]: o for n, o in start.items()}, {tps[n]: o for n, o in end.items()})
    ours = {name: limited[tp] for name, tp in tps.items()}
    busy = [name for name in start if end[name] > start[name]]
    taken = {name: ours[name] - start[name] for name in busy}
    backlog = sum(end[name] - start[name] for name in busy)
    assert {name: ours[name] for name in end if name not in busy} == {n: end[n] for n in end if n not in busy}
    assert sum(taken.values()) == min(cap, backlog), "a cap, and all of it used"
    if backlog <= cap:
        assert ours == spark == end
    elif cap >= len(busy):
        assert all(taken.values()), "nobody starves, as in Spark"
        assert all(abs(ours[name] - spark[name]) <= len(busy) + 1 for name in busy)
    else:
        assert set(taken.values()) <= {0, 1}
        assert sum(spark[name] - start[name] for name in busy) >= len(busy) > cap, "Spark's own is none here"


def test_ten_thousand_partitions_are_planned() -> None:
    """The steps of a micro-batch; how long they take, with a broker, is measured by bench/."""
    tps = [TopicPartition(f"topic-{n // 100:02}", n % 100) for n in range(10_000)]
    start, end = dict.fromkeys(tps, 10**9), {tp: 10**9 + 50 + n % 7 for n, tp in enumerate(tps)}
    first = StreamOffset(start, {tp.topic: "id" for tp in tps})
    limited = limit_offsets(100_000, start, end)
    document = json.loads(json.dumps(StreamOffset(limited, first.topic_ids).to_json()))
    last = StreamOffset.from_json(document)
    ranges = stream_ranges(plan_start(first, last), last.offsets, fail_on_data_loss=True)
    parts = split_ranges(ranges, min_partitions=12_000, max_records=20)
    assert sum(part.size for part in parts) == 100_000
    assert len(parts) >= 10_000
    assert split_ranges(batch_ranges(start, end), min_partitions=20_000) == split_ranges(
        [OffsetRange(tp, start[tp], end[tp]) for tp in tps], min_partitions=20_000
    )

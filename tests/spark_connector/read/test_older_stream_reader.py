"""The stream reader for Spark 4.0 and 4.1, called in their order (observed on 4.0.5 and 4.1.4), under any PySpark.

What both protocols must keep is in test_stream_reader.py, which `make test-spark` runs over this reader.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from spark_connector.errors import ConnectorError
from spark_connector.options.read_options import Mode, parse_options
from spark_connector.progress.stream_lag import query_lag
from spark_connector.read.readers import OlderStreamReader
from tests.support.stream_calls import Document, as_spark_does, ranges_of
from tests.support.topics import Topic

OlderOf = Callable[..., OlderStreamReader]


@pytest.fixture
def older_of(numbers: Topic, request: pytest.FixtureRequest) -> OlderOf:
    """`older_of(**options)`: a process of a query over `numbers`."""

    def make(**options: str) -> OlderStreamReader:
        where = {"kafka.bootstrap.servers": numbers.bootstrap, "subscribe": numbers.name, "startingOffsets": "earliest"}
        reader = OlderStreamReader(parse_options({**where, **options}, Mode.STREAM))
        request.addfinalizer(reader.stop)
        return reader

    return make


def ranges(reader: OlderStreamReader, start: Document, end: Document) -> list[tuple[int, int, int]]:
    return ranges_of(reader.partitions(as_spark_does(start), as_spark_does(end)))


def size(reader: OlderStreamReader, start: Document, end: Document) -> int:
    return sum(until - first for _, first, until in ranges(reader, start, end))


def test_a_new_query_is_asked_for_the_end_before_the_start(older_of: OlderOf, numbers: Topic) -> None:
    reader = older_of(startingOffsets="latest")
    end = reader.latestOffset()
    numbers.number(3, 0)
    start = reader.initialOffset()
    assert ranges(reader, start, end) == []
    assert ranges(reader, end, reader.latestOffset()) == [(0, 10, 13)]


def test_a_limit_bounds_every_batch_and_nothing_is_left_out(older_of: OlderOf) -> None:
    reader = older_of(maxOffsetsPerTrigger="4")
    end, start, sizes = reader.latestOffset(), reader.initialOffset(), []
    while end != start:
        sizes.append(size(reader, start, end))
        start, end = end, reader.latestOffset()
    assert sizes == [4, 4, 4, 3]


def test_a_query_goes_on_where_its_checkpoint_ends(older_of: OlderOf, numbers: Topic) -> None:
    checkpoint = as_spark_does(older_of(maxOffsetsPerTrigger="7").latestOffset())
    restarted = older_of()
    assert restarted.partitions(checkpoint, checkpoint) == []
    assert size(restarted, checkpoint, restarted.latestOffset()) == 8


def test_a_batch_that_was_cut_short_is_read_again_and_the_next_one_follows(older_of: OlderOf, numbers: Topic) -> None:
    killed = older_of(maxOffsetsPerTrigger="6")
    first = as_spark_does(killed.latestOffset())
    killed.partitions(as_spark_does(killed.initialOffset()), first)
    second = as_spark_does(killed.latestOffset())
    planned = ranges(killed, first, second)
    numbers.number(100, 0, first=10)
    restarted = older_of(maxOffsetsPerTrigger="6")
    restarted.partitions(second, second)
    assert ranges(restarted, first, second) == planned
    third = restarted.latestOffset()
    assert third["topics"] != second["topics"]
    assert "init" not in third


def test_batch_0_is_read_again_from_where_it_began_though_latest_has_moved(older_of: OlderOf, numbers: Topic) -> None:
    killed = older_of(startingOffsets="latest")
    killed.latestOffset()
    undone = as_spark_does(killed.initialOffset())
    killed = older_of(startingOffsets="latest")
    killed.initialOffset()
    numbers.number(3, 1)
    end = as_spark_does(killed.latestOffset())
    numbers.number(5, 1)
    restarted = older_of(startingOffsets="latest")
    restarted.partitions(end, end)
    moved = as_spark_does(restarted.initialOffset())
    assert moved != undone
    assert ranges(restarted, moved, end) == [(1, 5, 8)]


def test_a_batch_that_is_never_planned_counts_all_the_same(older_of: OlderOf) -> None:
    """Spark plans no batch whose rows it does not want, such as those of `where("false")`."""
    reader = older_of(maxOffsetsPerTrigger="10")
    first = as_spark_does(reader.latestOffset())
    assert size(reader, first, reader.latestOffset()) == 5


def test_an_end_asked_for_before_the_checkpoint_is_known_is_refused(older_of: OlderOf) -> None:
    """As with spark.sql.streaming.triggerAvailableNowWrapper.enabled: it would be counted from the first offset."""
    checkpoint = as_spark_does(older_of(maxOffsetsPerTrigger="7").latestOffset())
    restarted = older_of()
    restarted.latestOffset()
    with pytest.raises(ConnectorError, match=r"PYKAFKA_START_UNKNOWN.*triggerAvailableNowWrapper.*PySpark 4\.2"):
        restarted.partitions(checkpoint, checkpoint)


def test_a_checkpoint_that_holds_null_is_refused(older_of: OlderOf) -> None:
    with pytest.raises(ConnectorError, match=r"PYKAFKA_CHECKPOINT_UNREADABLE.*new checkpoint"):
        older_of().partitions(None, None)  # type: ignore[arg-type]


def test_a_topic_without_records_is_an_empty_batch_0(older_of: OlderOf, numbers: Topic) -> None:
    Topic(numbers.bootstrap, f"{numbers.name}-empty")
    reader = older_of(subscribe=f"{numbers.name}-empty")
    end = as_spark_does(reader.latestOffset())
    assert end == as_spark_does(reader.initialOffset())
    assert reader.partitions(end, end) == []


def test_what_is_not_planned_yet_is_not_told_to_the_offset_store(
    older_of: OlderOf, numbers: Topic, tmp_path: Any, group: str
) -> None:
    store = {"offsetStore": "files", "offsetStore.path": str(tmp_path / "offsets"), "group": group}

    def stored() -> Document:
        return dict(older_of(startingOffsets="committed", **store).initialOffset()["topics"][numbers.name])

    reader = older_of(**store)
    end = reader.latestOffset()
    reader.latestOffset()
    assert stored() == {"0": 0, "1": 0}
    reader.partitions(reader.initialOffset(), end)
    reader.latestOffset()
    assert stored() == {"0": 10, "1": 5}


def test_the_end_of_a_limited_batch_tells_how_far_behind_it_is(
    older_of: OlderOf, numbers: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    """These Sparks report the end of the batch as the latest offset."""
    reader = older_of(maxOffsetsPerTrigger="12")
    with caplog.at_level(logging.WARNING, "pykafka.spark"):
        first = reader.latestOffset()
        second = reader.latestOffset()
    assert [lag(reader.initialOffset(), first), lag(first, second)] == [3, 0]
    assert "latest" not in second
    assert caplog.text.count("Trigger.AvailableNow") == 1, "which ends with this batch, and says so once"


def lag(start: Document, end: Document) -> int | None:
    (source,) = query_lag({"sources": [{"startOffset": start, "endOffset": end, "latestOffset": end}]}).sources
    return source.total

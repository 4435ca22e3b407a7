"""The stream reader against a real broker, called as Spark calls it: every trap of that protocol has a test.

No Spark runs here: tests/support/stream_calls.py stands for it. What only Spark 4.0 and 4.1 do is in
test_older_stream_reader.py.
"""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from spark_connector.errors import ConnectorError, DataLoss
from tests.support import stream_calls
from tests.support.broker_process import BrokerProcess
from tests.support.spark_versions import since_spark
from tests.support.stream_calls import (
    ALL,
    Document,
    ReaderOf,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    as_spark_does,
    planned,
    values,
)
from tests.support.topics import Topic

admission_control = since_spark("4.2", "admission control")


def test_a_batch_reads_from_the_start_to_the_end(reader_of: ReaderOf, numbers: Topic) -> None:
    reader = reader_of(numbers)
    start = as_spark_does(reader.initialOffset())
    end = as_spark_does(reader.latestOffset(start, ALL))
    assert planned(reader, start, end) == [(0, 0, 10), (1, 0, 5)]
    assert sorted(values(reader, start, end)) == sorted(b"%d" % n for n in [*range(10), *range(5)])


def test_no_data_returns_the_start_itself_never_none(reader_of: ReaderOf, numbers: Topic) -> None:
    reader = reader_of(numbers)
    end = as_spark_does(reader.latestOffset(reader.initialOffset(), ALL))
    assert reader.latestOffset(end, ALL) is end
    empty = Topic(numbers.bootstrap, f"{numbers.name}-empty")
    reader = reader_of(empty)
    start = as_spark_does(reader.initialOffset())
    assert reader.latestOffset(start, ALL) is start


def test_offsets_are_canonical_and_sorted(reader_of: ReaderOf, numbers: Topic) -> None:
    Topic(numbers.bootstrap, f"A-{numbers.name}", 12)
    reader = reader_of(subscribe=f"{numbers.name},A-{numbers.name}")
    end = reader.latestOffset(reader.initialOffset(), ALL)
    assert list(end) == sorted(end)
    assert list(end["topics"]) == sorted(end["topics"])
    assert list(end["topics"][f"A-{numbers.name}"]) == [str(partition) for partition in range(12)]
    again = reader_of(subscribe=f"A-{numbers.name},{numbers.name}")
    assert json.dumps(again.latestOffset(again.initialOffset(), ALL)) == json.dumps(end)


def test_the_initial_offset_stays_though_latest_moves(reader_of: ReaderOf, numbers: Topic) -> None:
    reader = reader_of(numbers, startingOffsets="latest")
    start = as_spark_does(reader.initialOffset())
    numbers.number(7, 0)
    assert as_spark_does(reader.initialOffset()) == start


def test_batch_0_starts_where_its_end_says_in_a_process_that_resolves_latest_anew(
    reader_of: ReaderOf, numbers: Topic
) -> None:
    first = reader_of(numbers, startingOffsets="latest")
    start = as_spark_does(first.initialOffset())
    numbers.number(7, 0, first=100)
    end = as_spark_does(first.latestOffset(start, ALL))
    numbers.number(1000, 0, first=1000)
    after_a_crash = reader_of(numbers, startingOffsets="latest")
    moved = as_spark_does(after_a_crash.initialOffset())
    assert moved != start
    assert planned(after_a_crash, moved, end) == [(0, 10, 17)]
    assert values(after_a_crash, moved, end) == [b"%d" % n for n in range(100, 107)]


def test_a_start_that_moves_is_put_on_record_before_there_is_data(reader_of: ReaderOf, numbers: Topic) -> None:
    first = reader_of(numbers, startingOffsets="latest")
    start = as_spark_does(first.initialOffset())
    end = as_spark_does(first.latestOffset(start, ALL))
    assert end != start, "an empty batch writes the start into the checkpoint"
    assert planned(first, start, end) == []
    assert first.latestOffset(end, ALL) is end, "and only one"
    numbers.number(3, 1, first=50)
    after_a_crash = reader_of(numbers, startingOffsets="latest")
    assert values(after_a_crash, end, after_a_crash.latestOffset(end, ALL)) == [b"50", b"51", b"52"]


@admission_control
def test_only_the_first_end_carries_the_start(reader_of: ReaderOf, numbers: Topic) -> None:
    reader = reader_of(numbers)
    start = reader.initialOffset()
    first = as_spark_does(reader.latestOffset(start, ReadMaxRows(4)))
    second = as_spark_does(reader.latestOffset(first, ReadMaxRows(4)))
    assert first["init"] == start["topics"]
    assert "init" not in second
    assert sum(until - begin for _, begin, until in planned(reader, first, second)) == 4


def test_partitions_is_a_list_and_empty_when_start_is_end(reader_of: ReaderOf, numbers: Topic) -> None:
    reader = reader_of(numbers)
    start = as_spark_does(reader.initialOffset())
    assert reader.partitions(start, start) == []
    assert type(reader.partitions(start, as_spark_does(reader.latestOffset(start, ALL)))) is list


def test_a_batch_is_planned_without_asking_the_broker(reader_of: ReaderOf, numbers: Topic) -> None:
    reader = reader_of(numbers)
    start = as_spark_does(reader.initialOffset())
    end = as_spark_does(reader.latestOffset(start, ALL))
    unreachable = stream_calls.reader({"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": numbers.name})
    assert planned(unreachable, start, end) == planned(reader, start, end)


def test_no_state_is_lost_between_processes(reader_of: ReaderOf, numbers: Topic) -> None:
    reader = reader_of(numbers)
    start = as_spark_does(reader.initialOffset())
    end = as_spark_does(reader.latestOffset(start, ALL))
    tasks = pickle.loads(pickle.dumps(reader.partitions(start, end)))
    on_executor = pickle.loads(pickle.dumps(reader))
    rows = [batch.num_rows for task in tasks for batch in on_executor.read(task)]
    assert sum(rows) == 15
    numbers.number(2, 0)
    restarted = reader_of(numbers)
    assert planned(restarted, end, restarted.latestOffset(end, ALL)) == [(0, 10, 12)]


@admission_control
@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({}, ALL),
        ({"maxOffsetsPerTrigger": "7"}, ReadMaxRows(7)),
        ({"minOffsetsPerTrigger": "3"}, ReadMinRows(3)),
        ({"minOffsetsPerTrigger": "3", "maxOffsetsPerTrigger": "7"}, ReadMaxRows(7)),
    ],
)
def test_the_read_limit_is_one_that_spark_can_hand_back(
    reader_of: ReaderOf, numbers: Topic, options: dict[str, str], limit: ReadLimit
) -> None:
    assert reader_of(numbers, **options).getDefaultReadLimit() == limit


def test_max_offsets_per_trigger_is_a_hard_cap_and_reads_everything_in_the_end(
    reader_of: ReaderOf, numbers: Topic
) -> None:
    reader = reader_of(numbers, maxOffsetsPerTrigger="4")
    start, sizes, seen = as_spark_does(reader.initialOffset()), [], []
    while (end := as_spark_does(reader.latestOffset(start, reader.getDefaultReadLimit()))) != start:
        sizes.append(sum(until - begin for _, begin, until in planned(reader, start, end)))
        seen += values(reader, start, end)
        start = end
    assert sizes == [4, 4, 4, 3]
    assert sorted(seen) == sorted(b"%d" % n for n in [*range(10), *range(5)])


def test_a_cap_below_the_number_of_partitions_is_kept(reader_of: ReaderOf, numbers: Topic) -> None:
    reader = reader_of(numbers, maxOffsetsPerTrigger="1")
    first = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    second = reader.latestOffset(first, reader.getDefaultReadLimit())
    assert planned(reader, first, second) == [(1, 0, 1)], "the other partition's turn"


@admission_control
def test_read_all_available_overrules_the_options(reader_of: ReaderOf, numbers: Topic) -> None:
    reader = reader_of(numbers, maxOffsetsPerTrigger="1", minOffsetsPerTrigger="1")
    start = reader.initialOffset()
    assert planned(reader, start, reader.latestOffset(start, ALL)) == [(0, 0, 10), (1, 0, 5)]


def test_min_offsets_per_trigger_waits_for_more(reader_of: ReaderOf, numbers: Topic) -> None:
    reader = reader_of(numbers, minOffsetsPerTrigger="5", maxTriggerDelay="1h")
    limit = reader.getDefaultReadLimit()
    start = as_spark_does(reader.latestOffset(reader.initialOffset(), limit))
    numbers.number(4, 0)
    assert reader.latestOffset(start, limit) is start
    numbers.number(1, 1)
    assert planned(reader, start, reader.latestOffset(start, limit)) == [(0, 10, 14), (1, 5, 6)]


def test_min_offsets_per_trigger_waits_no_longer_than_the_delay(reader_of: ReaderOf, numbers: Topic) -> None:
    reader = reader_of(numbers, minOffsetsPerTrigger="5", maxTriggerDelay="0")
    limit = reader.getDefaultReadLimit()
    start = as_spark_does(reader.latestOffset(reader.initialOffset(), limit))
    numbers.number(1, 0)
    assert planned(reader, start, reader.latestOffset(start, limit)) == [(0, 10, 11)]


@admission_control
def test_available_now_freezes_at_the_first_latest_offset_and_not_before(reader_of: ReaderOf, numbers: Topic) -> None:
    reader = reader_of(numbers, maxOffsetsPerTrigger="8")
    reader.prepareForTriggerAvailableNow()
    start = as_spark_does(reader.initialOffset())
    numbers.number(1, 0)
    limit = reader.getDefaultReadLimit()
    end = as_spark_does(reader.latestOffset(start, limit))
    numbers.number(100, 0)
    total = 0
    while end != start:
        total += sum(until - begin for _, begin, until in planned(reader, start, end))
        start, end = end, as_spark_does(reader.latestOffset(end, limit))
    assert total == 16, "what came before the first look, nothing that came later"


@admission_control
def test_available_now_does_not_wait_for_min_offsets(reader_of: ReaderOf, numbers: Topic) -> None:
    reader = reader_of(numbers, minOffsetsPerTrigger="10", maxOffsetsPerTrigger="11", maxTriggerDelay="1h")
    reader.prepareForTriggerAvailableNow()
    limit = reader.getDefaultReadLimit()
    first = reader.latestOffset(reader.initialOffset(), limit)
    second = reader.latestOffset(first, limit)
    assert sum(until - begin for _, begin, until in planned(reader, first, second)) == 4


@admission_control
def test_available_now_finishes_a_batch_of_the_run_before(reader_of: ReaderOf, numbers: Topic) -> None:
    before = reader_of(numbers, maxOffsetsPerTrigger="8")
    start = before.initialOffset()
    uncommitted = as_spark_does(before.latestOffset(start, before.getDefaultReadLimit()))
    numbers.grow(3)
    numbers.number(2, 2)
    after = reader_of(numbers)
    after.prepareForTriggerAvailableNow()
    assert sum(until - begin for _, begin, until in planned(after, start, uncommitted)) == 8
    end = after.latestOffset(uncommitted, ALL)
    assert sum(until - begin for _, begin, until in planned(after, uncommitted, end)) == 9


def test_new_partitions_are_read_from_their_beginning(reader_of: ReaderOf, numbers: Topic) -> None:
    reader = reader_of(numbers, startingOffsets="latest")
    start = as_spark_does(reader.latestOffset(reader.initialOffset(), ALL))
    numbers.grow(3)
    numbers.number(4, 2)
    end = as_spark_does(reader.latestOffset(start, ALL))
    assert end["added"] == {numbers.name: {"2": 0}}
    assert planned(reader, start, end) == [(2, 0, 4)]
    assert reader.latestOffset(end, ALL) is end, "the same start is not carried twice"


def test_new_topics_of_a_pattern_are_found(reader_of: ReaderOf, numbers: Topic) -> None:
    reader = reader_of(subscribePattern=f"{numbers.name}(-more)?")
    start = as_spark_does(reader.latestOffset(reader.initialOffset(), ALL))
    more = Topic(numbers.bootstrap, f"{numbers.name}-more")
    more.number(3)
    Topic(numbers.bootstrap, f"{numbers.name}-more-not-matching")
    end = as_spark_does(reader.latestOffset(start, ALL))
    assert [one.tp.topic for task in reader.partitions(start, end) for one in task.value] == [more.name]
    assert set(end["topics"]) == {numbers.name, more.name}


def test_a_deleted_topic_is_data_loss(reader_of: ReaderOf, numbers: Topic, caplog: pytest.LogCaptureFixture) -> None:
    other = Topic(numbers.bootstrap, f"{numbers.name}-other")
    both = f"{numbers.name},{other.name}"
    start = as_spark_does(reader_of(subscribe=both).initialOffset())
    other.delete()
    strict = reader_of(subscribe=both)
    with pytest.raises(DataLoss, match=rf"KAFKA_DATA_LOSS.PARTITIONS_DELETED.*{other.name}-0.*have been deleted"):
        strict.latestOffset(start, ALL)
    lenient = reader_of(subscribe=both, failOnDataLoss="false")
    with caplog.at_level(logging.WARNING, "pykafka.spark"):
        end = as_spark_does(lenient.latestOffset(start, ALL))
    assert set(end["topics"]) == {numbers.name}
    assert "PARTITIONS_DELETED" in caplog.text


def test_a_recreated_topic_is_recognised_even_when_it_is_longer(reader_of: ReaderOf, numbers: Topic) -> None:
    reader = reader_of(numbers)
    start = as_spark_does(reader.latestOffset(reader.initialOffset(), ALL))
    numbers.delete()
    numbers.create(2)
    numbers.number(20, 0, first=100)
    with pytest.raises(DataLoss, match=r"KAFKA_DATA_LOSS.TOPIC_RECREATED.*deleted and recreated"):
        reader_of(numbers).latestOffset(start, ALL)
    lenient = reader_of(numbers, failOnDataLoss="false")
    end = as_spark_does(lenient.latestOffset(start, ALL))
    assert values(lenient, start, end) == [b"%d" % n for n in range(100, 120)]


def test_a_start_beyond_the_end_is_data_loss(reader_of: ReaderOf, numbers: Topic) -> None:
    reader = reader_of(numbers, startingOffsets=json.dumps({numbers.name: {"0": 99, "1": 0}}))
    with pytest.raises(DataLoss, match=r"PARTITION_OFFSET_CHANGED.* from 99 to 10.*set too high"):
        reader.latestOffset(reader.initialOffset(), ALL)


@admission_control
def test_the_latest_known_offset_is_reported(reader_of: ReaderOf, numbers: Topic) -> None:
    reader = reader_of(numbers)
    assert reader.reportLatestOffset() is None
    reader.latestOffset(reader.initialOffset(), ReadMaxRows(1))
    report = reader.reportLatestOffset()
    assert report is not None
    assert report["topics"] == {numbers.name: {"0": 10, "1": 5}}


def test_a_null_from_a_poisoned_checkpoint_is_refused_clearly(reader_of: ReaderOf, numbers: Topic) -> None:
    with pytest.raises(ConnectorError, match=r"PYKAFKA_CHECKPOINT_UNREADABLE.*new checkpoint"):
        reader_of(numbers).latestOffset(json.loads("null"), ALL)


def test_a_broker_that_is_away_for_a_moment_does_not_end_the_query(
    broker_factory: Callable[..., BrokerProcess], topic: str
) -> None:
    own = broker_factory()
    Topic(own.bootstrap, topic).number(3)
    options = {"kafka.bootstrap.servers": own.bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    reader = stream_calls.reader(options)
    start = as_spark_does(reader.latestOffset(reader.initialOffset(), ALL))
    own.restart()
    assert reader.latestOffset(start, ALL) is start
    reader.stop()


def test_progress_is_told_to_the_offset_store_even_for_the_last_batch(
    reader_of: ReaderOf, numbers: Topic, tmp_path: Any, group: str
) -> None:
    store = {"offsetStore": "files", "offsetStore.path": str(tmp_path / "offsets"), "group": group}
    reader = reader_of(numbers, maxOffsetsPerTrigger="8", **store)
    start = as_spark_does(reader.initialOffset())
    limit = reader.getDefaultReadLimit()
    first = as_spark_does(reader.latestOffset(start, limit))
    assert stored(reader_of, numbers, store) == {}, "nothing was processed yet"
    second = as_spark_does(reader.latestOffset(first, limit))
    assert stored(reader_of, numbers, store) == first["topics"], "asked for the next, so the first is done"
    reader.commit(first)
    assert reader.latestOffset(second, limit) is second
    assert stored(reader_of, numbers, store) == {numbers.name: {"0": 10, "1": 5}}, "without a commit of the last"


def stored(reader_of: ReaderOf, numbers: Topic, store: dict[str, str]) -> Document:
    """What a new query that starts from `committed` would start with, as far as it is not the earliest offset."""
    start = reader_of(numbers, startingOffsets="committed", **store).initialOffset()["topics"]
    return {} if set(start[numbers.name].values()) == {0} else start


def test_a_store_that_fails_does_not_end_the_query(
    reader_of: ReaderOf, numbers: Topic, tmp_path: Any, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "a file"
    blocked.write_text("no directory")
    store = {"offsetStore": "files", "offsetStore.path": str(blocked / "offsets"), "group": group}
    reader = reader_of(numbers, **store)
    end = as_spark_does(reader.latestOffset(reader.initialOffset(), ALL))
    with caplog.at_level(logging.WARNING, "pykafka.spark"):
        reader.commit(end)
    assert "were not published" in caplog.text
    blocked.unlink()
    reader.latestOffset(end, ALL)
    assert stored(reader_of, numbers, store) == {numbers.name: {"0": 10, "1": 5}}

"""What a stream does when topics grow, appear, vanish, lose records, or when its options change over a restart.

Nothing that was produced after the query began may be missing, and what is passed over is counted.
"""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.errors import ConfigError
from broker.protocol.topic_partition import TopicPartition
from spark_connector.errors import ConnectorError, DataLoss
from spark_connector.offset_store.base import open_store
from spark_connector.read.offset_reader import OffsetReader
from tests.support.kafka import Kafka
from tests.support.spark_versions import since_spark
from tests.support.stream_calls import ALL, Document, ReaderOf, as_spark_does, planned, values
from tests.support.topics import Topic

MINUTE = 60_000
available_now = since_spark("4.2", "Trigger.AvailableNow of Python sources in several batches")

NOON = 1_700_000_000_000


def delete_before(topic: Topic, partition: int, offset: int) -> None:
    cluster = Cluster(topic.bootstrap)
    Admin(cluster).delete_records({TopicPartition(topic.name, partition): offset})
    cluster.close()


def first_end(reader_of: ReaderOf, **options: str) -> Document:
    """The end of the first batch of a query with these options."""
    reader = reader_of(**options)
    return as_spark_does(reader.latestOffset(as_spark_does(reader.initialOffset()), ALL))


def test_records_deleted_before_they_were_read_fail_the_query_before_a_batch_is_logged(
    reader_of: ReaderOf, numbers: Topic
) -> None:
    reader = reader_of(numbers)
    start = as_spark_does(reader.initialOffset())
    delete_before(numbers, 0, 4)
    with pytest.raises(DataLoss, match=rf"COULD_NOT_READ_OFFSET_RANGE.* \[0, 4\) for topic partition {numbers.name}-0"):
        reader.latestOffset(start, ALL)


def test_records_deleted_before_they_were_read_are_skipped_and_counted(
    reader_of: ReaderOf, numbers: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    lenient = {"failOnDataLoss": "false", "maxOffsetsPerTrigger": "3"}
    reader = reader_of(numbers, **lenient)
    start, limit = as_spark_does(reader.initialOffset()), reader.getDefaultReadLimit()
    delete_before(numbers, 0, 4)
    with caplog.at_level(logging.WARNING, "pykafka.spark"):
        first = as_spark_does(reader.latestOffset(start, limit))
    assert f"Offsets skipped: {numbers.name}-0: 4." in caplog.text
    assert first["skipped"] == {numbers.name: 4}
    assert (0, 4, 6) in planned(reader, start, first), "read on where the log begins"
    delete_before(numbers, 0, 9)
    delete_before(numbers, 1, 5)
    restarted = reader_of(numbers, **lenient)
    second = as_spark_does(restarted.latestOffset(first, limit))
    read = sum(until - begin for _, begin, until in planned(reader, start, first) + planned(reader, first, second))
    assert second["topics"] == {numbers.name: {"0": 10, "1": 5}}
    assert second["skipped"] == {numbers.name: 15 - read}, "every offset was read or counted"
    assert restarted.latestOffset(second, limit) is second
    numbers.number(1, 0)
    assert restarted.latestOffset(second, limit)["skipped"] == second["skipped"], "the sum stays"


def test_what_was_seen_of_a_deleted_topic_is_counted(
    reader_of: ReaderOf, numbers: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    other = Topic(numbers.bootstrap, f"{numbers.name}-other")
    other.number(8)
    options = {"subscribe": f"{numbers.name},{other.name}", "failOnDataLoss": "false", "maxOffsetsPerTrigger": "3"}
    reader = reader_of(**options)
    limit = reader.getDefaultReadLimit()
    begin = as_spark_does(reader.latestOffset(as_spark_does(reader.initialOffset()), limit))
    unread = 8 - begin["topics"][other.name]["0"]
    other.delete()
    with caplog.at_level(logging.WARNING, "pykafka.spark"):
        end = reader.latestOffset(begin, limit)
    assert end["skipped"] == {other.name: unread}
    assert "PARTITIONS_DELETED" in caplog.text
    restarted = reader_of(**options)
    assert "skipped" not in restarted.latestOffset(begin, limit), "a process that never saw its end cannot know"


def test_a_recreated_topic_counts_what_was_left_of_the_old_one(reader_of: ReaderOf, numbers: Topic) -> None:
    reader = reader_of(numbers, failOnDataLoss="false", maxOffsetsPerTrigger="5")
    limit = reader.getDefaultReadLimit()
    begin = as_spark_does(reader.latestOffset(as_spark_does(reader.initialOffset()), limit))
    numbers.delete()
    numbers.create(2)
    numbers.number(2, 0, first=100)
    end = as_spark_does(reader.latestOffset(begin, limit))
    assert end["skipped"] == {numbers.name: 10}
    assert values(reader, begin, end) == [b"100", b"101"]


@available_now
def test_available_now_goes_on_when_a_topic_it_has_read_is_deleted(reader_of: ReaderOf, numbers: Topic) -> None:
    reader = reader_of(numbers, maxOffsetsPerTrigger="5", failOnDataLoss="false")
    reader.prepareForTriggerAvailableNow()
    limit = reader.getDefaultReadLimit()
    begin = as_spark_does(reader.latestOffset(as_spark_does(reader.initialOffset()), limit))
    numbers.delete()
    end = as_spark_does(reader.latestOffset(begin, limit))
    assert values(reader, begin, end) == []


def test_a_topic_created_after_a_query_from_latest_is_read_from_its_beginning(
    reader_of: ReaderOf, numbers: Topic
) -> None:
    pattern = {"subscribePattern": f"{numbers.name}.*", "startingOffsets": "latest"}
    reader = reader_of(**pattern)
    begin = as_spark_does(reader.latestOffset(as_spark_does(reader.initialOffset()), ALL))
    Topic(numbers.bootstrap, f"{numbers.name}-b").number(3)
    end = as_spark_does(reader.latestOffset(begin, ALL))
    assert values(reader, begin, end) == [b"0", b"1", b"2"], "produced before it was discovered, after the start"
    Topic(numbers.bootstrap, f"{numbers.name}-c").number(2)
    assert len(values(reader, end, reader_of(**pattern).latestOffset(end, ALL))) == 2, "and while the query was down"


def test_an_old_topic_that_new_options_select_starts_where_they_say(
    reader_of: ReaderOf, numbers: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    old = Topic(numbers.bootstrap, f"{numbers.name}-old")
    old.number(6)
    delete_before(old, 0, 2)
    before = first_end(reader_of, subscribe=numbers.name, startingOffsets="latest")
    both = {"subscribe": f"{numbers.name},{old.name}"}
    from_latest = reader_of(**both, startingOffsets="latest")
    end = as_spark_does(from_latest.latestOffset(before, ALL))
    assert end["added"] == {old.name: {"0": 6}}, "on record before there is data"
    assert values(from_latest, before, end) == []
    from_earliest = reader_of(**both)
    end = as_spark_does(from_earliest.latestOffset(before, ALL))
    assert values(from_earliest, before, end) == [b"2", b"3", b"4", b"5"], "and it is no data loss that 2 is the first"
    assert "skipped" not in end
    assert "DATA_LOSS" not in caplog.text


def test_a_topic_that_the_old_pattern_matched_too_was_created_while_the_query_was_down(
    reader_of: ReaderOf, numbers: Topic
) -> None:
    before = first_end(reader_of, subscribePattern=f"{numbers.name}(-a)?", startingOffsets="latest")
    for letter in "ab":
        Topic(numbers.bootstrap, f"{numbers.name}-{letter}").number(2)
    reader = reader_of(subscribePattern=f"{numbers.name}.*", startingOffsets="latest")
    end = reader.latestOffset(before, ALL)
    assert end["added"] == {f"{numbers.name}-a": {"0": 0}, f"{numbers.name}-b": {"0": 2}}


def test_what_new_options_select_is_on_record_before_there_is_data(reader_of: ReaderOf, numbers: Topic) -> None:
    before = first_end(reader_of, subscribe=numbers.name, startingOffsets="latest")
    wider = {"subscribePattern": f"{numbers.name}.*", "startingOffsets": "latest"}
    reader = reader_of(**wider)
    recorded = as_spark_does(reader.latestOffset(before, ALL))
    assert recorded["selects"] == {"subscribePattern": wider["subscribePattern"]}
    assert recorded["topics"] == before["topics"]
    assert planned(reader, before, recorded) == [], "an empty batch"
    assert reader.latestOffset(recorded, ALL) is recorded, "and only one"
    Topic(numbers.bootstrap, f"{numbers.name}-created-later").number(2)
    assert len(values(reader, recorded, reader_of(**wider).latestOffset(recorded, ALL))) == 2


def test_partitions_that_a_new_filter_or_assignment_selects_start_where_the_options_say(
    reader_of: ReaderOf, numbers: Topic
) -> None:
    before = first_end(reader_of, subscribe=numbers.name, filterPartitions="0")
    assert before["topics"] == {numbers.name: {"0": 10}}
    end = reader_of(subscribe=numbers.name, startingOffsets="latest").latestOffset(before, ALL)
    assert end["added"] == {numbers.name: {"1": 5}}
    before = first_end(reader_of, assign=json.dumps({numbers.name: [0]}))
    end = reader_of(assign=json.dumps({numbers.name: [0, 1]}), startingOffsets="latest").latestOffset(before, ALL)
    assert end["added"] == {numbers.name: {"1": 5}}


@available_now
def test_what_comes_while_a_new_topic_is_looked_up_is_read(
    reader_of: ReaderOf, numbers: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = Topic(numbers.bootstrap, f"{numbers.name}-old")
    old.produce([b"0", b"1"], timestamp=NOON)
    before = first_end(reader_of, subscribe=numbers.name)
    look_up = OffsetReader.starts_of_new_topics

    def and_meanwhile(reader: OffsetReader, *new: Any) -> Any:
        old.produce([b"meanwhile"], timestamp=NOON + MINUTE)
        return look_up(reader, *new)

    monkeypatch.setattr(OffsetReader, "starts_of_new_topics", and_meanwhile)
    for start in ({"startingOffsets": "latest"}, {"startingTimestamp": str(NOON + 1)}):
        reader = reader_of(subscribe=f"{numbers.name},{old.name}", **start)
        reader.prepareForTriggerAvailableNow()
        end = as_spark_does(reader.latestOffset(before, ALL))
        again = reader_of(subscribe=f"{numbers.name},{old.name}", **start)
        assert b"meanwhile" in values(reader, before, end) + values(again, end, again.latestOffset(end, ALL))
        assert reader.latestOffset(end, ALL) is end, "and the frozen end is not before what was planned"


def test_a_checkpoint_that_does_not_tell_what_selected_its_partitions_loses_nothing(
    reader_of: ReaderOf, numbers: Topic
) -> None:
    before = first_end(reader_of, subscribe=numbers.name)
    del before["selects"]
    other = Topic(numbers.bootstrap, f"{numbers.name}-other")
    other.number(2)
    reader = reader_of(subscribe=f"{numbers.name},{other.name}", startingOffsets="latest")
    assert reader.latestOffset(before, ALL)["added"] == {other.name: {"0": 0}}


@pytest.mark.parametrize(
    ("options", "start"),
    [
        pytest.param({"startingOffsets": "earliest"}, 0, id="earliest"),
        pytest.param({"startingOffsets": '{"T":{"0":2}}'}, 2, id="named"),
        pytest.param({"startingOffsets": '{"T":{"0":-1}}'}, 0, id="named latest: when the query began"),
        pytest.param({"startingOffsets": '{"other":{"0":2}}'}, 0, id="not named"),
        pytest.param({"startingTimestamp": str(NOON + MINUTE)}, 1, id="timestamp"),
        pytest.param({"startingTimestamp": str(NOON + 9 * MINUTE)}, 3, id="nothing that young yet: no error"),
        pytest.param({"startingOffsetsByTimestamp": json.dumps({"T": {"0": NOON + 2 * MINUTE}})}, 2, id="timestamps"),
        pytest.param({"startingOffsetsByTimestamp": json.dumps({"other": {"0": NOON}})}, 0, id="no timestamp"),
    ],
)
def test_a_new_topic_starts_where_the_options_say(
    reader_of: ReaderOf, numbers: Topic, options: dict[str, str], start: int
) -> None:
    before = first_end(reader_of, subscribePattern=f"{numbers.name}.*")
    new = Topic(numbers.bootstrap, f"{numbers.name}-new")
    for minute in range(3):
        new.produce([b"%d" % minute], timestamp=NOON + minute * MINUTE)
    named = {name: value.replace('"T"', f'"{new.name}"') for name, value in options.items()}
    end = reader_of(subscribePattern=f"{numbers.name}.*", **named).latestOffset(before, ALL)
    assert end["added"] == {new.name: {"0": start}}


@pytest.mark.parametrize("start", ["timestamp", "offsets"])
def test_a_partition_that_came_while_batch_0_was_undone_is_no_error(
    reader_of: ReaderOf, numbers: Topic, start: str
) -> None:
    options = {"startingTimestamp": "1"} if start == "timestamp" else {}
    options |= {"startingOffsets": json.dumps({numbers.name: {"0": 1, "1": 2}})} if start == "offsets" else {}
    reader = reader_of(numbers, **options)
    begin = as_spark_does(reader.initialOffset())
    end = as_spark_does(reader.latestOffset(begin, ALL))
    before = values(reader, begin, end)
    numbers.grow(3)
    restarted = reader_of(numbers, **options)
    assert values(restarted, as_spark_does(restarted.initialOffset()), end) == before
    numbers.number(2, 2)
    assert len(values(restarted, end, restarted.latestOffset(end, ALL))) == 2
    fresh = reader_of(numbers, **({"startingTimestamp": "9999999999999"} if start == "timestamp" else options))
    with pytest.raises((ConfigError, ConnectorError), match=r"No offset matched|DOES_NOT_MATCH_ASSIGNED"):
        fresh.latestOffset(fresh.initialOffset(), ALL)


def test_a_new_topic_starts_where_its_group_stood(
    reader_of: ReaderOf, numbers: Topic, group: str, tmp_path: Any
) -> None:
    store = {"offsetStore": "files", "offsetStore.path": str(tmp_path), "group": group}
    before = first_end(reader_of, subscribePattern=f"{numbers.name}.*")
    for letter in "ab":
        Topic(numbers.bootstrap, f"{numbers.name}-{letter}").number(4)
    with_store = open_store("files", store)
    with_store.commit(group, {TopicPartition(f"{numbers.name}-a", 0): 3})
    with_store.close()
    reader = reader_of(subscribePattern=f"{numbers.name}.*", startingOffsets="committed", **store)
    assert reader.latestOffset(before, ALL)["added"] == {f"{numbers.name}-a": {"0": 3}, f"{numbers.name}-b": {"0": 0}}


def test_a_new_partition_that_lost_its_beginning_already_is_data_loss_with_a_number(
    reader_of: ReaderOf, numbers: Topic
) -> None:
    before = first_end(reader_of, subscribe=numbers.name)
    numbers.grow(3)
    numbers.number(5, 2)
    delete_before(numbers, 2, 3)
    with pytest.raises(DataLoss, match=r"ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO.*-2 starts from 3 instead"):
        reader_of(numbers).latestOffset(before, ALL)
    lenient = reader_of(numbers, failOnDataLoss="false")
    end = lenient.latestOffset(before, ALL)
    assert end["skipped"] == {numbers.name: 3}
    assert planned(lenient, before, end) == [(2, 3, 5)]


def test_a_stream_reads_the_partition_of_a_key_and_fails_when_the_topic_grows(
    reader_of: ReaderOf, broker: Kafka, topic: str
) -> None:
    """`user-3` is in partition 1 of two, and in 3 of four."""
    made = Topic(broker.bootstrap, topic, 2)
    made.produce([b"1", b"2"], 1, key=b"user-3")
    made.produce([b"other"], 1, key=b"other")
    key, by_key = {"filterKey": "user-3"}, {"filterKeyPartitioner": "murmur2"}
    reader = reader_of(made, **key, **by_key)
    start = as_spark_does(reader.initialOffset())
    end = as_spark_does(reader.latestOffset(start, ALL))
    assert planned(reader, start, end) == [(1, 0, 3)]
    assert values(reader, start, end) == [b"1", b"2"]
    made.produce([b"3"], 1, key=b"user-3")
    made.grow(4)
    made.produce([b"4"], 3, key=b"user-3")
    with pytest.raises(DataLoss, match=rf"\[{topic}-1\] have been deleted, or .*leave out filterKeyPartitioner"):
        reader.latestOffset(end, ALL)
    reader = reader_of(made, **key)
    assert values(reader, end, as_spark_does(reader.latestOffset(end, ALL))) == [b"3", b"4"]


def test_a_stream_reads_the_partitions_that_where_names_and_begins_others_where_the_options_say(
    reader_of: ReaderOf, numbers: Topic
) -> None:
    end = first_end(reader_of, subscribe=numbers.name, where="partition = 1 AND key LIKE 'a%'")
    reader = reader_of(numbers, where="partition < 2", startingOffsets="latest")
    wider = as_spark_does(reader.latestOffset(end, ALL))
    assert planned(reader, end, wider) == [], "what was there is before latest, or read"
    numbers.number(1, 0, first=10)
    numbers.number(1, 1, first=5)
    last = as_spark_does(reader.latestOffset(wider, ALL))
    assert planned(reader, wider, last) == [(0, 10, 11), (1, 5, 6)]


def test_a_stream_of_what_cannot_be_is_empty(reader_of: ReaderOf, numbers: Topic) -> None:
    reader = reader_of(numbers, where="key = 'a' AND key = 'b'")
    start = as_spark_does(reader.initialOffset())
    end = as_spark_does(reader.latestOffset(start, ALL))
    assert values(reader, start, end) == []


def test_a_restart_with_what_cannot_be_reads_nothing_twice_when_it_can_be_again(
    reader_of: ReaderOf, numbers: Topic
) -> None:
    """A partition that is left out for a while would count as new when it is back."""
    lenient = {"failOnDataLoss": "false"}
    end = first_end(reader_of, subscribe=numbers.name, **lenient)
    for nothing in (
        {"where": "key = 'a' AND key = 'b'"},
        {"where": "timestamp > 5 AND timestamp < 5"},
        {"where": "key = 'a' AND key = 'b'", "filterKeyPartitioner": "murmur2"},
    ):
        reader = reader_of(numbers, **nothing, **lenient)
        during = as_spark_does(reader.latestOffset(end, ALL))
        assert during["topics"] == end["topics"]
        again = reader_of(numbers, **lenient)
        assert planned(again, during, as_spark_does(again.latestOffset(during, ALL))) == []

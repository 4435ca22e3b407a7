"""Micro-batches of a topic with an archive: the history from the store, then the rest; no Spark runs here."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.storage.storage import open_storage
from spark_connector.read.archive_plan import StoredRange
from tests.support.archive_reads import Filler, Reads, StreamQuery
from tests.support.broker_process import BrokerProcess
from tests.support.stream_calls import ReaderOf
from tests.support.topic_archiver import TopicArchiver
from tests.support.topics import Topic


@pytest.fixture
def direct(reads: Reads) -> dict[str, str]:
    return {**reads.where, "maxOffsetsPerTrigger": "200", "maxPrefetchedRecords": "1000"}


def test_history_comes_from_the_store_and_the_rest_from_the_broker(
    reader_of: ReaderOf, direct: dict[str, str], archiver: TopicArchiver, topic_of_segments: Filler
) -> None:
    producer = topic_of_segments.producer()
    topic_of_segments.send(producer, 500)
    archiver.archive()
    archived = sum(archiver.store(partition).load().end for partition in (0, 1))
    query = StreamQuery(reader_of(subscribe=archiver.topic, **direct))
    limit = query.reader.getDefaultReadLimit()
    assert query.run(limit)
    topic_of_segments.send(producer, 100)
    while query.run(limit):
        archiver.archive(most=1)
    assert sorted(query.values) == topic_of_segments.values
    assert query.stored >= archived, "what was archived when the stream began, or later"
    caught_up = query.stored
    topic_of_segments.send(producer, 20)
    archiver.archive()
    while query.run(limit):
        pass
    assert sorted(query.values) == topic_of_segments.values
    assert query.stored == caught_up, "a stream at the end asks the store at most once a minute"


def test_a_replayed_batch_reads_the_same_records_from_wherever_they_are_now(
    reader_of: ReaderOf, direct: dict[str, str], archiver: TopicArchiver, topic_of_segments: Filler
) -> None:
    topic_of_segments.send(topic_of_segments.producer(), 300)
    first = StreamQuery(reader_of(subscribe=archiver.topic, **direct))
    begin = first.at
    assert first.run()
    assert first.stored == 0
    archiver.archive()
    again = StreamQuery(reader_of(subscribe=archiver.topic, **direct))
    tasks = again.reader.partitions(begin, first.at)
    assert any(isinstance(one, StoredRange) for task in tasks for one in task.value)
    values = [value.as_py() for task in tasks for batch in again.reader.read(task) for value in batch["value"]]
    assert sorted(values) == sorted(first.values)


def test_a_topic_made_again_is_not_read_from_the_old_ones_archive(
    reader_of: ReaderOf, own_broker: BrokerProcess, topic: str, tmp_path: Path
) -> None:
    direct = {"archive": "direct", "archive.url": str(tmp_path)}
    made = Topic(own_broker.bootstrap, topic, 2, segment_bytes="2000")
    filler = Filler(own_broker.bootstrap, topic)
    filler.send(filler.producer(), 300)
    storage = open_storage(str(tmp_path))
    TopicArchiver(storage, own_broker.data_dir, own_broker.bootstrap, topic).archive()
    query = StreamQuery(reader_of(subscribe=topic, failOnDataLoss="false", **direct))
    assert query.run()
    assert query.stored
    made.delete()
    made.create(2, segment_bytes="2000")
    again = Filler(own_broker.bootstrap, topic)
    again.send(again.producer(), 100)
    query.values.clear()
    while query.run():
        pass
    assert sorted(query.values) == again.values


def test_a_stream_of_the_archive_alone_grows_with_it(
    reader_of: ReaderOf, direct: dict[str, str], archiver: TopicArchiver, topic_of_segments: Filler
) -> None:
    topic_of_segments.send(topic_of_segments.producer(), 500)
    archiver.archive(most=2)
    query = StreamQuery(reader_of(subscribe=archiver.topic, **{**direct, "archive": "only"}))
    ends = []
    for _ in range(20):
        while query.run(query.reader.getDefaultReadLimit()):
            pass
        ends.append(len(query.values))
        assert len(query.values) == sum(archiver.store(partition).load().end for partition in (0, 1))
        archiver.archive(most=2)
    assert len(set(ends)) > 3
    assert query.live == 0

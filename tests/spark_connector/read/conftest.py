"""Readers and a topic for the tests of streams; a topic with an archive."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.storage.storage import open_storage
from tests.support import stream_calls
from tests.support.archive_reads import Filler, Reads
from tests.support.broker_process import BrokerProcess
from tests.support.kafka import Kafka
from tests.support.stream_calls import Reader, ReaderOf
from tests.support.topic_archiver import TopicArchiver
from tests.support.topics import Topic


@pytest.fixture
def numbers(broker: Kafka, topic: str) -> Topic:
    """A topic of two partitions with ten and five records."""
    made = Topic(broker.bootstrap, topic, 2)
    made.number(10, 0)
    made.number(5, 1)
    return made


@pytest.fixture
def reader_of(broker: Kafka, request: pytest.FixtureRequest) -> ReaderOf:
    """`reader_of(topic, **options)`: a stream reader that starts at earliest unless told otherwise."""

    def make(topic: Topic | None = None, **options: str) -> Reader:
        where = {"kafka.bootstrap.servers": broker.bootstrap, "fetchOffset.retryIntervalMs": "20"}
        if topic is not None:
            where["subscribe"] = topic.name
        reader = stream_calls.reader({"startingOffsets": "earliest", **where, **options})
        request.addfinalizer(reader.stop)
        return reader

    return make


@pytest.fixture
def topic_of_segments(own_broker: BrokerProcess, topic: str) -> Filler:
    """Two partitions of segments of 2000 bytes; no record is there yet."""
    Topic(own_broker.bootstrap, topic, 2, segment_bytes="2000", index_interval_bytes="100")
    return Filler(own_broker.bootstrap, topic)


@pytest.fixture
def archiver(own_broker: BrokerProcess, topic_of_segments: Filler, tmp_path: Path) -> TopicArchiver:
    storage = open_storage(str(tmp_path / "archive"))
    topic = topic_of_segments.topic
    return TopicArchiver(storage, own_broker.data_dir, own_broker.bootstrap, topic, mark_bytes=300)


@pytest.fixture
def reads(own_broker: BrokerProcess, archiver: TopicArchiver) -> Reads:
    return Reads(own_broker.bootstrap, archiver.topic, archiver.storage.url)

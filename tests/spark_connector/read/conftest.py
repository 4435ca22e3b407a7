"""Readers and a topic for the tests of streams."""

from __future__ import annotations

import pytest

from tests.support import stream_calls
from tests.support.kafka import Kafka
from tests.support.stream_calls import Reader, ReaderOf
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

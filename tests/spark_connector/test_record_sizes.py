"""Bytes per record, asked of a real broker."""

from __future__ import annotations

import logging

import pytest

from broker.errors import ConfigError
from broker.protocol.topic_partition import TopicPartition
from spark_connector.listener import RecordSizes
from tests.support.kafka import Kafka
from tests.support.topics import Topic


def test_the_average_is_what_the_log_takes_per_offset(broker: Kafka, topic: str) -> None:
    made = Topic(broker.bootstrap, topic, 3)
    made.produce([b"x" * 1000] * 50, 0)
    made.produce([b"x" * 10] * 50, 1)
    big, small, empty = (TopicPartition(topic, p) for p in range(3))
    sizes = RecordSizes({"kafka.Bootstrap.servers": broker.bootstrap, "subscribe": topic})
    found = sizes({big: 40, small: 0, empty: 0}, {big: 50, small: 50, empty: 0})
    assert sizes({big: 50}, {big: 50}) == {}
    sizes.close()
    assert found.keys() == {big, small}
    assert 1000 < found[big] < 1100
    assert 10 < found[small] < 100
    assert RecordSizes(broker.bootstrap)({big: 50}, {big: 50}) == {}


def test_no_broker_is_a_warning_and_no_bytes_for_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    sizes = RecordSizes({"bootstrap.servers": "127.0.0.1:1", "default.api.timeout.ms": "0"}, monotonic=lambda: now)
    tp = TopicPartition("t", 0)
    with caplog.at_level(logging.WARNING):
        assert sizes({tp: 0}, {tp: 5}) == {}
        now = 59.0
        assert sizes({tp: 0}, {tp: 5}) == {}
        assert len(caplog.records) == 1
        now = 61.0
        assert sizes({tp: 0}, {tp: 5}) == {}
        assert len(caplog.records) == 2
    assert "is not known for now" in caplog.records[0].getMessage()


def test_wrong_settings_are_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="bootstrap"):
        RecordSizes({"kafka.client.id": "me"})

"""What the sampler sees of a real cluster, how it goes on without one, and what it costs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from broker.client.admin import Admin
from broker.client.client_settings import ClientSettings
from broker.client.cluster import Cluster
from broker.client.committed_offsets import GroupOffsets
from broker.client.producer import Producer
from broker.protocol.topic_partition import TopicPartition
from pykafka_ui import sampler as module
from pykafka_ui.sampler import Sampler
from tests.support.broker_process import BrokerProcess
from tests.support.kafka import Kafka
from tests.support.waiting import eventually


def settings_for(bootstrap: str) -> ClientSettings:
    return replace(ClientSettings.of(bootstrap), default_api_timeout_ms=3000, request_timeout_ms=3000)


@pytest.fixture
def sampler(broker: Kafka) -> Iterator[Sampler]:
    made = Sampler(settings_for(broker.bootstrap))
    made.start()
    yield made
    made.stop()


def test_topics_offsets_and_lags_are_seen(sampler: Sampler, broker: Kafka, topic: str, group: str) -> None:
    with Cluster(broker.bootstrap) as cluster:
        Admin(cluster).create_topic(topic, 2)
        with Producer(broker.bootstrap) as producer:
            for number in range(10):
                producer.send(topic, b"x", partition=number % 2)
            producer.flush(30)
        GroupOffsets(cluster, group).commit(
            {TopicPartition(topic, 0): 2, TopicPartition(topic, 1): 5}, "pykafka load 7"
        )
        Admin(cluster).delete_records({TopicPartition(topic, 0): 1})
    eventually(lambda: topic in sampler.watched().topics and sampler.watched().topics[topic].end == 10)
    eventually(lambda: group in sampler.watched().groups and sampler.watched().groups[group].lag == 3)
    seen = sampler.watched()
    assert [(one.end, one.state) for one in seen.topics[topic].partitions] == [(5, "in sync"), (5, "in sync")]
    assert seen.groups[group].kind == "load"
    assert [one.id for one in seen.readers_of(topic)] == [group]
    eventually(lambda: sampler.watched().topics[topic].size > 0)
    assert seen.error == ""


def test_a_cluster_that_goes_away_and_comes_back(broker_factory: Callable[..., BrokerProcess]) -> None:
    process = broker_factory()
    with Cluster(process.bootstrap) as cluster:
        Admin(cluster).create_topic("kept")
    made = Sampler(settings_for(process.bootstrap))
    made.start()
    try:
        eventually(lambda: "kept" in made.watched().topics)
        process.kill()
        eventually(lambda: made.watched().error != "")
        assert "kept" in made.watched().topics, "what was seen last"
        process.start()
        eventually(lambda: made.watched().error == "")
    finally:
        made.stop()


def test_a_partition_without_a_leader_hides_no_other(sampler: Sampler, broker: Kafka, topic: str) -> None:
    """The offsets are asked for topic by topic then."""
    with Cluster(broker.bootstrap) as cluster:
        Admin(cluster).create_topic(topic)
    eventually(lambda: topic in sampler.watched().topics)
    gone = TopicPartition("no-such-topic", 0)
    found = sampler._offsets([gone, TopicPartition(topic, 0)], -1)
    assert found == {TopicPartition(topic, 0): 0}


def test_nobody_looks_so_it_looks_seldom(broker: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOKED_AT_S", 0.5)
    monkeypatch.setattr(module, "ENDS_S", 0.05)
    looks: list[float] = []
    made = Sampler(settings_for(broker.bootstrap))
    look = made._look

    def counted(tasks: list[module._Task]) -> float:
        looks.append(time.monotonic())
        return look(tasks)

    monkeypatch.setattr(made, "_look", counted)
    made.start()
    try:
        made.watched()
        eventually(lambda: time.monotonic() - looks[-1] > 2)
        assert made.watched().at_ms > 0
        eventually(lambda: time.monotonic() - looks[-1] < 1)
    finally:
        made.stop()

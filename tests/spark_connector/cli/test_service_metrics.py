"""How far loads are behind, asked of a real broker."""

from __future__ import annotations

import time
from collections.abc import Callable

from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.protocol.topic_partition import TopicPartition
from spark_connector.cli.service_metrics import LoadLag
from spark_connector.options.read_options import Mode, parse_options
from tests.support.broker_process import BrokerProcess
from tests.support.kafka import Kafka
from tests.support.topics import Topic


def test_what_is_there_and_not_loaded_is_counted(broker: Kafka, topic: str) -> None:
    data = Topic(broker.bootstrap, topic, 2)
    data.number(10)
    options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic}
    lag = LoadLag(parse_options(options, Mode.BATCH))
    assert lag.behind() == {}, "not known before it was looked at"
    lag.set_loaded({})
    assert lag.behind() == {topic: 10}
    lag.set_loaded({TopicPartition(topic, 0): 4, TopicPartition("another", 0): 1})
    data.number(3, 1)
    assert lag.behind() == {topic: 9}
    cluster = Cluster(broker.bootstrap)
    Admin(cluster).delete_records({TopicPartition(topic, 0): 8})
    cluster.close()
    assert lag.behind() == {topic: 5}, "what is gone cannot be loaded"


def test_nothing_is_known_while_no_broker_answers(broker_factory: Callable[..., BrokerProcess]) -> None:
    broker = broker_factory()
    Topic(broker.bootstrap, "t").number(2)
    lag = LoadLag(parse_options({"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "t"}, Mode.BATCH))
    lag.set_loaded({})
    assert lag.behind() == {"t": 2}
    broker.kill()
    took = []
    for _ in range(3):  # a busy machine may hold one of them up
        started = time.monotonic()
        assert lag.behind() == {}
        took.append(time.monotonic() - started)
    assert min(took) < 8, "a scrape does not wait for longer than Prometheus does"
    broker.start()
    assert lag.behind() == {"t": 2}

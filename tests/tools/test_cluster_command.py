"""`pykafka cluster describe`."""

from __future__ import annotations

import json

import pytest

from broker.client.cluster import Cluster
from tests.support.broker_process import BrokerProcess
from tests.support.console import answer_of
from tests.support.kafka import Kafka


@pytest.mark.usefixtures("made_topic")
def test_brokers_controller_and_listeners_are_shown(broker: Kafka) -> None:
    described = json.loads(answer_of("cluster", "describe", "-b", broker.bootstrap, "--json"))
    with Cluster(broker.bootstrap) as cluster:
        assert described["clusterId"] == cluster.cluster_id()
        assert described["controller"] == cluster.controller().id
        assert [one["id"] for one in described["brokers"]] == [node.id for node in cluster.brokers()]
    assert sum(one["leaders"] for one in described["brokers"]) <= described["partitions"]
    (controller,) = (one for one in described["brokers"] if one["controller"])
    assert all("://" in listener for listener in controller["listeners"])
    assert controller["listeners"]
    head, *rows = answer_of("cluster", "describe", "-b", broker.bootstrap).splitlines()
    assert head.startswith(f"Cluster {described['clusterId']}: ")
    assert rows[0].split() == ["BROKER", "ADDRESS", "RACK", "ROLE", "LEADERS", "REPLICAS", "LISTENERS"]
    assert len(rows) == 1 + len(described["brokers"])
    assert "controller" in "".join(rows)


def test_a_broker_with_port_0_is_shown_with_the_port_it_got(own_broker: BrokerProcess) -> None:
    (shown,) = json.loads(answer_of("cluster", "describe", "-b", own_broker.bootstrap, "--json"))["brokers"]
    assert f"{shown['host']}:{shown['port']}" == own_broker.bootstrap
    assert shown["listeners"] == [f"PLAINTEXT://{own_broker.bootstrap}"]

"""`pykafka cluster describe` and `pykafka cluster start`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from broker.client.cluster import Cluster
from tests.support.broker_process import BrokerProcess
from tests.support.console import answer_of, command
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


def test_a_cluster_starts_is_described_and_ends_as_a_whole(tmp_path: Path) -> None:
    arguments = ["cluster", "start", "--brokers", "2", "--dir", str(tmp_path), "--override", "num.partitions=2"]
    with subprocess.Popen(command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        bootstrap = process.stdout.readline().removeprefix("bootstrap servers: ").rstrip()
        assert process.stdout.readline().startswith("ZooKeeper: 127.0.0.1:")
        head, *rows = (process.stdout.readline().split() for _ in range(3))
        assert head == ["BROKER", "ADDRESS", "PROCESS", "LOG"]
        assert ",".join(row[1] for row in rows) == bootstrap
        family = psutil.Process(process.pid).children(recursive=True)
        answer_of("topics", "create", "--topic", "t", "-b", bootstrap)
        described = json.loads(answer_of("cluster", "describe", "-b", bootstrap, "--json"))
        assert [(one["id"], one["leaders"]) for one in described["brokers"]] == [(1, 1), (2, 1)]

        os.kill(int(rows[1][2]), signal.SIGKILL)
        assert process.stderr.readline() == f"broker 2 has ended by itself; see {tmp_path}/broker-2/broker.log\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    psutil.wait_procs(family, timeout=20)
    assert not any(one.is_running() for one in family)

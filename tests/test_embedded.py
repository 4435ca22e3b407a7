"""The embedded broker and cluster: up, restarted on the same ports, cleaned away, and gone with their owner."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest

from broker.client.admin import Admin, NewTopic
from broker.client.cluster import Cluster
from broker.client.producer import Producer
from broker.embedded import EmbeddedBroker, EmbeddedCluster
from broker.errors import PykafkaError
from broker.protocol.topic_partition import TopicPartition
from tests.support.source_tree import ROOT
from tests.support.waiting import eventually


def test_it_serves_keeps_its_port_and_data_over_a_crash_and_leaves_nothing_behind() -> None:
    kafka = EmbeddedBroker(settings={"num.partitions": "3"})
    with kafka:
        with Cluster(kafka.bootstrap) as cluster:
            Admin(cluster).create_topics([NewTopic("t", 2)])
        before = kafka.bootstrap
        kafka.kill()
        assert not kafka.running
        with socket.socket() as other, pytest.raises(OSError, match="Address already in use"):
            other.bind(("127.0.0.1", int(before.rpartition(":")[2])))  # as an outgoing connection would take it
        kafka.start()
        assert kafka.bootstrap == before
        with Cluster(kafka.bootstrap) as cluster:
            assert cluster.partitions("t") == [0, 1]
        with socket.create_connection((kafka.zookeeper.split(":")[0], int(kafka.zookeeper.split(":")[1])), timeout=60):
            pass
    assert not kafka.data_dir.exists()


def test_a_setting_that_one_broker_of_a_cluster_cannot_use_is_told(zookeeper: str, tmp_path: Path) -> None:
    settings = {"zookeeper.connect": f"{zookeeper}/cluster-with-a-misspelt-setting"}
    kafka = EmbeddedCluster(2, tmp_path, settings, {2: {"log.retention.minuts": "1"}})
    with pytest.raises(PykafkaError, match="did you mean .log.retention.minutes"):
        kafka.start()
    assert not any(broker.running for broker in kafka.brokers.values())


def test_a_broker_that_ends_at_its_start_says_so_with_its_exit_code_and_its_log(tmp_path: Path) -> None:
    kafka = EmbeddedBroker(tmp_path, settings={"log.retention.minuts": "1"}, standalone=True)
    with pytest.raises(PykafkaError, match="the broker ended with exit code 2 at its start; .*\n.*did you mean .log"):
        kafka.start()
    assert not kafka.running


def test_a_broker_that_says_nothing_is_given_up_after_the_time_for_it(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path, standalone=True) as kafka:
        (tmp_path / "broker.out").write_bytes(b"")
        with pytest.raises(PykafkaError, match="did not come up within 0 s; the last lines of its log:"):
            kafka._wait_until_ready(0)
        assert not kafka.running


def test_broker_and_zookeeper_end_when_their_owner_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys, time\n"
        "from broker.embedded import EmbeddedBroker\n"
        f"kafka = EmbeddedBroker({str(tmp_path)!r}).start()\n"
        "print(kafka.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert owner.stdout is not None
    pid = int(owner.stdout.readline())
    family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    assert len(family) > 1
    os.kill(owner.pid, signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    eventually(lambda: not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in family))


def knows_both(bootstrap: str) -> bool:
    with Cluster(bootstrap) as cluster:
        return len(cluster.brokers()) == 2


def test_the_brokers_of_a_cluster_come_and_go_each_by_itself(zookeeper: str) -> None:
    kafka = EmbeddedCluster(2, settings={"zookeeper.connect": f"{zookeeper}/cluster"})
    with kafka:
        before = kafka.bootstrap
        with Cluster(before) as cluster:
            eventually(lambda: all(knows_both(broker.bootstrap) for broker in kafka.brokers.values()))
            Admin(cluster).create_topics([NewTopic("t", 2)])
            assert {cluster.leader(TopicPartition("t", partition)).id for partition in range(2)} == {1, 2}
        paused = psutil.Process(kafka.brokers[2].pid)
        kafka.brokers[2].pause()
        eventually(lambda: paused.status() == psutil.STATUS_STOPPED)
        kafka.brokers[2].resume()
        eventually(lambda: paused.status() != psutil.STATUS_STOPPED)
        kafka.brokers[2].pause()
        kafka.brokers[2].stop()
        kafka.brokers[1].kill()
        assert not any(broker.running for broker in kafka.brokers.values())
        assert kafka.start().bootstrap == before
        with Producer(before) as producer:
            for partition in range(2):
                producer.send("t", value=b"v", partition=partition).result(60)
    assert not kafka.data_dir.exists()


def test_the_console_runs_beside_a_broker_and_ends_with_it(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path, standalone=True, ui=True) as kafka:
        assert kafka.ui is not None
        url = kafka.ui.url
        shown: list[dict[str, str]] = []

        def is_shown() -> bool:
            try:
                with urllib.request.urlopen(f"{url}api/v3/clusters", timeout=60) as answer:
                    shown.extend(json.load(answer)["data"])
            except urllib.error.HTTPError as refused:
                with refused:
                    if refused.code != 503:  # its first look at the broker takes long on a busy machine
                        raise
                return False
            return True

        eventually(is_shown)
        assert shown[0]["kind"] == "KafkaCluster"
        kafka.kill()
        kafka.start()
        assert kafka.ui.url == url, "it goes on while the broker is away"
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(url, timeout=60)

"""`pykafka cluster describe` and `pykafka cluster start`."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from broker.client.admin import Admin
from broker.client.admin_types import QuorumLeader
from broker.client.cluster import Cluster
from broker.tools.controller_epoch import Controller, find_controller
from broker.zookeeper.client import ZooKeeper
from broker.zookeeper.registry import Registry
from tests.support.broker_process import BrokerProcess
from tests.support.console import answer_of, command, error_of
from tests.support.kafka import Kafka
from tests.support.tcp_peer import TcpPeer
from tests.support.waiting import eventually


def described_by(bootstrap: str) -> dict[str, Any]:
    """What the command says once brokers and ZooKeeper answer within the seconds that it gives them."""
    found: dict[str, Any] = {}

    def is_whole() -> bool:
        found.update(json.loads(answer_of("cluster", "describe", "-b", bootstrap, "--json")))
        return found["controllerEpoch"] is not None and all(one["answers"] for one in found["brokers"])

    eventually(is_whole)
    return found


@pytest.mark.usefixtures("made_topic")
def test_brokers_controller_and_listeners_are_shown(broker: Kafka) -> None:
    described = described_by(broker.bootstrap)
    with Cluster(broker.bootstrap) as cluster:
        assert described["clusterId"] == cluster.cluster_id()
        assert [one["id"] for one in described["brokers"]] == [node.id for node in cluster.brokers()]
    assert sum(one["leaders"] for one in described["brokers"]) <= described["partitions"]
    assert described["controllerEpoch"] >= 1, described["controllerEpochProblem"]
    assert all("://" in listener for one in described["brokers"] for listener in one["listeners"])
    assert all(one["listeners"] for one in described["brokers"])
    shown = f"Controller: {described['controller']}, epoch: {described['controllerEpoch']}"
    eventually(lambda: shown in answer_of("cluster", "describe", "-b", broker.bootstrap))
    head, controller, *rows = answer_of("cluster", "describe", "-b", broker.bootstrap).splitlines()
    assert head.startswith(f"Cluster {described['clusterId']}: ")
    assert controller.startswith(shown.partition(",")[0])
    assert rows[0].split() == "BROKER ADDRESS RACK STATE LEADERS REPLICAS OUT OF SYNC LISTENERS".split()
    assert len(rows) >= 1 + len(described["brokers"])


def test_the_controller_and_its_epoch_are_those_of_the_zookeeper(own_broker: BrokerProcess) -> None:
    described = described_by(own_broker.bootstrap)
    with ZooKeeper(own_broker.zookeeper) as zookeeper:
        node = Registry(zookeeper).controller
        assert (described["controller"], described["controllerEpoch"]) == (node.id(), node.epoch().epoch)


@pytest.fixture
def admin(own_broker: BrokerProcess) -> Iterator[Admin]:
    with Cluster(own_broker.bootstrap) as cluster:
        yield Admin(cluster)


@pytest.mark.parametrize(
    ("connect", "problem"),
    [
        ("127.0.0.1:1", "no answer from ZooKeeper at 127.0.0.1:1"),
        ("no-such-host.invalid:2181", "no answer from ZooKeeper at no-such-host.invalid:2181"),
        ("a b", "zookeeper.connect=a b: 'a b' is not host:port"),
        ("", "the brokers do not say where their ZooKeeper is"),
        (None, "the brokers do not say where their ZooKeeper is"),
    ],
)
def test_an_epoch_that_cannot_be_read_is_no_error(admin: Admin, connect: str | None, problem: str) -> None:
    controller = find_controller(admin, {"zookeeper.connect": connect})
    assert (controller.id, controller.epoch) == (admin.cluster.controller_id(), None)
    assert (controller.problem or "").startswith(problem)


def test_a_zookeeper_that_never_answers_is_not_waited_for(admin: Admin) -> None:
    done = threading.Event()

    def say_nothing(sock: socket.socket) -> None:
        done.wait(60)

    with TcpPeer(say_nothing) as silent:
        controller = find_controller(admin, {"zookeeper.connect": f"127.0.0.1:{silent.port}"})
        assert controller.problem == f"no answer from ZooKeeper at 127.0.0.1:{silent.port}"
        assert not done.is_set()
        done.set()


def test_the_epoch_of_another_cluster_is_not_taken(admin: Admin, zookeeper: str) -> None:
    """As when `localhost` is the ZooKeeper of this machine, and not that of the broker's machine."""
    elsewhere = f"{zookeeper}/nobody-lives-here"
    problem = f"ZooKeeper at {elsewhere} does not have this cluster"
    eventually(lambda: find_controller(admin, {"zookeeper.connect": elsewhere}).problem == problem)
    with ZooKeeper(zookeeper) as client:
        assert client.exists("/nobody-lives-here") is None


def test_the_controller_of_kraft_leads_the_quorum(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    """There the controller in the metadata is any broker. The request itself is tested on an Apache Kafka."""
    monkeypatch.setattr(admin, "quorum_leader", lambda: QuorumLeader(3000, 7))
    assert find_controller(admin, {}) == Controller(3000, 7)


def test_a_broker_with_port_0_is_shown_with_the_port_it_got(own_broker: BrokerProcess) -> None:
    (shown,) = json.loads(answer_of("cluster", "describe", "-b", own_broker.bootstrap, "--json"))["brokers"]
    assert f"{shown['host']}:{shown['port']}" == own_broker.bootstrap
    assert shown["listeners"] == [f"PLAINTEXT://{own_broker.bootstrap}"]


def lines_of_cluster(bootstrap: str) -> list[str]:
    """With the gaps between columns as two blanks."""
    return [
        re.sub("  +", "  ", line.strip()) for line in answer_of("cluster", "describe", "-b", bootstrap).splitlines()
    ]


def test_a_cluster_starts_is_described_and_ends_as_a_whole(tmp_path: Path) -> None:
    """A session of 30 s: a broker that was killed stays registered for as long as this test looks."""
    settings = ["num.partitions=2", "zookeeper.session.timeout.ms=30000"]
    arguments = ["cluster", "start", "--brokers", "3", "--dir", str(tmp_path)]
    arguments += (word for setting in settings for word in ("--override", setting))
    with subprocess.Popen(command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stderr.readline() == "Starting 3 brokers and a ZooKeeper.\n"
        bootstrap = process.stdout.readline().removeprefix("bootstrap servers: ").rstrip()
        assert process.stdout.readline().startswith("ZooKeeper: 127.0.0.1:")
        head, *rows = (process.stdout.readline().split() for _ in range(4))
        assert head == ["BROKER", "ADDRESS", "PROCESS", "LOG"]
        assert ",".join(row[1] for row in rows) == bootstrap
        family = psutil.Process(process.pid).children(recursive=True)
        answer_of("topics", "create", "--topic", "t", "--replication-factor", "3", "-b", bootstrap)

        def is_whole() -> bool:
            described = json.loads(answer_of("cluster", "describe", "-b", bootstrap, "--json"))
            shown = [(one["id"], one["replicas"], one["outOfSync"]) for one in described["brokers"]]
            missing = described["underReplicatedPartitions"] + described["notRegistered"]
            return shown == [(1, 2, 0), (2, 2, 0), (3, 2, 0)] and missing == []

        eventually(is_whole)
        described = json.loads(answer_of("cluster", "describe", "-b", bootstrap, "--json"))
        assert sum(one["leaders"] for one in described["brokers"]) == 2

        again = f"pykafka cluster restart-broker {{}} --dir {tmp_path}"
        assert process.stderr.readline() == f"To start a broker again: {again.format('ID')}\n"
        assert error_of(*arguments) == f"pykafka: a cluster runs on {tmp_path} already; give another --dir\n"
        for id, number in ((2, signal.SIGKILL), (3, signal.SIGTERM)):
            os.kill(int(rows[id - 1][2]), number)
            ended = f"broker {id} has ended by itself; see {tmp_path}/broker-{id}/broker.log; start it again: "
            assert process.stderr.readline() == ended + again.format(id) + "\n"
        wanted = [
            f"1  {rows[0][1]}  -  up  2  2  0  PLAINTEXT://{rows[0][1]}",
            f"2  {rows[1][1]}  -  does not answer  0  2  2  -",
            "3  -  -  not registered  0  2  2  -",
            "under-replicated partitions: t-0, t-1",
        ]

        def shows_who_is_left() -> bool:
            _, controller, _, *rest = lines_of_cluster(bootstrap)
            return rest == wanted and re.fullmatch(r"Controller: 1, epoch: \d+", controller) is not None

        eventually(shows_who_is_left)
        for id in (2, 3, 1):  # two that have ended, and one that runs
            said = answer_of("cluster", "restart-broker", str(id), "--dir", str(tmp_path))
            assert said.startswith(f"broker {id} listens on {rows[id - 1][1]} again, as process ")
            assert process.stderr.readline() == said
        eventually(is_whole)
        unknown = error_of("cluster", "restart-broker", "4", "--dir", str(tmp_path))
        assert unknown == "pykafka: there is no broker 4; the brokers are 1, 2, 3\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    psutil.wait_procs(family, timeout=60)
    assert not any(one.is_running() for one in family)
    nobody = error_of("cluster", "restart-broker", "2", "--dir", str(tmp_path), status=2)
    assert f"no cluster runs on {tmp_path}: start one with pykafka cluster start --dir {tmp_path}" in nobody

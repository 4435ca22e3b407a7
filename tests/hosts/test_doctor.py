"""`pykafka doctor --master` on hosts of which each has a fault of its own: a line names the host and the fault."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hosts import HOME, PYKAFKA, Host, Network, start_broker, start_master, start_worker, start_zookeeper
from tests.support.requirements import Unavailable, give_up

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

WORKERS = ("sound", "bare", "late", "cut", "pathless")
_AHEAD_S = 90
_PYTHON = HOME / "python"
"""On each host another one, as PYSPARK_PYTHON names it."""


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    try:
        with Network(tmp_path) as network:
            yield network
    except Unavailable as missing:
        give_up(str(missing))


def give_python(host: Host, command: str) -> None:
    program = host.outside(_PYTHON)
    program.write_text(f'#!/bin/sh\n{command} "$@"\n')
    program.chmod(0o755)


def test_each_fault_has_a_line_that_names_its_host(network: Network, tmp_path: Path) -> None:
    driver, master = network.host("driver"), network.host("master")
    give_python(driver, f"exec {sys.executable}")
    for name in ("sound", "cut"):
        give_python(network.host(name), f"exec {sys.executable}")
    give_python(network.host("bare"), f"exec {sys.executable} -S")  # without site-packages
    late = network.host("late")
    clock = late.outside(HOME / "clock")
    clock.mkdir()
    (clock / "sitecustomize.py").write_text(f"import time\nnow = time.time\ntime.time = lambda: now() + {_AHEAD_S}\n")
    give_python(late, f"PYTHONPATH={HOME}/clock:$PYTHONPATH exec {sys.executable}")
    zookeeper = start_zookeeper(network.host("zk"))
    brokers = [network.host("b1"), network.host("b2")]
    for number, broker in enumerate(brokers, 1):
        start_broker(broker, number, zookeeper)
    url = start_master(master)
    for name in WORKERS:
        start_worker(network.host(name), url, memory="600m")
    driver.run("mkdir", str(HOME / "lake"))
    shared = tmp_path / "shared"  # /tmp is the same on all hosts
    shared.mkdir()

    def doctor(to: str, status: int) -> list[str]:
        """The lines of the checks of executors."""
        command = [*PYKAFKA, "doctor", "--json", "--master", url, "--bootstrap-server", "b1:9092", "--to", to]
        conf = ["--conf", "spark.executor.memory=512m", "--conf", "spark.driver.host=driver"]
        line = " ".join([*command, *conf])
        said = driver.run(
            *("sh", "-c", f"{line}; test $? -eq {status}"), env={"PYSPARK_PYTHON": str(_PYTHON)}, timeout=300
        )
        names = ("executors", "executor", "libraries", "brokers", "destination", "clock")
        return [f"{one['state']} {one['check']} {one['says']}" for one in json.loads(said) if one["check"] in names]

    with network.cut_between(network.host("cut"), brokers[1]):
        lines = doctor(str(HOME / "lake"), 1)

    def has(start: str) -> bool:
        return sum(line.startswith(start) for line in lines) == 1

    assert has("error executors 5 hosts, 4 of them answered"), lines
    assert has(f"error executor pathless: Spark cannot start {_PYTHON} there: No such file or directory"), lines
    assert has("error executor bare: no pykafka 0.3.0 for "), lines
    assert has("warning libraries bare: lacks pyarrow, "), lines
    assert has("error clock late: its clock is at least 8"), lines
    assert has("error brokers cut: broker 2: no connection to b2:9092: timed out"), lines
    for name in ("sound", "bare", "late"):
        assert has(f"ok brokers {name}: 2 brokers answer by the advertised name"), lines
    for name in ("sound", "late", "cut"):
        assert has(f"ok executor {name}: "), lines
        assert has(f"error destination {name}: file://{HOME}/lake is another place there"), lines
    for name in ("sound", "bare", "cut"):
        assert has(f"ok clock {name}: "), lines
    assert driver.run("ls", "-A", str(HOME / "lake")) == ""

    lines = doctor(str(shared), 1)
    for name in ("sound", "bare", "late", "cut"):
        assert has(f"ok destination {name}: reads, writes and deletes in file://{shared}"), lines
    assert has("ok brokers cut: "), lines
    assert list(shared.iterdir()) == []

"""`pykafka doctor --master` on hosts of which each has a fault of its own: a line names the host and the fault."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from tests.support.hosts import HOME, PYKAFKA, Host, Network, start_broker, start_master, start_worker, start_zookeeper

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

_AHEAD_S = 90
_PYTHON = HOME / "python"
"""On each host another one, as PYSPARK_PYTHON names it."""


def give_python(host: Host, command: str) -> None:
    program = host.outside(_PYTHON)
    program.write_text(f'#!/bin/sh\n{command} "$@"\n')
    program.chmod(0o755)


def test_each_fault_has_a_line_that_names_its_host(network: Network, tmp_path: Path) -> None:
    """`bare` has a Python without any package, `late` a wrong clock and no way to the broker, `pathless` no Python."""
    driver, bare, late, broker = (network.host(name) for name in ("driver", "bare", "late", "broker"))
    give_python(driver, f"exec {sys.executable}")
    give_python(bare, f"exec {sys.executable} -S")
    clock = late.outside(HOME / "clock")
    clock.mkdir()
    (clock / "sitecustomize.py").write_text(f"import time\nnow = time.time\ntime.time = lambda: now() + {_AHEAD_S}\n")
    give_python(late, f"PYTHONPATH={HOME}/clock:$PYTHONPATH exec {sys.executable}")
    start_broker(broker, 7, start_zookeeper(broker))
    url = start_master(driver)
    for host in (bare, late, network.host("pathless")):
        start_worker(host, url, memory="600m")
    driver.run("mkdir", str(HOME / "lake"))
    shared = tmp_path / "shared"  # /tmp is the same on all hosts
    shared.mkdir()

    def doctor(to: Path) -> dict[str, str]:
        """Check and host → what is said of it, of the checks of executors."""
        conf = ("--conf", "spark.executor.memory=512m", "--conf", "spark.driver.host=driver")
        asked = ("--master", url, "--bootstrap-server", "broker:9092", "--to", str(to))
        line = " ".join((*PYKAFKA, "doctor", "--json", *asked, *conf))
        variables = {"PYSPARK_PYTHON": str(_PYTHON)}
        said = driver.run("sh", "-c", f"{line}; test $? -eq 1", env=variables, timeout=400)
        found = {}
        for one in json.loads(said):
            if one["check"] in ("executors", "executor", "libraries", "brokers", "destination", "clock"):
                host, _, says = one["says"].partition(": ")
                found[f"{one['check']} {host}"] = f"{one['state']}: {says}"
        return found

    with network.cut_between(late, broker):
        found = doctor(HOME / "lake")
    assert "executors 3 hosts, 2 of them answered" in found, found
    assert found["executors 3 hosts, 2 of them answered"].startswith("error")
    assert found["executor pathless"] == f"error: Spark cannot start {_PYTHON} there: No such file or directory"
    assert found["executor bare"].startswith("error: no pykafka 0.3.0 for ")
    assert found["executor late"].startswith("ok: ")
    assert found["libraries bare"].startswith("warning: lacks pyarrow, numpy, ")
    assert found["libraries late"].startswith("ok: ")
    assert found["brokers bare"].startswith("ok: 1 broker answers by the advertised name")
    assert found["brokers late"] == "error: broker 7: no connection to broker:9092: timed out"
    assert found["clock bare"].startswith(("ok: ", "unknown: its answers took "))  # as busy as the machine is
    assert re.fullmatch(r"error: its clock is at least (8\d|90)\.\d s ahead of the driver's", found["clock late"])
    for name in ("bare", "late"):
        said = f"error: file://{HOME}/lake is another place there: the driver's file is not in it"
        assert found[f"destination {name}"] == said
    assert driver.run("ls", "-A", str(HOME / "lake")) == ""

    found = doctor(shared)
    for name in ("bare", "late"):
        said = f"ok: reads, writes and deletes in file://{shared}, which the driver shares"
        assert found[f"destination {name}"] == said
    assert found["brokers late"].startswith("ok: ")
    assert list(shared.iterdir()) == []

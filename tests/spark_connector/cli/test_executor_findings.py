"""What the doctor says of what hosts have told: each line names its host."""

from __future__ import annotations

from typing import Any

import pytest

from broker.tools.checkup import Finding
from spark_connector.cli.executor_findings import HostSeen, failed_host, findings_of

PACKAGE = {"version": "0.3.0", "lacks": None, "where": "/x", "kernel": True}
LIBRARIES = {"pyarrow": "25.0.0", "s3fs": "2026.9.0", "gcsfs": None}
HERE = {"host": "driver", "package": PACKAGE, "libraries": LIBRARIES}
TOLD = {
    "host": "w1",
    "python": "3.11.7",
    "executable": "/env/bin/python",
    "package": PACKAGE,
    "libraries": LIBRARIES,
    "brokers": {"broker 1": {"ms": 3.2}, "broker 2": {"ms": 12.0}},
    "place": {"is_shared": True, "left": "w1-7"},
}


def found(**told: Any) -> dict[str, Finding]:
    host = HostSeen("w1", {**TOLD, **told})
    host.timed(10.0, 11.0, 9.9, 11.1)
    findings = list(findings_of(host, HERE, "/lake", ["driver", "w1-7"]))
    assert all(one.says.startswith("w1: ") for one in findings)
    return {one.check: one for one in findings}


def test_a_sound_host_is_ok_in_every_line() -> None:
    findings = found()
    assert {one.state for one in findings.values()} == {"ok"}
    assert findings["executor"].says == "w1: /env/bin/python (Python 3.11.7) has pykafka 0.3.0 and the kernel in C"
    assert findings["brokers"].says == "w1: 2 brokers answer by the advertised name, within 12 ms"
    assert findings["destination"].says == "w1: reads, writes and deletes in /lake, which the driver shares"
    assert findings["clock"].says == "w1: its clock agrees with the driver's within 0.10 s"
    assert "destination" not in found(place=None)
    assert found(host="driver")["clock"].says == "w1: its clock is the driver's"


@pytest.mark.parametrize(
    ("package", "state", "said"),
    [
        ({"version": None, "lacks": "No module named 'spark_connector'"}, "error", "no pykafka 0.3.0 for /env/bin/py"),
        ({"lacks": "No module named 'numpy'"}, "error", "pykafka 0.3.0 cannot be imported by /env/bin/python"),
        ({"version": "0.2.0"}, "error", "has pykafka 0.2.0, and the driver 0.3.0"),
        ({"version": None}, "unknown", "has pykafka in an unknown version in /x, and the driver 0.3.0"),
        ({"kernel": False}, "warning", "has pykafka 0.3.0, without the kernel in C: slow"),
    ],
)
def test_a_package_that_is_not_the_drivers(package: dict[str, Any], state: str, said: str) -> None:
    finding = found(package={**PACKAGE, **package})["executor"]
    assert (finding.state, said in finding.says, bool(finding.mend)) == (state, True, True), finding


def test_libraries_are_compared_with_the_drivers() -> None:
    finding = found(libraries={"pyarrow": "18.0.0", "gcsfs": "1"})["libraries"]
    assert finding.state == "warning"
    assert finding.says == "w1: lacks s3fs, which the driver has; has pyarrow 18.0.0 (the driver: 25.0.0)"


@pytest.mark.parametrize(
    ("brokers", "state", "said"),
    [
        ({}, "unknown", "not tried"),
        ({"broker 1": {"ms": 1.0}, "broker 2": {"error": "timed out"}}, "error", "broker 2: timed out"),
        ({"broker 1": {"unknown": "no login"}, "broker 2": {"ms": 1.0}}, "unknown", "broker 1: no login"),
        ({"broker 1": {"unknown": "no login"}, "broker 2": {"error": "gone"}}, "error", "broker 2: gone"),
    ],
)
def test_a_broker_that_is_not_reached(brokers: dict[str, Any], state: str, said: str) -> None:
    finding = found(brokers=brokers)["brokers"]
    assert (finding.state, finding.says, bool(finding.mend)) == (state, f"w1: {said}", True)


@pytest.mark.parametrize(
    ("place", "state", "said"),
    [
        ({"unknown": "no package"}, "unknown", "/lake: no package"),
        ({"error": "may not write there", "is_shared": True}, "error", "/lake: may not write there"),
        ({"is_shared": False}, "error", "/lake is another place there: the driver's file is not in it"),
        (
            {"is_shared": True, "left": "w1-8"},
            "error",
            "/lake: the driver does not see its file w1-8, which stays there",
        ),
    ],
)
def test_a_destination_that_is_not_shared_or_not_allowed(place: Any, state: str, said: str) -> None:
    finding = found(place=place)["destination"]
    assert (finding.state, finding.says) == (state, f"w1: {said}")


@pytest.mark.parametrize(
    ("ahead", "took", "state", "said"),
    [
        (0.0, 0.2, "ok", "agrees with the driver's within 0.20 s"),
        (0.5, 2.0, "unknown", "its answers took 2.5 s, too long to compare the clocks"),
        (5.0, 0.5, "warning", "is at least 4.5 s ahead of the driver's"),
        (-5.0, 0.5, "warning", "is at least 4.5 s behind the driver's"),
        (3600.0, 0.5, "error", "is at least 3,599.5 s ahead of the driver's"),
    ],
)
def test_a_clock_is_wrong_by_what_no_delay_explains(ahead: float, took: float, state: str, said: str) -> None:
    """The task takes no time, and sending and answering `took` each; the tightest of the rounds counts."""
    host = HostSeen("w1", TOLD)
    host.timed(1000.0 + ahead, 1000.0 + ahead, 900.0, 1100.0)
    host.timed(2000.0 + ahead, 2000.0 + ahead, 2000.0 - took, 2000.0 + took)
    finding = list(findings_of(host, HERE, "/lake", []))[-1]
    assert (finding.check, finding.state, said in finding.says) == ("clock", state, True), finding


OTHER_VERSION = "Python in worker has different version: 3.12 than that in driver: 3.11, PySpark cannot run."
MISMATCH = f"Traceback …\npyspark.errors.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] {OTHER_VERSION}\n\tat …"


@pytest.mark.parametrize(
    ("reason", "said", "mend"),
    [
        (
            'java.io.IOException: Cannot run program "/opt/env/bin/python": error=2, No such file or directory\n\tat …',
            "Spark cannot start /opt/env/bin/python there: No such file or directory",
            "PYSPARK_PYTHON",
        ),
        (MISMATCH, OTHER_VERSION, "PYSPARK_PYTHON"),
        (
            "Traceback (most recent call last):\n  File …\nModuleNotFoundError: No module named 'pyspark'\n",
            "a Python task fails there: ModuleNotFoundError: No module named 'pyspark'",
            "pykafka pack",
        ),
        (
            "ExecutorLostFailure (executor 1 exited)\nmore",
            "fails there: ExecutorLostFailure (executor 1 exited)",
            "pack",
        ),
        ("", "a Python task fails there: Spark does not say why", "pack"),
    ],
)
def test_a_host_where_no_task_runs_is_told_with_sparks_reason(reason: str, said: str, mend: str) -> None:
    finding = failed_host("w2", reason)
    assert (finding.check, finding.state, finding.says.startswith("w2: ")) == ("executor", "error", True)
    assert finding.says.endswith(said), finding.says
    assert mend in finding.mend

"""The doctor's jobs, in a real Spark whose only executor is the driver; for others: tests/hosts/test_doctor.py."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from pyspark.sql import SparkSession

from broker.tools.checkup import PACKAGE, Finding
from spark_connector.cli import executor_checkup
from spark_connector.cli.executor_checkup import look_at_executors
from spark_connector.cli.executor_findings import HostSeen
from spark_connector.cli.host_probe import Order
from tests.support.console import verdict_of
from tests.support.free_ports import refused_port
from tests.support.kafka import Kafka


class _Lent(contextlib.nullcontext[Any]):
    """The session of the tests in place of one that the doctor starts and stops."""

    def __init__(self, session: SparkSession) -> None:
        super().__init__(self)
        self.session = lambda: session


@pytest.fixture(autouse=True)
def lent(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor_checkup, "LazySession", lambda *_: _Lent(spark))


def found(to: Path | str | None, bootstrap: str = "") -> list[Finding]:
    properties = {"bootstrap.servers": bootstrap} if bootstrap else {}
    return list(look_at_executors("local[2]", {}, properties, None if to is None else str(to), {}))


def states(findings: list[Finding]) -> Iterator[tuple[str, str]]:
    return ((one.check, one.state) for one in findings)


def test_a_host_is_looked_at_by_tasks_and_nothing_is_left(broker: Kafka, tmp_path: Path) -> None:
    findings = found(tmp_path / "not" / "made", broker.bootstrap)
    checks = ["executors", "executor", "libraries", "brokers", "destination"]
    assert list(states(findings))[:5] == [(check, "ok") for check in checks], findings
    assert findings[0].says == "1 host, 1 of them answered"
    assert list(states(findings))[-1] == ("clock", "ok")
    assert os.listdir(tmp_path) == []


def test_the_brokers_are_tried_by_their_advertised_names() -> None:
    with refused_port() as port:
        findings = found(None, f"127.0.0.1:{port}")
    assert next(states(findings)) == ("brokers", "unknown")
    told = next(one for one in findings if one.check == "brokers" and one.state == "error")
    assert f"127.0.0.1:{port}: no connection to 127.0.0.1:{port}" in told.says


def test_a_table_is_no_directory_and_a_place_without_rights_is_told(tmp_path: Path) -> None:
    table = next(one for one in found("iceberg:lake.flights") if one.check == "destination")
    assert (table.state, table.says) == ("unknown", "iceberg:lake.flights was not looked at: it is no directory")
    (tmp_path / "file").write_text("")
    for place, why in ((tmp_path / "file", "Not a directory"), ("/no-such/directory", "neither it nor a directory")):
        (finding,) = (one for one in found(place) if one.check == "destination")
        assert (finding.state, why in finding.says) == ("error", True), finding
        assert finding.says.startswith(f"the driver may not write into file://{place}: ")


def test_the_command_prints_what_was_found_and_its_worst_state(tmp_path: Path) -> None:
    said = verdict_of("doctor", "--json", "--master", "local[2]", "--to", str(tmp_path), status=3)
    findings = json.loads(said)
    assert {"host name", "executors", "destination", "clock"} <= {one["check"] for one in findings}
    assert [one["check"] for one in findings if one["state"] == "unknown"] == ["brokers"]


def test_hosts_that_failed_or_were_silent_are_named_and_none_at_all_is_an_error(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = executor_checkup._Executors(spark, is_alone=False)
    asked.why_not = "Job 0 cancelled"
    (nobody,) = asked.findings()
    assert (nobody.state, "none has started within " in nobody.says) == ("error", True)
    assert nobody.says.endswith(": Job 0 cancelled")
    monkeypatch.setattr(asked, "_silent", lambda: {"w3"})
    asked.seen["w1"], asked.failed["w2"] = HostSeen("w1"), "ValueError: broken"
    assert [(one.state, one.says.partition(": ")[0]) for one in asked.findings()] == [
        ("error", "w2"),
        ("unknown", "w3"),
        ("error", "3 hosts, 1 of them answered"),
    ]
    monkeypatch.setattr(asked, "_silent", set)
    monkeypatch.setattr(asked, "_is_dynamic", lambda: True)
    *_, dynamic = asked.findings()
    assert (dynamic.state, "minExecutors" in dynamic.mend) == ("warning", True)


def test_spark_tells_where_each_attempt_ran_and_the_driver_is_no_executor(spark: SparkSession) -> None:
    asked = executor_checkup._Executors(spark, is_alone=False)
    asked._ask(Order(PACKAGE))
    assert asked._silent() == set()
    assert len(asked._by_attempt) == spark.sparkContext.defaultParallelism
    assert set(asked._by_attempt.values()) == {"localhost"}  # Spark's name; the host's own says more
    assert asked.seen.keys() == {socket.gethostname()}


def test_where_spark_does_not_tell_its_executors_it_is_unknown_whether_all_have_answered(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = executor_checkup._Executors(spark, is_alone=False)
    context = mock.Mock(spec=["_jsc"])
    context._jsc.sc.side_effect = AttributeError("no statusStore")
    monkeypatch.setattr(asked, "_context", context)
    asked.seen["w1"] = HostSeen("w1")
    (hosts,) = asked.findings()
    assert (hosts.state, hosts.says) == (
        "unknown",
        "1 host, 1 of them answered; Spark does not tell whether there are others: no statusStore",
    )

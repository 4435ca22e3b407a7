"""`pykafka perf` against a broker: what it counts, not how fast it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.console import answer_of, error_of, output_of
from tests.support.kafka import Kafka

pytestmark = pytest.mark.usefixtures("made_topic")


@pytest.fixture
def at(broker: Kafka) -> tuple[str, str]:
    return ("--bootstrap-server", broker.bootstrap)


def measured(*arguments: str) -> dict[str, Any]:
    found = json.loads(answer_of("perf", *arguments, "--json"))
    assert isinstance(found, dict)
    return found


def test_what_was_sent_is_read(at: tuple[str, str], topic: str) -> None:
    line = output_of("perf", "produce", "--topic", topic, "-n", "2000", "-s", "100", *at)
    assert line.startswith("2,000 records sent in ")
    assert " ms p99.9" in line
    produced = measured("produce", "--topic", topic, "-n", "3000", *at)
    assert (produced["records"], produced["failedRecords"]) == (3000, 0)
    latency = produced["latencyMs"]
    assert 0 < latency["p50"] <= latency["p95"] <= latency["p99"] <= latency["p99.9"] <= latency["max"]
    everything = measured("consume", "--topic", topic, *at)
    assert everything["records"] == 5000
    assert everything["megabytes"] == pytest.approx(500_000 / (1 << 20), abs=0.001)
    assert measured("consume", "--topic", topic, "-n", "1234", *at)["records"] == 1234
    assert answer_of("perf", "consume", "--topic", topic, *at).startswith("5,000 records read in ")


def test_a_group_reads_once(at: tuple[str, str], topic: str, group: str) -> None:
    measured("produce", "--topic", topic, "-n", "100", *at)
    assert measured("consume", "--topic", topic, "--group", group, *at)["records"] == 100
    assert measured("consume", "--topic", topic, "--group", group, *at)["records"] == 0


def test_a_rate_is_kept(at: tuple[str, str], topic: str) -> None:
    produced = measured("produce", "--topic", topic, "-n", "100", "--throughput", "250", *at)
    assert produced["seconds"] > 0.35
    assert produced["recordsPerSecond"] < 260


def test_transactions_and_lines_of_a_file(at: tuple[str, str], topic: str, group: str, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_bytes(b"first\nsecond\n")
    transactional = ("--transactional-id", group, "--transaction-duration-ms", "5")
    measured("produce", "--topic", topic, "-n", "501", "--payload-file", str(lines), *transactional, *at)
    committed = ("--isolation-level", "read_committed", "--from-beginning", "-n", "501", "--timeout-ms", "5000")
    assert answer_of("consume", "--topic", topic, *committed, *at).split() == (["first", "second"] * 251)[:501]
    assert measured("consume", "--topic", topic, *at)["records"] == 501, "markers do not keep it waiting"


def test_what_cannot_be_is_told(at: tuple[str, str], topic: str, tmp_path: Path) -> None:
    assert "there is no topic 'no-such-topic'" in error_of("perf", "consume", "--topic", "no-such-topic", *at)
    missing = str(tmp_path / "missing")
    assert "No such file" in error_of("perf", "produce", "--topic", topic, "--payload-file", missing, *at, status=2)
    big = ("-n", "2", "-s", "2000", "--producer-property", "max.request.size=1000")
    assert "max.request.size=1000" in error_of("perf", "produce", "--topic", topic, *big, *at)

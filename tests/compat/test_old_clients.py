"""The oldest client of each family that works with the broker, and what the broker's log says of one that is too old.

docs/compatibility.md names them. They need old Pythons: where one is missing, its tests are skipped and say so.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import old_client
from tests.support.broker_process import BrokerProcess
from tests.support.package_environment import python_with
from tests.support.requirements import Unavailable, give_up

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

WORKING = [
    ("3.6", "confluent-kafka==0.11.4"),
    ("3.6", "confluent-kafka==0.11.6"),
    ("3.7", "confluent-kafka==0.11.6"),
    ("3.6", "confluent-kafka==1.0.1"),
    ("3.6", "confluent-kafka==1.1.0"),
    ("3.6", "confluent-kafka==1.3.0"),
    ("3.6", "confluent-kafka==1.4.2"),
    ("3.6", "confluent-kafka==1.5.0"),
    ("3.7", "confluent-kafka==1.6.1"),
    ("3.6", "kafka-python==1.4.0"),
    ("3.7", "kafka-python==1.4.7"),
]
TOO_OLD = ("3.6", "kafka-python==1.3.5")
"""It knows no record batches (KIP-98), only the message sets before them."""

Run = Callable[[str, str, str], subprocess.CompletedProcess[str]]


@pytest.fixture
def run(broker: BrokerProcess) -> Run:
    def run(python: str, package: str, topic: str) -> subprocess.CompletedProcess[str]:
        try:
            interpreter = python_with(python, package)
        except Unavailable as error:
            give_up(f"{package}: {error}")
        command = [str(interpreter), "-I", old_client.__file__, package.partition("==")[0], broker.bootstrap, topic]
        return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, cwd=Path("/"))

    return run


@pytest.mark.usefixtures("made_topic")
@pytest.mark.parametrize(("python", "package"), WORKING, ids=lambda one: one)
def test_an_old_client_writes_and_reads_in_a_group(run: Run, topic: str, python: str, package: str) -> None:
    done = run(python, package, topic)
    assert done.returncode == 0, done.stderr[-4000:]
    told = json.loads(done.stdout)
    values = [f"v{number}" for number in range(old_client.COUNT)]
    assert told["version"] == package.partition("==")[2]
    assert [value for read in told["read"] for value in read] == values
    assert [len(read) for read in told["read"]] == [old_client.FIRST, old_client.COUNT - old_client.FIRST]
    assert told["end"] == old_client.COUNT


@pytest.mark.usefixtures("made_topic")
def test_the_log_names_a_client_that_is_too_old(run: Run, broker: BrokerProcess, topic: str) -> None:
    assert run(*TOO_OLD, topic).returncode != 0
    named = [line for line in broker.output.splitlines() if "asked by client id 'old-kafka-python'" in line]
    assert len(named) == 1
    assert "WARNING" in named[0]
    assert "PRODUCE version 2 is outside" in named[0]


def test_the_document_names_the_oldest() -> None:
    document = (Path(__file__).parents[2] / "docs" / "compatibility.md").read_text()
    for package in ("confluent-kafka 0.11.4", "kafka-python 1.4.0"):
        assert package in document

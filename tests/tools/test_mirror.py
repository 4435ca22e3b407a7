"""`pykafka mirror`: what it prints, what it refuses, and that a kill loses and doubles nothing."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.committed_records import committed_values
from tests.support.console import answer_of, command, error_of
from tests.support.source_tree import ROOT
from tests.support.topics import Topic


@pytest.fixture
def target(tmp_path: Path, zookeeper: str, group: str) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "target", zookeeper=f"{zookeeper}/{group}") as process:
        yield process


def test_wrong_use_says_what_to_set() -> None:
    route = ("--from", "localhost:1", "--to", "localhost:2")
    assert "--topics: name the topics" in error_of("mirror", *route, status=2)
    assert "--from: name the brokers of the source" in error_of("mirror", "--to", "x", "--topics", "t", status=2)
    assert "or in --target-config" in error_of("mirror", "--from", "x", "--topics", "t", status=2)
    assert "--topics (: " in error_of("mirror", *route, "--topics", "(", status=2)
    assert "--groups-exclude *" in error_of("mirror", *route, "--topics", "t", "--groups-exclude", "*", status=2)
    assert "must be one of identity, default" in error_of(
        "mirror", *route, "--topics", "t", "--replication-policy", "same", status=2
    )
    assert "must be earliest or latest" in error_of(
        "mirror", *route, "--topics", "t", "--auto-offset-reset", "none", status=2
    )
    assert "no broker of bootstrap.servers could be reached" in error_of("mirror", *route, "--topics", "t", "--once")


def test_a_mirror_that_is_killed_goes_on_where_it_was(
    own_broker: BrokerProcess, target: BrokerProcess, topic: str
) -> None:
    """Killed with a transaction open, then ended by SIGTERM; the last run ends by itself."""
    source = Topic(own_broker.bootstrap, topic, partitions=2)
    arguments = ["mirror", "--from", own_broker.bootstrap, "--to", target.bootstrap, "--topics", topic]
    sent = 0

    def written() -> int:
        return len(committed_values(target.bootstrap, topic)) if sent else 0

    for commit_interval, end in (("0.3", signal.SIGKILL), ("0.1", signal.SIGTERM)):
        before = sent
        with subprocess.Popen(
            command(*arguments, "--commit-interval", commit_interval), cwd=ROOT, stdout=subprocess.DEVNULL
        ) as running:
            while sent == before or written() <= before:
                source.number(200, sent // 200 % 2, first=sent)
                sent += 200
            running.send_signal(end)
            assert running.wait(60) == (0 if end is signal.SIGTERM else -signal.SIGKILL)
    result = json.loads(answer_of(*arguments, "--once", "--json"))
    assert result["lag"] == 0
    values = committed_values(target.bootstrap, topic)
    assert sorted(map(int, values)) == list(range(sent))
    assert values == committed_values(own_broker.bootstrap, topic)
    assert "Mirrored 0 records" in answer_of(*arguments, "--once")

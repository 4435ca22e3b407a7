"""Executors that are processes of their own: nothing may lean on what driver and executor share in local mode."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import BrokerFactory
from tests.support.committed_records import committed_values
from tests.support.kafka import Kafka
from tests.support.source_tree import ROOT
from tests.support.topics import Topic


@pytest.mark.slow
@pytest.mark.timeout(1000)
def test_batch_stream_sink_and_load_on_two_executors(
    broker: Kafka, broker_factory: BrokerFactory, topic: str, group: str, tmp_path: Path
) -> None:
    """Two clusters have a topic of the same name, read by turns: a kept connection must not serve the other one."""
    other = broker_factory(name="other")
    for bootstrap, first in ((broker.bootstrap, 0), (other.bootstrap, 1_000_000)):
        made = Topic(bootstrap, topic, 2)
        made.number(100, 0, first=first)
        made.number(50, 1, first=first)
    target = Topic(broker.bootstrap, f"{topic}-target", 2)
    arguments = {"first": broker.bootstrap, "second": other.bootstrap, "topic": topic, "target": target.name}
    arguments |= {"group": group, "home": str(tmp_path)}
    command = [sys.executable, "-m", "tests.support.local_cluster_session", json.dumps(arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    numbers = [*range(100), *range(50)]
    ours, others = sum(numbers), sum(numbers) + 150 * 1_000_000
    assert seen["batch"] == [[150, ours, 2], [150, others, 2], [150, ours, 2], [150, others, 2]]
    assert (seen["streamed"], seen["loaded"]) == (150, [150, 150])
    assert sorted(int(value) for value in committed_values(broker.bootstrap, target.name)) == sorted(numbers)

"""The same source through Spark Connect: registered by itself, batch and stream; the listener runs in the client."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.support.broker_process import BrokerProcess
from tests.support.source_tree import ROOT
from tests.support.topics import Topic


def test_batch_and_stream_over_spark_connect(broker: BrokerProcess, topic: str, tmp_path: Path) -> None:
    made = Topic(broker.bootstrap, topic, 2)
    made.number(100, 0)
    made.number(50, 1)
    command = [sys.executable, "-m", "tests.support.connect_session", broker.bootstrap, topic, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    assert "Unknown option 'subscrib'" in seen.pop("error")
    assert seen == {
        "rows": 150,
        "sum": sum(range(100)) + sum(range(50)),
        "finished": True,
        "streamed": 150,
        "behind": [50, 0],
    }

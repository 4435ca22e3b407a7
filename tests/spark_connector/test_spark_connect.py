"""The same source and sink through Spark Connect: registered by themselves; the listener runs in the client."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.support.connect_session import SECRET
from tests.support.kafka import Kafka
from tests.support.source_tree import ROOT
from tests.support.topics import Topic


@pytest.mark.timeout(330)  # a Spark of its own, and its server
def test_batches_and_streams_are_read_and_written_over_spark_connect(broker: Kafka, topic: str, tmp_path: Path) -> None:
    made = Topic(broker.bootstrap, topic, 2)
    made.number(100, 0)
    made.number(50, 1)
    target = Topic(broker.bootstrap, f"{topic}-target", 2).name
    command = [sys.executable, "-m", "tests.support.connect_session", broker.bootstrap, topic, target, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    error = seen.pop("error")
    assert "Unknown option 'subscrib'" in error.partition("JVM stacktrace:")[0].splitlines()[0]
    assert "Traceback (most recent call last)" not in error
    *unnamed, unversioned = seen.pop("refused")
    assert all("set option 'txnAppId'" in one and "'txnVersion' to the batch's id" in one for one in unnamed)
    assert bool(unnamed) is (version("pyspark") >= "4.3")
    assert "Option 'txnAppId' needs option 'txnVersion'" in unversioned
    plans = seen.pop("plans")
    assert "pykafka" in plans
    assert SECRET not in plans
    assert seen == {
        "rows": 150,
        "sum": sum(range(100)) + sum(range(50)),
        "streamed": 150,
        "behind": [50, 0],
        "sums": {
            "batch": sum(range(1000, 1005)),
            **dict.fromkeys(["stream", "foreach"], sum(range(100)) + sum(range(50))),
        },
        "type": "value:struct<id:bigint,how:string>",
        "loaded": dict.fromkeys(["parquet", "avro", "delta", "sql"], 150),
    }

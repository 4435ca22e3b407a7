"""One load into a Delta table on S3 in a process of its own, which tests kill; see `table_harness.DeltaWorld`.

Called as `python -m tests.support.s3_load JSON`, with the world's group, URL, options and ends of the topic.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from broker.protocol.topic_partition import TopicPartition
from broker.storage.storage import open_storage
from tests.support.table_harness import DeltaWorld

_ROOT = Path(__file__).parents[2]


def start_load(world: DeltaWorld) -> subprocess.Popen[bytes]:
    """The process; it ends with 0 when the load is committed."""
    ends = [[*tp, end] for tp, end in world.ends.items()]
    told = json.dumps([world.group, world.output.url, world.output.options, ends])
    return subprocess.Popen([sys.executable, "-m", "tests.support.s3_load", told], cwd=_ROOT)


def _main() -> None:
    group, url, options, ends = json.loads(sys.argv[1])
    known = {TopicPartition(topic, partition): end for topic, partition, end in ends}
    DeltaWorld(open_storage(url, options), group, known).load()


if __name__ == "__main__":
    _main()

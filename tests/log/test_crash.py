"""kill -9 of a process that appends, or compacts, at full speed: what it was told is appended is there afterwards."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from broker.clock import SystemClock
from broker.log.inspection import check_partition
from broker.log.log_config import LogConfig
from broker.log.manager import LogManager
from broker.protocol.topic_partition import TopicPartition
from tests.support.batches import batch, read_all
from tests.support.compaction import EAGER, eager_manager, latest, records_of

TP = TopicPartition("t", 0)
CONFIG = LogConfig(segment_bytes=50_000)
ROUNDS = 3
APPENDS_BEFORE_THE_KILL = 300

APPENDER = """
import sys
from pathlib import Path
from tests.log.test_crash import CONFIG, TP, load, message
from tests.support.batches import append
manager = load(Path(sys.argv[1]))
log = manager.get(TP) or manager.create(TP, CONFIG)
while True:
    number = log.log_end_offset
    append(log, message(number))
    sys.stdout.write(f"{number}\\n")
    sys.stdout.flush()
    if number % 50 == 0:
        log.flush()
        manager.tick()
"""


def load(directory: Path) -> LogManager:
    manager = LogManager([directory], SystemClock(), checkpoint_interval_ms=1)
    manager.load(lambda topic: CONFIG)
    return manager


def message(number: int) -> bytes:
    """The batch with sequence `number` of producer 1."""
    return batch(b"%d" % number, b"x" * 200, producer_id=1, producer_epoch=0, sequence=number)


def test_what_was_acknowledged_survives(tmp_path: Path) -> None:
    acknowledged = -1
    for _ in range(ROUNDS):
        with subprocess.Popen(
            [sys.executable, "-c", APPENDER, str(tmp_path / "data")], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            for _ in range(APPENDS_BEFORE_THE_KILL):
                acknowledged = int(process.stdout.readline())
            process.kill()
            acknowledged = max([acknowledged, *(int(line) for line in process.stdout if line.endswith("\n"))])
        manager = load(tmp_path / "data")
        log = manager.logs()[TP]
        records = read_all(log)
        assert [offset for offset, _ in records] == list(range(log.log_end_offset))
        assert [value for offset, value in records if offset % 2 == 0] == [
            b"%d" % offset for offset in range(0, log.log_end_offset, 2)
        ]
        assert log.log_end_offset > acknowledged
        manager.close()
        assert check_partition(tmp_path / "data" / "t-0") == []


COMPACTED = replace(EAGER, segment_bytes=3000)
KEYS = 7

COMPACTOR = """
import sys
from pathlib import Path
from broker.clock import SystemClock
from tests.log.test_crash import COMPACTED, KEYS, TP
from tests.support.compaction import eager_manager, put
manager = eager_manager(Path(sys.argv[1]), SystemClock(), COMPACTED)
log = manager.get(TP) or manager.create(TP, COMPACTED)
while True:
    number = log.log_end_offset
    put(log, (b"%d" % (number % KEYS), b"%d" % number * 20))
    sys.stdout.write(f"{number}\\n")
    sys.stdout.flush()
    manager.tick()
"""


def test_a_log_that_is_compacted_all_the_time_loses_nothing(tmp_path: Path) -> None:
    acknowledged = -1
    for _ in range(ROUNDS):
        with subprocess.Popen(
            [sys.executable, "-c", COMPACTOR, str(tmp_path)], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            for _ in range(APPENDS_BEFORE_THE_KILL):
                acknowledged = int(process.stdout.readline())
            process.kill()
            acknowledged = max([acknowledged, *(int(line) for line in process.stdout if line.endswith("\n"))])
        manager = eager_manager(tmp_path, SystemClock(), COMPACTED)
        log = manager.logs()[TP]
        assert log.log_end_offset > acknowledged
        records = records_of(log)
        assert len(records) < log.log_end_offset // 2, "it was compacted"
        assert all(record.value == b"%d" % record.offset * 20 for record in records)
        last = range(log.log_end_offset - KEYS, log.log_end_offset)
        assert latest(records) == {b"%d" % (offset % KEYS): b"%d" % offset * 20 for offset in last}
        manager.close()
        assert check_partition(tmp_path / "t-0") == []

"""Reads of both sides, again and again, while a process produces, one loads and is killed, and one compacts.

Each (partition, offset) from 0 to the end is read exactly once, by every plan.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from spark_connector.union_read.union_readers import UnionBatchReader
from tests.support.topic_data import TopicData
from tests.support.union_loads import UnionLoads, positions

READS = 50


@contextmanager
def again_and_again(stop: threading.Event, work: Callable[[], None]) -> Iterator[None]:
    """Call `work` in a thread until the block ends; an error in it fails the block."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            while not stop.is_set():
                work()
                stop.wait(0.05)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert failed == []


class KilledLoader:
    """A process that loads; `kill` ends it wherever it is and starts the next."""

    def __init__(self, loads: UnionLoads) -> None:
        arguments = json.dumps(
            {"bootstrap": loads.bootstrap, "topic": loads.topic, "to": loads.to, "format": loads.format}
        )
        self._command = [sys.executable, "-m", "tests.support.union_loads", arguments]
        self.kills = 0
        self._process = self._start()

    def kill(self) -> None:
        self.end()
        self.kills += 1
        self._process = self._start()

    def end(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _start(self) -> subprocess.Popen[str]:
        process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process


@pytest.mark.timeout(300)
def test_every_read_has_each_record_once_whatever_happens_meanwhile(loads: UnionLoads, data: TopicData) -> None:
    loads.must_load()
    seen: set[str] = set()
    chance = random.Random(32)
    stop = threading.Event()
    loader = KilledLoader(loads)
    try:
        with again_and_again(stop, lambda: data.produce(10)), again_and_again(stop, lambda: compact(loads)):
            for number in range(READS):
                seen.add(read_once(loads, data))
                if number % 4 == 0 and chance.random() < 0.8:
                    loader.kill()
    finally:
        loader.end()
    assert loader.kills > 5
    assert len(seen) > 5, "the table has grown between the reads"
    loads.load()
    assert positions(loads.read()) == data.positions()


def read_once(loads: UnionLoads, data: TopicData) -> str:
    """Plan and read; check that nothing is missing or twice. Gives the version of the table that was read."""
    least = list(data.ends)
    reader = UnionBatchReader(loads.sides())
    tasks = reader.partitions()
    most = list(data.ends)
    versions = {task.value.version for task in tasks if hasattr(task.value, "version")}
    found: dict[int, list[int]] = {0: [], 1: []}
    for task in tasks:
        for batch in reader.read(task):
            for partition, offset in zip(batch.column("partition"), batch.column("offset"), strict=True):
                found[partition.as_py()].append(offset.as_py())
    for partition, offsets in found.items():
        assert sorted(offsets) == list(range(len(offsets))), f"partition {partition} of version {versions}"
        assert least[partition] - 10 <= len(offsets) <= most[partition] + 10
    (version,) = versions
    return str(version)


def compact(loads: UnionLoads) -> None:
    """What another program does to the table, as often as it can."""
    if loads.format == "delta":
        with suppress(DeltaError, OSError):
            DeltaTable(loads.to).optimize.compact()

"""Reads of both sides, again and again, while a process produces, one loads and is killed, and one compacts.

Each (partition, offset) from 0 to the end is read exactly once, by every plan.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from spark_connector import maintenance
from spark_connector.history_and_tail.readers import HistoryBatchReader
from spark_connector.loads.record import LoadError
from spark_connector.offset_store.base import OffsetConflict
from tests.support.history_loads import HistoryLoads, positions
from tests.support.randomness import seeded
from tests.support.topic_data import TopicData

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
    if failed:
        raise failed[0]


class KilledLoader:
    """A process that loads, killed soon after it has loaded, wherever it is then, and started again."""

    def __init__(self, loads: HistoryLoads, stop: threading.Event) -> None:
        names = ("bootstrap", "topic", "to", "format")
        arguments = json.dumps({name: getattr(loads, name) for name in names})
        self._command = [sys.executable, "-m", "tests.support.history_loads", arguments]
        self._stop = stop
        self._chance = seeded(32)
        self.kills = 0

    def run_one(self) -> None:
        with subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for _ in range(self._chance.randint(2, 4)):  # "ready", and a line for each load
                process.stdout.readline()
            self._stop.wait(self._chance.random() / 2)
            process.send_signal(signal.SIGKILL)
            self.kills += 1


@pytest.mark.timeout(600)
@pytest.mark.parametrize("reads", [8, pytest.param(60, marks=pytest.mark.slow)])
def test_every_read_has_each_record_once_whatever_happens_meanwhile(
    loads: HistoryLoads, data: TopicData, reads: int
) -> None:
    loads.must_load()
    versions: list[str] = []
    stop = threading.Event()
    loader = KilledLoader(loads, stop)
    with (
        again_and_again(stop, lambda: data.produce(10)),
        again_and_again(
            stop, loader.run_one
        ),  # ends before who produces: it says nothing while there is nothing to load
        again_and_again(stop, lambda: compact(loads)),
    ):
        while len(versions) < reads or len({*versions}) < reads // 4 or loader.kills < reads // 8:
            versions.append(read_once(loads, data))
            assert len(versions) < 100 * reads
    loads.load()
    assert positions(loads.read()) == data.positions()


def read_once(loads: HistoryLoads, data: TopicData) -> str:
    """Plan and read; check that nothing is missing or twice. Gives the version of the table that was read."""
    least = list(data.ends)
    reader = HistoryBatchReader(loads.fitted())
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


def compact(loads: HistoryLoads) -> None:
    """What another program does to the table, as often as it can."""
    if loads.format == "delta":
        with suppress(DeltaError, OSError):
            DeltaTable(loads.to).optimize.compact()
    if loads.format == "iceberg":
        with suppress(LoadError, OffsetConflict):
            maintenance.compact(loads.target, rewindable="0")

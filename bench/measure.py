"""What every measurement needs: processes to measure, their CPU and memory, and a table of rows.

CPU is the server process's own (user + system), so that client and server on the same cores can be
told apart.
"""

from __future__ import annotations

import contextlib
import dataclasses
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from tests.support.broker_process import BrokerProcess
from tests.support.source_tree import ROOT


@dataclasses.dataclass
class Row:
    """One figure: what was measured, of whom, and the ceiling's figure where there is one."""

    case: str
    value: float
    unit: str
    ceiling: float | None = None
    note: str = ""

    @property
    def ratio(self) -> float | None:
        return None if not self.ceiling else self.value / self.ceiling


@dataclasses.dataclass
class Target:
    """A server under measurement."""

    name: str
    bootstrap: str
    process: psutil.Process

    @contextlib.contextmanager
    def timed(self) -> Iterator[dict[str, float]]:
        """Wall seconds and the server's CPU seconds of what happens inside."""
        result: dict[str, float] = {}
        before, start = self.process.cpu_times(), time.perf_counter()
        yield result
        result["wall"] = time.perf_counter() - start
        after = self.process.cpu_times()
        result["cpu"] = after.user + after.system - before.user - before.system

    @property
    def rss_mb(self) -> float:
        return float(self.process.memory_info().rss / 1e6)


@contextlib.contextmanager
def broker_target(directory: Path, partitions: int) -> Iterator[Target]:
    """Our broker in a process of its own."""
    settings = {"num.partitions": str(partitions), "group.initial.rebalance.delay.ms": "0"}
    with BrokerProcess(directory, settings) as broker:
        yield Target("pykafka", broker.bootstrap, psutil.Process(broker.pid))


@contextlib.contextmanager
def bare_target(directory: Path, partitions: int) -> Iterator[Target]:
    """The bare server in a process of its own."""
    command = [sys.executable, "-m", "bench.bare_server", str(directory), str(partitions)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        yield Target("bare server", f"127.0.0.1:{port}", psutil.Process(process.pid))
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()

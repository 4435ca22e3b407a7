"""What each test file costs: `make costs COSTS=tests/log` prints the dearest ones.

A plugin of pytest (`-p tests.support.costs`) for runs in one process. Processor time depends less than time on what
else the machine does. It counts that of the test process and of the processes that ended during the file; what a
fixture of the session starts runs on, and is seen as one of the processes started.
"""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support import forked_brokers

_SHOWN = 25


@dataclass
class Cost:
    cpu_s: float = 0.0
    tests: int = 0
    started: int = 0
    """Processes."""


class Costs:
    """Books to a file what passes between two of its reports."""

    def __init__(self) -> None:
        self.of: dict[str, Cost] = defaultdict(Cost)
        self._file = ""
        self._seen_s = _cpu_s()
        sys.addaudithook(self._audit)  # there is no way to take it away again

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._file = nodeid.partition("::")[0]
        self.of[self._file].tests += 1

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        now_s = _cpu_s()
        self.of[self._file].cpu_s += now_s - self._seen_s
        self._seen_s = now_s

    def pytest_collection_finish(self) -> None:
        self._seen_s = _cpu_s()

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        dearest = sorted(self.of.items(), key=lambda item: item[1].cpu_s, reverse=True)
        terminalreporter.section("processor seconds, tests, processes started, file")
        for file, cost in dearest[:_SHOWN]:
            terminalreporter.line(f"{cost.cpu_s:8.2f} {cost.tests:6} {cost.started:6}  {file}")

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "subprocess.Popen" and self._file:
            self.of[self._file].started += 1


def _cpu_s() -> float:
    now = os.times()
    return now.user + now.system + now.children_user + now.children_system + forked_brokers.cpu_s()


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("numprocesses", None):
        raise pytest.UsageError("costs are counted in one process: leave out -n")
    config.pluginmanager.register(Costs())

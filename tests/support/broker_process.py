"""A real broker in a process of its own, for tests that talk to it over the wire or kill it.

Called by the fixtures of tests/conftest.py and by tests/faults and bench/. It is the product's own
`EmbeddedBroker`, and adds what tests want: a ZooKeeper that brokers share, and the log for a failed test's report.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from broker.embedded import EmbeddedBroker
from tests.support import forked_brokers

RUNNING: list[BrokerProcess] = []


class BrokerProcess(EmbeddedBroker):
    """One `python -m broker start` over `data_dir`; `overrides` are settings in Kafka's names."""

    def __init__(
        self,
        data_dir: Path,
        overrides: Mapping[str, str] | None = None,
        *,
        zookeeper: str | None = None,
        standalone: bool = False,
    ) -> None:
        """Without `zookeeper` it starts one of its own, which takes a second; `standalone` it needs none."""
        settings = {**({"zookeeper.connect": zookeeper} if zookeeper else {}), **(overrides or {})}
        super().__init__(data_dir, settings, standalone=standalone)
        self._test_began = 0

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def port(self) -> int:
        """The same over restarts, so that clients find it again."""
        return int(self.bootstrap.rpartition(":")[2])

    @property
    def output(self) -> str:
        """All the broker has logged, over every start."""
        return self.log_file.read_text(encoding="utf-8", errors="replace") if self.log_file.exists() else ""

    def begin_test(self) -> None:
        """What is logged from now on is of another test."""
        self._test_began = self.log_file.stat().st_size if self.log_file.exists() else 0

    @property
    def output_of_test(self) -> str:
        """What the broker has logged since the running test began, all if it began with the test."""
        with contextlib.suppress(FileNotFoundError), self.log_file.open("rb") as log:
            log.seek(self._test_began)
            return log.read().decode(errors="replace")
        return ""

    def _run(self, arguments: list[str], stdout: IO[bytes], stderr: IO[bytes]) -> Any:
        return forked_brokers.start(arguments, {**os.environ, "PYTHONUNBUFFERED": "1"}, stdout, stderr)

    def _launch(self) -> None:
        super()._launch()
        RUNNING.append(self)

    def _wait(self) -> None:
        super()._wait()
        if self in RUNNING:
            RUNNING.remove(self)

"""What a client waits between two tries, without waiting: `cluster.py` by a clock that only its own waits move."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker.client import cluster
from broker.client.cluster import Cluster


class Waits:
    """Every wait takes a second of `now`; `on_wait` is told the time after each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, on_wait: Callable[[float], None] = lambda now: None) -> None:
        self.now = 0.0
        self._on_wait = on_wait
        monkeypatch.setattr(cluster, "time", self)
        monkeypatch.setattr(Cluster, "backoff_s", self._wait)

    def monotonic(self) -> float:
        return self.now

    def _wait(self, failures: int) -> float:
        self.now += 1
        self._on_wait(self.now)
        return 0.0

"""Producers, transactions and consumers while the broker is killed and frozen: the history must have no anomaly.

The clients are those of history_run.py. The broker gets SIGKILL and starts again, or SIGSTOP for a while. 20 seconds of
a standalone broker in every test run, ten minutes of one with its own ZooKeeper in the slow set.
"""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.history import History
from tests.support.history_run import SETTINGS, run_clients
from tests.support.randomness import seeded


@pytest.mark.timeout(300)
def test_a_broker_that_is_killed_and_frozen_breaks_no_promise(tmp_path: Path) -> None:
    _run(tmp_path, seconds=20, seed=1, standalone=True)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_broker_that_is_killed_and_frozen_for_ten_minutes_breaks_no_promise(tmp_path: Path) -> None:
    _run(tmp_path, seconds=600, seed=2, standalone=False)


def _run(directory: Path, *, seconds: float, seed: int, standalone: bool) -> None:
    with BrokerProcess(directory / "data", SETTINGS, standalone=standalone) as broker:
        run_clients(broker.bootstrap, lambda: _disturb(broker, seconds, seeded(seed)), History())


def _disturb(broker: BrokerProcess, seconds: float, dice: random.Random) -> None:
    """Kill or freeze the broker again and again."""
    calm = threading.Event()  # never set: to wait is all it is for
    faults, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        calm.wait(dice.uniform(1.0, 4.0))
        if dice.random() < 0.6:
            broker.kill()
            calm.wait(dice.uniform(0, 0.5))
            broker.start()
        else:
            broker.pause()
            calm.wait(dice.uniform(0.2, 2.5))
            broker.resume()
        faults += 1
    assert faults >= seconds / 10

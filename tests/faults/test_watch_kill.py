"""kill -9 at random moments of a service that loads again and again: in the end output equals input.

The fast test kills a service without Spark (tests/support/plain_loads.py) that plans, stages and commits as the real
one does; the slow one kills `pykafka load --watch` itself. After every kill no row is visible twice and none that was
not produced; a service that then runs undisturbed brings the rest, and a recount finds nothing wrong.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import pytest

from spark_connector.maintenance import verify
from tests.support.broker_process import BrokerProcess
from tests.support.console import command
from tests.support.plain_loads import PlainLoads
from tests.support.source_tree import ROOT
from tests.support.topic_data import TopicData
from tests.support.waiting import eventually

SEED = 20261121


@pytest.fixture
def data(broker: BrokerProcess, topic: str) -> TopicData:
    return TopicData(broker.bootstrap, topic, partitions=3)


class Killed:
    """Starts a service, lets it work for a moment while records come in, and kills it."""

    def __init__(self, words: list[str], log: Path) -> None:
        self._words, self._log = words, log

    def run(self, data: TopicData, seconds: float, records: int, *, loading: Callable[[], bool] | None = None) -> None:
        """Kill it so many seconds after its start, or after it was first seen `loading`."""
        with self._log.open("ab") as log, self.start(log) as process:
            producing = threading.Thread(target=data.produce, args=(records,))
            producing.start()
            try:
                if loading is not None:
                    eventually(lambda: loading() or process.poll() is not None, 180)
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                pass
            else:
                raise AssertionError(f"the service ended by itself: {self._log.read_text()[-2000:]}")
            finally:
                process.kill()
                producing.join()

    def start(self, log: IO[bytes]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self._words,
            cwd=ROOT,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def check(loads: PlainLoads, data: TopicData) -> None:
    """After a kill: nothing doubled, nothing invented."""
    rows = loads.visible()
    assert len(set(rows)) == len(rows)
    assert set(rows) <= set(data.positions())


def grown(loads: PlainLoads) -> Callable[[], bool]:
    """Tells whether more rows are visible than now."""
    before = len(loads.visible())
    return lambda: len(loads.visible()) > before


@pytest.mark.parametrize("kept_in", ["files", "zookeeper"])
def test_a_service_that_is_killed_again_and_again_loses_and_doubles_nothing(
    data: TopicData, tmp_path: Path, zookeeper: str, kept_in: str
) -> None:
    moments = random.Random(SEED)
    arguments: dict[str, Any] = {
        "bootstrap": data.bootstrap,
        "topic": data.topic,
        "to": str(tmp_path / "output"),
        "zookeeper": f"{zookeeper}/watch-kills" if kept_in == "zookeeper" else None,
        "max_records": 40,  # so that a service that has records to load is always at some step of a load
    }
    loads = PlainLoads(**{**arguments, "to": tmp_path / "output", "max_records": 400})
    words = [sys.executable, "-m", "tests.support.plain_loads", json.dumps(arguments)]
    killed = Killed(words, tmp_path / "log")
    for _ in range(4):
        data.produce(300)
        killed.run(data, moments.uniform(0, 0.9), 50, loading=grown(loads))
        check(loads, data)
    while loads.load().load_id is not None:
        check(loads, data)
    assert loads.visible() == data.positions()
    found = verify(loads.target, loads.bootstrap)
    assert found.ok, found


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_real_service_under_kill_9(data: TopicData, tmp_path: Path) -> None:
    moments = random.Random(SEED)
    loads = PlainLoads(data.bootstrap, data.topic, tmp_path / "output")
    target = [*loads.words, "--topic", data.topic, "-b", data.bootstrap, "--max-records", "5000"]
    spark = ["--master", "local[2]", "--conf", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1"]
    words = command("load", "--watch", "--interval", "100ms", "--history-keep", "5", *target, *spark)
    killed = Killed(words, tmp_path / "log")
    for number in range(12):
        data.produce(20_000)
        before = len(loads.visible())
        if number % 4:
            killed.run(data, moments.uniform(0, 5), 3000, loading=grown(loads))
        else:
            killed.run(data, moments.uniform(3, 25), 3000)  # maybe while it starts
        check(loads, data)
        print(f"round {number}: {len(loads.visible())} of {len(data.positions())} rows, {before} before")
    with (tmp_path / "log").open("ab") as log, killed.start(log) as process:
        eventually(lambda: len(loads.visible()) == len(data.positions()), 600)
        process.terminate()
        assert process.wait(120) == 0
    assert loads.visible() == data.positions()
    assert verify(loads.target, loads.bootstrap).ok

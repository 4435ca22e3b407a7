"""Kafka Connect 4.3, unchanged: two distributed workers, of which one is killed, copy a file to a topic and to a file.

The source writes exactly once: lines and its position in one transaction, under an epoch that fences the dead worker.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest

from tests.support.committed_records import committed_records
from tests.support.kafka import Kafka
from tests.support.kafka_connect import ConnectWorker
from tests.support.repeating import repeated
from tests.support.requirements import Unavailable, give_up
from tests.support.topics import Topic
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PATIENCE_S = 180.0
SETTINGS = {
    "key.converter": "org.apache.kafka.connect.storage.StringConverter",
    "value.converter": "org.apache.kafka.connect.storage.StringConverter",
    "exactly.once.source.support": "enabled",
    "offset.flush.interval.ms": "500",
    # A worker that was killed is missed soon, and what it did is given away at once.
    "session.timeout.ms": "6000",
    "heartbeat.interval.ms": "1000",
    "scheduled.rebalance.max.delay.ms": "0",
}


class Lines:
    """A file that grows, and what must be in the copies of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.all: list[str] = []
        path.touch()

    def write(self, count: int) -> None:
        new = [f"line {number}" for number in range(len(self.all), len(self.all) + count)]
        self.all += new
        with self.path.open("a") as file:
            file.writelines(f"{line}\n" for line in new)

    def growing(self) -> AbstractContextManager[None]:
        """Some lines every few milliseconds, from another thread."""
        return repeated(lambda: self.write(20))


@pytest.fixture
def workers(broker: Kafka, group: str, tmp_path: Path) -> Iterator[dict[str, ConnectWorker]]:
    """Two that are ready, by address."""
    with ExitStack() as stack:
        try:
            made = [ConnectWorker(tmp_path / f"worker-{n}", broker.bootstrap, group, SETTINGS) for n in range(2)]
            for worker in made:
                stack.enter_context(worker)
        except Unavailable as error:
            give_up(f"Kafka Connect: {error}")
        for worker in made:
            worker.wait_until_ready()
        yield {worker.address: worker for worker in made}


def committed(broker: Kafka, topic: str) -> list[str]:
    return [(record.value or b"").decode() for record in committed_records(broker.bootstrap, topic)]


def running(workers: dict[str, ConnectWorker], asked: ConnectWorker, connector: str) -> ConnectWorker:
    """The worker that has its task, as another one says."""
    found: list[str] = []

    def is_there() -> bool:
        address = asked.worker_of(connector)
        found.extend([address] if address is not None else [])
        return address is not None

    eventually(is_there, PATIENCE_S, interval=0.2)
    return workers[found[-1]]


def test_lines_are_copied_exactly_once_though_a_worker_is_killed(
    broker: Kafka, workers: dict[str, ConnectWorker], topic: str, tmp_path: Path
) -> None:
    Topic(broker.bootstrap, topic, 1)
    lines, first = Lines(tmp_path / "lines.txt"), next(iter(workers.values()))
    lines.write(2_000)
    source = {"connector.class": "FileStreamSource", "file": str(lines.path), "topic": topic}
    first.put("lines-in", {**source, "exactly.once.support": "required"})
    copy = tmp_path / "copy.txt"
    sink = {"connector.class": "FileStreamSink", "file": str(copy), "topics": topic}
    first.put("lines-out", {**sink, "consumer.override.isolation.level": "read_committed"})

    victim = running(workers, first, "lines-in")
    survivor = next(worker for worker in workers.values() if worker is not victim)
    with lines.growing():
        eventually(lambda: len(committed(broker, topic)) > 2_000, PATIENCE_S, interval=0.2)
        victim.kill()
        seen = len(committed(broker, topic))
        eventually(lambda: len(committed(broker, topic)) > seen, PATIENCE_S, interval=0.5)
    assert running(workers, survivor, "lines-in") is survivor
    eventually(lambda: len(committed(broker, topic)) >= len(lines.all), PATIENCE_S, interval=0.5)
    assert committed(broker, topic) == lines.all

    victim.start()
    victim.wait_until_ready()
    running(workers, survivor, "lines-in")
    lines.write(1_000)
    eventually(lambda: len(committed(broker, topic)) >= len(lines.all), PATIENCE_S, interval=0.5)
    assert committed(broker, topic) == lines.all

    # The sink does not promise exactly once; but nothing is missing, and the order is that of the lines.
    eventually(lambda: bool(copied := copy.read_text().split("\n")) and lines.all[-1] in copied, PATIENCE_S)
    assert list(dict.fromkeys(copy.read_text().splitlines())) == lines.all

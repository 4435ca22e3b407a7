"""Frameworks that people run on Kafka, unchanged: an application is killed in the midst of its records, and goes on.

Each in an environment of its own (the programs are in frameworks/). Where a framework promises exactly once, nothing is
there twice; where it has a state, that is right after its memory and its files are gone. docs/compatibility.md names
the versions.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple, Self

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.compat import frameworks
from tests.support.committed_records import committed_records, committed_values
from tests.support.kafka import Kafka
from tests.support.package_environment import THIS, python_with
from tests.support.repeating import repeated
from tests.support.requirements import Unavailable, give_up
from tests.support.source_tree import ROOT
from tests.support.topics import Topic
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

PATIENCE_S = 240.0
KEYS, PARTITIONS = 7, 2


class Framework(NamedTuple):
    """A program of frameworks/, and what it promises."""

    program: str
    packages: Sequence[str]
    counts: bool = True
    """It has a state: how many numbers of its key it has seen."""
    exactly_once: bool = False
    in_changelog: bool = False
    """The state comes back though the directory is gone."""
    in_the_midst: bool = True
    """It may be killed while it works."""
    arguments: Sequence[str] = ()


FAUST = Framework("faust_app", ["faust-streaming==0.15.3"], exactly_once=True, in_changelog=True, in_the_midst=False)
"""It commits positions whose table entries still wait to be sent, and what it sends to topics that it does not read is
in no transaction; Apache Kafka 4 saw the same. So it is killed when it has caught up."""
QUIX = Framework("quix_app", ["quixstreams==3.28.1"], exactly_once=True, in_changelog=True)
BYTEWAX = Framework("bytewax_flow", ["bytewax[kafka]==0.21.1"])
FASTSTREAM = Framework("faststream_app", ["faststream[kafka,confluent]==0.7.8"], counts=False)
CELERY = Framework("celery_app", ["celery==5.7.0", "kombu[confluentkafka]==5.7.0"], counts=False)
FRAMEWORKS = {
    "Faust": FAUST,
    "Quix Streams": QUIX,
    "Bytewax": BYTEWAX,
    "FastStream, confluent": FASTSTREAM._replace(arguments=["confluent"]),
    "FastStream, aiokafka": FASTSTREAM._replace(arguments=["kafka"]),
}


class Application:
    """The program as a process, which is killed and started again with the same arguments; `with` ends it."""

    def __init__(self, framework: Framework, bootstrap: str, name: str, place: Path) -> None:
        try:
            python = python_with(THIS, *framework.packages)
        except Unavailable as error:
            give_up(f"{framework.packages[0]}: {error}")
        program = Path(frameworks.__file__).with_name(f"{framework.program}.py")
        self.directory = place / "state"
        self.command = [str(python), str(program), bootstrap, name, str(self.directory), *framework.arguments]
        self._log = place / "log"
        self._place = place
        # Ours is not to be found by theirs.
        self._environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command, cwd=self._place, env=self._environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )

    def kill(self) -> None:
        """kill -9."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def run(self, *more: str) -> None:
        """The program once, to its end, with further arguments."""
        done = subprocess.run(
            [*self.command, *more], cwd=self._place, env=self._environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr[-4000:]

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Until the condition is true; an application that ends by itself fails at once."""

        def holds() -> bool:
            assert self._process is not None
            assert self._process.poll() is None, self._log.read_text(errors="replace")[-4000:]
            return condition()

        eventually(holds, PATIENCE_S, interval=0.3)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


class Numbers:
    """Numbers that are produced, each key's in one partition, and what an application is to make of them."""

    def __init__(self, bootstrap: str, topic: str, *, counted: bool) -> None:
        # As Java and Faust partition, whose table has a key in the partition of its input only then.
        settings = {"bootstrap.servers": bootstrap, "linger.ms": 1, "partitioner": "murmur2_random"}
        self._producer = Producer(settings)
        self._topic = topic
        self._counted = counted
        self.of_key: Counter[str] = Counter()
        self._next = 0
        self.results: list[bytes] = []

    def produce(self, count: int) -> None:
        for number in range(self._next, self._next + count):
            key = f"key-{number % KEYS}"
            self._producer.produce(self._topic, json.dumps(number).encode(), key.encode())
            self.of_key[key] += 1
            self.results.append(b"%d %d" % (number, self.of_key[key]) if self._counted else b"%d" % number)
        assert self._producer.flush(60) == 0
        self._next += count

    def flowing(self) -> AbstractContextManager[None]:
        """Some more every few milliseconds, from another thread."""
        return repeated(lambda: self.produce(5))


@pytest.mark.parametrize("framework", FRAMEWORKS.values(), ids=list(FRAMEWORKS))
def test_an_application_that_is_killed_goes_on(broker: Kafka, topic: str, tmp_path: Path, framework: Framework) -> None:
    Topic(broker.bootstrap, f"{topic}-in", PARTITIONS)
    Topic(broker.bootstrap, f"{topic}-out", PARTITIONS)
    numbers = Numbers(broker.bootstrap, f"{topic}-in", counted=framework.counts)
    numbers.produce(300)

    def results() -> list[bytes]:
        return committed_values(broker.bootstrap, f"{topic}-out")

    def is_done() -> bool:
        if framework is FAUST and not (counts_of_faust(broker, topic) == numbers.of_key and is_at_end(broker, topic)):
            return False
        return set(numbers.results) <= set(results())

    with Application(framework, broker.bootstrap, topic, tmp_path) as application:
        for _ in range(2):
            with numbers.flowing():
                before = len(results())
                application.wait_for(lambda before=before: len(results()) > before + 100)  # type: ignore[misc]
                if framework.in_the_midst:
                    application.kill()
            if not framework.in_the_midst:
                application.wait_for(is_done)
                application.kill()
            if framework.in_changelog:
                shutil.rmtree(application.directory, ignore_errors=True)
            application.start()
        numbers.produce(100)
        application.wait_for(is_done)
        found = results()
    if framework.exactly_once:
        assert found == sorted(numbers.results)
    else:
        assert set(found) == set(numbers.results)


def counts_of_faust(broker: Kafka, name: str) -> dict[str, int]:
    """Its table, as the changelog has it."""
    records = committed_records(broker.bootstrap, f"{name}-{name}-counts-changelog")
    return {json.loads(record.key or b""): json.loads(record.value or b"") for record in records}


def is_at_end(broker: Kafka, name: str) -> bool:
    """Whether the group has committed the end of each partition of its input."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": name})
    try:
        partitions = [TopicPartition(f"{name}-in", partition) for partition in range(PARTITIONS)]
        committed = consumer.committed(partitions, timeout=30)
        return all(one.offset == consumer.get_watermark_offsets(one, timeout=30)[1] for one in committed)
    finally:
        consumer.close()


def test_a_celery_worker_that_is_killed_loses_no_task(broker: Kafka, topic: str, tmp_path: Path) -> None:
    noted = tmp_path / "state" / "noted"
    noted.parent.mkdir()

    def numbers() -> list[int]:
        return [int(line) for line in noted.read_text().splitlines()] if noted.exists() else []

    application = Application(CELERY, broker.bootstrap, topic, tmp_path)
    application.run("send", "0", "300")
    with application:
        application.wait_for(lambda: len(numbers()) > 20)
        application.kill()
        application.start()
        application.run("send", "300", "400")
        application.wait_for(lambda: set(numbers()) >= set(range(400)))
    assert set(numbers()) == set(range(400))


def test_the_document_names_their_versions() -> None:
    document = (ROOT / "docs" / "compatibility.md").read_text()
    for framework in [*FRAMEWORKS.values(), CELERY]:
        for package in framework.packages:
            name, _, version = package.partition("==")
            assert f"`{name.partition('[')[0]}` {version}" in document, package

"""A disk that is full: everybody is told, nothing acknowledged is lost, and writing goes on when there is room."""

from __future__ import annotations

import re
import resource
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.client.consumer import Consumer
from broker.client.producer import Producer
from broker.errors import RequestTimedOut
from broker.protocol.topic_partition import TopicPartition
from tests.conftest import BrokerFactory
from tests.support.broker_process import BrokerProcess
from tests.support.randomness import noise
from tests.support.scrape import health
from tests.support.waiting import eventually

SETTINGS = {"metrics.listener": "HTTP://127.0.0.1:0"}
VALUE = noise(200_000)


def read_values(bootstrap: str, topic: str) -> list[bytes | None]:
    """The values of partition 0."""
    tp = TopicPartition(topic, 0)
    with Consumer(bootstrap) as consumer:
        consumer.assign([tp])
        consumer.seek_to_beginning()
        values: list[bytes | None] = []
        while consumer.position(tp) < consumer.end_offsets([tp])[tp]:
            values += [record.value for record in consumer.poll(1.0)]
    return values


class FileLimit:
    """No file of the broker may grow beyond 100 KB: writes fail as on a full disk, without a disk of one's own."""

    reason = "File too large"

    def __init__(self, broker: BrokerProcess) -> None:
        self._pid = broker.pid

    def fill(self) -> None:
        self._limit(100_000)

    def empty(self) -> None:
        self._limit(resource.RLIM_INFINITY)

    def _limit(self, size: int) -> None:
        resource.prlimit(self._pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


class SmallDisk:
    """A file system in memory of 16 MiB, which a file of ours fills."""

    reason = "No space left on device"

    def __init__(self, mount: Path) -> None:
        self._ballast = mount / "ballast"

    def fill(self) -> None:
        free = shutil.disk_usage(self._ballast.parent).free
        self._ballast.write_bytes(bytes(free - (1 << 16)))

    def empty(self) -> None:
        self._ballast.unlink()


@pytest.fixture(params=["file limit", "small disk"])
def full(
    request: pytest.FixtureRequest, broker_factory: BrokerFactory, tmp_path: Path
) -> Iterator[tuple[BrokerProcess, FileLimit | SmallDisk]]:
    if request.param == "file limit":
        broker = broker_factory(SETTINGS)
        yield broker, FileLimit(broker)
        return
    mount = tmp_path / "disk"
    mount.mkdir()
    tried = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(mount)], capture_output=True, text=True
    )
    if tried.returncode:
        pytest.skip(f"no file system can be mounted here: {tried.stderr.strip()}")
    try:
        broker = broker_factory({**SETTINGS, "log.dirs": str(mount / "data")})
        yield broker, SmallDisk(mount)
        broker.kill()
    finally:
        subprocess.run(["umount", str(mount)], check=True)


def test_a_full_disk_is_told_to_everyone_and_writing_goes_on_when_there_is_room(
    full: tuple[BrokerProcess, FileLimit | SmallDisk], topic: str
) -> None:
    broker, disk = full
    with Cluster(broker.bootstrap) as cluster:
        Admin(cluster).create_topic(topic, 1)
    with Producer(broker.bootstrap, {"batch.size": 1}) as producer:
        kept = [producer.send(topic, VALUE) for _ in range(3)]
        producer.flush()
    disk.fill()

    hasty = {"batch.size": 1, "delivery.timeout.ms": 5000, "request.timeout.ms": 4000, "linger.ms": 0}
    with Producer(broker.bootstrap, hasty) as producer:
        lost = [producer.send(topic, VALUE, key=b"%d" % number) for number in range(5)]
        failures = [error for future in lost if (error := future.exception(30)) is not None]
    assert any(
        isinstance(error, RequestTimedOut)
        and re.search(rf"KAFKA_STORAGE_ERROR .*append 200\d+ bytes to .*: {disk.reason}", str(error))
        for error in failures
    )
    status, report = health(broker)
    assert status == 503
    assert f"{topic}-0: {disk.reason}" in report["checks"]["log.dirs"]

    with Producer(broker.bootstrap, {"batch.size": 1}) as patient:
        waiting = patient.send(topic, VALUE)
        eventually(lambda: patient.stats().total.retries > 0)
        disk.empty()
        waiting.result(30)
    assert health(broker)[0] == 200
    said = [line for line in broker.output.splitlines() if "appends" in line]
    assert len(said) == 2, "once when it stopped, once when it went on"
    assert f"{topic}-0: {disk.reason}" in said[0]
    assert "bytes are free" in said[0]
    assert "takes appends again" in said[1]

    broker.kill()
    broker.start()
    assert read_values(broker.bootstrap, topic) == [VALUE] * (len(kept) + len(lost) - len(failures) + 1)


def test_an_empty_disk_is_noticed_though_nobody_writes(broker_factory: BrokerFactory, topic: str) -> None:
    broker = broker_factory(SETTINGS)
    disk = FileLimit(broker)
    with Cluster(broker.bootstrap) as cluster:
        Admin(cluster).create_topic(topic, 1)
    disk.fill()
    hasty = {"delivery.timeout.ms": 5000, "request.timeout.ms": 4000, "max.request.size": 4 << 20, "linger.ms": 0}
    with Producer(broker.bootstrap, {**hasty, "compression.type": "none"}) as producer:
        futures = [producer.send(topic, bytes(900_000)) for _ in range(3)]
        assert isinstance([future.exception(30) for future in futures][-1], RequestTimedOut)
    assert health(broker)[0] == 503
    disk.empty()
    assert health(broker)[0] == 200

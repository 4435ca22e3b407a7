"""The archive on a directory of the same disk: what a copy costs, and what a client's read of archived records does.

Two topics have the same records: one keeps them on the broker's disk, one only in the archive. A read is cold when the
broker's cache is empty. The client is librdkafka's.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psutil
from confluent_kafka import Consumer, Producer, TopicPartition

from bench.measure import Row, Target
from broker.archive.copier import BLOCK, Copier, SegmentFiles, Throttle
from broker.archive.layout import PartitionPlace
from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.protocol.described_config import ResourceType
from broker.storage.storage import open_storage
from tests.support.broker_process import BrokerProcess
from tests.support.waiting import eventually

ROUNDS = 3
RECORDS = 600_000
SIZE = 1000
SEGMENT_BYTES = 64 << 20
AT_ONCE = 1000
LONGEST_READ_S = 300
LOCAL, ARCHIVED = "bench-local", "bench-archived"

Spent = tuple[float, float]
"""Seconds, and CPU seconds."""


def run(scale: float = 1.0) -> Iterator[Row]:
    """CPU seconds per GB and MB/s of copies, against writes of the same files; and of reads, against local ones."""
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / "archive"
        settings = {
            "archive.url": archive.as_uri(),
            "remote.log.storage.system.enable": "true",
            "log.retention.check.interval.ms": "500",
        }
        with BrokerProcess(Path(folder) / "data", settings, standalone=True) as broker:
            count = max(int(RECORDS * scale), 200_000)
            _fill(broker.bootstrap, count)
            segments = sorted(broker.data_dir.glob(f"**/{ARCHIVED}-0/*.log"))[:-1]
            assert segments
            yield from _copier(segments, Path(folder) / "copies")
            target = Target("pykafka", broker.bootstrap, psutil.Process(broker.pid))
            yield from _archiving(target, segments)
            yield from _reads(target, broker.data_dir, count * SIZE)


def _fill(bootstrap: str, count: int) -> None:
    archived = {"remote.storage.enable": "true", "remote.log.copy.disable": "true", "retention.ms": "-1"}
    with Cluster(bootstrap) as cluster:
        for topic, configs in ((LOCAL, {}), (ARCHIVED, archived)):
            Admin(cluster).create_topic(topic, 1, configs={"segment.bytes": str(SEGMENT_BYTES), **configs})
    values = [os.urandom(SIZE) for _ in range(64)]
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "batch.size": 200_000})
    for number in range(count):
        for topic in (LOCAL, ARCHIVED):
            producer.produce(topic, values[number % 64])
        if not number % 10_000:
            producer.flush()
    producer.flush()


def _copier(segments: list[Path], directory: Path) -> Iterator[Row]:
    """The copier alone, in this process; the ceiling reads, writes and syncs the same blocks and does nothing else."""
    copier = Copier(open_storage(str(directory)), Throttle(lambda: 1 << 62, threading.Event()))
    directory.mkdir()
    plain, copied = [], []
    for _ in range(ROUNDS):
        plain.append(_timed(partial(_write_all, segments, directory)))
        copied.append(_timed(partial(_copy_all, segments, copier)))
        shutil.rmtree(directory)
        directory.mkdir()
    size = sum(path.stat().st_size for path in segments)
    (bare_wall, bare_cpu), (wall, cpu) = _medians(plain), _medians(copied)
    case, note = "the copier alone", f"({len(segments)} segments, {size / 1e6:,.0f} MB)"
    yield Row(case, cpu / size * 1e9, "CPU s/GB", bare_cpu / size * 1e9, note)
    yield Row(case, size / wall / 1e6, "MB/s", size / bare_wall / 1e6, note)


def _write_all(segments: list[Path], directory: Path) -> None:
    for path in segments:
        with path.open("rb") as source, (directory / path.name).open("wb") as target:
            while block := source.read(BLOCK):
                target.write(block)
            target.flush()
            os.fsync(target.fileno())


def _copy_all(segments: list[Path], copier: Copier) -> None:
    place = PartitionPlace("cluster", uuid.UUID(int=1), 0)
    for path in segments:
        base, size = int(path.stem), path.stat().st_size
        copier.copy(SegmentFiles(path, size, base, base + size, 4096, lambda: b""), place, epoch=0)


def _timed(work: Callable[[], object]) -> Spent:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def _medians(spent: list[Spent]) -> Spent:
    wall, cpu = zip(*spent, strict=True)
    return statistics.median(wall), statistics.median(cpu)


def _archiving(target: Target, segments: list[Path]) -> Iterator[Row]:
    """A broker that copies all of it, commits, and deletes it from its disk."""
    size = sum(path.stat().st_size for path in segments)
    with target.timed() as spent:
        with Cluster(target.bootstrap) as cluster:
            configs = {"remote.log.copy.disable": "false", "local.retention.bytes": "0"}
            Admin(cluster).alter_configs(ResourceType.TOPIC, ARCHIVED, configs)
        eventually(lambda: not any(path.exists() for path in segments), timeout=600, interval=0.1)
    yield Row("a broker archives and deletes its disk's copy", spent["cpu"] / size * 1e9, "CPU s/GB")
    yield Row("a broker archives and deletes its disk's copy", size / spent["wall"] / 1e6, "MB/s")


def _reads(target: Target, data: Path, size: int) -> Iterator[Row]:
    """Each topic from its beginning, in turn."""
    spent: dict[str, list[Spent]] = {"local": [], "archived, cold": [], "archived, cached": []}
    for number in range(ROUNDS + 1):
        for way, taken in spent.items():
            if way == "archived, cold":
                chunks = list(data.rglob("*.chunk"))
                assert chunks or not number, "nothing was cached"
                for chunk in chunks:
                    chunk.unlink()  # the broker finds out, and downloads it again
            with target.timed() as found:
                _read_all(target.bootstrap, LOCAL if way == "local" else ARCHIVED, size)
            if number:
                taken.append((found["wall"], found["cpu"]))
    local_wall, local_cpu = _medians(spent["local"])
    for way, taken in spent.items():
        wall, cpu = _medians(taken)
        yield Row(f"read {way}: broker", cpu / size * 1e9, "CPU s/GB", local_cpu / size * 1e9)
        yield Row(f"read {way}", size / wall / 1e6, "MB/s", size / local_wall / 1e6)


def _read_all(bootstrap: str, topic: str, size: int) -> None:
    """Return when values of that many bytes were read."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False}
    consumer = Consumer({**settings, "fetch.message.max.bytes": 4 << 20})
    consumer.assign([TopicPartition(topic, 0, 0)])
    deadline = time.monotonic() + LONGEST_READ_S
    try:
        while size:
            assert time.monotonic() < deadline, f"{size} bytes of {topic} did not come"
            for message in consumer.consume(AT_ONCE, 0.2):
                assert message.error() is None, message.error()
                size -= len(message.value() or b"")
    finally:
        consumer.close()

"""What others wait while consumers read a log that is not in the page cache: small requests beside cold fetches.

The pages of the log are dropped before (`posix_fadvise`), so that every byte comes from the disk, as with a log larger
than the machine's memory. Where cgroups of version 1 can be made (root), the disk is held to 20 MB/s for the broker, as
slow as one that others use, too.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from bench.measure import Row, broker_target
from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.protocol.api_keys import ApiKey
from tests.support.source_tree import ROOT

READERS = 3
RECORD_BYTES = 1024
RECORDS = 400_000
PAUSE_S = 0.002
SLOW_DISK_BYTES_PER_S = 20_000_000


def run(scale: float = 1.0) -> Iterator[Row]:
    """Latency of a request that reads nothing: alone, beside consumers of cached records, and of cold ones."""
    count = max(int(RECORDS * scale), 1000)
    with tempfile.TemporaryDirectory() as folder, broker_target(Path(folder) / "data", 1) as target:
        topics = [f"cold-{number}" for number in range(READERS)]
        with Cluster(target.bootstrap) as cluster:
            for topic in topics:
                Admin(cluster).create_topic(topic, 1)
        for topic in topics:
            filling = ["--num-records", str(count), "--record-size", str(RECORD_BYTES)]
            _finish(perf(target.bootstrap, "produce", topic, *filling))
        os.sync()
        segments = sorted((Path(folder) / "data").rglob("cold-*/*.log"))
        yield from _rows("alone", _ping(target.bootstrap, []))
        for name in ("cached", "cold"):
            if name == "cold":
                _drop(segments)
            with _slow_disk(target.process.pid, segments[0]):
                started = time.perf_counter()
                readers = [perf(target.bootstrap, "consume", topic, "--messages", str(count)) for topic in topics]
                waits = _ping(target.bootstrap, readers)
                taken = time.perf_counter() - started
            for reader in readers:
                _finish(reader)
            yield from _rows(f"beside {READERS} consumers of {name} records", waits)
            yield Row(f"those consumers, {name}", READERS * count * RECORD_BYTES / 1e6 / taken, "MB/s")


def perf(bootstrap: str, act: str, topic: str, *more: str) -> subprocess.Popen[bytes]:
    """One run of `pykafka perf` in a process of its own."""
    command = [sys.executable, "-m", "broker.tools.main", "perf", act, "--bootstrap-server", bootstrap]
    return subprocess.Popen([*command, "--topic", topic, *more], cwd=ROOT, stdout=subprocess.DEVNULL)


def _finish(process: subprocess.Popen[bytes]) -> None:
    status = process.wait()
    assert status == 0, f"{process.args!r} ended with {status}"


def _drop(segments: list[Path]) -> None:
    for path in segments:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@contextlib.contextmanager
def _slow_disk(pid: int, path: Path) -> Iterator[None]:
    """Hold the reads of a process to `SLOW_DISK_BYTES_PER_S`, if this machine lets us."""
    group = Path("/sys/fs/cgroup/blkio/pykafka-bench")
    device = os.stat(path).st_dev
    try:
        group.mkdir()
        limit = f"{os.major(device)}:{os.minor(device)} {SLOW_DISK_BYTES_PER_S}"
        (group / "blkio.throttle.read_bps_device").write_text(limit)
        (group / "cgroup.procs").write_text(str(pid))
    except OSError:
        yield
        return
    yield
    (group.parent / "cgroup.procs").write_text(str(pid))
    group.rmdir()


def _ping(bootstrap: str, readers: list[subprocess.Popen[bytes]]) -> list[float]:
    """Milliseconds of each request while the readers run; of a second without readers."""
    waits = []
    pause = threading.Event()  # never set: to wait is all it is for
    end = time.perf_counter() + 1
    with Cluster(bootstrap) as cluster:
        connection = cluster.open_connection(cluster.brokers()[0])
        while any(reader.poll() is None for reader in readers) or (not readers and time.perf_counter() < end):
            started = time.perf_counter()
            connection.request(ApiKey.API_VERSIONS, {"client_software_name": "bench", "client_software_version": "1"})
            waits.append((time.perf_counter() - started) * 1000)
            pause.wait(PAUSE_S)
        connection.close()
    return waits


def _rows(name: str, waits: list[float]) -> Iterator[Row]:
    cuts = statistics.quantiles(waits, n=100)
    for figure, value in (("p50", cuts[49]), ("p99", cuts[98]), ("longest", max(waits))):
        yield Row(f"small request {name}, {figure}", value, "ms")

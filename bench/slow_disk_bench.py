"""What others wait while producers flood a disk that is slower than they are: small requests beside them.

The disk is a file system in a file, whose device alone is held to 20 MB/s (cgroups of version 1) and to 100 MB of pages
that are not written yet, so that the kernel makes writers wait as it does for a disk that others use, too. Needs root.
Where `PYKAFKA_BENCH_TREE` names another checkout, its broker stands in the ceiling's column.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.cold_read_bench import perf
from bench.measure import Row
from bench.produce_bench import TREE
from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.protocol.api_keys import ApiKey
from tests.support.broker_process import BrokerProcess
from tests.support.raw_requests import Requests, ask_for, fetch_body

THROTTLE = Path("/sys/fs/cgroup/blkio/blkio.throttle.write_bps_device")
BYTES_PER_S, DIRTY_BYTES, DISK_BYTES = 20_000_000, 100_000_000, 4 << 30
PRODUCERS, RECORD_BYTES, RECORDS = 2, 1024, 250_000
PAUSE_S = 0.002
SETTINGS = {"log.segment.bytes": str(64 << 20), "group.initial.rebalance.delay.ms": "0"}


def run(scale: float = 1.0) -> Iterator[Row]:
    """Latency of a fetch of another partition, of an offset commit and of a request that asks no log."""
    count = max(int(RECORDS * scale), 1000)
    seen = [_measure(tree, count) for tree in ("", TREE)[: 2 if TREE else 1]]
    for name, (value, unit) in seen[0].items():
        yield Row(name, value, unit, seen[1][name][0] if TREE else None)


def _measure(tree: str, count: int) -> Mapping[str, tuple[float, str]]:
    with tempfile.TemporaryDirectory() as folder, _slow_disk(Path(folder)) as disk, contextlib.ExitStack() as stack:
        with contextlib.chdir(tree or "."):
            broker = stack.enter_context(BrokerProcess(disk / "data", SETTINGS))
        with Cluster(broker.bootstrap) as cluster:
            for topic in ("flood", "other"):
                Admin(cluster).create_topic(topic, PRODUCERS)
        began = time.perf_counter()
        filling = ["--num-records", str(count), "--record-size", str(RECORD_BYTES)]
        producers = [perf(broker.bootstrap, "produce", "flood", *filling) for _ in range(PRODUCERS)]
        waits = _ask(broker.bootstrap, producers)
        megabytes = PRODUCERS * count * RECORD_BYTES / 1e6
        found = {f"those {PRODUCERS} producers": (megabytes / (time.perf_counter() - began), "MB/s")}
        for name, of_one in waits.items():
            cuts = statistics.quantiles(of_one, n=1000)
            for figure, value in (
                ("p50", cuts[499]),
                ("p99", cuts[989]),
                ("p99.9", cuts[998]),
                ("longest", max(of_one)),
            ):
                found[f"{name} beside {PRODUCERS} producers, {figure}"] = value, "ms"
        return found


def _ask(bootstrap: str, producers: list[subprocess.Popen[bytes]]) -> dict[str, list[float]]:
    """Milliseconds of each small request while the producers run, which are asked in turns."""
    pause = threading.Event()  # never set: to wait is all it is for
    with Requests(bootstrap, timeout_s=120) as ask:
        ask.ask(ApiKey.FIND_COORDINATOR, {"key": "group", "coordinator_keys": ["group"], "key_type": 0})
        kinds: dict[str, tuple[ApiKey, Mapping[str, Any], int]] = {
            "fetch of another partition": (ApiKey.FETCH, fetch_body([ask_for("other")]), 12),
            "offset commit": (ApiKey.OFFSET_COMMIT, _commit(), 8),
            "request that asks no log": (
                ApiKey.API_VERSIONS,
                {"client_software_name": "bench", "client_software_version": "1"},
                3,
            ),
        }
        waits: dict[str, list[float]] = {name: [] for name in kinds}
        while any(producer.poll() is None for producer in producers):
            for name, request in kinds.items():
                started = time.perf_counter()
                ask.ask(*request)
                waits[name].append((time.perf_counter() - started) * 1000)
                pause.wait(PAUSE_S)
    assert all(producer.returncode == 0 for producer in producers)
    return waits


def _commit() -> Mapping[str, Any]:
    partition = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
    topics = [{"name": "other", "partitions": [partition]}]
    return {"group_id": "group", "generation_id_or_member_epoch": -1, "member_id": "", "topics": topics}


@contextlib.contextmanager
def _slow_disk(folder: Path) -> Iterator[Path]:
    image, mount = folder / "image", folder / "disk"
    with image.open("wb") as file:
        file.truncate(DISK_BYTES)
    mount.mkdir()
    _do("mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", image)
    device = _do("losetup", "--find", "--show", image)
    number = os.stat(device).st_rdev
    name = f"{os.major(number)}:{os.minor(number)}"
    pages = Path(f"/sys/class/bdi/{name}")
    try:
        _do("mount", device, mount)
        (pages / "strict_limit").write_text("1")
        (pages / "max_bytes").write_text(str(DIRTY_BYTES))
        THROTTLE.write_text(f"{name} {BYTES_PER_S}")
        yield mount
    finally:
        THROTTLE.write_text(f"{name} 0")
        (pages / "max_ratio").write_text("100")
        (pages / "strict_limit").write_text("0")
        _do("umount", mount)
        _do("losetup", "--detach", device)


def _do(*command: str | Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

"""What must stay flat: start-up, memory and single requests against partitions, segments, log size and idle clients.

A ZooKeeper that is already up serves all brokers here, so that a start is the broker's own. What stands in the
ceiling's column is the same figure of the small case: a ratio near 1 is flat.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from bench.measure import Row
from broker.clock import SystemClock
from broker.log.log import Log
from broker.log.log_config import LogConfig
from broker.protocol.api_keys import ApiKey
from tests.support.batches import append, batch
from tests.support.broker_process import BrokerProcess
from tests.support.raw_requests import Requests, ask_for, fetch_body
from tests.support.waiting import eventually
from tests.support.zookeeper import ZooKeeperServer

PARTITIONS = 1000
IDLE = 2000
SEGMENTS, SEGMENT_BYTES = 50, 1 << 30
TOPIC = "scale"


def run(scale: float = 1.0) -> list[Row]:
    """All rows; `scale` makes the large cases smaller."""
    partitions, idle, segments = (max(int(n * scale), 2) for n in (PARTITIONS, IDLE, SEGMENTS))
    with ZooKeeperServer() as zookeeper, tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        small = BrokerProcess(root / "small", zookeeper=zookeeper.chroot())
        empty_start = _start(small)
        with small:
            _fill_topic(small, 1)
            one = _requests(small, 1)
            return [
                Row("start of an empty broker", empty_start, "s"),
                *_many_partitions(zookeeper, root, partitions, one),
                *_large_log(zookeeper, root, segments, empty_start, one),
                *_idle_consumers(small, idle),
            ]


def _many_partitions(zookeeper: ZooKeeperServer, root: Path, partitions: int, one: dict[str, float]) -> Iterator[Row]:
    with BrokerProcess(root / "many", zookeeper=zookeeper.chroot()) as broker:
        _fill_topic(broker, partitions)
        broker.stop()
        yield Row(f"start with {partitions:,} partitions, after a clean stop", _start(broker), "s")
        process = psutil.Process(broker.pid)
        yield Row(f"memory after it, {partitions:,} partitions", process.memory_info().rss / 1e6, "MB")
        yield Row(f"open files after it, {partitions:,} partitions", process.num_fds(), "files")
        many = _requests(broker, partitions)
        for name, value in many.items():
            yield Row(f"{name}, {partitions:,} partitions there", value, "µs", one[name])
        everything = fetch_body([ask_for(TOPIC, partition=p, max_bytes=1000) for p in range(partitions)])
        with Requests(broker.bootstrap) as client:
            fetch = _median_us(lambda: client.ask(ApiKey.FETCH, everything, 11), 20)
        yield Row(f"one fetch over {partitions:,} partitions", fetch / 1e3, "ms")
        broker.kill()
        yield Row(f"start with {partitions:,} partitions, after kill -9", _start(broker), "s")


def _large_log(
    zookeeper: ZooKeeperServer, root: Path, segments: int, empty_start: float, one: dict[str, float]
) -> Iterator[Row]:
    with BrokerProcess(root / "large", zookeeper=zookeeper.chroot()) as broker:
        _fill_topic(broker, 1)
        broker.stop()
        _grow(root / "large" / "broker" / f"{TOPIC}-0", segments)
        name = f"{segments * SEGMENT_BYTES >> 30} GiB in {segments} segments"
        yield Row(f"start with {name}, after a clean stop", _start(broker), "s", empty_start)
        for what, value in _requests(broker, 1).items():
            yield Row(f"{what}, {name}", value, "µs", one[what])


def _grow(directory: Path, segments: int) -> None:
    """Closed segments of one batch each, made long by a hole: nobody should read what lies behind the batch."""
    log = Log.open(directory, LogConfig(), SystemClock(), clean=True)
    for _ in range(segments):
        append(log, batch(b"x" * 100))
        log.roll()
    closed = [segment.path() for segment in log.segments][1:-1]
    append(log, batch(b"last"))
    log.close()
    for path in closed:
        os.truncate(path, SEGMENT_BYTES)


def _idle_consumers(broker: BrokerProcess, count: int) -> Iterator[Row]:
    process = psutil.Process(broker.pid)
    before, alone = process.memory_info().rss, _requests(broker, 1)["produce"]
    wait = fetch_body([ask_for(TOPIC)], max_wait=60_000, min_bytes=1 << 20)
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(Requests(broker.bootstrap)).send(ApiKey.FETCH, wait, 11)
        eventually(lambda: len(process.net_connections()) >= count)
        cpu = process.cpu_times()
        start = time.perf_counter()
        eventually(lambda: time.perf_counter() - start > 5, timeout=10)
        after = process.cpu_times()
        used = after.user + after.system - cpu.user - cpu.system
        yield Row(f"memory of {count:,} consumers in long poll", (process.memory_info().rss - before) / 1e6, "MB")
        yield Row(f"CPU of {count:,} consumers in long poll", used / 5 * 100, "% of a core")
        yield Row(f"produce, {count:,} consumers in long poll", _requests(broker, 1)["produce"], "µs", alone)


def _requests(broker: BrokerProcess, partitions: int) -> dict[str, float]:
    """Medians of single requests about one partition, µs."""
    last = partitions - 1
    with Requests(broker.bootstrap) as client:
        tail = int(client.list_offset(TOPIC, -1, partition=last).offset) - 1
        body = fetch_body([ask_for(TOPIC, tail, partition=last)])
        return {
            "produce": _median_us(lambda: client.put(TOPIC, b"x" * 100, partition=last), 500),
            "fetch at the tail": _median_us(lambda: client.ask(ApiKey.FETCH, body, 11), 500),
            "offset of a time": _median_us(lambda: client.list_offset(TOPIC, 1_700_000_000_000, partition=last), 500),
        }


def _fill_topic(broker: BrokerProcess, partitions: int) -> None:
    with Requests(broker.bootstrap, timeout_s=120) as client:
        client.create(TOPIC, partitions)
        for partition in range(partitions):
            client.put(TOPIC, b"first", b"second", partition=partition)


def _start(broker: BrokerProcess) -> float:
    start = time.perf_counter()
    broker.start()
    return time.perf_counter() - start


def _median_us(call: Callable[[], object], times: int) -> float:
    took = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        took.append((time.perf_counter() - start) * 1e6)
    return statistics.median(took)

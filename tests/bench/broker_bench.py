"""Produce and fetch with confluent-kafka, small synchronous sends, start-up and memory.

Each case runs against the bare server and our broker in turn, several rounds, and the medians are
compared, so that a drift of the machine's speed hits both.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from tests.bench.bare_server import TOPIC
from tests.bench.measure import Row, Target, bare_target, broker_target

PARTITIONS = 4
ROUNDS = 3


def produce(target: Target, size: int, count: int) -> dict[str, float]:
    """`count` messages of `size` bytes; MB/s and messages/s until all are acknowledged."""
    producer = Producer(
        {
            "bootstrap.servers": target.bootstrap,
            "acks": 1,
            "linger.ms": 5,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    payload = os.urandom(size)
    producer.list_topics(TOPIC, timeout=10)
    with target.timed() as took:
        for i in range(count):
            while True:
                try:
                    producer.produce(TOPIC, payload, partition=i % PARTITIONS)
                    break
                except BufferError:
                    producer.poll(0.05)
            if i % 10_000 == 0:
                producer.poll(0)
        left = producer.flush(120)
    assert left == 0
    gigabytes = size * count / 1e9
    return {
        "MB/s": gigabytes * 1e3 / took["wall"],
        "k msg/s": count / took["wall"] / 1e3,
        "CPU s/GB": took["cpu"] / gigabytes,
    }


def fetch(target: Target, size: int, count: int) -> dict[str, float]:
    """Read `count` messages from the beginning of every partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": target.bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "fetch.min.bytes": 1,
            "check.crcs": False,
            "queued.max.messages.kbytes": 262_144,
        }
    )
    with target.timed() as took:
        consumer.assign([TopicPartition(TOPIC, p, 0) for p in range(PARTITIONS)])
        got = 0
        while got < count:
            messages = consumer.consume(10_000, timeout=10)
            assert messages, f"{got} of {count}"
            got += len(messages)
    consumer.close()
    gigabytes = size * count / 1e9
    return {
        "MB/s": gigabytes * 1e3 / took["wall"],
        "k msg/s": count / took["wall"] / 1e3,
        "CPU s/GB": took["cpu"] / gigabytes,
    }


def synchronous(target: Target, count: int = 2000) -> dict[str, float]:
    """Single 100 B sends, each waited for; microseconds."""
    producer = Producer({"bootstrap.servers": target.bootstrap, "acks": 1, "linger.ms": 0})
    times = []
    for i in range(count + 200):
        start = time.perf_counter()
        producer.produce(TOPIC, b"x" * 100, partition=0)
        producer.flush(10)
        if i >= 200:
            times.append((time.perf_counter() - start) * 1e6)
    times.sort()
    return {"p50 µs": times[len(times) // 2], "p99 µs": times[int(len(times) * 0.99)]}


Case = Callable[[Target], dict[str, float]]


def run(scale: float = 1.0) -> list[Row]:
    """All rows of the broker."""
    rows: list[Row] = []
    for size, count in ((100, int(1_000_000 * scale)), (1024, int(400_000 * scale))):
        medians = _paired([lambda t, s=size, n=count: produce(t, s, n), lambda t, s=size, n=count: fetch(t, s, n)])  # type: ignore[misc]
        for name, ours, bare in zip(("produce", "fetch"), medians["pykafka"], medians["bare server"], strict=True):
            rows += [Row(f"{name} {size} B", ours[unit], unit, bare[unit]) for unit in ours]
    medians = _paired([synchronous])
    rows += [
        Row("synchronous send 100 B", medians["pykafka"][0][unit], unit, medians["bare server"][0][unit])
        for unit in ("p50 µs", "p99 µs")
    ]
    return rows + start_up()


def _paired(cases: list[Case]) -> dict[str, list[dict[str, float]]]:
    """Median of each unit per target and case, over rounds that alternate between the targets."""
    seen: dict[str, list[list[dict[str, float]]]] = {"pykafka": [], "bare server": []}
    for _ in range(ROUNDS):
        for make in (bare_target, broker_target):
            with contextlib.ExitStack() as stack:
                directory = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "data"
                target: Any = stack.enter_context(make(directory, PARTITIONS))
                seen[target.name].append([case(target) for case in cases])
    return {
        name: [
            {unit: statistics.median(r[i][unit] for r in rounds) for unit in rounds[0][i]} for i in range(len(cases))
        ]
        for name, rounds in seen.items()
    }


def start_up() -> list[Row]:
    """Seconds until the broker listens (its own ZooKeeper included), and its memory then."""
    with tempfile.TemporaryDirectory() as directory:
        start = time.perf_counter()
        with broker_target(Path(directory) / "data", 1) as target:
            return [
                Row("start, ZooKeeper included", time.perf_counter() - start, "s"),
                Row("memory after start", target.rss_mb, "MB"),
            ]

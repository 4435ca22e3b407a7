"""Produce and fetch with confluent-kafka, and small synchronous sends: ours, the bare server, and peers.

Each case runs against every target in turn, several rounds, and the medians are compared, so that a drift of
the machine's speed hits all. `broker` compares with the ceiling, `peers` with other brokers as well.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from bench.bare_server import TOPIC
from bench.measure import Row, Target, bare_target, broker_target
from bench.peers import noida_target, tansu_target
from tests.support.waiting import eventually

ROUNDS = 3
OURS, CEILING = "pykafka", "bare server"
SIZES = ((100, 600_000), (1024, 300_000), (102_400, 4_000))
"""(bytes of a message, how many)."""

Make = Callable[[Path, int], AbstractContextManager[Target]]
Figures = dict[str, float]
Case = Callable[[Target], Figures]


def run(scale: float = 1.0) -> list[Row]:
    """Against the ceiling: every size over 1 and 16 partitions, and synchronous sends."""
    rows = []
    for name, seen in _measure((bare_target, broker_target), scale):
        ours, bare = seen[OURS], seen.get(CEILING, {})
        rows += [Row(name, value, unit, bare.get(unit)) for unit, value in ours.items()]
    return rows


def run_peers(scale: float = 1.0) -> list[Row]:
    """Against other brokers: in the ceiling's column stands the peer's figure."""
    rows = []
    for name, seen in _measure((broker_target, tansu_target, noida_target), scale):
        for peer in seen:
            if peer != OURS:
                rows += [
                    Row(f"{name}, beside {peer}", value, unit, seen[peer].get(unit))
                    for unit, value in seen[OURS].items()
                ]
    return rows


def _measure(targets: Sequence[Make], scale: float) -> list[tuple[str, dict[str, Figures]]]:
    results = []
    for partitions in (1, 16):
        for size, count in SIZES:
            many = max(int(count * scale), 100)
            cases: list[tuple[str, Case]] = [
                (f"produce {_text(size)}", lambda t, s=size, n=many, p=partitions: produce(t, s, n, p)),  # type: ignore[misc]
                (f"fetch {_text(size)}", lambda t, s=size, n=many, p=partitions: fetch(t, s, n, p)),  # type: ignore[misc]
            ]
            results += _in_turns(cases, targets, partitions)
    results += _in_turns([("synchronous send 100 B", synchronous)], targets, 1)
    return results


def _in_turns(
    cases: list[tuple[str, Case]], targets: Sequence[Make], partitions: int
) -> list[tuple[str, dict[str, Figures]]]:
    """Per case the medians of each target, over rounds that go through the targets one after another."""
    seen: dict[str, dict[str, list[Figures]]] = {name: {} for name, _ in cases}
    for _ in range(ROUNDS):
        for make in targets:
            with contextlib.ExitStack() as stack:
                directory = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "data"
                try:
                    target = stack.enter_context(make(directory, partitions))
                    for name, case in cases:
                        seen[name].setdefault(target.name, []).append(case(target))
                except (FileNotFoundError, TimeoutError, AssertionError) as error:
                    print(f"{make.__name__}, {cases[0][0]}, {partitions} partitions: {error}", file=sys.stderr)
    label = "1 partition" if partitions == 1 else f"{partitions} partitions"
    return [
        (f"{name}, {label}", {target: _medians(rounds) for target, rounds in by_target.items()})
        for name, by_target in seen.items()
    ]


def _medians(rounds: list[Figures]) -> Figures:
    return {unit: statistics.median(figures[unit] for figures in rounds) for unit in rounds[0]}


def _text(size: int) -> str:
    return f"{size} B" if size < 1024 else f"{size // 1024} KiB"


def produce(target: Target, size: int, count: int, partitions: int = 4, acks: int | str = 1) -> Figures:
    """`count` messages of `size` bytes; MB/s and messages/s until all are acknowledged."""
    producer = Producer(
        {
            "bootstrap.servers": target.bootstrap,
            "acks": acks,
            "linger.ms": 5,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": 1_000_000,
            "log_level": 0,
        }
    )
    payload = os.urandom(size)
    failed: list[object] = []

    def delivered(error: object, _: object) -> None:
        if error is not None:
            failed.append(error)

    producer.list_topics(TOPIC, timeout=10)
    with target.timed() as took:
        for i in range(count):
            told = delivered if i % 997 == 0 else None
            while True:
                try:
                    producer.produce(TOPIC, payload, partition=i % partitions, on_delivery=told)
                    break
                except BufferError:
                    producer.poll(0.05)
            if i % 10_000 == 0:
                producer.poll(0)
        left = producer.flush(120)
    assert (left, failed) == (0, []), f"{left} messages were not delivered; {failed[:1]}"
    return _figures(size * count, count, took)


def fetch(target: Target, size: int, count: int, partitions: int = 4) -> Figures:
    """Read `count` messages from the beginning of every partition."""
    if target.name != CEILING:  # which has no groups: a broker makes the topic of theirs at the first question
        first = Consumer({"bootstrap.servers": target.bootstrap, "group.id": "bench", "log_level": 0})
        eventually(lambda: _has_coordinator(first))
        first.close()
    consumer = Consumer(
        {
            "bootstrap.servers": target.bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "fetch.min.bytes": 1,
            "check.crcs": False,
            "queued.min.messages": 1_000_000,
            "queued.max.messages.kbytes": 262_144,
            "log_level": 0,
        }
    )
    with target.timed() as took:
        consumer.assign([TopicPartition(TOPIC, p, 0) for p in range(partitions)])
        got = 0
        while got < count:
            messages = consumer.consume(min(10_000, count - got), timeout=10)
            assert messages, f"only {got} of {count} messages could be read"
            got += len(messages)
    consumer.close()
    return _figures(size * count, count, took)


def _has_coordinator(consumer: Consumer) -> bool:
    try:
        consumer.committed([TopicPartition(TOPIC, 0)], timeout=10)
    except KafkaException:  # Apache Kafka answers NOT_COORDINATOR while it makes the topic of groups
        return False
    return True


def _figures(size: int, count: int, took: Figures) -> Figures:
    gigabytes = size / 1e9
    return {
        "MB/s": gigabytes * 1e3 / took["wall"],
        "k msg/s": count / took["wall"] / 1e3,
        "CPU s/GB": took["cpu"] / gigabytes,
    }


def synchronous(target: Target, count: int = 2000, acks: int | str = 1) -> Figures:
    """Single 100 B sends, each waited for; microseconds."""
    producer = Producer({"bootstrap.servers": target.bootstrap, "acks": acks, "linger.ms": 0, "log_level": 0})
    times = []
    for i in range(count + 200):
        start = time.perf_counter()
        producer.produce(TOPIC, b"x" * 100, partition=0)
        assert producer.flush(10) == 0
        if i >= 200:
            times.append((time.perf_counter() - start) * 1e6)
    times.sort()
    return {"p50 µs": times[len(times) // 2], "p99 µs": times[int(len(times) * 0.99)]}

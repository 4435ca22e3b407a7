"""Our brokers beside those of Apache Kafka, with the same client, in turns; theirs is in the ceiling's column.

`PYKAFKA_BENCH_KAFKA_START` is a command that starts one node of a KRaft cluster in the foreground. It is given a
directory, the node's number from 1 on, and a list of ports with commas: one for each broker, then one for each
controller, all on 127.0.0.1. What its processes take of the processor is counted as ours is. Some rounds that do
not count warm both up.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import psutil
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from bench.bare_server import TOPIC
from bench.broker_bench import Figures, fetch, produce, synchronous
from bench.cluster_bench import PARTITIONS, SIZES, ClusterTarget, cluster
from bench.measure import Row, Target
from bench.peers import create_topic
from tests.support.free_ports import free_ports
from tests.support.steady_load import SteadyLoad
from tests.support.waiting import eventually

START = os.environ.get("PYKAFKA_BENCH_KAFKA_START", "")
ROUNDS, TO_WARM_UP = 3, 3  # a JVM compiles what it has run often enough
KILLS = 3
SENDS = 1000
Case = Callable[[Target], Figures]


def run_broker(scale: float = 1.0) -> Iterator[Row]:
    """One broker each: produce with acks=1, fetch, and single sends."""
    groups: list[dict[str, Case]] = []
    for size, most in SIZES:
        groups.append(
            {
                f"one broker, {what.__name__} {size} B": functools.partial(
                    what, size=size, count=int(most * scale), partitions=PARTITIONS
                )
                for what in (produce, fetch)
            }
        )
    groups.append({"one broker, synchronous send 100 B": _single_sends(scale)})
    yield from _beside(1, groups)


def run_cluster(scale: float = 1.0) -> Iterator[Row]:
    """Three brokers each, three replicas, acks=all; CPU is that of all three."""
    groups: list[dict[str, Case]] = []
    for size, most in SIZES:
        case = functools.partial(produce, size=size, count=int(most * scale), partitions=PARTITIONS, acks="all")
        groups.append({f"three brokers, produce {size} B": case})
    groups.append({"three brokers, synchronous send 100 B": _single_sends(scale, "all")})
    yield from _beside(3, groups)


def _single_sends(scale: float, acks: int | str = 1) -> Case:
    return functools.partial(synchronous, count=max(int(SENDS * scale), 100), acks=acks)


def run_failover(scale: float = 1.0) -> Iterator[Row]:
    """Three brokers each: the longest pause of a writer with acks=all and of a reader when a leader is killed."""
    pauses: dict[str, list[tuple[float, float]]] = {"ours": [], "theirs": []}
    for _ in range(max(1, round(KILLS * scale))):
        for side, start in (("ours", _ours), ("theirs", apache_kafka)):
            with start(3) as target:
                pauses[side].append(_pause_at_kill(target))
    ours, theirs = (list(zip(*pauses[side], strict=True)) for side in ("ours", "theirs"))
    for who, mine, other in zip(("writer", "reader"), ours, theirs, strict=True):
        note = f"(theirs {min(other):.1f} to {max(other):.1f})"
        case = f"three brokers, kill -9 of a leader, longest pause of the {who}"
        yield Row(case, statistics.median(mine), "s", statistics.median(other), note)


def _pause_at_kill(target: ClusterTarget) -> tuple[float, float]:
    """Seconds without an acknowledgement, and without a record read, in any one partition."""
    load = SteadyLoad(target.bootstrap).start()
    found = AdminClient({"bootstrap.servers": target.bootstrap, "log_level": 0}).list_topics(timeout=10)
    leaders = {one.leader for one in found.topics[load.topic].partitions.values()}
    before = len(load.read)
    target.processes[min(leaders - {found.controller_id})].kill()
    eventually(lambda: len(load.read) > before + 600, timeout=60)
    load.stop()
    return load.longest_write, load.longest_read


def _beside(brokers: int, groups: Iterable[Mapping[str, Case]]) -> Iterator[Row]:
    """Medians of rounds, of every unit of every case. A group begins with an empty topic."""
    with _ours(brokers) as ours, apache_kafka(brokers) as theirs:
        for cases in groups:
            seen: dict[str, list[list[Figures]]] = {name: [[], []] for name in cases}
            for turn in range(TO_WARM_UP + ROUNDS):
                for side, target in enumerate((ours, theirs)):
                    _empty_topic(target.bootstrap, brokers)
                    for name, case in cases.items():
                        figures = case(target)
                        if turn >= TO_WARM_UP:
                            seen[name][side].append(figures)
            for name, (of_ours, of_theirs) in seen.items():
                for unit in of_ours[0]:
                    mine, other = (statistics.median(one[unit] for one in side) for side in (of_ours, of_theirs))
                    yield Row(name, mine, unit, other)


def _empty_topic(bootstrap: str, replicas: int) -> None:
    """What was in it is deleted at once on both sides, so that the next round finds pages that are in use already."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    if TOPIC in admin.list_topics(timeout=10).topics:
        admin.delete_topics([TOPIC])[TOPIC].result(30)
        eventually(lambda: TOPIC not in admin.list_topics(timeout=10).topics)
    create_topic(bootstrap, PARTITIONS, replicas, {"file.delete.delay.ms": "0"})


@contextlib.contextmanager
def _ours(brokers: int) -> Iterator[ClusterTarget]:
    with cluster(brokers) as (_, target):
        yield target


@contextlib.contextmanager
def apache_kafka(brokers: int) -> Iterator[ClusterTarget]:
    """An Apache Kafka of so many nodes, each its own controller; raises where no command starts one."""
    if not START:
        raise SystemExit("PYKAFKA_BENCH_KAFKA_START is not set; set it to a command that starts a node of Apache Kafka")
    ports = free_ports(2 * brokers)
    nodes: dict[int, psutil.Popen] = {}
    with tempfile.TemporaryDirectory() as directory:
        try:
            for node in range(1, brokers + 1):
                place = Path(directory) / str(node)
                place.mkdir()
                command = [*shlex.split(START), str(place), str(node), ",".join(map(str, ports))]
                with (place / "output").open("wb") as output:
                    nodes[node] = psutil.Popen(command, stdout=output, stderr=subprocess.STDOUT)
            bootstrap = ",".join(f"127.0.0.1:{port}" for port in ports[:brokers])
            admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
            eventually(lambda: _nodes(admin) == brokers, timeout=60)
            yield ClusterTarget("Apache Kafka", bootstrap, nodes[1], {**nodes})
        finally:
            for process in nodes.values():
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
                process.wait()


def _nodes(admin: AdminClient) -> int:
    """How many brokers are there; none while nobody answers."""
    try:
        return len(admin.list_topics(timeout=5).brokers)
    except KafkaException:
        return 0

"""How costs grow with hosts: what tasks read and write on 1, 2 and 4 hosts, from and to 1, 3 and 5 brokers.

Hosts are network namespaces (tests/support/hosts.py: needs root and `ip`). A task is the connector's own code in a
Python on its host, without Spark, whose share spark_cost_bench.py has. What is measured does not depend on what else
the machine does: CPU seconds of tasks and brokers, bytes on links, requests at ZooKeeper.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

from bench.measure import Row
from bench.spark_common import fill, values
from broker.client.admin import Admin
from broker.client.admin_types import NewTopic
from broker.client.cluster import Cluster
from broker.protocol.topic_partition import TopicPartition
from broker.records.compression import Codec
from spark_connector.options.read_options import Mode, parse_options
from spark_connector.read.fetch import read_ranges
from spark_connector.read.planning import OffsetRange
from tests.support.hosts import Host, Network, Server, start_broker, start_zookeeper, unavailable

ROWS, SIZE, PARTITIONS, CHUNK = 300_000, 1024, 60, 1_000
_TIMEOUT_S = 900
TASKS, BROKERS = (1, 2, 4), (1, 3, 5)


def run(scale: float = 1.0) -> Iterator[Row]:
    """More hosts with tasks at all brokers, then more brokers for all tasks; topics without replicas."""
    if (why_not := unavailable()) is not None:
        print(f"Hosts were not measured: {why_not}", file=sys.stderr)
        return
    rows = max(int(ROWS * scale) // (PARTITIONS * CHUNK), 1) * PARTITIONS * CHUNK
    with tempfile.TemporaryDirectory() as name, Network(Path(name)) as network:
        start_zookeeper(network.host("zoo"))
        numbers = range(1, max(BROKERS) + 1)
        brokers = [start_broker(network.host(f"b{number}"), number, "zoo:2181") for number in numbers]
        bench = _Bench(network, brokers, rows)
        for hosts, count in [*((hosts, max(BROKERS)) for hosts in TASKS), *((max(TASKS), one) for one in BROKERS[:-1])]:
            yield from bench.write_and_read(hosts, count)


class _Bench:
    def __init__(self, network: Network, brokers: list[Server], rows: int) -> None:
        self._network = network
        self._brokers = [psutil.Process(broker.process.pid) for broker in brokers]
        self._rows = rows

    def write_and_read(self, hosts: int, brokers: int) -> Iterator[Row]:
        bootstrap = ",".join(f"b{number}:9092" for number in range(1, brokers + 1))
        on = [self._network.host(f"w{number}") for number in range(1, hosts + 1)]
        topic = f"of-{brokers}-by-{hosts}"
        assignment = [[partition % brokers + 1] for partition in range(PARTITIONS)]
        on[0].call("bench.hosts_bench:create", bootstrap, topic, assignment)
        for job in ("write", "read"):
            before = self._counters()
            with ThreadPoolExecutor(hosts) as pool:
                asked = [pool.submit(self._job, job, host, bootstrap, topic, n, hosts) for n, host in enumerate(on)]
                tasks = sum(one.result() for one in asked)
            cpu, sent, requests = (now - was for now, was in zip(self._counters(), before, strict=True))
            cpus = f"tasks {tasks:.2f} CPU s, brokers {cpu:.2f}"
            note = f"({cpus}; {sent / 1e6:,.0f} MB on links; {requests:.0f} requests at ZooKeeper)"
            case = f"{hosts} hosts with tasks, {brokers} brokers: {job} {self._rows:,} × {SIZE} B"
            yield Row(case, self._rows / (tasks + cpu), "rows per CPU second", note=note)

    def _job(self, job: str, host: Host, bootstrap: str, topic: str, number: int, of: int) -> float:
        rows = self._rows // PARTITIONS
        return float(host.call(f"bench.hosts_bench:{job}", bootstrap, topic, number, of, rows, timeout=_TIMEOUT_S))

    def _counters(self) -> tuple[float, float, float]:
        """CPU seconds of the brokers, bytes that the bridge has received, requests that ZooKeeper has received."""
        cpu = 0.0
        for broker in self._brokers:
            for process in (broker, *broker.children(recursive=True)):
                cpu += sum(process.cpu_times()[:2])
        zoo = self._network.host("zoo")
        said = zoo.run("bash", "-c", f"exec 3<>/dev/tcp/{zoo.address}/2181; echo srvr >&3; cat <&3")
        (received,) = (line.split()[1] for line in said.splitlines() if line.startswith("Received"))
        return cpu, bytes_on_links(self._network), float(received)


def bytes_on_links(network: Network) -> float:
    """That the bridge has received of all hosts."""
    listed = subprocess.check_output([*network.switch, "cat", "/proc/net/dev"], text=True)
    return sum(int(line.split()[1]) for line in listed.splitlines() if line.strip().startswith("to-"))


# -- what hosts run


def create(bootstrap: str, topic: str, assignment: list[list[int]]) -> None:
    with Cluster(bootstrap) as cluster:
        Admin(cluster).create_topics([NewTopic(topic, assignment=assignment)])


def write(bootstrap: str, topic: str, number: int, of: int, rows: int) -> float:
    """CPU seconds of writing `rows` to each `of`-th partition from `number` on."""
    chunk, partitions = values(SIZE, CHUNK), range(number, PARTITIONS, of)
    begun = time.process_time()
    fill(bootstrap, topic, chunk, rows * len(partitions), keyed=False, codec=Codec.NONE, partitions=partitions)
    return time.process_time() - begun


def read(bootstrap: str, topic: str, number: int, of: int, rows: int) -> float:
    """CPU seconds of reading them; the first partition is read before, for the imports."""
    options = parse_options({"kafka.bootstrap.servers": bootstrap, "subscribe": topic}, Mode.BATCH)
    ranges = [OffsetRange(TopicPartition(topic, partition), 0, rows) for partition in range(number, PARTITIONS, of)]
    for _ in read_ranges(options, [OffsetRange(ranges[0].tp, 0, 1)], {}):
        pass
    begun = time.process_time()
    assert sum(batch.num_rows for batch in read_ranges(options, ranges, {})) == rows * len(ranges)
    return time.process_time() - begun

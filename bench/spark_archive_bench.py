"""The history of a topic read by Spark: through the broker and straight from the archive's store.

The broker has most segments both on its disk and in the archive, a directory of the same disk. The rows are those of
`count(*)` and the sum of the lengths of all values, so nothing of a record is left out.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
from pyspark.sql import SparkSession

from bench.measure import Row
from bench.spark_common import CHUNK_ROWS, bench_session, fill, values
from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.records.compression import Codec
from broker.storage.storage import open_storage
from tests.support.broker_process import BrokerProcess
from tests.support.scrape import Scrape
from tests.support.waiting import eventually

ROUNDS = 3
PARTITIONS = 8
RECORDS = 3_840_000
SIZE = 200
SEGMENT_BYTES = 8 << 20
TOPIC = "bench-archive"

Cost = tuple[float, float, float, float]
"""Seconds, CPU seconds of Spark, CPU seconds of the broker, bytes that it sent."""


def run(scale: float = 1.0) -> Iterator[Row]:
    """CPU seconds of Spark and of the broker for each way; the note says what the broker sent and how long it took."""
    with tempfile.TemporaryDirectory() as directory:
        archive = Path(directory) / "archive"
        settings = {
            "metrics.listener": "HTTP://127.0.0.1:0",
            "archive.url": archive.as_uri(),
            "remote.log.storage.system.enable": "true",
        }
        with BrokerProcess(Path(directory) / "data", settings) as broker, bench_session() as spark:
            chunks = max(int(RECORDS * scale) // (PARTITIONS * CHUNK_ROWS), 1)
            topic_settings = {"remote.storage.enable": "true", "segment.bytes": str(SEGMENT_BYTES)}
            with Cluster(broker.bootstrap) as cluster:
                Admin(cluster).create_topic(TOPIC, PARTITIONS, configs=topic_settings)
            rows = chunks * CHUNK_ROWS * PARTITIONS
            fill(broker.bootstrap, TOPIC, values(SIZE), rows, keyed=True, codec=Codec.LZ4, partitions=PARTITIONS)
            _await_archive(broker, archive)
            yield from _ways(spark, broker, archive, rows)


def _await_archive(broker: BrokerProcess, archive: Path) -> None:
    """Return when every closed segment has an object, and the manifest had a moment to say so."""
    storage = open_storage(str(archive))

    def archived() -> bool:
        closed = len(list(broker.data_dir.glob(f"**/{TOPIC}-*/*.log"))) - PARTITIONS
        entries = [name for name in storage.tree_sizes("") if "/manifest/" in name]
        return len(entries) >= closed

    eventually(archived, timeout=300)


def _ways(spark: SparkSession, broker: BrokerProcess, archive: Path, rows: int) -> Iterator[Row]:
    ways: dict[str, Mapping[str, str]] = {
        "through the broker": {"kafka.bootstrap.servers": broker.bootstrap},
        "archive=direct": {"kafka.bootstrap.servers": broker.bootstrap, "archive": "direct"},
        "archive=only": {"archive": "only", "archive.url": str(archive)},
    }
    taken: dict[str, list[Cost]] = {way: [] for way in ways}
    found: dict[str, int] = {}
    for _ in range(ROUNDS + 1):
        for way, options in ways.items():
            before = _now(broker)
            frame = spark.read.format("pykafka").options(subscribe=TOPIC, **options).load()
            (counted,) = frame.selectExpr("count(*) AS rows", "sum(length(value)) AS bytes").collect()
            found[way] = counted["rows"]
            assert counted["bytes"] == counted["rows"] * SIZE
            after = _now(broker)
            taken[way].append(tuple(b - a for a, b in zip(before, after, strict=True)))  # type: ignore[arg-type]
    assert found["through the broker"] == found["archive=direct"] == rows, found
    medians = {
        way: [statistics.median(each) for each in zip(*rounds[1:], strict=True)] for way, rounds in taken.items()
    }
    most = medians["through the broker"]
    for way, (seconds, cpu, broker_cpu, sent) in medians.items():
        note = f"({found[way]} rows; the broker sent {sent / 1e6:,.1f} MB, {seconds:.1f} s)"
        yield Row(f"all rows, {way}: Spark", cpu, "CPU s", most[1], note)
        yield Row(f"all rows, {way}: broker", broker_cpu, "CPU s", most[2])


def _now(broker: BrokerProcess) -> Cost:
    sent = Scrape(broker.metrics_url).total("kafka_server_brokertopicmetrics_bytesout_total")
    me = psutil.Process()
    processes = [me, *(one for one in me.children(recursive=True) if one.pid != broker.pid)]
    cpu = sum(sum(one.cpu_times()[:4]) for one in processes)  # with those that have ended
    return time.perf_counter(), cpu, sum(psutil.Process(broker.pid).cpu_times()[:2]), sent

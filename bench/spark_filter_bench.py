"""A hundredth of a topic's time and one key, read in five ways: bytes that the broker sends, CPU that Spark spends.

The first way leaves the condition to Spark, which fetches and decodes everything. The second has an option for each
end of the time and for the key, set by hand. The others have the condition as text. Keys are in the partitions that
murmur2 gives them, and timestamps grow, one millisecond a record.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
from pyspark.sql import SparkSession

from bench.measure import Row
from bench.spark_common import CHUNK_ROWS, bench_session, values
from broker.client.admin import Admin
from broker.client.batch_producer import BatchProducer
from broker.client.cluster import Cluster
from broker.protocol.topic_partition import TopicPartition
from broker.records.columns import encode_columns, partitions_of_keys
from broker.records.compression import Codec
from tests.support.broker_process import BrokerProcess
from tests.support.scrape import Scrape

ROUNDS = 3
PARTITIONS = 8
RECORDS = 3_840_000
SIZE = 200
USERS = 5000
TOPIC = "bench-filter"


def run(scale: float = 1.0) -> Iterator[Row]:
    """CPU seconds of each way, against the first; the note says what was fetched and how long it took."""
    with tempfile.TemporaryDirectory() as directory:
        settings = {"metrics.listener": "HTTP://127.0.0.1:0"}
        with BrokerProcess(Path(directory) / "data", settings) as broker, bench_session() as spark:
            chunks = max(int(RECORDS * scale) // (PARTITIONS * CHUNK_ROWS), 1)
            first_ms = _fill(broker.bootstrap, chunks)
            count = chunks * CHUNK_ROWS
            low, high = first_ms + count // 2, first_ms + count // 2 + count // 100
            yield from _ways(spark, broker, low, high)


def _fill(bootstrap: str, chunks: int) -> int:
    """The time of the first record of each partition, in ms."""
    first_ms = time.time_ns() // 1_000_000 - chunks * CHUNK_ROWS
    users = pa.array([f"user-{number}".encode() for number in range(USERS)], pa.binary())
    placed = partitions_of_keys(users, PARTITIONS)
    with Cluster(bootstrap) as cluster:
        Admin(cluster).create_topic(TOPIC, PARTITIONS)
        for partition in range(PARTITIONS):
            own = np.flatnonzero(placed == partition)
            keys = users.take(pa.array(np.resize(own, CHUNK_ROWS)))
            with BatchProducer(cluster) as producer:
                for chunk in range(chunks):
                    times = pa.array(first_ms + chunk * CHUNK_ROWS + np.arange(CHUNK_ROWS))
                    for batch in encode_columns(keys, values(SIZE), times, codec=Codec.LZ4):
                        producer.send(TopicPartition(TOPIC, partition), batch)
                producer.flush()
    return first_ms


def _ways(spark: SparkSession, broker: BrokerProcess, low: int, high: int) -> Iterator[Row]:
    begin, end = (datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds") for ms in (low, high))
    condition = f"timestamp >= '{begin}' AND timestamp < '{end}' AND key = 'user-42'"
    by_hand = {"filterTimestampFrom": str(low), "filterTimestampUntil": str(high), "endingTimestamp": str(high)}
    ways: dict[str, tuple[Mapping[str, str], bool]] = {
        "left to Spark": ({}, True),
        "by hand": ({**by_hand, "filterKeyPrefix": "user-42"}, True),
        "where": ({"where": condition}, False),
        "where, timestampsGrow": ({"where": condition, "timestampsGrow": "true"}, False),
        "where, timestampsGrow, filterKeyPartitioner": (
            {"where": condition, "timestampsGrow": "true", "filterKeyPartitioner": "murmur2"},
            False,
        ),
    }
    taken: dict[str, list[tuple[float, float, float]]] = {way: [] for way in ways}
    counts: set[int] = set()
    for _ in range(ROUNDS + 1):
        for way, (options, filtered) in ways.items():
            base = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": TOPIC, **options}
            before = time.perf_counter(), _cpu(), _sent(broker)
            frame = spark.read.format("pykafka").options(**base).load()
            frame = frame.where(condition) if filtered else frame
            counts.add(frame.selectExpr("count(*)").collect()[0][0])
            after = time.perf_counter(), _cpu(), _sent(broker)
            taken[way].append((after[0] - before[0], after[1] - before[1], after[2] - before[2]))
    assert len(counts) == 1, counts
    medians = {
        way: [statistics.median(each) for each in zip(*rounds[1:], strict=True)] for way, rounds in taken.items()
    }
    most = medians["left to Spark"][1]
    for way, (seconds, cpu, sent) in medians.items():
        note = f"({max(counts)} rows; {sent / 1e6:,.2f} MB fetched, {seconds:.2f} s)"
        yield Row(f"1 % of the time, one key: {way}", cpu, "CPU s", most, note)


def _cpu() -> float:
    """Seconds that this process and those that Spark has started have spent."""
    me = psutil.Process()
    return sum(sum(one.cpu_times()[:4]) for one in [me, *me.children(recursive=True)])  # with those that have ended


def _sent(broker: BrokerProcess) -> float:
    return Scrape(broker.metrics_url).total("kafka_server_brokertopicmetrics_bytesout_total")

"""What partitions cost: plans, loads and their recount with 100, 1,000 and 10,000 partitions of ten records each.

CPU seconds of the driver, of Spark (JVM and Python workers) and of the broker, which do not depend much on what else
the machine does. What costs ten times as much in each next row grows with the partitions; more would be a defect.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

from bench.load_bench import Place
from bench.measure import Row, Target, broker_target
from bench.spark_common import bench_session, spark_cpu
from broker.client.admin import Admin
from broker.client.batch_producer import BatchProducer
from broker.client.cluster import Cluster
from broker.errors import BrokerError
from broker.protocol.topic_partition import TopicPartition
from broker.records.columns import encode_columns
from broker.records.compression import Codec
from spark_connector import maintenance
from spark_connector.load import load
from spark_connector.loads.request import Target as LoadTarget
from spark_connector.options.read_options import Mode, parse_options
from spark_connector.read.readers import KafkaBatchReader, make_reader

COUNTS = (100, 1_000, 10_000)
TOPIC = 1_000
"""Partitions of a topic; 10,000 would not fit into ZooKeeper's limit."""
RECORDS = 10


def run(scale: float = 1.0) -> Iterator[Row]:
    """`scale` is the share of the largest count; a smaller count that it leaves out is left out."""
    with tempfile.TemporaryDirectory() as name, broker_target(Path(name) / "data", 1) as broker:
        place = Place(Path(name))
        place.announce_catalog()
        place.make_namespace()
        with bench_session() as spark:
            for count in (count for count in COUNTS if count <= COUNTS[-1] * scale):
                meter = Meter(broker, count)
                yield from meter.rows(f"create {count:,} partitions", lambda count=count: _create(broker, count))  # type: ignore[misc]
                yield from _plans(meter)
                yield from _loads(spark, place, meter)


class Meter:
    """Measures what is done with so many partitions."""

    def __init__(self, broker: Target, count: int) -> None:
        self.broker = broker
        self.count = count
        self.topics = [f"of-{count}-{number}" for number in range(max(count // TOPIC, 1))]
        self.result: Any = None

    def rows(self, what: str, work: Callable[[], Any]) -> Iterator[Row]:
        """`result` is what the work returns."""
        driver, spark = time.process_time(), spark_cpu()
        with self.broker.timed() as taken:
            self.result = work()
        after = spark_cpu()
        driver, sparks = time.process_time() - driver, max(after.total - spark.total, 0.0)  # workers that have ended
        note = (
            f"(driver {driver:.2f}, Spark {sparks:.2f}, broker {taken['cpu']:.2f}; {taken['wall']:.2f} s by the clock)"
        )
        yield Row(f"{self.count:,} partitions: {what}", driver + sparks + taken["cpu"], "CPU s", note=note)


def _create(broker: Target, count: int) -> None:
    (batch,) = encode_columns(None, pa.array([b"x" * 100] * RECORDS), time.time_ns() // 1_000_000, codec=Codec.NONE)
    with Cluster(broker.bootstrap) as cluster, BatchProducer(cluster) as producer:
        for topic in Meter(broker, count).topics:
            with contextlib.suppress(BrokerError):  # a busy broker answers so late that the client asks again
                Admin(cluster).create_topic(topic, min(count, TOPIC))
            for partition in range(min(count, TOPIC)):
                producer.send(TopicPartition(topic, partition), batch)
        producer.flush()


def _plans(meter: Meter) -> Iterator[Row]:
    options = {
        "kafka.bootstrap.servers": meter.broker.bootstrap,
        "subscribe": ",".join(meter.topics),
        "startingOffsets": "earliest",
    }
    batch = KafkaBatchReader(parse_options(options, Mode.BATCH))
    batch.partitions()
    yield from meter.rows("plan of a batch", batch.partitions)
    stream: Any = make_reader(parse_options(options, Mode.STREAM))
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadAllAvailable())
    yield from meter.rows("end of a micro-batch", lambda: stream.latestOffset(end, ReadAllAvailable()))
    yield from meter.rows("plan of a micro-batch", lambda: stream.partitions(start, end))
    stream.stop()


def _loads(spark: SparkSession, place: Place, meter: Meter) -> Iterator[Row]:
    for kind in ("delta", "iceberg"):
        target = place.target(kind)
        given = {**target, "bootstrap_servers": meter.broker.bootstrap, "topic": ",".join(meter.topics)}

        def once(given: dict[str, Any] = given) -> int:
            return load(spark, **given, publish_offsets=False).rows

        yield from meter.rows(f"load into {kind}", once)
        assert meter.result == meter.count * RECORDS
        yield from meter.rows(f"a load that finds nothing new for {kind}", once)
        assert meter.result == 0

        def check(target: dict[str, Any] = target) -> bool:
            return maintenance.verify(LoadTarget(**target), meter.broker.bootstrap).ok

        yield from meter.rows(f"loads verify of {kind}", check)
        assert meter.result

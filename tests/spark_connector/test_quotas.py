"""Spark jobs whose user has quotas: they take longer, and lose nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import md5

from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.quotas.quota_entity import QuotaEntity
from tests.support.all_available import take_all
from tests.support.broker_process import BrokerProcess
from tests.support.randomness import noise
from tests.support.scrape import Scrape
from tests.support.topics import Topic

RECORDS, SIZE, RATE = 160, 10_000, 500_000.0
QUOTAS = {
    "Fetch": {"consumer_byte_rate": RATE},
    "Produce": {"producer_byte_rate": RATE},
    "Request": {"request_percentage": 0.005},
}
"""By what throttles."""


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {"metrics.listener": "HTTP://127.0.0.1:0"}
    with BrokerProcess(tmp_path_factory.mktemp("quotas"), settings, standalone=True) as process:
        yield process
        assert "Traceback" not in process.output


@pytest.fixture
def records(own: BrokerProcess, topic: str) -> str:
    """The name of a topic of four partitions that has them."""
    made = Topic(own.bootstrap, topic, partitions=4)
    for number in range(RECORDS // 10):
        made.produce([noise(SIZE) for _ in range(10)], number % 4)
    return topic


def throttled_s(broker: BrokerProcess, kind: str) -> float:
    return Scrape(broker.metrics_url).total("kafka_server_quotas_throttle_time_seconds_total", type=kind)


def sums(spark: SparkSession, broker: BrokerProcess, topic: str) -> list[str]:
    """The checksums of the values of a topic."""
    rows = spark.read.format("pykafka").option("kafka.bootstrap.servers", broker.bootstrap).option("subscribe", topic)
    return sorted(row[0] for row in rows.load().select(md5("value")).collect())


def read(spark: SparkSession, broker: BrokerProcess, topic: str, _: Path) -> None:
    sums(spark, broker, topic)


def write(spark: SparkSession, broker: BrokerProcess, topic: str, _: Path) -> None:
    where = {"kafka.bootstrap.servers": broker.bootstrap}
    rows = spark.read.format("pykafka").options(**where, subscribe=topic).load().select("key", "value")
    rows.write.format("pykafka").options(**where, topic=f"{topic}-copy").mode("append").save()


def stream(spark: SparkSession, broker: BrokerProcess, topic: str, home: Path) -> None:
    where = {"kafka.bootstrap.servers": broker.bootstrap}
    rows = spark.readStream.format("pykafka").options(**where, subscribe=topic, startingOffsets="earliest").load()
    to = {**where, "topic": f"{topic}-copy", "delivery": "exactly-once", "checkpointLocation": str(home)}
    take_all(rows.select("key", "value").writeStream.format("pykafka").options(**to))


@pytest.mark.parametrize(
    ("job", "kind"),
    [(read, "Fetch"), (read, "Request"), (write, "Produce"), (stream, "Fetch"), (stream, "Produce")],
    ids=lambda one: getattr(one, "__name__", one),
)
def test_a_throttled_job_takes_longer_and_loses_nothing(
    spark: SparkSession,
    own: BrokerProcess,
    records: str,
    tmp_path: Path,
    job: Callable[[SparkSession, BrokerProcess, str, Path], None],
    kind: str,
) -> None:
    before = throttled_s(own, kind)
    with Cluster(own.bootstrap) as cluster:
        admin = Admin(cluster)
        if job is not read:
            admin.create_topic(f"{records}-copy", partitions=2)
        admin.alter_client_quotas(QuotaEntity(user=""), QUOTAS[kind])
        begin = time.monotonic()
        try:
            job(spark, own, records, tmp_path)
            took = time.monotonic() - begin
        finally:
            admin.alter_client_quotas(QuotaEntity(user=""), dict.fromkeys(QUOTAS[kind]))
    assert throttled_s(own, kind) > before
    if kind == "Fetch":
        assert took > RECORDS * SIZE / RATE * 0.8
    if job is not read:
        assert sums(spark, own, f"{records}-copy") == sums(spark, own, records)

"""Loads of records whose times Python does not have: the right value where the format can hold it, else a refusal that
names the record."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import fastavro
import pyarrow as pa
import pyarrow.dataset
import pytest
import sqlalchemy
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import DeltaTable

from broker.client.producer import Producer
from spark_connector.load import load
from spark_connector.loads.database.sql import open_engine
from spark_connector.loads.record import LoadError
from spark_connector.loads.request import Target
from spark_connector.maintenance import verify
from tests.support.kafka import Kafka, await_topics
from tests.support.topics import DEFAULT_REPLICATION

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

YEAR_10000, YEAR_0, LAST = 253_402_300_800_000, -62_167_219_200_000, 9_223_372_036_854_775
TIMES = [1_384_000_000_000, YEAR_10000 - 1, YEAR_10000, YEAR_0, YEAR_0 - 1, LAST]
DAYS = {"2013-11-09", "9999-12-31", "+10000-01-01", "0000-01-01", "-0001-12-31", "+294247-01-10"}


def produce(broker: Kafka, topic: str, times: Sequence[int], value: bytes = b"v") -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    most = str(2**63 - 1)
    limits = {"message.timestamp.before.max.ms": most, "message.timestamp.after.max.ms": most, "retention.ms": "-1"}
    admin.create_topics([NewTopic(topic, 1, DEFAULT_REPLICATION, config=limits)])[topic].result(30)
    await_topics(broker.bootstrap, topic, partitions=1)
    with Producer(broker.bootstrap) as producer:
        for time in times:
            producer.send(topic, value, timestamp=time)


@pytest.mark.parametrize("format", ["parquet", "json", "orc", "avro", "delta"])
def test_every_time_that_spark_has_is_loaded(
    spark: SparkSession, broker: Kafka, topic: str, tmp_path: Path, format: str
) -> None:
    produce(broker, topic, TIMES)
    to, by = tmp_path / "out", () if format == "delta" else ("date", "hour")
    common: dict[str, Any] = {"bootstrap_servers": broker.bootstrap, "topic": topic, "group": "g", "format": format}
    assert load(spark, to=str(to), partition_by=by, **common).rows == len(TIMES)
    assert verify(Target(str(to), "g", format=format), broker.bootstrap, session=lambda: spark).ok
    assert {path.name for path in to.glob("*/date=*")} == ({f"date={day}" for day in DAYS} if by else set())
    found = {
        "avro": lambda: _by_java_avro(spark, to),
        "delta": lambda: _by_arrow(DeltaTable(str(to)).to_pyarrow_table()),
        "parquet": lambda: _by_arrow(pyarrow.dataset.dataset(to, ignore_prefixes=["_", "."]).to_table()),
    }.get(format, lambda: _by_spark(spark, format, to))()
    assert found == {offset: time * 1000 for offset, time in enumerate(TIMES)}
    if format in ("parquet", "orc"):
        rows = spark.read.format(format).load(str(to))
        assert {str(row.day) for row in rows.selectExpr("cast(date as string) day").collect()} == DAYS
    assert "spark.sql.parquet.outputTimestampType" not in spark.conf.getAll


def _by_arrow(table: pa.Table) -> dict[int, int]:
    """Offset → microseconds. Arrow, which takes INT96 for nanoseconds, stands for most readers other than Spark."""
    micros = table["timestamp"].cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    return dict(zip(table["offset"].to_pylist(), micros.to_pylist(), strict=True))


def _by_spark(spark: SparkSession, format: str, to: Path) -> dict[int, int]:
    rows = spark.read.format(format).schema("offset long, timestamp timestamp").load(str(to))
    return {row.offset: row.micros for row in rows.selectExpr("offset", "unix_micros(timestamp) micros").collect()}


def _by_java_avro(spark: SparkSession, to: Path) -> dict[int, int]:
    """By the Avro library among Spark's own jars."""
    java, found = cast(Any, spark.sparkContext._jvm), {}
    for path in to.rglob("*.avro"):
        datum_reader = java.org.apache.avro.generic.GenericDatumReader()
        reader = java.org.apache.avro.file.DataFileReader(java.java.io.File(str(path)), datum_reader)
        while reader.hasNext():
            record = reader.next()
            found[record.get("offset")] = record.get("timestamp")
        reader.close()
    return found


def test_a_delta_table_gets_no_directory_that_its_readers_cannot_open(
    spark: SparkSession, broker: Kafka, topic: str, tmp_path: Path
) -> None:
    produce(broker, topic, [0, YEAR_10000])
    to = str(tmp_path / "out")
    common: dict[str, Any] = {"bootstrap_servers": broker.bootstrap, "topic": topic, "group": "g", "format": "delta"}
    with pytest.raises(
        LoadError, match=f"record at offset 1 of topic '{topic}', partition 0: .* date: the value lies in a year"
    ) as caught:
        load(spark, to=to, partition_by="date", **common)
    assert not caught.value.retriable, caught.value
    assert load(spark, to=to, partition_by="date", options={"filterTimestampUntil": "1"}, **common).rows == 1
    assert DeltaTable(to).to_pyarrow_table()["offset"].to_pylist() == [0]


def test_times_within_values_are_loaded_as_avro(spark: SparkSession, broker: Kafka, topic: str, tmp_path: Path) -> None:
    """As the reader's value formats decode them, however deep."""
    produce(broker, topic, [0], b'{"at": "2013-11-09T01:02:03Z", "days": ["2013-11-09"]}')
    options = {"valueFormat": "json", "valueSchema": "at timestamp, days array<date>"}
    common: dict[str, Any] = {"bootstrap_servers": broker.bootstrap, "topic": topic, "group": "g", "options": options}
    load(spark, to=str(tmp_path / "out"), format="avro", **common)
    (path,) = (tmp_path / "out").rglob("*.avro")
    with path.open("rb") as file:
        (row,) = cast(list[dict[str, Any]], list(fastavro.reader(file)))
    assert row["value"] == {"at": datetime(2013, 11, 9, 1, 2, 3, tzinfo=UTC), "days": [date(2013, 11, 9)]}


def test_postgresql_takes_every_time_of_its_own_and_sqlite_those_of_python(
    spark: SparkSession, broker: Kafka, topic: str, tmp_path: Path, postgres: str
) -> None:
    produce(broker, topic, TIMES)
    common: dict[str, Any] = {"bootstrap_servers": broker.bootstrap, "topic": topic, "group": topic}
    table = f"times_{topic.replace('-', '_')}"[-60:]
    assert load(spark, to=f"{postgres}#{table}", **common).rows == len(TIMES)
    with open_engine(postgres).connect() as connection:
        query = f"SELECT \"offset\", extract(epoch from (timestamp - timestamptz 'epoch')) * 1000 FROM {table}"
        found = {offset: int(ms) for offset, ms in connection.execute(sqlalchemy.text(query))}
    assert found == dict(enumerate(TIMES))
    with pytest.raises(
        LoadError, match=f"of the record at offset 2 of topic '{topic}', partition 0, does not"
    ) as caught:
        load(spark, to=f"sqlite:///{tmp_path}/x.db#rows", **common)
    assert not caught.value.retriable, caught.value


@pytest.mark.parametrize("format", ["read", "avro", "parquet", "sql"])
def test_a_time_that_spark_does_not_have_is_refused_by_its_place(
    spark: SparkSession, broker: Kafka, topic: str, tmp_path: Path, format: str
) -> None:
    produce(broker, topic, [0, 1, LAST + 1])
    place = f"The record at offset 2 of topic '{topic}', partition 0, has the timestamp {LAST + 1} ms"
    options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic}
    if format == "read":
        with pytest.raises(Exception, match=place):
            spark.read.format("pykafka").options(**options).load().collect()
        with_columns = spark.read.format("pykafka").options(**options, columns="offset").load()
        assert [row.offset for row in with_columns.collect()] == [0, 1, 2]
        return
    to = f"sqlite:///{tmp_path}/x.db#rows" if format == "sql" else str(tmp_path / "out")
    common: dict[str, Any] = {"bootstrap_servers": broker.bootstrap, "topic": topic, "group": "g", "format": format}
    with pytest.raises(LoadError, match=place) as caught:
        load(spark, to=to, **common)
    assert not caught.value.retriable, "a service ends: the record stays what it is"
    assert load(spark, to=to, **common, options={"filterTimestampUntil": str(LAST)}).rows == 2

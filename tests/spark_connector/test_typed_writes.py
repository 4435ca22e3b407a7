"""`valueFormat`, `valueColumns` and `keyColumns` of writes in a real Spark (types: test_json_encoder_spark.py)."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient, dual_schema_id_deserializer
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from spark_connector.source import PykafkaSource
from tests.support.all_available import take_all
from tests.support.committed_records import committed_records, committed_values
from tests.support.kafka import Kafka
from tests.support.schema_registry import schema_registry
from tests.support.topics import Topic

DAEMON, COMMITTER = "pyspark.daemon", "pyspark.sql.worker.python_streaming_sink_runner"
SCHEMA = '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}'


@pytest.fixture
def target(broker: Kafka, topic: str) -> Topic:
    return Topic(broker.bootstrap, topic, 2)


@pytest.fixture
def in_kolkata(spark: SparkSession) -> Iterator[SparkSession]:
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    yield spark
    spark.conf.set("spark.sql.session.timeZone", "UTC")


def write(frame: DataFrame, target: Topic, **options: str) -> None:
    given = {"kafka.bootstrap.servers": target.bootstrap, "topic": target.name, **options}
    frame.write.format("pykafka").options(**given).mode("append").save()


def orders(spark: SparkSession) -> DataFrame:
    return spark.range(40, numPartitions=2).selectExpr(
        "id",
        "IF(id % 3 = 0, null, concat('né \"', id)) AS name",
        "id / 7D AS amount",
        "timestamp_millis(1700000000000 + id) AS at",
        "array(struct(id AS n, null AS nothing)) AS lines",
        "timestamp_millis(1600000000000 + id) AS timestamp",
    )


@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
def test_values_are_those_of_to_json_and_a_key_of_one_column_is_text(
    in_kolkata: SparkSession, target: Topic, delivery: str
) -> None:
    frame = orders(in_kolkata)
    write(frame, target, delivery=delivery, valueFormat="json", keyColumns="id")
    columns = F.struct("id", "name", "amount", "at", "lines")
    expected = frame.select(F.col("id").cast("string"), F.to_json(columns)).collect()
    found = committed_records(target.bootstrap, target.name)
    key_and_value = [((record.key or b"").decode(), (record.value or b"").decode()) for record in found]
    assert sorted(key_and_value) == sorted(map(tuple, expected))
    assert sorted(record.timestamp for record in found) == [1600000000000 + n for n in range(40)]


def test_a_stream_writes_each_row_once_although_its_last_batch_is_repeated(
    spark: SparkSession, target: Topic, topic: str, tmp_path: Path
) -> None:
    source = Topic(target.bootstrap, f"{topic}-source", 1)
    checkpoint = tmp_path / "checkpoint"
    for turn in range(2):
        source.produce([f'{{"id":{n},"name":"x"}}'.encode() for n in range(turn * 30, turn * 30 + 30)], 0)
        reading = {"kafka.bootstrap.servers": source.bootstrap, "subscribe": source.name}
        reading |= {"startingOffsets": "earliest", "valueFormat": "json", "valueSchema": "id INT, name STRING"}
        rows = spark.readStream.format("pykafka").options(**reading).load().select("value.*")
        given = {"kafka.bootstrap.servers": target.bootstrap, "topic": target.name, "valueFormat": "json"}
        given |= {"keyColumns": "name,id", "valueColumns": "id"}
        writer = rows.writeStream.format("pykafka").options(**given)
        take_all(writer.option("checkpointLocation", str(checkpoint)))
        if not turn:  # as if the driver had died before Spark wrote down that the batch is done
            commits = [file for file in (checkpoint / "commits").iterdir() if file.name.isdigit()]
            max(commits, key=lambda file: int(file.name)).unlink()
            for file in (checkpoint / "commits").glob(".*.crc"):
                file.unlink()
    found = committed_records(target.bootstrap, target.name)
    assert sorted((record.key, record.value) for record in found) == sorted(
        (b'{"name":"x","id":%d}' % n, b'{"id":%d}' % n) for n in range(60)
    )


def test_a_batch_of_a_stream_is_committed_without_its_registry(
    broker: Kafka, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be down by then, and readers would wait for the transactions that are left open."""
    Topic(broker.bootstrap, topic, 1)
    given = {"kafka.bootstrap.servers": broker.bootstrap, "topic": topic, "valueFormat": "avro"}
    columns = StructType().add("id", "long")
    with schema_registry() as registry:
        registry.register(f"{topic}-value", SCHEMA)
        source = PykafkaSource({**given, "schema.registry.url": registry.url})
        source.streamWriter(columns, False)
        monkeypatch.setitem(sys.modules, "__main__", types.SimpleNamespace(__spec__=types.SimpleNamespace(name=DAEMON)))
        source.streamWriter(columns, False)
        asked = [f"/subjects/{topic}-value/versions/latest"]
        assert registry.asked == asked * 2
        monkeypatch.setitem(sys.modules, COMMITTER, types.ModuleType(COMMITTER))
        source.streamWriter(columns, False).commit([], 0)
        source.writer(columns, False)
        assert registry.asked == asked * 3


def test_rows_that_an_avro_schema_refuses_fail_the_write_or_go_to_their_topic(
    spark: SparkSession, target: Topic, topic: str
) -> None:
    frame = spark.range(6, numPartitions=1).selectExpr("IF(id = 4, null, id) AS id")
    options = {"valueFormat": "avro", "valueSchema": SCHEMA, "delivery": "exactly-once"}
    with pytest.raises(PySparkException, match=r"PYKAFKA_SINK_MALFORMED_ROW\] row 4 .* of task partition 0"):
        write(frame, target, **options)
    assert committed_values(target.bootstrap, target.name) == []
    with pytest.raises(PySparkException, match="'badRowsTopic': create the topic before the write"):
        write(frame, target, **options, badRowsTopic=f"{topic}-bad")
    bad = Topic(target.bootstrap, f"{topic}-bad", 1)
    write(frame, target, **options, badRowsTopic=bad.name)
    assert sorted(committed_values(target.bootstrap, target.name)) == [b"\x00", b"\x02", b"\x04", b"\x06", b"\x0a"]
    [record] = committed_records(bad.bootstrap, bad.name)
    assert record.value == b"{}"
    assert dict(record.headers)["pykafka.origin.topic"] == topic.encode()


def test_avro_with_a_registry_is_read_by_confluents_deserializer_and_back(spark: SparkSession, target: Topic) -> None:
    frame = orders(spark).drop("timestamp")
    with schema_registry() as registry:
        address = {"schema.registry.url": registry.url}
        write(frame, target, **address, valueFormat="avro", keyFormat="avro", keyColumns="id", autoRegister="true")
        deserialize = AvroDeserializer(SchemaRegistryClient({"url": registry.url}))
        for record in committed_records(target.bootstrap, target.name):
            value = deserialize(record.value or b"", None)
            assert value["lines"] == [{"n": value["id"], "nothing": None}]
            assert deserialize(record.key or b"", None) == {"id": value["id"]}
        options = {"kafka.bootstrap.servers": target.bootstrap, "subscribe": target.name, "valueFormat": "avro"}
        back = spark.read.format("pykafka").options(**options, **address).load().select("value.*")
        assert sorted(back.collect()) == sorted(frame.collect())
        registry.asked.clear()
        write(frame.limit(2), target, **address, valueFormat="avro")
        assert set(registry.asked) == {f"/subjects/{target.name}-value/versions/latest"}, "no task asks"


def test_the_schema_in_a_header_is_read_by_confluents_deserializer_and_back(spark: SparkSession, target: Topic) -> None:
    headers = F.expr("array(named_struct('key', 'a', 'value', X'01'))")
    frame = orders(spark).drop("timestamp").withColumn("headers", headers)
    with schema_registry() as registry:
        options = {"schema.registry.url": registry.url, "valueFormat": "avro"}
        write(frame, target, **options, autoRegister="true", schemaIdLocation="header")
        conf = {"schema.id.deserializer": dual_schema_id_deserializer}
        deserialize = AvroDeserializer(SchemaRegistryClient({"url": registry.url}), conf=conf)
        for record in committed_records(target.bootstrap, target.name):
            assert [name for name, _ in record.headers] == ["a", "__value_schema_id"]
            context = SerializationContext(target.name, MessageField.VALUE, list(record.headers))
            value = deserialize(record.value or b"", context)
            assert value["lines"] == [{"n": value["id"], "nothing": None}]
        write(frame.drop("headers"), target, **options)
        reading = {"kafka.bootstrap.servers": target.bootstrap, "subscribe": target.name, **options}
        back = spark.read.format("pykafka").options(**reading).load().select("value.*")
        assert sorted(back.collect()) == sorted(frame.drop("headers").collect() * 2), "with header and with prefix"


def test_what_cannot_be_encoded_is_said_before_any_task(spark: SparkSession, target: Topic) -> None:
    frame = spark.range(3).selectExpr("id AS order_id", "INTERVAL '1' DAY AS ago", "'x' AS name")
    for options, said in (
        ({"valueColumns": "orderid"}, "no column 'orderid'. Did you mean 'order_id'"),
        ({}, "column 'ago' of type duration"),
        ({"valueColumns": "name", "keyColumns": "ago"}, "'keyFormat'=string: column 'ago' of type duration"),
    ):
        with pytest.raises(PySparkException, match=said):
            write(frame, target, valueFormat="json", **options)
    assert committed_values(target.bootstrap, target.name) == []

"""`write` and `writeStream` with `format("pykafka")` in a real Spark, read back by Kafka's own C client."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from broker.records.key_hash import partition_of_key
from tests.support.all_available import take_all
from tests.support.committed_records import committed_records, committed_values
from tests.support.kafka import Kafka
from tests.support.topics import Topic


@pytest.fixture
def target(broker: Kafka, topic: str) -> Topic:
    return Topic(broker.bootstrap, topic, 3)


def write(frame: DataFrame, target: Topic, **options: str) -> None:
    given = {"kafka.bootstrap.servers": target.bootstrap, "topic": target.name}
    given |= {name.replace("_", "."): value for name, value in options.items()}
    frame.write.format("pykafka").options(**given).mode("append").save()


@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
def test_every_column_arrives(spark: SparkSession, target: Topic, delivery: str) -> None:
    frame = spark.range(60, numPartitions=2).selectExpr(
        "if(id % 3 = 0, null, concat('k', id)) AS key",
        "CAST(concat('v', id) AS BINARY) AS value",
        "IF(id % 3 = 0, 2, CAST(null AS INT)) AS partition",
        "timestamp_millis(1700000000000 + id) AS timestamp",
        "IF(id % 2 = 0, null, array(struct('h' AS key, X'01' AS value), struct('i' AS key, null AS value))) AS headers",
        "id AS unknown",
    )
    write(frame, target, delivery=delivery, kafka_compression_type="lz4")
    found = {record.value or b"": record for record in committed_records(target.bootstrap, target.name)}
    assert sorted(found) == sorted(b"v%d" % n for n in range(60))
    for n in range(60):
        record, key = found[b"v%d" % n], b"k%d" % n
        keyless = n % 3 == 0
        assert record.key == (None if keyless else key)
        assert record.partition == (2 if keyless else partition_of_key(key, 3))
        assert record.timestamp == 1700000000000 + n
        assert record.headers == ((("h", b"\x01"), ("i", None)) if n % 2 else ())


def test_rows_go_to_the_topic_of_their_column_in_order(spark: SparkSession, target: Topic, topic: str) -> None:
    other = Topic(target.bootstrap, f"{topic}-other", 1)
    frame = spark.range(1000, numPartitions=1).selectExpr(
        "CAST(id AS STRING) AS value", f"IF(id % 2 = 0, '{target.name}', '{other.name}') AS topic", "0 AS partition"
    )
    given = {"kafka.bootstrap.servers": target.bootstrap}
    frame.write.format("pykafka").options(**given).mode("append").save()
    for name, first in ((target.name, 0), (other.name, 1)):
        values = [record.value for record in committed_records(target.bootstrap, name)]
        assert values == [b"%d" % n for n in range(first, 1000, 2)]


def test_what_a_read_gives_can_be_written_as_it_is(spark: SparkSession, target: Topic, topic: str) -> None:
    source = Topic(target.bootstrap, f"{topic}-source", 2)
    source.produce([b"a", None, b"c"], 1, key=b"k", timestamp=1_600_000_000_000, headers=[("h", b"x")])
    options = {"kafka.bootstrap.servers": target.bootstrap, "subscribe": source.name, "includeHeaders": "true"}
    write(spark.read.format("pykafka").options(**options).load(), target)
    copied = [record._replace(offset=0) for record in committed_records(target.bootstrap, target.name)]
    assert copied == [record._replace(offset=0) for record in committed_records(source.bootstrap, source.name)]


def test_a_thread_starts_a_stream_once_the_session_is_its_own(
    spark: SparkSession, target: Topic, topic: str, tmp_path: Path
) -> None:
    source = Topic(target.bootstrap, f"{topic}-source", 2)
    source.produce([b"a", b"b"], 1)

    def copy() -> None:
        spark.createDataFrame([(0,)], "n INT")  # as docs/how-to/spark-on-several-machines.md says
        options = {"kafka.bootstrap.servers": target.bootstrap, "subscribe": source.name, "startingOffsets": "earliest"}
        writer = spark.readStream.format("pykafka").options(**options).load().select("value").writeStream
        take_all(writer.format("pykafka").options(**given))

    given = {"kafka.bootstrap.servers": target.bootstrap, "topic": target.name, "checkpointLocation": str(tmp_path)}
    with ThreadPoolExecutor(1) as threads:
        threads.submit(copy).result()
    assert sorted(record.value or b"" for record in committed_records(target.bootstrap, target.name)) == [b"a", b"b"]


def test_wrong_columns_and_options_fail_on_the_driver_before_any_task(spark: SparkSession, target: Topic) -> None:
    rows = spark.range(3).selectExpr("CAST(id AS STRING) AS value")
    for frame, options, said in (
        (spark.range(3), {}, "Required attribute 'value' not found"),
        (rows.selectExpr("value", "1 AS key"), {}, "key attribute unsupported type int"),
        (rows, {"topic": "nowhere-at-all"}, "there is no topic 'nowhere-at-all'"),
        (rows, {"delivry": "exactly-once"}, "Did you mean 'delivery'"),
        (rows, {"kafka_value_serializer": "x"}, "value.serializer' is not supported"),
        (
            rows,
            {"delivery": "exactly-once", "kafka_transaction_timeout_ms": "900001"},
            "above the brokers' transaction.max.timeout.ms=900000",
        ),
    ):
        with pytest.raises(PySparkException, match=said):
            write(frame, target, **options)
    with pytest.raises(PySparkException, match="Allowed save mode is append"):
        rows.write.format("pykafka").options(**{"kafka.bootstrap.servers": "x:1", "topic": "t"}).mode(
            "overwrite"
        ).save()
    assert committed_values(target.bootstrap, target.name) == []


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ("CAST(null AS STRING) AS topic", "KAFKA_NULL_TOPIC_IN_DATA"),
        ("7 AS partition", r"7 is not in the range \[0...3"),
    ],
)
def test_wrong_data_fails_the_write(spark: SparkSession, target: Topic, column: str, said: str) -> None:
    options = {"kafka.bootstrap.servers": target.bootstrap, **({} if "topic" in column else {"topic": target.name})}
    frame = spark.range(3).selectExpr("'v' AS value", column)
    with pytest.raises(PySparkException, match=said):
        frame.write.format("pykafka").options(**options).mode("append").save()


def test_a_write_whose_task_fails_shows_nothing_and_holds_up_no_reader(spark: SparkSession, target: Topic) -> None:
    frame = spark.range(0, 40_000, numPartitions=2).selectExpr(
        "CAST(IF(id = 39999, raise_error('enough'), id) AS STRING) AS value"
    )
    with pytest.raises(PySparkException, match="enough"):
        write(frame, target, delivery="exactly-once")
    write(spark.range(1).selectExpr("'after' AS value"), target)
    assert committed_values(target.bootstrap, target.name) == [b"after"]


class Stream:
    """A query from one topic to another, which may be started again on its checkpoint."""

    def __init__(self, spark: SparkSession, source: Topic, target: Topic, home: Path) -> None:
        self.spark, self.source, self.target = spark, source, target
        self.checkpoint = home / "checkpoint"

    def run(self, *, mode: str = "append", frame: DataFrame | None = None, **options: str) -> Any:
        """All there is now."""
        reading = {"kafka.bootstrap.servers": self.source.bootstrap, "subscribe": self.source.name}
        reading |= {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "20"}
        rows = self.spark.readStream.format("pykafka").options(**reading).load()
        rows = rows.groupBy("value").count().select("value") if mode != "append" else rows.select("value")
        given = {"kafka.bootstrap.servers": self.target.bootstrap, "topic": self.target.name, **options}
        writer = rows.writeStream.format("pykafka").options(**given).outputMode(mode)
        return take_all(writer.option("checkpointLocation", str(self.checkpoint)))

    def forget_last_commit(self) -> None:
        """As if the driver had died before Spark wrote down that the last batch is done."""
        commits = self.checkpoint / "commits"
        last = max(int(file.name) for file in commits.iterdir() if file.name.isdigit())
        (commits / str(last)).unlink()
        (commits / f".{last}.crc").unlink(missing_ok=True)

    def values(self) -> list[bytes]:
        return committed_values(self.target.bootstrap, self.target.name)


@pytest.fixture
def stream(spark: SparkSession, target: Topic, topic: str, tmp_path: Path) -> Stream:
    source = Topic(target.bootstrap, f"{topic}-source", 2)
    source.number(30, 0)
    source.number(20, 1, first=30)
    return Stream(spark, source, target, tmp_path)


def numbers(count: int) -> list[bytes]:
    return sorted(b"%d" % n for n in range(count))


def test_a_stream_repeats_a_batch_without_writing_it_twice(stream: Stream) -> None:
    query = stream.run()
    assert [p.numInputRows for p in query.recentProgress if p.numInputRows] == [20, 20, 10]
    assert stream.values() == numbers(50)
    stream.forget_last_commit()
    stream.source.number(5, 0, first=50)
    stream.run()
    assert stream.values() == numbers(55)


@pytest.mark.slow
def test_at_least_once_repeats_the_rows_with_the_batch(stream: Stream) -> None:
    stream.run(delivery="at-least-once")
    stream.forget_last_commit()
    stream.run(delivery="at-least-once")
    assert sorted(set(stream.values())) == numbers(50)
    assert len(stream.values()) > 50


def test_a_checkpoint_taken_back_is_no_silent_hole(stream: Stream) -> None:
    stream.run()
    for number in (2, 1):
        for directory in ("commits", "offsets"):
            (stream.checkpoint / directory / str(number)).unlink()
            (stream.checkpoint / directory / f".{number}.crc").unlink(missing_ok=True)
    with pytest.raises(StreamingQueryException, match="PYKAFKA_SINK_SUPERSEDED"):
        stream.run()
    assert stream.values() == numbers(50)


@pytest.mark.slow
def test_output_mode_complete_writes_every_row_of_the_result_each_time(stream: Stream) -> None:
    stream.run(mode="complete", delivery="exactly-once")
    assert set(stream.values()) == set(numbers(50))
    assert len(stream.values()) == 20 + 40 + 50


def test_output_mode_update_is_refused_by_spark(stream: Stream) -> None:
    with pytest.raises(PySparkException, match="does not support Update mode"):
        stream.run(mode="update")

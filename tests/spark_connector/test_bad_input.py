"""Bad input of every kind, as a user of Spark meets it: one error each that says what was wrong and what to set."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from broker.records.batch import walk_batches
from tests.support.broker_process import BrokerProcess
from tests.support.free_ports import refused_port
from tests.support.kafka import Kafka
from tests.support.topics import Topic

Changes = dict[str, str | None]

TABLE: list[tuple[str, Changes, str]] = [
    ("unknown option", {"startingOffset": "latest"}, r"Unknown option 'startingoffset'.*mean 'startingOffsets'"),
    ("missing bootstrap", {"kafka.bootstrap.servers": None}, r"Option 'kafka.bootstrap.servers' must be specified"),
    ("no topic", {"subscribe": None}, r"One of the following options must be specified.*subscribe, subscribePattern"),
    ("missing topic", {"subscribe": "no-such-topic"}, r"there is no topic 'no-such-topic' on 127\.0\.0\.1"),
    ("malformed JSON", {"startingOffsets": '{"TOPIC":{"0":'}, r"Option 'startingOffsets' is not JSON.*Expected e\.g\."),
    ("partitions left out", {"startingOffsets": '{"TOPIC":{}}'}, r"KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED"),
    ("rejected client property", {"kafka.auto.offset.reset": "latest"}, r"set the source option 'startingOffsets'"),
    ("unknown client property", {"kafka.fetch.min.byte": "1"}, r"'kafka\.\*'.*fetch\.min\.byte"),
]


@pytest.mark.parametrize(("changes", "message"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_bad_input_is_explained(spark: SparkSession, broker: Kafka, topic: str, changes: Changes, message: str) -> None:
    Topic(broker.bootstrap, topic).number(10)
    options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic, **changes}
    given = {name: value.replace("TOPIC", topic) for name, value in options.items() if value is not None}
    with pytest.raises(PySparkException, match=f"(?s){message.replace('TOPIC', topic)}") as raised:
        spark.read.format("pykafka").options(**given).load().count()
    assert len(str(raised.value).splitlines()) == 2, "one sentence, then Spark's SQLSTATE"


def test_an_offset_out_of_range_names_the_range_and_what_there_is(
    spark: SparkSession, broker: Kafka, topic: str
) -> None:
    Topic(broker.bootstrap, topic).number(10)
    start, end = (json.dumps({topic: {"0": offset}}) for offset in (50, 60))
    options = {"kafka.bootstrap.servers": broker.bootstrap, "startingOffsets": start, "endingOffsets": end}
    with pytest.raises(PySparkException) as raised:
        spark.read.format("pykafka").option("subscribe", topic).options(**options).load().count()
    text = str(raised.value)
    assert "[KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE]" in text
    assert f"offset [50, 60) for topic partition {topic}-0 (topic '{topic}', partition 0)" in text
    assert "The broker has offsets [0, 10) of it" in text
    assert "set the source option failOnDataLoss to false" in text


def test_an_unreachable_broker_is_named_after_the_time_that_the_client_gives_it(spark: SparkSession) -> None:
    with refused_port() as port:
        address = f"127.0.0.1:{port}"
        options = {"kafka.bootstrap.servers": address, "subscribe": "t", "kafka.default.api.timeout.ms": "500"}
        frame = spark.read.format("pykafka").options(**options).load()
        started = time.monotonic()
        with pytest.raises(PySparkException, match=f"no broker of bootstrap.servers could be reached.*{address}"):
            frame.count()
        assert time.monotonic() - started < 45


def test_a_corrupt_batch_names_partition_and_offset(
    spark: SparkSession, broker_factory: Callable[..., BrokerProcess], topic: str
) -> None:
    own = broker_factory()
    Topic(own.bootstrap, topic).number(10)
    (log,) = own.data_dir.glob(f"**/{topic}-0/*.log")
    content = bytearray(log.read_bytes())
    _, first = next(walk_batches(content))  # of as many as the producer happened to make of ten records
    content[first.size - 1] ^= 0xFF
    log.write_bytes(content)
    start = json.dumps({topic: {"0": 0}})
    reader = spark.read.format("pykafka").options(subscribe=topic, startingOffsets=start)
    with pytest.raises(PySparkException, match=rf"CORRUPT_MESSAGE.*{topic}-0 .*CRC of the batch at offset 0"):
        reader.option("kafka.bootstrap.servers", own.bootstrap).load().count()

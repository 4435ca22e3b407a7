"""Compacted topics as clients we did not write see them: written by them, read over gaps, empty batches and markers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import aiokafka
import kafka
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from broker.client import consumer as our_consumer
from broker.client.cluster import Cluster
from broker.client.fetcher import Fetcher, FetchStream
from broker.protocol.topic_partition import TopicPartition as OurTopicPartition
from broker.records.columns import decode_columns
from broker.records.record import decode_records
from tests.support.broker_process import BrokerProcess
from tests.support.kafka_java import KafkaJava
from tests.support.raw_requests import Requests, ask_for
from tests.support.waiting import eventually

TIMEOUT = 60.0
KEYS = 30
FILLER = b"filler-"

Row = tuple[int, bytes, bytes | None]
"""offset, key, value"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, zookeeper: str) -> Iterator[BrokerProcess]:
    """One that compacts as soon as there is something to compact."""
    settings = {
        "log.cleaner.backoff.ms": "100",
        "log.flush.scheduler.interval.ms": "50",
        "log.cleaner.min.cleanable.ratio": "0",
        "log.segment.bytes": "4000",
        "transaction.state.log.num.partitions": "1",
        "offsets.topic.num.partitions": "1",
        "offsets.topic.segment.bytes": "2000",
    }
    data_dir = tmp_path_factory.mktemp("compacting") / "data"
    with BrokerProcess(data_dir, settings, zookeeper=f"{zookeeper}/compaction") as process:
        yield process
    assert "Traceback" not in process.output, process.output


def create(broker: BrokerProcess, topic: str, **config: str) -> None:
    wanted = {"cleanup.policy": "compact", **{key.replace("_", "."): value for key, value in config.items()}}
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1, config=wanted)])[topic].result(TIMEOUT)


class Writer:
    """Remembers what was acknowledged, and where."""

    def __init__(self, broker: BrokerProcess, topic: str, **settings: Any) -> None:
        dotted = {key.replace("_", "."): value for key, value in settings.items()}
        self.producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 5, **dotted})
        self.topic = topic
        self.rows: list[Row] = []

    def put(self, *pairs: tuple[bytes, bytes | None]) -> list[Row]:
        written: list[Row] = []

        def delivered(error: Any, message: Any) -> None:
            assert error is None, error
            written.append((message.offset(), message.key(), message.value()))

        for key, value in pairs:
            self.producer.produce(self.topic, value, key, partition=0, on_delivery=delivered)
        assert self.producer.flush(TIMEOUT) == 0
        self.rows += written
        return written


def close_segments(broker: BrokerProcess, topic: str, name: bytes = b"") -> None:
    """Write so much that all before it lies in closed segments."""
    writer = Writer(broker, topic)
    for number in range(3):
        writer.put((FILLER + name + b"%d" % number, b"x" * 3000))


def last_of_each_key(rows: list[Row]) -> list[Row]:
    return sorted({key: (offset, key, value) for offset, key, value in sorted(rows)}.values())


# --- every client reads all there is, from the start to the end


def confluent(broker: BrokerProcess, topic: str, *, max_bytes: int = 1 << 20) -> list[Row]:
    reader = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "unused",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "fetch.message.max.bytes": max_bytes,
        }
    )
    reader.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    rows: list[Row] = []
    try:
        while True:
            message = reader.poll(TIMEOUT)
            assert message is not None, f"nothing came after {rows[-1:]}"
            if message.error():
                return rows
            rows.append((message.offset() or 0, message.key() or b"", message.value()))
    finally:
        reader.close()


def kafka_python(broker: BrokerProcess, topic: str) -> list[Row]:
    reader = kafka.KafkaConsumer(bootstrap_servers=broker.bootstrap, isolation_level="read_committed")
    tp = kafka.TopicPartition(topic, 0)
    reader.assign([tp])
    reader.seek_to_beginning(tp)
    end = reader.end_offsets([tp])[tp]
    rows: list[Row] = []
    try:
        while reader.position(tp) < end:
            for records in reader.poll(timeout_ms=500).values():
                rows += [(record.offset, record.key, record.value) for record in records]
        return rows
    finally:
        reader.close()


def aio(broker: BrokerProcess, topic: str) -> list[Row]:
    async def read() -> list[Row]:
        reader = aiokafka.AIOKafkaConsumer(bootstrap_servers=broker.bootstrap, isolation_level="read_committed")
        await reader.start()
        try:
            tp = aiokafka.TopicPartition(topic, 0)
            reader.assign([tp])
            await reader.seek_to_beginning(tp)
            end = (await reader.end_offsets([tp]))[tp]
            rows: list[Row] = []
            while await reader.position(tp) < end:
                for records in (await reader.getmany(timeout_ms=500)).values():
                    rows += [(record.offset, record.key, record.value) for record in records]
            return rows
        finally:
            await reader.stop()

    return asyncio.run(read())


def ours(broker: BrokerProcess, topic: str) -> list[Row]:
    tp = OurTopicPartition(topic, 0)
    settings = {"bootstrap.servers": broker.bootstrap, "isolation.level": "read_committed"}
    with our_consumer.Consumer(settings) as reader:
        reader.assign([tp])
        reader.seek_to_beginning()
        with Requests(broker.bootstrap) as ask:
            end = ask.list_offset(topic, -1).offset
        rows: list[Row] = []
        while reader.position(tp) < end:
            rows += [(record.offset, record.key or b"", record.value) for record in reader.poll(0.5)]
        return rows


def columns(broker: BrokerProcess, topic: str) -> list[Row]:
    """As the Spark connector does."""
    rows: list[Row] = []
    offset = 0
    with Requests(broker.bootstrap) as ask:
        end = ask.list_offset(topic, -1).offset
        while offset < end:
            (found,) = ask.fetch([ask_for(topic, offset)], version=12, isolation_level=1)
            aborted = [(one.producer_id, one.first_offset) for one in found.aborted_transactions or ()]
            decoded = decode_columns(found.records, low=offset, aborted=aborted)
            rows += zip(decoded.offset.to_pylist(), decoded.key.to_pylist(), decoded.value.to_pylist(), strict=True)
            assert decoded.next_offset > offset
            offset = decoded.next_offset
    return rows


def stream(broker: BrokerProcess, topic: str) -> list[Row]:
    """As the console and the replicas do."""
    settings = {"bootstrap.servers": broker.bootstrap, "isolation.level": "read_committed"}
    with Requests(broker.bootstrap) as ask:
        end = ask.list_offset(topic, -1).offset
    with Cluster(settings) as cluster, Fetcher(cluster, OurTopicPartition(topic, 0)) as fetcher:
        return [
            (record.offset, record.key or b"", record.value)
            for fetched in FetchStream(fetcher, 0, end)
            for record in decode_records(fetched.records, aborted=fetched.aborted)
        ]


READERS: dict[str, Callable[[BrokerProcess, str], list[Row]]] = {
    "confluent": confluent,
    "confluent, batch by batch": lambda broker, topic: confluent(broker, topic, max_bytes=70),
    "kafka-python": kafka_python,
    "aiokafka": aio,
    "our consumer": ours,
    "our fetch stream": stream,
    "columns": columns,
}


@pytest.fixture(scope="module")
def compacted(broker: BrokerProcess) -> tuple[str, list[Row]]:
    """A topic written by all kinds of producers and compacted, and what has to be left of it."""
    topic = "compacted"
    create(broker, topic)
    plain = Writer(broker, topic)
    idempotent = Writer(broker, topic, enable_idempotence=True, compression_type="zstd")
    transactional = Writer(broker, topic, transactional_id="compacting", compression_type="lz4")
    transactional.producer.init_transactions(TIMEOUT)
    rows: list[Row] = []
    for number in range(12):
        pairs = [(b"key-%d" % (key % KEYS), b"%d-%d" % (number, key) * 5) for key in range(number, number + 20)]
        rows += plain.put(*pairs[:8], (b"gone-%d" % number, b"x"), (b"gone-%d" % number, None))
        rows += idempotent.put(*pairs[8:14])
        transactional.producer.begin_transaction()
        written = transactional.put(*pairs[14:])
        if number % 3 == 2:
            transactional.producer.abort_transaction(TIMEOUT)
        else:
            transactional.producer.commit_transaction(TIMEOUT)
            rows += written
    with_kafka_python = kafka.KafkaProducer(bootstrap_servers=broker.bootstrap, compression_type="gzip")
    future = with_kafka_python.send(topic, b"last", b"key-1", partition=0)
    rows.append((future.get(TIMEOUT).offset, b"key-1", b"last"))
    with_kafka_python.close()
    close_segments(broker, topic)
    expected = last_of_each_key(rows)

    def is_compacted() -> bool:
        return len([row for row in columns(broker, topic) if not row[1].startswith(FILLER)]) <= len(expected)

    eventually(is_compacted, TIMEOUT)
    return topic, expected


@pytest.mark.parametrize("reader", READERS)
def test_every_reader_gets_the_last_record_of_each_key_and_nothing_else(
    broker: BrokerProcess, compacted: tuple[str, list[Row]], reader: str
) -> None:
    topic, expected = compacted
    assert len(expected) == KEYS + 12
    rows = READERS[reader](broker, topic)
    assert [row for row in rows if not row[1].startswith(FILLER)] == expected
    assert len(rows) == len(expected) + 3


def test_so_does_kafkas_own_client(java: KafkaJava, broker: BrokerProcess, compacted: tuple[str, list[Row]]) -> None:
    topic, expected = compacted
    reader = java.consumer({"bootstrap.servers": broker.bootstrap, "isolation.level": "read_committed"})
    tp = java.partition(topic, 0)
    reader.assign([tp])
    end = reader.endOffsets([tp])[tp]
    rows: list[Row] = []
    while reader.position(tp) < end:
        rows += [(record.offset(), record.key(), record.value()) for record in java.poll(reader)]
    assert [row for row in rows if not row[1].startswith(FILLER)] == expected
    assert len(rows) == len(expected) + 3


def test_offsets_that_are_gone_are_read_from_the_next_that_is_there(
    broker: BrokerProcess, compacted: tuple[str, list[Row]]
) -> None:
    topic, expected = compacted
    for offset in range(0, expected[-1][0], 7):
        reader = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "unused"})
        reader.assign([TopicPartition(topic, 0, offset)])
        message = reader.poll(TIMEOUT)
        assert message is not None
        assert message.offset() == next(row[0] for row in expected if row[0] >= offset)
        reader.close()


def test_the_compacted_log_survives_a_crash_and_its_producers_go_on(
    broker: BrokerProcess, compacted: tuple[str, list[Row]]
) -> None:
    topic, expected = compacted
    broker.kill()
    broker.start()
    assert [row for row in ours(broker, topic) if not row[1].startswith(FILLER)] == expected
    again = Writer(broker, "after-the-crash", transactional_id="compacting")
    create(broker, "after-the-crash")
    again.producer.init_transactions(TIMEOUT)
    again.producer.begin_transaction()
    again.put((b"a", b"1"))
    again.producer.commit_transaction(TIMEOUT)
    assert [key for _, key, _ in columns(broker, "after-the-crash")] == [b"a"]


def test_tombstones_go_after_delete_retention(broker: BrokerProcess, topic: str) -> None:
    create(broker, topic, delete_retention_ms="1")
    writer = Writer(broker, topic)
    writer.put((b"a", b"1"), (b"b", b"1"))
    writer.put((b"a", None))
    rounds = iter(range(1000))

    def is_gone() -> bool:
        close_segments(broker, topic, b"again-%d-" % next(rounds))
        return not [row for row in confluent(broker, topic) if row[1] == b"a"]

    eventually(is_gone, TIMEOUT, interval=0.3)
    assert confluent(broker, topic)[0][:2] == (1, b"b")


def test_records_without_a_key_are_refused(broker: BrokerProcess, topic: str) -> None:
    create(broker, topic)
    errors: list[Any] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(topic, b"no key", on_delivery=lambda error, _: errors.append(error))
    producer.flush(TIMEOUT)
    assert [error.name() for error in errors] == ["INVALID_RECORD"]
    with_kafka_python = kafka.KafkaProducer(bootstrap_servers=broker.bootstrap)
    with pytest.raises(kafka.errors.KafkaError) as raised:
        with_kafka_python.send(topic, b"no key").get(TIMEOUT)
    assert raised.value.errno == 87
    with_kafka_python.close()


def test_append_time_is_the_brokers_and_stays_through_compaction(broker: BrokerProcess, topic: str) -> None:
    create(broker, topic, message_timestamp_type="LogAppendTime")
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(topic, b"1", b"a", timestamp=1000)
    producer.produce(topic, b"1", b"b", timestamp=1000)
    producer.flush(TIMEOUT)

    def times() -> dict[bytes, tuple[int, int]]:
        reader = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "unused", "enable.partition.eof": True})
        reader.assign([TopicPartition(topic, 0, 0)])
        found: dict[bytes, tuple[int, int]] = {}
        while (message := reader.poll(TIMEOUT)) is not None and not message.error():
            found.setdefault(message.key() or b"", message.timestamp())
        reader.close()
        return found

    before = times()
    assert before[b"a"] == before[b"b"]
    assert before[b"a"][0] == 2, "TIMESTAMP_LOG_APPEND_TIME"
    assert before[b"a"][1] > 1_700_000_000_000
    producer.produce(topic, b"2", b"a")
    producer.flush(TIMEOUT)
    close_segments(broker, topic)
    eventually(lambda: times()[b"a"] != before[b"a"], TIMEOUT, interval=0.2)
    assert times()[b"b"] == before[b"b"]


@pytest.mark.parametrize("codec", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_a_topics_own_codec_is_read_by_all(broker: BrokerProcess, topic: str, codec: str) -> None:
    create(broker, topic, cleanup_policy="delete", compression_type=codec, segment_bytes="100000")
    rows = Writer(broker, topic, compression_type="zstd").put(*[(b"k%d" % n, b"value" * 50) for n in range(50)])
    assert confluent(broker, topic) == rows
    assert kafka_python(broker, topic) == rows
    assert aio(broker, topic) == rows


class TestDeleteRecords:
    def test_with_confluent(self, broker: BrokerProcess, topic: str) -> None:
        create(broker, topic, cleanup_policy="delete")
        Writer(broker, topic).put(*[(b"k", b"%d" % number) for number in range(10)])
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        (future,) = admin.delete_records([TopicPartition(topic, 0, 4)]).values()
        assert future.result(TIMEOUT).low_watermark == 4
        assert confluent(broker, topic)[0][0] == 4
        (future,) = admin.delete_records([TopicPartition(topic, 0, -1)]).values()
        assert future.result(TIMEOUT).low_watermark == 10
        (future,) = admin.delete_records([TopicPartition(topic, 0, 11)]).values()
        with pytest.raises(KafkaException, match="OFFSET_OUT_OF_RANGE"):
            future.result(TIMEOUT)

    def test_with_kafka_python(self, broker: BrokerProcess, topic: str) -> None:
        create(broker, topic, cleanup_policy="compact,delete")
        Writer(broker, topic).put(*[(b"k%d" % number, b"1") for number in range(10)])
        admin = kafka.KafkaAdminClient(bootstrap_servers=broker.bootstrap)
        tp = kafka.TopicPartition(topic, 0)
        assert admin.delete_records({tp: 4})[tp]["low_watermark"] == 4
        assert kafka_python(broker, topic)[0][0] == 4
        admin.close()

    def test_not_where_records_are_only_compacted(self, broker: BrokerProcess, topic: str) -> None:
        create(broker, topic)
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        (future,) = admin.delete_records([TopicPartition(topic, 0, -1)]).values()
        with pytest.raises(KafkaException, match="POLICY_VIOLATION"):
            future.result(TIMEOUT)


def test_committed_offsets_are_compacted(broker: BrokerProcess) -> None:
    create(broker, "committed", cleanup_policy="delete")
    reader = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "again", "enable.auto.commit": False})
    for offset in range(60):
        reader.commit(offsets=[TopicPartition("committed", 0, offset)], asynchronous=False)

    def are_compacted() -> bool:
        return len([row for row in columns(broker, "__consumer_offsets") if b"committed" in row[1]]) < 30

    eventually(are_compacted, TIMEOUT, interval=0.1)
    assert reader.committed([TopicPartition("committed", 0)], TIMEOUT)[0].offset == 59
    reader.close()

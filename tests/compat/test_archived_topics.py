"""Every client reads a topic of which only the active segment is on the broker's disk, as it was before.

The records are in all codecs, with keys, headers and times. A quarter of the transactions is aborted; two last from the
first segment to the last. What is expected was read while nothing was archived.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import aiokafka
import confluent_kafka
import kafka
import pytest

from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.client.consumer import Consumer
from broker.protocol.described_config import ResourceType
from broker.protocol.topic_partition import TopicPartition
from tests.conftest import SESSION_SETTINGS
from tests.support.broker_process import BrokerProcess
from tests.support.kafka_java import KafkaJava, each
from tests.support.kafkajs import KafkaJs
from tests.support.kcat import Kcat
from tests.support.requirements import Unavailable, give_up
from tests.support.waiting import eventually

TOPICS = {"plain": ("none", "gzip"), "packed": ("snappy", "lz4", "zstd")}
"""Topic → its codecs. kafkajs knows only the first two."""
BLOCKS = 12
NOW = 1_750_000_000_000
TIMEOUT = 30.0


class Row(NamedTuple):
    """What a client sees of a record."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, Any], ...]


class Expected(NamedTuple):
    broker: BrokerProcess
    rows: dict[tuple[str, bool], list[Row]]
    """By topic, and whether only what was committed is read."""


Read = Callable[[BrokerProcess, str, bool, int], list[Row]]
"""(broker, topic, committed, how many rows there are) → the rows from the beginning."""


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Expected]:
    root = tmp_path_factory.mktemp("archived")
    settings = {
        **SESSION_SETTINGS,
        "log.retention.check.interval.ms": "100",
        "log.flush.scheduler.interval.ms": "50",
        "remote.log.storage.system.enable": "true",
        "archive.url": f"file://{root}/archive",
        "archive.cache.dir": f"{root}/cache",
    }
    with BrokerProcess(root / "data", settings, standalone=True) as broker:
        with Cluster(broker.bootstrap) as cluster:
            admin = Admin(cluster)
            for topic in TOPICS:
                admin.create_topic(
                    topic,
                    1,
                    configs={
                        "remote.storage.enable": "true",
                        "remote.log.copy.disable": "true",
                        "retention.ms": "-1",
                        "segment.bytes": "6000",
                    },
                )
                write(broker, topic)
            rows = {
                (topic, committed): with_confluent(broker, topic, committed, 0)
                for topic in TOPICS
                for committed in (False, True)
            }
            for topic in TOPICS:
                assert len(segments(broker, topic)) > 8
                archived = {"remote.log.copy.disable": "false", "local.retention.bytes": "0"}
                admin.alter_configs(ResourceType.TOPIC, topic, archived)
            for topic in TOPICS:
                eventually(lambda: len(segments(broker, topic)) == 1)  # noqa: B023
        yield Expected(broker, rows)
    assert "Traceback" not in broker.output, broker.output[-4_000:]
    assert " ERROR " not in broker.output, broker.output[-4_000:]


def segments(broker: BrokerProcess, topic: str) -> list[Path]:
    return sorted(broker.data_dir.glob(f"**/{topic}-0/*.log"))


# --- writing


class Writer:
    """Transactions of one codec."""

    def __init__(self, broker: BrokerProcess, topic: str, name: str, codec: str) -> None:
        self._topic = topic
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": broker.bootstrap,
                "transactional.id": f"{topic}-{name}",
                "compression.type": codec,
                "linger.ms": 0,
                "log_level": 0,
            }
        )
        self._producer.init_transactions(TIMEOUT)
        self._producer.begin_transaction()

    def send(self, number: int, count: int = 1) -> None:
        for each_number in range(count):
            text = f"{number}-{each_number}"
            value = None if number % 7 == 3 else f"{text} {crc32(text.encode()):x}".encode() * 20
            headers: Any = [("a", b"1"), ("b", text.encode())] if number % 2 else []
            self._producer.produce(
                self._topic,
                value,
                None if number % 5 == 2 else text.encode(),
                timestamp=NOW + 1000 * number + each_number,
                headers=headers,
            )
        self._producer.flush(TIMEOUT)

    def end(self, *, commit: bool, last: bool = False) -> None:
        (self._producer.commit_transaction if commit else self._producer.abort_transaction)(TIMEOUT)
        if not last:
            self._producer.begin_transaction()


def write(broker: BrokerProcess, topic: str) -> None:
    writers = [Writer(broker, topic, codec, codec) for codec in TOPICS[topic]]
    kept, dropped = (Writer(broker, topic, name, TOPICS[topic][-1]) for name in ("kept", "dropped"))
    number = ended = 0
    for block in range(BLOCKS):
        kept.send(number)
        dropped.send(number + 1)
        number += 2
        for writer in writers:
            for _ in range(3):
                writer.send(number, 7)
            ended += 1
            writer.end(commit=ended % 4 != 0, last=block == BLOCKS - 1)
            number += 1
    kept.end(commit=True, last=True)
    dropped.end(commit=False, last=True)


# --- clients


def with_confluent(broker: BrokerProcess, topic: str, committed: bool, _: int) -> list[Row]:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "confluent",
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    rows = []
    poll: Callable[[float], Any] = consumer.poll
    with contextlib.closing(consumer):
        while (found := poll(TIMEOUT)) is not None and not found.error():
            headers: Any = tuple(found.headers() or ())
            rows.append(Row(found.offset(), found.timestamp()[1], found.key(), found.value(), headers))
        assert found is not None, f"nothing came after {len(rows)} records"
        assert found.error().code() == confluent_kafka.KafkaError._PARTITION_EOF, found.error()
    return rows


def with_ours(broker: BrokerProcess, topic: str, committed: bool, count: int) -> list[Row]:
    rows: list[Row] = []
    level = "read_committed" if committed else "read_uncommitted"
    with Consumer(broker.bootstrap, {"isolation.level": level}) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek_to_beginning()
        while len(rows) < count:
            for one in consumer.poll(TIMEOUT):
                headers = tuple((name, value or b"") for name, value in one.headers)
                rows.append(Row(one.offset, one.timestamp, one.key, one.value, headers))
    return rows


def with_kafka_python(broker: BrokerProcess, topic: str, committed: bool, count: int) -> list[Row]:
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=broker.bootstrap,
        isolation_level="read_committed" if committed else "read_uncommitted",
        consumer_timeout_ms=int(TIMEOUT * 1000),
    )
    tp = kafka.TopicPartition(topic, 0)
    consumer.assign([tp])
    consumer.seek_to_beginning(tp)
    with contextlib.closing(consumer):
        return [_of_python(one) for _, one in zip(range(count), consumer, strict=False)]


def _of_python(one: Any) -> Row:
    return Row(one.offset, one.timestamp, one.key, one.value, tuple((name, value) for name, value in one.headers))


def with_aiokafka(broker: BrokerProcess, topic: str, committed: bool, count: int) -> list[Row]:
    async def read() -> list[Row]:
        async with aiokafka.AIOKafkaConsumer(
            topic,
            bootstrap_servers=broker.bootstrap,
            isolation_level="read_committed" if committed else "read_uncommitted",
            auto_offset_reset="earliest",
        ) as consumer:
            return [_of_python(await asyncio.wait_for(consumer.getone(), TIMEOUT)) for _ in range(count)]

    return asyncio.run(read())


def with_kcat(broker: BrokerProcess, topic: str, committed: bool, _: int) -> list[Row]:
    try:
        kcat = Kcat(broker.bootstrap)
    except Unavailable as error:
        give_up(f"kcat: {error}")
    level = "isolation.level=" + ("read_committed" if committed else "read_uncommitted")
    lines = kcat.run("-C", "-t", topic, "-p", "0", "-o", "beginning", "-e", "-q", "-J", "-X", level)
    rows = []
    for line in lines.splitlines():
        one = json.loads(line)
        names = one.get("headers", [])
        headers = tuple((name, value.encode()) for name, value in zip(names[::2], names[1::2], strict=True))
        key, value = (None if text is None else text.encode() for text in (one["key"], one["payload"]))
        rows.append(Row(one["offset"], one["ts"], key, value, headers))
    return rows


@pytest.mark.usefixtures("clients_leftovers")
@pytest.mark.parametrize("committed", [False, True], ids=["all", "committed"])
@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize(
    "read",
    [with_confluent, with_ours, with_kafka_python, with_aiokafka, pytest.param(with_kcat, marks=pytest.mark.kcat)],
)
def test_it_is_read_as_before(expected: Expected, read: Read, topic: str, committed: bool) -> None:
    check(expected, read, topic, committed)


@pytest.mark.parametrize("committed", [False, True], ids=["all", "committed"])
@pytest.mark.parametrize("topic", TOPICS)
def test_java_reads_it_as_before(expected: Expected, java: KafkaJava, topic: str, committed: bool) -> None:
    def read(broker: BrokerProcess, topic: str, committed: bool, count: int) -> list[Row]:
        level = "read_committed" if committed else "read_uncommitted"
        consumer = java.consumer({"bootstrap.servers": broker.bootstrap, "isolation.level": level})
        tps = [java.partition(topic, 0)]
        consumer.assign(tps)
        consumer.seekToBeginning(tps)
        rows: list[Row] = []

        def enough() -> bool:
            for one in java.poll(consumer):
                headers = tuple((str(header.key()), header.value()) for header in each(one.headers()))
                rows.append(Row(one.offset(), one.timestamp(), one.key(), one.value(), headers))
            return len(rows) >= count

        eventually(enough)
        return rows

    check(expected, read, topic, committed)


@pytest.mark.slow
def test_kafkajs_reads_it_as_before(expected: Expected) -> None:
    """All records: of aborted transactions that overlap kafkajs drops only some, wherever the records are."""

    def read(broker: BrokerProcess, topic: str, committed: bool, count: int) -> list[Row]:
        try:
            js = KafkaJs({"clientId": "kafkajs", "brokers": [broker.bootstrap]})
        except Unavailable as error:
            give_up(f"kafkajs: {error}")
        rows: list[Row] = []
        with js:
            consumer = js.open("consumer", {"groupId": "kafkajs", "readUncommitted": not committed})
            consumer.call("subscribe", topics=[topic], fromBeginning=True)
            consumer.run()

            def enough() -> bool:
                state = consumer.taken()
                assert state["crashed"] is None
                for one in state["records"]:
                    headers = tuple(one["headers"].items())
                    rows.append(Row(int(one["offset"]), int(one["timestamp"]), one["key"], one["value"], headers))
                return len(rows) >= count

            eventually(enough)
            consumer.close()
        return rows

    check(expected, read, "plain", False)


def check(expected: Expected, read: Read, topic: str, committed: bool) -> None:
    """Read from the store anew, and not from what an earlier reader left in the cache."""
    wanted = expected.rows[topic, committed]
    for path in (expected.broker.data_dir.parent / "cache").iterdir():
        path.unlink()
    rows = read(expected.broker, topic, committed, len(wanted))
    assert rows == wanted
    uncommitted = expected.rows[topic, False]
    assert 0.6 < len(expected.rows[topic, True]) / len(uncommitted) < 0.85, "a part was aborted"

"""Producing to a real broker: what arrives, in which order, and what is said when it cannot."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.client.consumer import Consumer, ConsumerRecord
from broker.client.producer import Producer, RecordFuture
from broker.errors import BrokerError, ConfigError, ErrorCode, PykafkaError, RequestTimedOut
from broker.protocol.topic_partition import TopicPartition
from broker.records.key_hash import partition_of_key
from tests.client.conftest import TopicMaker
from tests.support.broker_process import BrokerProcess
from tests.support.free_ports import refused_port
from tests.support.guarded import PRINCIPAL, GuardedBroker
from tests.support.kafka import Kafka, await_end, await_topics
from tests.support.produced_frames import ProducedFrames
from tests.support.sample_records import CODECS, samples
from tests.support.waiting import eventually


def read_all(bootstrap: str, topic: str) -> list[ConsumerRecord]:
    """Every record of the topic, partition by partition."""
    with Consumer(bootstrap) as consumer:
        partitions = [TopicPartition(topic, index) for index in consumer.cluster.partitions(topic)]
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(partitions)
        records: list[ConsumerRecord] = []
        while any(consumer.position(tp) < end for tp, end in ends.items()):
            records += consumer.poll(1.0)
    return sorted(records, key=lambda record: (record.partition, record.offset))


@pytest.fixture
def producer(broker: Kafka) -> Iterator[Producer]:
    with Producer(broker.bootstrap) as opened:
        yield opened


@pytest.mark.parametrize("codec", CODECS)
def test_records_arrive_as_they_were_sent(broker: Kafka, make_topic: TopicMaker, codec: str) -> None:
    topic, sent = make_topic(), samples(200)
    with Producer(broker.bootstrap, {"compression.type": codec}) as producer:
        futures = [producer.send(topic, s.value, s.key, s.headers, timestamp=1000 + n) for n, s in enumerate(sent)]
    assert [future.result(0).offset for future in futures] == list(range(200))
    received = read_all(broker.bootstrap, topic)
    assert [(r.key, r.value, r.headers) for r in received] == [(s.key, s.value, tuple(s.headers)) for s in sent]
    assert [r.timestamp for r in received] == [1000 + n for n in range(200)]


def test_large_records_of_several_partitions_go_in_requests_of_the_largest_size(
    broker: Kafka, make_topic: TopicMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, wire = make_topic(4), ProducedFrames(monkeypatch)
    with Producer(broker.bootstrap, {"max.request.size": 10_000, "batch.size": 500, "linger.ms": 60_000}) as producer:
        for partition in range(4):
            producer.send(topic, b"v" * (100 if partition == 3 else 6_000), partition=partition)
        producer.flush(30)
    assert sorted(len(batches) for batches in wire.taken_by_kafka().values()) == [1, 1, 1, 1]
    assert max(wire.sizes) < 10_000


@pytest.mark.parametrize("id_", [None, "id"], ids=["plain", "transactional"])
def test_kafka_would_take_every_batch_that_is_sent(
    broker: Kafka, make_topic: TopicMaker, monkeypatch: pytest.MonkeyPatch, id_: str | None
) -> None:
    topic = make_topic(2, max_message_bytes="1000")  # so that some go again in halves
    wire = ProducedFrames(monkeypatch)
    settings = {"batch.size": 1500, "linger.ms": 20, **({"transactional.id": f"{topic}-id"} if id_ else {})}
    with Producer(broker.bootstrap, settings) as producer:
        if id_:
            producer.init_transactions()
            producer.begin_transaction()
        for n in range(200):
            producer.send(topic, b"v" * 100, partition=n % 2)
        producer.commit_transaction() if id_ else producer.flush(30)
    sent = wire.taken_by_kafka()
    assert len(sent) == 2
    assert min(len(batches) for batches in sent.values()) > 5


def test_a_record_that_no_request_can_take_is_refused_its_headers_counted(
    broker: BrokerProcess, make_topic: TopicMaker
) -> None:
    topic = make_topic()
    with Producer(broker.bootstrap, {"max.request.size": 2000}) as producer:
        for value, headers in ((b"v" * 1950, []), (b"v", [("h", b"x" * 1950)])):
            with pytest.raises(BrokerError, match=r"bytes when serialized, more than max.request.size=2000"):
                producer.send(topic, value, headers=headers)
        producer.send(topic, b"v" * 900, headers=[("h", b"x" * 900)]).result(30)


def test_a_key_goes_to_the_partition_java_would_choose(
    producer: Producer, broker: Kafka, make_topic: TopicMaker
) -> None:
    topic = make_topic(5)
    futures = {key: producer.send(topic, b"v", key=key) for key in (b"", b"a", b"foobar", b"N14228")}
    producer.flush(30)
    for key, future in futures.items():
        assert future.result(0).partition == partition_of_key(key, 5)


def test_records_without_a_key_spread_over_the_partitions(producer: Producer, make_topic: TopicMaker) -> None:
    topic = make_topic(4)
    futures = [producer.send(topic, b"x" * 1000) for _ in range(2000)]
    producer.flush(60)
    assert set(Counter(future.result(0).partition for future in futures)) == {0, 1, 2, 3}


def test_a_partition_can_be_named_and_must_exist(producer: Producer, make_topic: TopicMaker) -> None:
    topic = make_topic(2)
    assert producer.send(topic, b"v", partition=1).result(30).partition == 1
    assert producer.partitions(topic) == 2
    for wrong in (2, -1):
        with pytest.raises(ConfigError, match=f"topic '{topic}' has 2 partitions, but no {wrong}"):
            producer.send(topic, b"v", partition=wrong)


def test_partitions_added_later_can_be_named(
    broker: Kafka, producer: Producer, cluster: Cluster, make_topic: TopicMaker
) -> None:
    topic = make_topic(1)
    producer.send(topic, b"v").result(30)
    Admin(cluster).create_partitions(topic, 3)
    await_topics(broker.bootstrap, topic, partitions=3)
    assert producer.send(topic, b"v", partition=2).result(30).partition == 2


def test_a_topic_that_does_not_exist_is_created_by_the_broker(own_broker: BrokerProcess, topic: str) -> None:
    with Producer(own_broker.bootstrap) as producer:
        assert producer.send(topic, b"v").result(30).offset == 0


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_kind_of_acknowledgement(broker: Kafka, make_topic: TopicMaker, acks: str) -> None:
    topic = make_topic()
    with Producer(broker.bootstrap, {"acks": acks}) as producer:
        futures = [producer.send(topic, b"%d" % n) for n in range(100)]
    offsets = [future.result(0).offset for future in futures]
    assert offsets == ([-1] * 100 if acks == "0" else list(range(100)))
    if acks != "0":
        await_end(broker.bootstrap, TopicPartition(topic, 0), 100)
        assert len(read_all(broker.bootstrap, topic)) == 100


def test_a_flush_leaves_nothing_undone(producer: Producer, make_topic: TopicMaker) -> None:
    topic = make_topic(3)
    futures = [producer.send(topic, b"v", partition=n % 3) for n in range(300)]
    producer.flush(30)
    assert all(future.done() for future in futures)


def test_a_small_buffer_slows_down_but_does_not_stall(broker: Kafka, make_topic: TopicMaker) -> None:
    topic = make_topic(2)
    with Producer(broker.bootstrap, {"buffer.memory": 20_000, "batch.size": 2_000, "linger.ms": 600_000}) as producer:
        started = time.monotonic()
        for _ in range(20_000):
            producer.send(topic, b"x" * 100)
        assert time.monotonic() - started < 100, "linger.ms is not waited for"


def test_delivery_is_reported_to_the_callback(producer: Producer, make_topic: TopicMaker) -> None:
    reported: list[RecordFuture] = []
    future = producer.send(make_topic(), b"v", on_delivery=reported.append)
    future.result(30)
    producer.close()
    assert reported == [future]


def test_a_record_larger_than_the_broker_takes_fails_with_what_to_change(broker: Kafka, make_topic: TopicMaker) -> None:
    topic = make_topic(max_message_bytes="1000")
    with Producer(broker.bootstrap) as producer:
        too_large, fine = producer.send(topic, b"x" * 2000), None
        with pytest.raises(BrokerError, match=f"producing to {topic}-0") as raised:
            too_large.result(30)
        assert raised.value.code is ErrorCode.message_too_large
        fine = producer.send(topic, b"after it")
        assert fine.result(30).offset == 0, "what follows is not held up by the gap in the sequence"


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_batch_larger_than_the_broker_takes_is_sent_in_parts(
    broker: Kafka, make_topic: TopicMaker, idempotent: bool
) -> None:
    topic = make_topic(2, max_message_bytes="1000")
    with Producer(broker.bootstrap, {"linger.ms": 50, "enable.idempotence": idempotent}) as producer:
        futures = [producer.send(topic, b"%05d" % n + b"x" * 100, partition=n % 2) for n in range(400)]
        too_large = producer.send(topic, b"y" * 2000, partition=0)
        futures += [producer.send(topic, b"%05d" % n + b"x" * 100, partition=n % 2) for n in range(400, 600)]
        producer.flush(30)
        assert isinstance(too_large.exception(0), BrokerError), "one record cannot be divided"
    assert sorted(future.result(0).offset for future in futures) == sorted([*range(300), *range(300)])
    received = read_all(broker.bootstrap, topic)
    for partition in (0, 1):
        numbers = [int((r.value or b"")[:5]) for r in received if r.partition == partition]
        assert (numbers if idempotent else sorted(numbers)) == list(range(partition, 600, 2))


def test_a_function_chooses_partitions(broker: Kafka, make_topic: TopicMaker) -> None:
    topic = make_topic(3)

    def choose(topic: str, key: bytes | None, value: bytes | None, partitions: int) -> int | None:
        return None if key is None else int(key) % (partitions + 1)

    with Producer(broker.bootstrap, partitioner=choose) as producer:
        futures = [producer.send(topic, b"v", key=b"%d" % n) for n in range(3)]
        anywhere = producer.send(topic, b"v")
        assert [future.result(30).partition for future in futures] == [0, 1, 2]
        assert anywhere.result(30).partition in (0, 1, 2)
        with pytest.raises(ConfigError, match="the partitioner chose 3 of the 3 partitions"):
            producer.send(topic, b"v", key=b"3")


def test_partitioners_by_name(broker: Kafka, make_topic: TopicMaker) -> None:
    topic = make_topic(4)
    with Producer(broker.bootstrap, {"partitioner": "roundrobin"}) as producer:
        futures = [producer.send(topic, b"v", key=b"same") for _ in range(8)]
        assert [future.result(30).partition for future in futures] == [0, 1, 2, 3] * 2
    with Producer(broker.bootstrap, {"partitioner": "sticky", "linger.ms": 60_000}) as producer:
        futures = [producer.send(topic, b"v", key=b"%d" % n) for n in range(8)]
        producer.flush(30)
        assert len({future.result(0).partition for future in futures}) == 1, "keys do not matter"


def test_a_record_larger_than_a_request_is_refused_at_once(producer: Producer, make_topic: TopicMaker) -> None:
    with pytest.raises(BrokerError, match=r"more than max\.request\.size=1048576"):
        producer.send(make_topic(), b"x" * 1048577)


@pytest.mark.parametrize(("value", "key"), [("text", None), (b"v", "text"), (3, None)])
def test_text_is_not_taken_for_bytes(producer: Producer, value: object, key: object) -> None:
    with pytest.raises(TypeError, match=r"must be bytes or None, not (str|int): encode it first"):
        producer.send("t", value, key=key)  # type: ignore[arg-type]


def test_a_closed_producer_takes_nothing(producer: Producer, make_topic: TopicMaker) -> None:
    topic = make_topic()
    producer.send(topic, b"v")
    producer.close()
    producer.close()
    with pytest.raises(PykafkaError, match="this producer was closed"):
        producer.send(topic, b"v")


def test_a_broker_that_cannot_be_reached_fails_the_first_send() -> None:
    properties = {"socket.connection.setup.timeout.ms": 100, "retry.backoff.ms": 5, "retry.backoff.max.ms": 10}
    with (
        refused_port() as port,
        Producer(f"127.0.0.1:{port}", properties) as producer,
        pytest.raises(PykafkaError, match=f"127.0.0.1:{port}"),
    ):
        producer.send("t", b"v")


def test_a_broker_that_went_away_fails_records_after_the_delivery_timeout(
    broker_factory: Callable[..., BrokerProcess], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("broker.client.cluster._WARN_AFTER_S", -1)
    process = broker_factory()
    with Producer(process.bootstrap, {"delivery.timeout.ms": 2000}) as producer:
        eventually(lambda: producer.send("t", b"v").exception(30) is None)  # a new topic may take longer than that
        process.kill()
        with pytest.raises(RequestTimedOut, match=r"1 records for t-0 .* delivery\.timeout\.ms=2000"):
            producer.send("t", b"v").result(30)

        def says_that_it_tries_again() -> bool:
            producer.send("t", b"v")
            return any(text.startswith("no broker") and text.endswith("; trying again") for text in caplog.messages)

        eventually(says_that_it_tries_again, interval=0.2)


def test_closing_with_a_deadline_fails_what_is_left(broker_factory: Callable[..., BrokerProcess]) -> None:
    process = broker_factory()
    producer = Producer(process.bootstrap)
    producer.send("t", b"v").result(30)
    process.kill()
    future = producer.send("t", b"v")
    producer.close(0.2)
    with pytest.raises(PykafkaError, match="closed before the record was acknowledged"):
        future.result(0)


@pytest.mark.parametrize("acks", ["all", "0"])
def test_a_busy_producer_logs_in_again_before_the_broker_hangs_up(tmp_path: Path, topic: str, acks: str) -> None:
    """KIP-368. It has always a request in flight, and one that is lost would not be sent again."""
    # The client has 15 % of it to log in again, 900 ms: with less a busy machine is late, as any client would be.
    limits = {"connections.max.reauth.ms": "6000", "super.users": f"User:ANONYMOUS;{PRINCIPAL}"}
    with GuardedBroker(tmp_path, limits) as broker:
        settings = {**broker.alice, "acks": acks, "enable.idempotence": "false", "retries": 0, "linger.ms": 0}
        count, started = 0, time.monotonic()
        with Producer({**settings, "max.in.flight.requests.per.connection": 1}) as producer:
            while time.monotonic() - started < 7:
                producer.send(topic, b"%d" % count)
                count += 1
                time.sleep(0.002)
            producer.flush(30)
            eventually(lambda: len(read_all(broker.listeners["PLAINTEXT"], topic)) == count)
        values = [int(record.value or b"") for record in read_all(broker.listeners["PLAINTEXT"], topic)]
    assert values == list(range(count))


@pytest.mark.parametrize("crash", [False, True])
def test_an_idempotent_producer_loses_doubles_and_reorders_nothing_over_restarts(
    broker_factory: Callable[..., BrokerProcess], crash: bool
) -> None:
    process, count = broker_factory(), 30_000
    restarts = threading.Thread(target=restart_often, args=(process, crash, 2))
    with Cluster(process.bootstrap) as cluster:
        Admin(cluster).create_topic("t", 2)
    with Producer(process.bootstrap, {"linger.ms": 1, "batch.size": 2000}) as producer:
        futures = [producer.send("t", b"%d" % number, partition=number % 2) for number in range(100)]
        restarts.start()
        number = len(futures)
        while number < count or restarts.is_alive():
            futures.append(producer.send("t", b"%d" % number, partition=number % 2))
            number += 1
    restarts.join()
    assert [future.exception(0) for future in futures if future.exception(0)] == []
    received = read_all(process.bootstrap, "t")
    for partition in (0, 1):
        numbers = [int(record.value or b"") for record in received if record.partition == partition]
        assert numbers == list(range(partition, number, 2))


def restart_often(process: BrokerProcess, crash: bool, times: int) -> None:
    for _ in range(times):
        if crash:
            process.kill()
            process.start()
        else:
            process.restart()

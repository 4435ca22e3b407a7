"""Transactions of a producer: together or not at all, offsets with them, and who is fenced."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from confluent_kafka import Consumer as LibrdkafkaConsumer

from broker.client.admin import Admin
from broker.client.broker_connection import BrokerConnection
from broker.client.cluster import Cluster
from broker.client.committed_offsets import GroupMetadata, Membership
from broker.client.consumer import Consumer
from broker.client.producer import Producer
from broker.client.transaction_errors import AbortableTransactionError, ProducerFenced
from broker.client.transaction_requests import add_partitions, init_transactional_id
from broker.errors import BrokerError, ConfigError, ErrorCode, PykafkaError
from broker.protocol.api_keys import ApiKey
from broker.protocol.topic_partition import TopicPartition
from tests.client.conftest import TopicMaker
from tests.client.test_producer import restart_often
from tests.support.broker_process import BrokerProcess
from tests.support.kafka import Kafka
from tests.support.waiting import eventually

COMMITTED = {"isolation.level": "read_committed", "auto.offset.reset": "earliest", "fetch.max.wait.ms": 50}


def transactional(bootstrap: str, name: str, **properties: object) -> Producer:
    """An initialized producer with `name` as its transactional id."""
    named = {key.replace("_", "."): value for key, value in properties.items()}
    producer = Producer(bootstrap, {"transactional.id": name, "linger.ms": 0, **named})
    try:
        producer.init_transactions()
    except BaseException:
        producer.close(0)
        raise
    return producer


def committed(bootstrap: str, topic: str) -> list[bytes | None]:
    """Values that a reader of committed data sees, partition by partition."""
    with Consumer(bootstrap, COMMITTED) as consumer:
        partitions = [TopicPartition(topic, index) for index in consumer.cluster.partitions(topic)]
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(partitions)
        records = []
        while any(consumer.position(tp) < end for tp, end in ends.items()):
            records += consumer.poll(1.0)
    return [record.value for record in sorted(records, key=lambda record: (record.partition, record.offset))]


@pytest.fixture
def producer(broker: Kafka, topic: str) -> Iterator[Producer]:
    with transactional(broker.bootstrap, topic) as opened:
        yield opened


def test_records_are_seen_when_the_transaction_commits(
    producer: Producer, broker: Kafka, make_topic: TopicMaker
) -> None:
    topic = make_topic(3)
    for number in range(3):
        producer.begin_transaction()
        for partition in range(3):
            producer.send(topic, b"%d" % number, partition=partition)
        producer.flush(30)
        assert len(committed(broker.bootstrap, topic)) == 3 * number, "not yet"
        producer.commit_transaction()
        eventually(lambda: committed(broker.bootstrap, topic) == [b"%d" % n for n in range(number + 1)] * 3)  # noqa: B023


def test_a_reader_of_committed_data_waits_for_the_end_of_the_transaction(
    producer: Producer, broker: Kafka, make_topic: TopicMaker
) -> None:
    topic = make_topic()
    tp = TopicPartition(topic, 0)
    with Consumer(broker.bootstrap, COMMITTED) as reader, Producer(broker.bootstrap) as plain:
        reader.assign([tp])
        producer.begin_transaction()
        producer.send(topic, b"in it").result(30)
        plain.send(topic, b"after it").result(30)
        assert reader.poll(0.3) == []
        assert reader.lag() == {tp: 0}, "the last stable offset is the end, for this reader"
        producer.commit_transaction()
        values: list[bytes | None] = []

        def all_read() -> bool:
            values.extend(record.value for record in reader.poll(0.05))
            return len(values) == 2

        eventually(all_read)
        assert values == [b"in it", b"after it"]
        eventually(lambda: not reader.poll(0.05) and reader.position(tp) == 3)  # behind the marker


def test_a_partition_that_does_not_exist_is_named(cluster: Cluster, make_topic: TopicMaker) -> None:
    topic = make_topic()
    handle = init_transactional_id(cluster, topic)
    wrong = [TopicPartition(topic, 0), TopicPartition(topic, 7)]
    with pytest.raises(BrokerError, match=f"UNKNOWN_TOPIC_OR_PARTITION.*adding {topic}-7"):
        add_partitions(cluster, handle, wrong, timeout_s=0)


def test_records_of_an_aborted_transaction_are_never_seen(
    producer: Producer, broker: Kafka, make_topic: TopicMaker
) -> None:
    topic = make_topic(2)
    for number in range(4):
        producer.begin_transaction()
        sent = [producer.send(topic, b"%d" % number, partition=partition) for partition in (0, 1) for _ in range(20)]
        if number % 2:
            producer.flush(30)  # some are written already, the others dropped on the way
            producer.abort_transaction()
        else:
            producer.commit_transaction()
        assert all(future.done() for future in sent)
    eventually(lambda: committed(broker.bootstrap, topic) == ([b"0"] * 20 + [b"2"] * 20) * 2)


def test_what_was_not_sent_yet_is_dropped_by_an_abort(broker: Kafka, make_topic: TopicMaker) -> None:
    topic = make_topic()
    with transactional(broker.bootstrap, topic, linger_ms=60_000) as producer:
        producer.begin_transaction()
        future = producer.send(topic, b"v")
        producer.abort_transaction()
        assert isinstance(future.exception(0), AbortableTransactionError)
        producer.begin_transaction()
        producer.send(topic, b"w")
        producer.commit_transaction()
    eventually(lambda: committed(broker.bootstrap, topic) == [b"w"])


def test_an_empty_transaction_costs_nothing(
    producer: Producer, make_topic: TopicMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, asked = make_topic(), list[ApiKey]()
    send = BrokerConnection.send

    def noted(self: BrokerConnection, api: ApiKey, body: Mapping[str, Any], **options: Any) -> int:
        asked.append(api)
        return send(self, api, body, **options)

    monkeypatch.setattr(BrokerConnection, "send", noted)
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        end()
    assert ApiKey.END_TXN not in asked
    producer.begin_transaction()
    producer.send(topic, b"v")
    producer.commit_transaction()
    assert asked.count(ApiKey.END_TXN) == 1


def test_an_open_transaction_is_aborted_on_close(broker: Kafka, make_topic: TopicMaker) -> None:
    topic = make_topic()
    with transactional(broker.bootstrap, topic) as producer:
        producer.begin_transaction()
        producer.send(topic, b"v").result(30)
    with Consumer(broker.bootstrap, COMMITTED) as consumer:
        tp = TopicPartition(topic, 0)
        eventually(lambda: consumer.end_offsets([tp]) == {tp: 2})  # the record and its marker: nothing is open


def test_a_record_that_fails_leaves_only_the_abort(broker: Kafka, make_topic: TopicMaker) -> None:
    topic = make_topic(max_message_bytes="1000")
    with transactional(broker.bootstrap, topic) as producer:
        producer.begin_transaction()
        producer.send(topic, b"before").result(30)
        too_large = producer.send(topic, b"x" * 2000)
        assert isinstance(too_large.exception(30), BrokerError)
        for act in (producer.commit_transaction, lambda: producer.send(topic, b"after")):
            with pytest.raises(AbortableTransactionError) as raised:
                act()
            assert raised.value.code is ErrorCode.message_too_large
        producer.abort_transaction()
        producer.begin_transaction()
        producer.send(topic, b"again")
        producer.commit_transaction()
    eventually(lambda: committed(broker.bootstrap, topic) == [b"again"])


def test_the_later_of_two_producers_fences_the_earlier(broker: Kafka, make_topic: TopicMaker) -> None:
    topic = make_topic()
    with transactional(broker.bootstrap, topic) as old:
        old.begin_transaction()
        old.send(topic, b"old").result(30)
        with transactional(broker.bootstrap, topic) as new:
            with pytest.raises(ProducerFenced, match="another producer took over"):
                old.commit_transaction()
            for act in (old.abort_transaction, old.begin_transaction, lambda: old.send(topic, b"v")):
                with pytest.raises(ProducerFenced):
                    act()
            new.begin_transaction()
            new.send(topic, b"new")
            new.commit_transaction()
    eventually(lambda: committed(broker.bootstrap, topic) == [b"new"])


def test_a_fenced_producer_that_only_sends_is_told_when_it_aborts(broker: Kafka, make_topic: TopicMaker) -> None:
    topic = make_topic()
    with transactional(broker.bootstrap, topic) as old:
        old.begin_transaction()
        old.send(topic, b"1").result(30)
        with transactional(broker.bootstrap, topic):
            assert isinstance(old.send(topic, b"2").exception(30), BrokerError)
            with pytest.raises(ProducerFenced):
                old.abort_transaction()


def test_offsets_are_committed_with_the_transaction(
    producer: Producer, broker: Kafka, make_topic: TopicMaker, group: str
) -> None:
    topic = make_topic()
    tp = TopicPartition(topic, 0)
    with Consumer(broker.bootstrap, {**COMMITTED, "group.id": group, "enable.auto.commit": False}) as consumer:
        consumer.subscribe([topic])
        eventually(lambda: not consumer.poll(0.05) and consumer.assignment() == [tp])
        producer.begin_transaction()
        producer.send_offsets_to_transaction({tp: 7}, consumer.group_metadata())
        producer.abort_transaction()
        assert consumer.committed([tp]) == {}
        producer.begin_transaction()
        producer.send_offsets_to_transaction({}, consumer.group_metadata())
        producer.send_offsets_to_transaction({tp: 3}, consumer.group_metadata())
        producer.send_offsets_to_transaction({tp: 4}, consumer.group_metadata())
        producer.commit_transaction()
        assert consumer.committed([tp]) == {tp: 4}


def test_offsets_of_a_member_that_was_put_out_abort_the_transaction(
    producer: Producer, make_topic: TopicMaker, group: str
) -> None:
    tp = TopicPartition(make_topic(), 0)
    producer.begin_transaction()
    stranger = GroupMetadata(group, Membership(3, "nobody"))
    with pytest.raises(AbortableTransactionError):
        producer.send_offsets_to_transaction({tp: 1}, stranger)
    with pytest.raises(AbortableTransactionError):
        producer.commit_transaction()
    producer.abort_transaction()
    producer.begin_transaction()


def test_calls_out_of_turn_are_refused(broker: Kafka, topic: str) -> None:
    with Producer(broker.bootstrap) as plain, pytest.raises(ConfigError, match=r"transactional\.id is missing"):
        plain.begin_transaction()
    with Producer(broker.bootstrap, {"transactional.id": topic}) as producer:
        with pytest.raises(PykafkaError, match=r"has not called init_transactions\(\) yet"):
            producer.begin_transaction()
        producer.init_transactions()
        with pytest.raises(PykafkaError, match="was called before"):
            producer.init_transactions()
        with pytest.raises(PykafkaError, match=r"call begin_transaction\(\)"):
            producer.send("t", b"v")
        with pytest.raises(PykafkaError, match=r"call begin_transaction\(\)"):
            producer.commit_transaction()


def test_closing_in_a_hurry_does_not_wait_for_a_broker_that_is_gone(
    broker_factory: Callable[..., BrokerProcess],
) -> None:
    process = broker_factory({"transaction.state.log.num.partitions": "1"})
    producer = transactional(process.bootstrap, "tx")
    producer.begin_transaction()
    producer.send("t", b"v").result(30)
    future = producer.send("t", b"w")
    process.kill()
    started = time.monotonic()
    producer.close(0.3)
    assert time.monotonic() - started < 10
    assert future.done()


def test_a_time_out_longer_than_the_broker_allows_is_refused(broker: Kafka, topic: str) -> None:
    with pytest.raises(BrokerError) as raised:
        transactional(broker.bootstrap, topic, transaction_timeout_ms=10**9)
    assert raised.value.code is ErrorCode.invalid_transaction_timeout


def test_batches_too_large_are_divided_in_transactions_too(broker: Kafka, make_topic: TopicMaker) -> None:
    topic = make_topic(max_message_bytes="1000")
    with transactional(broker.bootstrap, topic, linger_ms=50) as producer:
        for _ in range(2):
            producer.begin_transaction()
            for number in range(200):
                producer.send(topic, b"%d" % number)
            producer.commit_transaction()
    eventually(lambda: committed(broker.bootstrap, topic) == [b"%d" % n for n in range(200)] * 2)


def test_a_reader_of_committed_data_and_librdkafka_see_the_same(
    producer: Producer, broker: Kafka, make_topic: TopicMaker, group: str
) -> None:
    topic, expected = make_topic(), list[bytes]()
    for number in range(30):
        producer.begin_transaction()
        futures = [producer.send(topic, b"%d-%d" % (number, n)) for n in range(number % 4)]
        if number % 3:
            producer.commit_transaction()
            expected += [b"%d-%d" % (number, n) for n in range(len(futures))]
        else:
            producer.flush(30)
            producer.abort_transaction()
    eventually(lambda: committed(broker.bootstrap, topic) == expected)
    theirs = LibrdkafkaConsumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
    )
    theirs.subscribe([topic])
    read: list[bytes | None] = []

    def all_read() -> bool:
        message = theirs.poll(0.1)
        if message is not None and not message.error():
            read.append(message.value())
        return len(read) >= len(expected)

    eventually(all_read)
    theirs.close()
    assert read == expected


def test_an_abort_takes_no_record_of_the_next_transaction(producer: Producer, topic: str, broker: Kafka) -> None:
    drained, next_has_a_record = threading.Event(), threading.Event()
    drain, flush = producer._accumulator.drain, producer._accumulator.flush

    def slow_drain() -> list[Any]:
        drained.set()
        next_has_a_record.wait(0.5)
        return drain()

    def flush_until_drained(timeout_s: float | None) -> bool:
        return flush(timeout_s) and drained.wait(10)

    producer.begin_transaction()
    producer.send(topic, b"aborted", partition=0).result(10)
    producer._accumulator.drain = slow_drain  # type: ignore[method-assign]
    producer._accumulator.flush = flush_until_drained  # type: ignore[method-assign]
    producer.abort_transaction()
    producer._accumulator.flush = flush  # type: ignore[method-assign]
    producer.begin_transaction()
    producer.send(topic, b"kept", partition=0)
    next_has_a_record.set()
    producer.commit_transaction()
    assert committed(broker.bootstrap, topic) == [b"kept"]


def test_transactions_survive_a_crash_of_the_broker(broker_factory: Callable[..., BrokerProcess]) -> None:
    process = broker_factory({"transaction.state.log.num.partitions": "1"})
    with Cluster(process.bootstrap) as cluster:
        Admin(cluster).create_topic("t", 2)
    kept: list[bytes] = []
    with transactional(process.bootstrap, "tx", linger_ms=1) as producer:
        crash = threading.Thread(target=restart_often, args=(process, True, 1))
        for number in range(60):
            producer.begin_transaction()
            if number == 20:
                crash.start()
            for partition in (0, 1):
                producer.send("t", b"%d" % number, partition=partition)
            if number % 5:
                producer.commit_transaction()
                kept.append(b"%d" % number)
            else:
                producer.abort_transaction()
        crash.join()
    eventually(lambda: committed(process.bootstrap, "t") == kept * 2)

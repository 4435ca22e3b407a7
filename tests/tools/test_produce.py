"""`pykafka produce` against a broker; what it wrote is read with an independent client."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kafka import KafkaConsumer, TopicPartition

from broker.client.cluster import Cluster
from tests.support.console import answer_of, error_of, output_of, pykafka
from tests.support.kafka import Kafka, await_markers


@pytest.fixture
def at(broker: Kafka) -> tuple[str, str]:
    return ("--bootstrap-server", broker.bootstrap)


def read_all(broker: Kafka, topic: str, partition: int = 0) -> list[Any]:
    consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest")
    try:
        tp = TopicPartition(topic, partition)
        consumer.assign([tp])
        end = consumer.end_offsets([tp])[tp]
        messages: list[Any] = []
        while consumer.position(tp) < end:
            messages.extend(message for batch in consumer.poll(timeout_ms=500).values() for message in batch)
        return messages
    finally:
        consumer.close()


@pytest.mark.usefixtures("made_topic")
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_lines_become_records_in_order(broker: Kafka, at: tuple[str, str], topic: str, codec: str) -> None:
    lines = [f"line {number} äöü" for number in range(1000)]
    run = output_of if codec == "none" else answer_of
    run("produce", "--topic", topic, "-z", codec, *at, stdin="\n".join(lines).encode())
    assert [message.value.decode() for message in read_all(broker, topic)] == lines


@pytest.mark.usefixtures("made_topic")
def test_keys_and_headers_are_split_off(broker: Kafka, at: tuple[str, str], topic: str) -> None:
    properties = ("parse.key=true", "key.separator=:", "parse.headers=true", "null.marker=NULL")
    given = [argument for text in properties for argument in ("--property", text)]
    answer_of("produce", "--topic", topic, *given, *at, stdin=b"a:1\tk:v\nNULL\tgone:NULL\n")
    first, second = read_all(broker, topic)
    assert (first.key, first.value, list(first.headers)) == (b"k", b"v", [("a", b"1")])
    assert (second.key, second.value, list(second.headers)) == (b"gone", None, [])


@pytest.mark.usefixtures("made_topic")
def test_sync_and_acks_settings_store_the_lines(broker: Kafka, at: tuple[str, str], topic: str) -> None:
    answer_of("produce", "--topic", topic, "--sync", "--acks", "1", *at, stdin=b"one\ntwo\n")
    answer_of("produce", "--topic", topic, "--batch-size", "100", "--timeout", "0", *at, stdin=b"three\n")
    assert [message.value for message in read_all(broker, topic)] == [b"one", b"two", b"three"]


def test_a_partition_can_be_chosen(broker: Kafka, at: tuple[str, str], topic: str) -> None:
    answer_of("topics", "create", "--topic", topic, "--partitions", "2", *at)
    answer_of("produce", "--topic", topic, "--partition", "1", *at, stdin=b"v\n")
    assert [message.value for message in read_all(broker, topic, 1)] == [b"v"]
    assert read_all(broker, topic, 0) == []


@pytest.mark.usefixtures("made_topic")
def test_the_shipped_configuration_is_taken(broker: Kafka, at: tuple[str, str], topic: str) -> None:
    answer_of("produce", "--topic", topic, "--config", "conf/producer.properties", *at, stdin=b"v\n")
    assert [message.value for message in read_all(broker, topic)] == [b"v"]


@pytest.mark.usefixtures("made_topic")
@pytest.mark.parametrize(
    ("arguments", "stdin", "complaint", "status"),
    [
        (["--property", "parse.key=true"], b"no tab\n", "line 1: no key separator", 1),
        (["--property", "parse.keys=true"], b"", "did you mean 'parse.key'", 2),
        (["--compression-codec", "brotli"], b"", "compression.type=brotli", 2),
        (["--producer-property", "linger.mss=1"], b"", "did you mean 'linger.ms'", 2),
        (["--partition", "7"], b"v\n", "has 1 partitions, but no 7", 2),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    at: tuple[str, str], topic: str, arguments: list[str], stdin: bytes, complaint: str, status: int
) -> None:
    error = error_of("produce", "--topic", topic, *arguments, *at, stdin=stdin, status=status)
    assert complaint in error
    assert len(error.splitlines()) == 1


def test_a_record_that_is_not_taken_is_reported(at: tuple[str, str], topic: str) -> None:
    answer_of("topics", "create", "--topic", topic, "--config", "max.message.bytes=1000", *at)
    error = error_of("produce", "--topic", topic, *at, stdin=b"x" * 5000 + b"\n")
    assert "MESSAGE_TOO_LARGE" in error
    assert "1 record was not delivered" in error


def committed(at: tuple[str, str], topic: str) -> list[str]:
    """What a reader of committed data sees."""
    await_markers(at[1], topic)
    arguments = ("--from-beginning", "--exit-at-end", "--isolation-level", "read_committed")
    return answer_of("consume", "--topic", topic, *arguments, *at).split()


def test_the_brokers_reason_is_told(at: tuple[str, str], topic: str) -> None:
    answer_of("topics", "create", "--topic", topic, "--config", "cleanup.policy=compact", *at)
    error = error_of("produce", "--topic", topic, *at, stdin=b"a value without a key\n")
    assert "INVALID_RECORD (87)" in error
    assert "key" in error.partition("INVALID_RECORD (87)")[2]


@pytest.mark.usefixtures("made_topic")
def test_lines_are_sent_in_transactions(at: tuple[str, str], topic: str, group: str) -> None:
    given = ("--transactional-id", group)
    answer_of("produce", "--topic", topic, *given, "--transaction-size", "2", *at, stdin=b"a\nb\nc\n")
    assert committed(at, topic) == ["a", "b", "c"]
    error = error_of("produce", "--topic", topic, "--transaction-size", "2", *at, status=2)
    assert "--transaction-size needs --transactional-id" in error


@pytest.mark.usefixtures("made_topic")
def test_a_line_that_cannot_be_read_aborts_the_transaction(at: tuple[str, str], topic: str, group: str) -> None:
    given = ("--transactional-id", group, "--property", "parse.key=true", "--property", "key.separator=:")
    answer_of("produce", "--topic", topic, *given, *at, stdin=b"k:good\n")
    assert "key" in error_of("produce", "--topic", topic, *given, *at, stdin=b"k:lost\nbad\n")
    assert committed(at, topic) == ["good"]


@pytest.mark.usefixtures("made_topic")
def test_it_tells_as_json_where_records_went(at: tuple[str, str], topic: str) -> None:
    lines = answer_of("produce", "--topic", topic, "--json", *at, stdin=b"a\nb\n").splitlines()
    told = [json.loads(line) for line in lines]
    assert [(one["topic"], one["partition"], one["offset"]) for one in told] == [(topic, 0, 0), (topic, 0, 1)]
    assert all(one["timestamp"] > 0 for one in told)


def test_a_topic_that_this_creates_is_named(broker: Kafka, at: tuple[str, str], topic: str) -> None:
    first, again = (pykafka("produce", "--topic", topic, *at, stdin=b"v\n") for _ in range(2))
    with Cluster(broker.bootstrap) as cluster:
        count = len(cluster.partitions(topic))
    assert first.stderr.decode() == f"pykafka: created topic {topic} with {count} partition{'s' * (count > 1)}\n"
    assert again.stderr == b""

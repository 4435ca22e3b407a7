"""Throttled producers and consumers of librdkafka, kafka-python and our own: as fast as their quota, and no errors.

kafka-python also sets and describes quotas.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import kafka
import pytest
from kafka.protocol.admin.client_quotas import AlterClientQuotasRequest, DescribeClientQuotasRequest

from broker.client.admin import Admin
from broker.client.client_settings import ClientSettings
from broker.client.cluster import Cluster
from broker.client.consumer import Consumer
from broker.client.producer import Producer
from broker.protocol.topic_partition import TopicPartition
from broker.quotas.quota_entity import QuotaEntity
from tests.support.broker_process import BrokerProcess
from tests.support.randomness import noise

RECORD = noise(10_000)
RATE = 500_000.0
TRIES = 3

Transfer = Callable[[str, str, float], int]
"""(bootstrap, topic, seconds) → bytes of the records that went through."""


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("quotas"), standalone=True) as process:
        yield process
        assert "Traceback" not in process.output


class Meter:
    """Counts bytes for a time, which begins with the first of them."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.end: float | None = None
        self.size = 0

    @property
    def runs(self) -> bool:
        return self.end is None or time.monotonic() < self.end

    def count(self, size: int) -> None:
        if self.end is None:
            self.end = time.monotonic() + self.seconds
        if time.monotonic() < self.end:
            self.size += size


def produce_with_librdkafka(bootstrap: str, topic: str, seconds: float) -> int:
    failed: list[Any] = []
    settings: dict[str, Any] = {"bootstrap.servers": bootstrap, "client.id": topic, "batch.size": 40_000}
    producer = confluent_kafka.Producer({**settings, "queue.buffering.max.messages": 20})
    meter = Meter(seconds)

    def delivered(error: Any, message: Any) -> None:
        if error is None:
            meter.count(len(RECORD))
        else:
            failed.append(error)

    while meter.runs:
        try:
            producer.produce(topic, RECORD, on_delivery=delivered)
        except BufferError:
            producer.poll(0.01)
    producer.purge()
    assert not failed
    return meter.size


def produce_with_kafka_python(bootstrap: str, topic: str, seconds: float) -> int:
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, client_id=topic, batch_size=40_000)
    meter = Meter(seconds)
    while meter.runs:
        producer.send(topic, RECORD).get(60)
        meter.count(len(RECORD))
    producer.close(timeout=1)
    return meter.size


def produce_with_ours(bootstrap: str, topic: str, seconds: float) -> int:
    meter = Meter(seconds)
    with Producer({"bootstrap.servers": bootstrap, "client.id": topic}) as producer:
        while meter.runs:
            producer.send(topic, RECORD).result(60)
            meter.count(len(RECORD))
    return meter.size


def consume_with_librdkafka(bootstrap: str, topic: str, seconds: float) -> int:
    settings: dict[str, Any] = {"bootstrap.servers": bootstrap, "client.id": topic, "group.id": topic}
    consumer = confluent_kafka.Consumer({**settings, "fetch.max.bytes": 60_000, "message.max.bytes": 50_000})
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    meter = Meter(seconds)
    while meter.runs:
        message = consumer.poll(0.05)
        if message is not None:
            assert message.error() is None, message.error()
            meter.count(len(message.value() or b""))
    consumer.close()
    return meter.size


def consume_with_kafka_python(bootstrap: str, topic: str, seconds: float) -> int:
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, client_id=topic, max_partition_fetch_bytes=50_000)
    consumer.assign([kafka.TopicPartition(topic, 0)])
    consumer.seek_to_beginning()
    meter = Meter(seconds)
    while meter.runs:
        for records in consumer.poll(50).values():
            meter.count(sum(len(record.value) for record in records))
    consumer.close()
    return meter.size


def consume_with_ours(bootstrap: str, topic: str, seconds: float) -> int:
    properties = {"bootstrap.servers": bootstrap, "client.id": topic, "max.partition.fetch.bytes": "50000"}
    meter = Meter(seconds)
    with Consumer(properties) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek_to_beginning()
        while meter.runs:
            meter.count(sum(len(record.value or b"") for record in consumer.poll(0.05)))
    return meter.size


PRODUCERS = [produce_with_librdkafka, produce_with_kafka_python, produce_with_ours]
CONSUMERS = [consume_with_librdkafka, consume_with_kafka_python, consume_with_ours]


def limit(bootstrap: str, client_id: str, key: str) -> None:
    with Cluster(ClientSettings.from_properties({"bootstrap.servers": bootstrap})) as cluster:
        Admin(cluster).alter_client_quotas(QuotaEntity(client_id=client_id), {key: RATE})


def fill(bootstrap: str, topic: str, size: float) -> None:
    """In batches of one record, so that a consumer can take little at a time."""
    with Producer({"bootstrap.servers": bootstrap, "batch.size": "1"}) as producer:
        for _ in range(int(size / len(RECORD))):
            producer.send(topic, RECORD)


def share(broker: BrokerProcess, transfer: Transfer, seconds: float) -> float:
    """The rate as a share of the quota."""
    topic = f"{transfer.__name__}-{seconds}"
    if transfer in CONSUMERS:
        fill(broker.bootstrap, topic, RATE * seconds * 1.5)
    limit(broker.bootstrap, topic, "producer_byte_rate" if transfer in PRODUCERS else "consumer_byte_rate")
    return transfer(broker.bootstrap, topic, seconds) / seconds / RATE


@pytest.mark.parametrize("transfer", [*PRODUCERS, *CONSUMERS])
def test_a_throttled_client_slows_down_and_does_not_fail(own: BrokerProcess, transfer: Transfer) -> None:
    shares = [share(own, transfer, 3.0)]
    while shares[-1] <= 0.75 and len(shares) < TRIES:  # it takes less while the machine does something else
        shares.append(share(own, transfer, 3.0))
    assert shares[-1] > 0.75, shares
    assert max(shares) < 1.15, shares


@pytest.mark.slow
@pytest.mark.parametrize("transfer", [*PRODUCERS, *CONSUMERS])
def test_in_ten_seconds_a_client_has_its_quota(own: BrokerProcess, transfer: Transfer) -> None:
    assert 0.95 < share(own, transfer, 10.0) < 1.05


def test_kafka_pythons_messages_set_and_describe_quotas(own: BrokerProcess) -> None:
    """The only client here that knows them, if only as messages: an encoding that is not ours."""
    admin = kafka.KafkaAdminClient(bootstrap_servers=own.bootstrap)

    def ask(request: Any) -> Any:
        return admin._manager.run(admin._manager.send, request)

    def alter(value: float, *, remove: bool) -> Any:
        entry = AlterClientQuotasRequest.EntryData
        parts = (("user", "ann"), ("client-id", None))
        entity = [entry.EntityData(entity_type=kind, entity_name=name) for kind, name in parts]
        change = entry.OpData(key="request_percentage", value=value, remove=remove)
        request = AlterClientQuotasRequest(entries=[entry(entity=entity, ops=[change])], validate_only=False)
        (answered,) = ask(request).entries
        return answered.error_code, answered.error_message

    def described() -> Any:
        component = DescribeClientQuotasRequest.ComponentData(entity_type="user", match_type=0, match="ann")
        answer = ask(DescribeClientQuotasRequest(components=[component], strict=False))
        assert answer.error_code == 0
        return [
            ([(one.entity_type, one.entity_name) for one in row.entity], [(one.key, one.value) for one in row.values])
            for row in answer.entries
        ]

    try:
        assert alter(-1.0, remove=False) == (42, "Quota request_percentage must be greater than 0")
        assert alter(12.5, remove=False) == (0, None)
        assert described() == [([("user", "ann"), ("client-id", None)], [("request_percentage", 12.5)])]
        assert alter(0.0, remove=True) == (0, None)
        assert described() == []
    finally:
        admin.close()

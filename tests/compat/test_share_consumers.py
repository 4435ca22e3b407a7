"""Share consumers of others, unchanged: Java's KafkaShareConsumer and confluent-kafka's ShareConsumer.

Whoever is killed loses nothing: others get what it had, and nothing else twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
from confluent_kafka import Producer, ShareConsumer

from broker.protocol.api_keys import ApiKey
from tests.support.kafka import Kafka
from tests.support.kafka_java import KafkaJava, each
from tests.support.raw_requests import Requests
from tests.support.share_members import configure
from tests.support.share_worker import ShareWorker
from tests.support.waiting import eventually


@pytest.fixture
def group(broker: Kafka, topic: str) -> str:
    """A share group that begins at the first record of `topic`."""
    with Requests(broker.bootstrap) as ask:
        ask.create(topic)
        configure(ask, f"share-{topic}", share_auto_offset_reset="earliest")
    return f"share-{topic}"


def produce(bootstrap: str, topic: str, values: range) -> None:
    """In batches of ten records: members get whole batches."""
    producer = Producer({"bootstrap.servers": bootstrap, "batch.num.messages": 10, "linger.ms": 50, "acks": "all"})
    for value in values:
        producer.produce(topic, str(value).encode())
        producer.poll(0)
    assert producer.flush(60) == 0


class TestJava:
    @pytest.fixture
    def consumer(self, java: KafkaJava, broker: Kafka, topic: str, group: str) -> Callable[..., Any]:
        def make(**settings: str) -> Any:
            form = java.kafka.common.serialization.ByteArrayDeserializer
            found = {name.replace("_", "."): value for name, value in settings.items()}
            properties = java.properties({"bootstrap.servers": broker.bootstrap, "group.id": group, **found})
            made = java._opened(java.kafka.clients.consumer.KafkaShareConsumer(properties, form(), form()))
            made.subscribe([topic])
            return made

        return make

    def test_implicit_acknowledgement(
        self, java: KafkaJava, broker: Kafka, topic: str, consumer: Callable[..., Any]
    ) -> None:
        produce(broker.bootstrap, topic, range(300))
        one, two = consumer(), consumer()
        seen: Counter[int] = Counter()

        def all_read() -> bool:
            for each_one in (one, two):
                seen.update(int(bytes(record.value())) for record in java.poll(each_one))
            return len(seen) == 300

        eventually(all_read)
        assert set(seen.values()) == {1}

    def test_accept_release_reject_and_renew(
        self, java: KafkaJava, broker: Kafka, topic: str, consumer: Callable[..., Any]
    ) -> None:
        produce(broker.bootstrap, topic, range(20))
        kinds = java.kafka.clients.consumer.AcknowledgeType
        reader = consumer(share_acknowledgement_mode="explicit")
        deliveries: dict[int, list[int]] = {}
        done: set[int] = set()

        def all_done() -> bool:
            for record in java.poll(reader):
                value, count = int(bytes(record.value())), record.deliveryCount().get()
                deliveries.setdefault(value, []).append(count)
                turn = len(deliveries[value])
                kind = [kinds.ACCEPT, kinds.REJECT, kinds.RELEASE, kinds.RENEW][value % 4 if turn == 1 else 0]
                reader.acknowledge(record, kind)
                if value % 4 < 2 or turn > 1:
                    done.add(value)
            for result in each(reader.commitSync().entrySet()):
                assert not result.getValue().isPresent(), result.getValue().get()
            return len(done) == 20

        eventually(all_done)
        assert {value: counts for value, counts in deliveries.items() if value % 4 < 2} == {
            value: [1] for value in range(20) if value % 4 < 2
        }
        assert all(deliveries[value] == [1, 2] for value in range(20) if value % 4 == 2), "released ones come again"
        assert all(deliveries[value] == [1, 1] for value in range(20) if value % 4 == 3), (
            "renewed ones are still its own"
        )

    def test_what_it_rejects_is_in_the_dead_letter_topic(
        self, java: KafkaJava, broker: Kafka, topic: str, group: str, consumer: Callable[..., Any]
    ) -> None:
        """A member that leaves at once leaves none behind."""
        with Requests(broker.bootstrap) as ask:
            ask.create(f"dlq.{topic}", errors_deadletterqueue_group_enable="true")
            configure(
                ask,
                group,
                errors_deadletterqueue_topic_name=f"dlq.{topic}",
                errors_deadletterqueue_copy_record_enable="true",
            )
            produce(broker.bootstrap, topic, range(20))
            kinds = java.kafka.clients.consumer.AcknowledgeType
            reader, seen = consumer(share_acknowledgement_mode="explicit"), []

            def all_read() -> bool:
                for record in java.poll(reader):
                    seen.append(int(bytes(record.value())))
                    reader.acknowledge(record, kinds.REJECT if seen[-1] % 2 else kinds.ACCEPT)
                return len(seen) == 20

            eventually(all_read)
            reader.close()
            odd = [str(value).encode() for value in range(1, 20, 2)]
            eventually(lambda: sorted(ask.values(f"dlq.{topic}"), key=lambda one: int(one or 0)) == odd)

    def test_the_admin_sees_the_group(
        self, java: KafkaJava, broker: Kafka, topic: str, group: str, consumer: Callable[..., Any]
    ) -> None:
        produce(broker.bootstrap, topic, range(10))
        reader, seen = consumer(), []

        def all_read() -> bool:
            seen.extend(java.poll(reader))
            return len(seen) == 10

        eventually(all_read)
        reader.commitSync()
        admin = java.admin({"bootstrap.servers": broker.bootstrap})
        described = admin.describeShareGroups([group]).all().get()[group]
        assert described.groupState().toString() == "Stable"
        assert described.members().size() == 1
        offsets = admin.listShareGroupOffsets({group: java.kafka.clients.admin.ListShareGroupOffsetsSpec()}).all().get()
        (info,) = [one.getValue() for one in each(offsets[group].entrySet())]
        assert (info.startOffset(), info.lag().get()) == (10, 0)
        reader.close()
        admin.deleteShareGroups([group]).all().get()
        assert group not in {one.groupId() for one in each(admin.listGroups().all().get())}


def test_confluent_kafka_reads_each_record_once(broker: Kafka, topic: str, group: str) -> None:
    produce(broker.bootstrap, topic, range(300))
    consumer = ShareConsumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    consumer.subscribe([topic])
    seen: Counter[int] = Counter()

    def all_read() -> bool:
        seen.update(int(message.value() or b"") for message in consumer.poll(0.2) if message.error() is None)
        return len(seen) == 300

    try:
        eventually(all_read)
    finally:
        consumer.close()
    assert set(seen.values()) == {1}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_consumer_that_is_killed_loses_nothing_and_only_its_records_come_twice(
    broker: Kafka, topic: str, group: str
) -> None:
    with ExitStack() as stack:
        killed, *others = [stack.enter_context(ShareWorker(broker.bootstrap, group, topic)) for _ in range(3)]
        produce(broker.bootstrap, topic, range(3_000))
        eventually(lambda: len(killed.got) >= 100)
        killed.kill()
        eventually(lambda: lag(broker.bootstrap, group) == 0, timeout=120)
        finish(others)
    check_killed(range(3_000), killed, others)


def lag(bootstrap: str, group: str) -> int:
    """The records that are not done, of all partitions that this broker leads."""
    with Requests(bootstrap) as ask:
        (found,) = ask.ask(
            ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, {"groups": [{"group_id": group, "topics": None}]}
        ).groups
    lags = [partition.lag for topic in found.topics for partition in topic.partitions]
    return sum(lags) if lags and min(lags) >= 0 else -1


def finish(workers: list[ShareWorker]) -> None:
    """Wait until they have printed what is answered."""
    eventually(lambda: all(set(one.got) <= one.done for one in workers))


def check_killed(values: range, killed: ShareWorker, others: list[ShareWorker]) -> None:
    """Every record was done by somebody; what came twice is what the killed one had; nothing came a sixth time.

    The killed one may have been answered what it could not print any more.
    """
    done = set().union(*(one.done for one in others))
    held = set(killed.got) - killed.done
    assert {str(value) for value in values} - done - killed.done <= held - done, "lost"
    total = sum((one.got for one in others), killed.got.copy())
    twice = {value for value, count in total.items() if count > 1}
    print(f"{len(twice)} of {len(total)} records came twice; the killed consumer held {len(held)}")
    assert twice <= held, f"{len(twice - held)} records came twice that the killed one did not hold"
    assert max(max(one.counts, default=0) for one in (killed, *others)) <= 5

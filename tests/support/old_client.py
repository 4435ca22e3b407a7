# ruff: noqa: I002
"""A program for old Pythons: an old client writes records, reads them in a group, commits, and goes on in the group.

Run as `python3.6 old_client.py LIBRARY BOOTSTRAP TOPIC` with confluent-kafka or kafka-python installed there. It prints
one line of JSON: the library's version, what two consumers of one group read one after the other, and the last offset.
It needs Python 3.6 only, and nothing of ours.
"""

import importlib
import json
import sys
import time
from typing import Any

COUNT, FIRST = 50, 20
SESSION_MS = 6000
"""librdkafka 0.11 leaves a group without saying so."""


def main(library: str, bootstrap: str, topic: str) -> None:
    run = {"confluent-kafka": with_confluent_kafka, "kafka-python": with_kafka_python}[library]
    print(json.dumps(run(bootstrap, topic)))


def with_confluent_kafka(bootstrap: str, topic: str) -> dict:
    confluent_kafka: Any = importlib.import_module("confluent_kafka")

    settings = {"bootstrap.servers": bootstrap, "client.id": "old-confluent-kafka"}
    failed: list = []
    producer = confluent_kafka.Producer(dict(settings))
    for number in range(COUNT):
        producer.produce(
            topic, value=b"v%d" % number, callback=lambda error, _: failed.append(error) if error else None
        )
    producer.flush(30)
    if failed:
        raise RuntimeError(str(failed[0]))
    group = {"group.id": topic, "session.timeout.ms": SESSION_MS, "enable.auto.commit": False}
    begin = {"default.topic.config": {"auto.offset.reset": "earliest"}}

    def read(count: int) -> list:
        consumer = confluent_kafka.Consumer(dict(settings, **dict(group, **begin)))
        consumer.subscribe([topic])
        values: list = []
        end = time.monotonic() + 60
        while len(values) < count and time.monotonic() < end:
            message = consumer.poll(0.5)
            if message is not None and not message.error():
                values.append(message.value().decode())
        # "async" became a keyword in Python 3.7.
        consumer.commit(**{"async" if sys.version_info < (3, 7) else "asynchronous": False})
        consumer.close()
        return values

    read_values = [read(FIRST), read(COUNT - FIRST)]
    consumer = confluent_kafka.Consumer(dict(settings, **{"group.id": topic}))
    if hasattr(consumer, "list_topics"):  # from 1.0 on; librdkafka 1.6 has to know the leader
        consumer.list_topics(topic, timeout=20)
    _, end = consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, 0), timeout=20)
    consumer.close()
    return {"version": confluent_kafka.libversion()[0], "read": read_values, "end": end}


def with_kafka_python(bootstrap: str, topic: str) -> dict:
    kafka: Any = importlib.import_module("kafka")

    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, client_id="old-kafka-python")
    for sent in [producer.send(topic, value=b"v%d" % number) for number in range(COUNT)]:
        sent.get(30)
    producer.close()

    def read(count: int) -> list:
        consumer = kafka.KafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=topic,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            consumer_timeout_ms=30000,
        )
        values: list = []
        while len(values) < count:
            values.append(next(consumer).value.decode())
        consumer.commit()
        consumer.close()
        return values

    read_values = [read(FIRST), read(COUNT - FIRST)]
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap)
    partition = kafka.TopicPartition(topic, 0)
    end = consumer.end_offsets([partition])[partition]
    consumer.close()
    return {"version": kafka.__version__, "read": read_values, "end": end}


if __name__ == "__main__":
    main(*sys.argv[1:])

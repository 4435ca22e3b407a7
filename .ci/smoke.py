"""Uses an installed wheel: commands, the kernel, the shipped configuration, a broker that takes and gives a record."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import broker
from broker.client.consumer import Consumer
from broker.client.producer import Producer
from broker.embedded import EmbeddedBroker
from broker.protocol.topic_partition import TopicPartition
from broker.records import native

environment = Path(sys.argv[1]).resolve()
assert Path(broker.__file__).is_relative_to(environment), broker.__file__
assert native.implementation() == "native"
assert Path(str(native.kernel.__file__)).is_relative_to(environment), native.kernel  # type: ignore[union-attr]
config = subprocess.run([environment / "bin" / "pykafka", "broker", "config"], capture_output=True, check=True).stdout
assert b"listeners=PLAINTEXT://127.0.0.1:9092" in config
with EmbeddedBroker() as started:
    with Producer(started.bootstrap) as producer:
        producer.send("smoke", b"hello")
    with Consumer(started.bootstrap) as consumer:
        consumer.assign([TopicPartition("smoke", 0)])
        consumer.seek_to_beginning()
        records = []
        while not records:
            records = consumer.poll(1)
        assert [record.value for record in records] == [b"hello"]
print(f"{environment.name}: the wheel works, its codec is {native.implementation()}")

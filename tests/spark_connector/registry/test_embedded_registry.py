"""The registry over a topic of the broker, as Confluent's client sees it."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.serialization import MessageField, SerializationContext

from broker.client.consumer import Consumer
from broker.errors import ConfigError, PykafkaError
from broker.protocol.topic_partition import TopicPartition
from spark_connector.registry.embedded_registry import EmbeddedRegistry
from tests.spark_connector.formats.test_schema_registry import V1, V2
from tests.support.kafka import Kafka
from tests.support.topics import Topic


def test_schemas_outlive_the_registry(broker: Kafka, topic: str) -> None:
    with EmbeddedRegistry(broker.bootstrap, topic=topic) as registry:
        theirs = SchemaRegistryClient({"url": registry.url})
        serialize = AvroSerializer(theirs, V1)
        value = serialize({"id": 3}, SerializationContext("orders", MessageField.VALUE))
        assert value == b"\0\0\0\0\1\6"
        assert registry.register("orders-value", V2) == 2
        assert theirs.get_latest_version("orders-value").schema.schema_str == V2
        assert not theirs.test_compatibility("orders-value", Schema('"string"', "AVRO"))
        with pytest.raises(SchemaRegistryError, match="incompatible with an earlier schema"):
            theirs.register_schema("orders-value", Schema('"string"', "AVRO"))
        with pytest.raises(PykafkaError, match="Invalid schema"):
            registry.register("x", "{")
        port = int(registry.url.rpartition(":")[2])
        with pytest.raises(ConfigError, match=f"cannot listen on port {port}"):
            EmbeddedRegistry(broker.bootstrap, topic=topic, port=port).start()
    registry.stop()
    with EmbeddedRegistry(broker.bootstrap, topic=topic) as registry:
        assert SchemaRegistryClient({"url": registry.url}).get_versions("orders-value") == [1, 2]
        assert registry.register("other", V2) == 2
        assert registry.register("third", '"long"') == 3
    with Consumer(broker.bootstrap) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek_to_beginning()
        records = [json.loads(record.value or b"null") for record in consumer.poll(10.0)]
    assert [(one["subject"], one["version"], one["id"]) for one in records] == [
        ("orders-value", 1, 1),
        ("orders-value", 2, 2),
        ("other", 1, 2),
        ("third", 1, 3),
    ]


def test_a_registry_knows_what_another_registers(broker: Kafka, topic: str) -> None:
    with (
        EmbeddedRegistry(broker.bootstrap, topic=topic) as one,
        EmbeddedRegistry(broker.bootstrap, topic=topic) as other,
    ):
        assert [one.register("a", V1), other.register("b", '"long"'), one.register("c", '"int"')] == [1, 2, 3]
        clients = [SchemaRegistryClient({"url": registry.url}) for registry in (one, other)]
        for schema_id, text in ((2, '"long"'), (3, '"int"')):
            assert [client.get_schema(schema_id).schema_str for client in clients] == [text, text]


def test_registries_that_register_at_one_moment_take_turns(broker: Kafka, topic: str) -> None:
    """Each schema has an id of its own, and both know the same."""
    with (
        EmbeddedRegistry(broker.bootstrap, topic=topic) as one,
        EmbeddedRegistry(broker.bootstrap, topic=topic) as other,
        ThreadPoolExecutor(2) as pool,
    ):
        start = threading.Barrier(2)

        def register(registry: EmbeddedRegistry, name: str) -> list[int]:
            start.wait(30)
            texts = [json.dumps({"type": "fixed", "name": f"{name}{number}", "size": 1}) for number in range(4)]
            return [registry.register(text, text) for text in texts]

        ids = [task.result() for task in [pool.submit(register, one, "A"), pool.submit(register, other, "B")]]
        assert sorted(ids[0] + ids[1]) == [1, 2, 3, 4, 5, 6, 7, 8]
        clients = [SchemaRegistryClient({"url": registry.url}) for registry in (one, other)]
        for schema_id, name in ((ids[0][3], "A3"), (ids[1][3], "B3")):
            assert all(name in str(client.get_schema(schema_id).schema_str) for client in clients)


def test_a_topic_that_deletes_old_records_is_refused(broker: Kafka, topic: str) -> None:
    Topic(broker.bootstrap, topic)
    with pytest.raises(ConfigError, match=r"lose its schemas: set its cleanup.policy to compact, not delete"):
        EmbeddedRegistry(broker.bootstrap, topic=topic).start()


def test_a_cluster_that_is_not_there() -> None:
    with pytest.raises(PykafkaError):
        EmbeddedRegistry({"bootstrap.servers": "127.0.0.1:1", "socket.connection.setup.timeout.ms": "200"}).start()

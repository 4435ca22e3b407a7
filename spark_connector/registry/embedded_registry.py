"""A schema registry for a notebook, a test or a script, in this process.

    from broker.embedded import EmbeddedBroker
    from spark_connector.registry.embedded_registry import EmbeddedRegistry

    with EmbeddedBroker() as kafka, EmbeddedRegistry(kafka.bootstrap) as registry:
        registry.register("orders-value", '{"type": "record", …}')
        spark.read.format("pykafka").option("schema.registry.url", registry.url)…

It keeps its schemas in the topic `_schemas`, in the format of Confluent's registry, which can take the topic over; so
can the next EmbeddedRegistry. Several over one topic see what the others have registered, and take turns: a change is a
transaction under one name, so who begins one reads what the others wrote before, and stops those that have not. It has
no login, listens on the loopback address
only, and checks the compatibility of Avro schemas only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Final, Self

from broker.client.admin import Admin, ResourceType
from broker.client.client_settings import ClientSettings
from broker.client.cluster import Cluster
from broker.client.consumer import Consumer
from broker.client.producer import Producer
from broker.client.transaction_errors import TransactionError
from broker.errors import BrokerError, ConfigError, ErrorCode, PykafkaError
from broker.protocol.topic_partition import TopicPartition
from spark_connector.registry.rest import Api, serving
from spark_connector.registry.subjects import Record, Reference, Refusal, Schema, Subjects

__all__ = ["EmbeddedRegistry"]

_CAUGHT_UP_S: Final = 60.0
_MOST_TURNS: Final = 100
_POLICY: Final = "cleanup.policy"


class EmbeddedRegistry:
    """A registry over one topic of a cluster."""

    def __init__(
        self,
        bootstrap: str | Iterable[str] | Mapping[str, Any] | ClientSettings,
        *,
        port: int = 0,
        topic: str = "_schemas",
    ) -> None:
        """`bootstrap`: "host:port,…" or the client's properties with `bootstrap.servers`. `port`: 0 for a free one."""
        self._settings = ClientSettings.of(bootstrap)
        self._port = port
        self._tp = TopicPartition(topic, 0)
        self._subjects = Subjects()
        self._api = Api(self._subjects, self._write, self._catch_up, self._turn)
        self._parts = ExitStack()
        self.url = ""
        """For `schema.registry.url`; empty before `start`."""

    def start(self) -> Self:
        """Read the topic, which is created if it does not exist, and answer requests. Raises PykafkaError,
        ConfigError for a topic that deletes old records."""
        with ExitStack() as parts:
            self._create_topic()
            self._consumer = parts.enter_context(Consumer(replace(self._settings, isolation_level="read_committed")))
            self._consumer.assign([self._tp])
            self._consumer.seek_to_beginning()
            self._catch_up()
            self.url = parts.enter_context(serving(self._api, self._port))
            self._parts = parts.pop_all()
        return self

    def stop(self) -> None:
        """Idempotent."""
        self._parts.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def register(
        self, subject: str, schema: str, schema_type: str = "AVRO", references: Iterable[tuple[str, str, int]] = ()
    ) -> int:
        """The id of `schema`, which becomes the subject's latest version unless the subject has it.

        `schema_type`: AVRO, JSON or PROTOBUF. `references`: (name, subject, version). Raises PykafkaError for what is
        no schema, or not compatible with the subject's latest.
        """
        try:
            return self._api.register(
                subject, Schema(schema, schema_type, tuple(Reference(*one) for one in references))
            )
        except Refusal as refusal:
            raise PykafkaError(refusal.message) from None

    def _create_topic(self) -> None:
        topic = self._tp.topic
        with Cluster(self._settings) as cluster:
            admin = Admin(cluster)
            try:
                admin.create_topic(topic, 1, configs={_POLICY: "compact"})
            except BrokerError as error:
                if error.code is not ErrorCode.topic_already_exists:
                    raise
                policy = admin.describe_configs(ResourceType.TOPIC, topic, [_POLICY])[_POLICY].value
                if policy != "compact":
                    raise ConfigError(
                        f"topic {topic} would lose its schemas: set its {_POLICY} to compact, not {policy}"
                    ) from None

    def _turn(self, change: Callable[[], int]) -> int:
        """What `change` returns, which no other registry over the topic has disturbed: one that was overtaken is asked
        again."""
        settings = replace(self._settings, transactional_id=f"pykafka-registry-{self._tp.topic}")
        for _ in range(_MOST_TURNS):
            try:
                with Producer(settings) as self._producer:
                    self._producer.init_transactions()
                    self._catch_up()
                    return change()
            except TransactionError as error:
                overtaken = error
        raise PykafkaError(f"other registries over topic {self._tp.topic} change it all the time: {overtaken}")

    def _write(self, record: Record) -> None:
        """Append a record and read the topic up to it: what counts is what the topic says. Within `_turn`."""
        key, value = record
        self._producer.begin_transaction()
        future = self._producer.send(self._tp.topic, value, key=key, partition=self._tp.partition)
        self._producer.commit_transaction()
        self._catch_up(future.result().offset + 1)

    def _catch_up(self, at_least: int = 0) -> None:
        """Apply what is committed, and wait until that is `at_least` the records before this offset."""
        end = max(self._consumer.end_offsets([self._tp])[self._tp], at_least)
        deadline = time.monotonic() + _CAUGHT_UP_S
        while self._consumer.position(self._tp) < end:
            if time.monotonic() > deadline:
                raise PykafkaError(f"topic {self._tp.topic} was not read to its end in {_CAUGHT_UP_S:.0f} s")
            for record in self._consumer.poll(1.0):
                self._subjects.apply(record.key, record.value)

"""ACLs by confluent-kafka, kafka-python and aiokafka: kept by their admin clients, and what a client is told that lacks
a right. kafkajs has its tests of both in test_kafkajs.py.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import confluent_kafka as confluent
import kafka
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka import errors as aiokafka_errors
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import admin as c
from kafka import admin as k
from kafka import errors as kafka_errors

from tests.compat.test_admin import TIMEOUT, code_of
from tests.support.guarded import PRINCIPAL, Guarded

LITERAL, PREFIXED = c.ResourcePatternType.LITERAL, c.ResourcePatternType.PREFIXED


def binding(
    name: str,
    operation: c.AclOperation,
    *,
    kind: c.ResourceType = c.ResourceType.TOPIC,
    pattern: c.ResourcePatternType = LITERAL,
    principal: str = PRINCIPAL,
) -> c.AclBinding:
    return c.AclBinding(kind, name, pattern, principal, "*", operation, c.AclPermissionType.ALLOW)


def all_of(name: str, pattern: c.ResourcePatternType) -> c.AclBindingFilter:
    anyone: Any = None  # its stubs demand text
    anything = c.AclOperation.ANY, c.AclPermissionType.ANY
    return c.AclBindingFilter(c.ResourceType.TOPIC, name, pattern, anyone, anyone, *anything)


class TestConfluentKafka:
    @pytest.fixture
    def admin(self, guarded: Guarded) -> c.AdminClient:
        return c.AdminClient(guarded.super_user)

    @pytest.fixture
    def alice(self, guarded: Guarded) -> c.AdminClient:
        return c.AdminClient(guarded.alice)

    def test_they_are_created_described_and_deleted(self, admin: c.AdminClient, topic: str) -> None:
        read, write = (binding(topic, operation) for operation in (c.AclOperation.READ, c.AclOperation.WRITE))
        prefixed = binding(topic[:-1], c.AclOperation.DESCRIBE, pattern=PREFIXED)
        made = admin.create_acls([read, write, prefixed])
        assert [code_of(future) for future in made.values()] == [0, 0, 0]
        assert set(admin.describe_acls(all_of(topic, c.ResourcePatternType.MATCH)).result(TIMEOUT)) == set(made)
        only, nothing = all_of(topic, LITERAL), all_of(f"{topic}-other", LITERAL)
        deleted = admin.delete_acls([only, nothing])
        assert set(deleted[only].result(TIMEOUT)) == {read, write}
        assert deleted[nothing].result(TIMEOUT) == []
        left = all_of(topic, c.ResourcePatternType.MATCH)
        assert admin.delete_acls([left])[left].result(TIMEOUT) == [prefixed]

    def test_one_that_is_wrong_is_refused_alone(self, admin: c.AdminClient, topic: str) -> None:
        fine = binding(topic, c.AclOperation.READ)
        wrong = binding("not-the-cluster", c.AclOperation.ALTER, kind=c.ResourceType.BROKER)
        futures = admin.create_acls([wrong, fine])
        assert code_of(futures[wrong]) == KafkaError.INVALID_REQUEST
        assert code_of(futures[fine]) == 0
        only = all_of(topic, LITERAL)
        assert admin.delete_acls([only])[only].result(TIMEOUT) == [fine]

    def test_they_need_a_right_over_the_cluster(self, alice: c.AdminClient, topic: str) -> None:
        read, only = binding(topic, c.AclOperation.READ), all_of(topic, LITERAL)
        denied = KafkaError.CLUSTER_AUTHORIZATION_FAILED
        assert code_of(alice.create_acls([read])[read]) == denied
        assert code_of(alice.delete_acls([only])[only]) == denied
        assert alice.describe_acls(only).result(TIMEOUT) == []  # this client drops the error

    def test_who_lacks_a_right_is_told_which(
        self, guarded: Guarded, admin: c.AdminClient, alice: c.AdminClient, topic: str, group: str
    ) -> None:
        admin.create_topics([c.NewTopic(topic, 1, 1)])[topic].result(TIMEOUT)
        topic_failed = KafkaError.TOPIC_AUTHORIZATION_FAILED
        assert code_of(alice.create_topics([c.NewTopic(f"{topic}-b", 1, 1)])[f"{topic}-b"]) == topic_failed
        assert code_of(alice.delete_topics([topic])[topic]) == topic_failed
        assert produced(guarded.alice, topic) == topic_failed
        assert consumed(guarded.alice, topic, group) == {KafkaError.GROUP_AUTHORIZATION_FAILED}
        allow(admin, binding(group, c.AclOperation.READ, kind=c.ResourceType.GROUP))
        assert consumed(guarded.alice, topic, group) == {topic_failed}
        allow(admin, binding(topic, c.AclOperation.DESCRIBE))
        assert produced(guarded.alice, topic) == topic_failed
        assert consumed(guarded.alice, topic, group) == {topic_failed}
        allow(admin, binding(topic, c.AclOperation.WRITE), binding(topic, c.AclOperation.READ))
        assert produced(guarded.alice, topic) == 0
        assert consumed(guarded.alice, topic, group) == set()

    def test_a_transactional_producer_needs_its_id(self, guarded: Guarded, topic: str) -> None:
        producer = confluent.Producer({**guarded.alice, "transactional.id": topic, "log_level": 0})
        with pytest.raises(KafkaException) as refused:
            producer.init_transactions(TIMEOUT)
        assert refused.value.args[0].code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def allow(admin: c.AdminClient, *bindings: c.AclBinding) -> None:
    for future in admin.create_acls(list(bindings)).values():
        future.result(TIMEOUT)


def produced(properties: dict[str, Any], topic: str) -> int:
    """The code that a record ends with."""
    codes: list[int] = []
    producer = confluent.Producer({**properties, "log_level": 0, "enable.idempotence": "false"})
    producer.produce(topic, b"x", on_delivery=lambda error, _: codes.append(error.code() if error else 0))
    producer.flush(TIMEOUT)
    (code,) = codes
    return code


def consumed(properties: dict[str, Any], topic: str, group: str) -> set[int]:
    """The codes of the first errors of a member; none if a record comes first."""
    consumer = confluent.Consumer(
        {**properties, "group.id": group, "auto.offset.reset": "earliest", "log_level": 0, "enable.auto.commit": False}
    )
    consumer.subscribe([topic])
    deadline = time.monotonic() + TIMEOUT
    try:
        while time.monotonic() < deadline:
            messages = consumer.consume(10, 0.5)
            if messages:
                return {error.code() for message in messages if (error := message.error()) is not None}
    finally:
        consumer.close()
    raise AssertionError("neither a record nor an error")


class TestKafkaPython:
    @pytest.fixture
    def admin(self, guarded: Guarded) -> Iterator[kafka.KafkaAdminClient]:
        client = kafka.KafkaAdminClient(bootstrap_servers=guarded.listeners["PLAINTEXT"])
        yield client
        client.close()

    @pytest.fixture
    def alice(self, guarded: Guarded) -> Iterator[kafka.KafkaAdminClient]:
        client = kafka.KafkaAdminClient(**settings_of(guarded.alice))
        yield client
        client.close()

    @staticmethod
    def acl(name: str, **more: Any) -> k.ACL:
        entry = {"operation": k.ACLOperation.READ, "permission_type": k.ACLPermissionType.ALLOW, **more}
        return k.ACL(PRINCIPAL, "*", resource_pattern=k.ResourcePattern(k.ResourceType.TOPIC, name), **entry)

    @staticmethod
    def all_of(name: str) -> k.ACLFilter:
        pattern = k.ResourcePatternFilter(k.ResourceType.TOPIC, name, k.ACLResourcePatternType.MATCH)
        return k.ACLFilter(None, None, k.ACLOperation.ANY, k.ACLPermissionType.ANY, pattern)

    def test_they_are_created_described_and_deleted(self, admin: kafka.KafkaAdminClient, topic: str) -> None:
        read = self.acl(topic)
        denied = self.acl(topic, operation=k.ACLOperation.WRITE, permission_type=k.ACLPermissionType.DENY)
        assert admin.create_acls([read, denied]) == {"succeeded": [read, denied], "failed": []}
        found, error = admin.describe_acls(self.all_of(topic))
        assert error is kafka_errors.NoError
        assert sorted(found, key=repr) == sorted([read, denied], key=repr)
        ((_, deleted, error),) = admin.delete_acls([self.all_of(topic)])
        assert (len(deleted), error) == (2, kafka_errors.NoError)
        assert admin.describe_acls(self.all_of(topic)) == ([], kafka_errors.NoError)

    def test_they_need_a_right_over_the_cluster(self, alice: kafka.KafkaAdminClient, topic: str) -> None:
        denied = kafka_errors.ClusterAuthorizationFailedError
        assert alice.create_acls([self.acl(topic)]) == {"succeeded": [], "failed": [denied]}
        with pytest.raises(denied):
            alice.describe_acls(self.all_of(topic))
        ((_, deleted, error),) = alice.delete_acls([self.all_of(topic)])
        assert (deleted, error) == ([], denied)

    def test_who_lacks_a_right_is_told_which(
        self, guarded: Guarded, admin: kafka.KafkaAdminClient, alice: kafka.KafkaAdminClient, topic: str
    ) -> None:
        new = {topic: {"num_partitions": 1, "replication_factor": 1}}
        with pytest.raises(kafka_errors.TopicAuthorizationFailedError):
            alice.create_topics(new)
        admin.create_topics(new)
        admin.create_acls([self.acl(topic, operation=k.ACLOperation.DESCRIBE)])
        producer = kafka.KafkaProducer(**settings_of(guarded.alice), enable_idempotence=False)
        with pytest.raises(kafka_errors.TopicAuthorizationFailedError):
            producer.send(topic, b"x").get(TIMEOUT)
        admin.create_acls([self.acl(topic, operation=k.ACLOperation.WRITE)])
        assert producer.send(topic, b"x").get(TIMEOUT).offset == 0
        producer.close()


def settings_of(properties: dict[str, Any]) -> dict[str, Any]:
    """kafka-python's and aiokafka's names."""
    return {
        "bootstrap_servers": properties["bootstrap.servers"],
        "security_protocol": properties["security.protocol"],
        "sasl_mechanism": properties["sasl.mechanism"],
        "sasl_plain_username": properties["sasl.username"],
        "sasl_plain_password": properties["sasl.password"],
    }


@pytest.mark.usefixtures("clients_leftovers")
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # its `stop` leaves all open after the fatal error
def test_aiokafka_is_told_which_right_it_lacks(guarded: Guarded, topic: str) -> None:
    admin = c.AdminClient(guarded.super_user)
    admin.create_topics([c.NewTopic(topic, 1, 1)])[topic].result(TIMEOUT)

    async def produce(**more: Any) -> int:
        async with AIOKafkaProducer(**settings_of(guarded.alice), **more) as producer:
            return (await producer.send_and_wait(topic, b"x")).offset

    with pytest.raises(aiokafka_errors.TopicAuthorizationFailedError):
        asyncio.run(produce())
    allow(admin, binding(topic, c.AclOperation.DESCRIBE))
    with pytest.raises(aiokafka_errors.TopicAuthorizationFailedError):
        asyncio.run(produce())
    with pytest.raises(aiokafka_errors.ClusterAuthorizationFailedError):
        asyncio.run(produce(enable_idempotence=True))
    allow(admin, binding(topic, c.AclOperation.WRITE))
    assert asyncio.run(produce()) == 0
    assert asyncio.run(produce(enable_idempotence=True)) == 1, "Write on any topic is enough (KIP-679)"

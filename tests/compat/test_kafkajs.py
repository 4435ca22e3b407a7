"""kafkajs, a client for Node.js that shares no code with any other here, against the broker."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.security.acl_types import AccessControlEntry, Acl, AclOperation, AclResourceType, ResourcePattern
from tests.conftest import SESSION_SETTINGS
from tests.support.guarded import PRINCIPAL, Guarded, GuardedBroker
from tests.support.kafka import Kafka
from tests.support.kafkajs import JsClient, KafkaJs, KafkaJsError
from tests.support.requirements import Unavailable, give_up
from tests.support.sample_records import AWKWARD, Sample
from tests.support.scrape import Scrape
from tests.support.secured import MECHANISMS, WAYS, Certificates, SecuredBroker
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow

ACKS_ALL = -1
TOPIC_RESOURCE, BROKER_RESOURCE = 2, 4
ANY, LITERAL, ALLOW = 1, 3, 3
READ, WRITE, DESCRIBE = 3, 4, 8
KAFKA = {"clientId": "kafkajs", "retry": {"retries": 5, "initialRetryTime": 50}}


@pytest.fixture(scope="module")
def js(broker: Kafka) -> Iterator[KafkaJs]:
    try:
        started = KafkaJs({**KAFKA, "brokers": [broker.bootstrap]})
    except Unavailable as error:
        give_up(f"kafkajs: {error}")
    with started:
        yield started


@pytest.fixture
def admin(js: KafkaJs) -> Iterator[JsClient]:
    client = js.open("admin")
    yield client
    client.close()


@pytest.fixture
def made(admin: JsClient, topic: str) -> str:
    """A topic of two partitions."""
    assert admin.call("createTopics", waitForLeaders=True, topics=[{"topic": topic, "numPartitions": 2}])
    return topic


def messages(samples: list[Sample]) -> list[dict[str, Any]]:
    """As kafkajs takes them; several headers of one name are a list there."""
    found = []
    for sample in samples:
        headers: dict[str, Any] = {}
        for name, value in sample.headers:
            headers.setdefault(name, []).append(value)
        plain = {name: values[0] if len(values) == 1 else values for name, values in headers.items()}
        found.append({"key": sample.key, "value": sample.value, "headers": plain, "partition": 0})
    return found


def numbered(numbers: range, partition: int = 0) -> list[dict[str, Any]]:
    return [{"value": str(number), "partition": partition} for number in numbers]


def read(js: KafkaJs, topic: str, group: str, count: int, **options: Any) -> list[dict[str, Any]]:
    """The first `count` records that a new member of the group is given; it leaves in order."""
    consumer = js.open("consumer", {"groupId": group, "maxWaitTimeInMs": 200, **options})
    try:
        consumer.call("subscribe", topics=[topic], fromBeginning=True)
        consumer.run()
        return taken(consumer, count)
    finally:
        consumer.close()


def taken(consumer: JsClient, count: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []

    def enough() -> bool:
        state = consumer.taken()
        assert state["crashed"] is None
        found.extend(state["records"])
        return len(found) >= count

    eventually(enough)
    return found


def values(records: list[dict[str, Any]]) -> list[bytes]:
    return [record["value"] for record in records]


class TestProducer:
    @pytest.mark.parametrize("acks", [ACKS_ALL, 1, 0])
    @pytest.mark.parametrize("compression", ["None", "GZIP"])
    def test_records_come_back_as_they_were_sent(
        self, js: KafkaJs, made: str, group: str, acks: int, compression: str
    ) -> None:
        producer = js.open("producer")
        # Its headers are grouped by name, and one without a value it does not send.
        samples = [sample for sample in AWKWARD if None not in dict(sample.headers).values()]
        producer.call("send", topic=made, acks=acks, compression=compression, messages=messages(samples))
        producer.close()
        found = read(js, made, group, len(samples))
        assert [(record["key"], record["value"]) for record in found] == [(s.key, s.value) for s in samples]
        assert [record["headers"] for record in found] == [message["headers"] for message in messages(samples)]
        assert [int(record["offset"]) for record in found] == list(range(len(samples)))

    def test_answers_say_where_the_records_lie(self, js: KafkaJs, made: str) -> None:
        producer = js.open("producer")
        for base in (0, 3):
            (answer,) = producer.call("send", topic=made, messages=numbered(range(3)))
            assert answer["errorCode"] == 0
            assert answer["baseOffset"] == str(base)
        producer.close()

    def test_a_topic_is_made_by_the_first_record(self, js: KafkaJs, topic: str, group: str) -> None:
        producer = js.open("producer", {"allowAutoTopicCreation": True})
        producer.call("send", topic=topic, messages=numbered(range(3)))
        producer.close()
        assert values(read(js, topic, group, 3)) == [b"0", b"1", b"2"]

    def test_idempotent_sends_stay_in_order(self, js: KafkaJs, made: str, group: str) -> None:
        producer = js.open("producer", {"idempotent": True, "maxInFlightRequests": 5})
        for start in range(0, 1000, 50):
            producer.call("send", topic=made, acks=ACKS_ALL, messages=numbered(range(start, start + 50)))
        producer.close()
        assert values(read(js, made, group, 1000)) == [b"%d" % number for number in range(1000)]

    def test_a_large_record(self, js: KafkaJs, made: str, group: str) -> None:
        producer = js.open("producer")
        large = bytes(range(256)) * 3000
        producer.call("send", topic=made, messages=[{"value": large, "partition": 1}])
        with pytest.raises(KafkaJsError) as refused:
            producer.call("send", topic=made, messages=[{"value": large * 2}])
        assert refused.value.type == "MESSAGE_TOO_LARGE"
        producer.close()
        assert values(read(js, made, group, 1)) == [large]


class TestTransactions:
    def test_committed_ones_are_seen_and_aborted_ones_are_not(self, js: KafkaJs, made: str, group: str) -> None:
        producer = js.open("producer", {"transactionalId": made, "maxInFlightRequests": 1, "idempotent": True})
        for number in range(6):
            transaction = producer.transaction()
            for partition in (0, 1):
                transaction.call("send", topic=made, messages=numbered(range(number, number + 1), partition))
            transaction.call("abort" if number % 3 == 1 else "commit")
        producer.close()
        found = read(js, made, group, 8)
        for partition in (0, 1):
            assert values([one for one in found if one["partition"] == partition]) == [b"0", b"2", b"3", b"5"]
        everything = read(js, made, f"{group}-all", 12, readUncommitted=True)
        assert len(everything) == 12

    def test_offsets_commit_with_the_transaction(self, js: KafkaJs, admin: JsClient, made: str, group: str) -> None:
        producer = js.open("producer", {"transactionalId": made, "maxInFlightRequests": 1, "idempotent": True})
        ends: list[tuple[str, dict[int, str]]] = [("abort", {}), ("commit", {0: "9"})]
        for end, expected in ends:
            transaction = producer.transaction()
            transaction.call("send", topic=made, messages=numbered(range(2)))
            transaction.call(
                "sendOffsets",
                consumerGroupId=group,
                topics=[{"topic": made, "partitions": [{"partition": 0, "offset": "9"}]}],
            )
            transaction.call(end)
            assert offsets_of(admin, group, made) == expected
        producer.close()

    def test_a_new_producer_fences_the_old_one(self, js: KafkaJs, made: str) -> None:
        settings = {"transactionalId": made, "maxInFlightRequests": 1, "idempotent": True}
        old = js.open("producer", settings, retry={"retries": 1})
        first = old.transaction()
        first.call("send", topic=made, messages=numbered(range(1)))
        new = js.open("producer", settings)
        second = new.transaction()
        second.call("send", topic=made, messages=numbered(range(1)))
        with pytest.raises(KafkaJsError) as fenced:
            first.call("commit")
        assert fenced.value.type in ("INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED")
        second.call("commit")
        new.close()
        old.close()


class TestGroups:
    def test_a_group_goes_on_where_it_stopped(self, js: KafkaJs, made: str, group: str) -> None:
        producer = js.open("producer")
        producer.call("send", topic=made, messages=numbered(range(10)))
        assert values(read(js, made, group, 10)) == [b"%d" % number for number in range(10)]
        producer.call("send", topic=made, messages=numbered(range(10, 15)))
        producer.close()
        assert values(read(js, made, group, 5)) == [b"%d" % number for number in range(10, 15)]

    def test_members_share_and_take_over(self, js: KafkaJs, admin: JsClient, made: str, group: str) -> None:
        settings = {"groupId": group, "maxWaitTimeInMs": 100, "heartbeatInterval": 200, "sessionTimeout": 6000}
        members = [js.open("consumer", settings) for _ in range(2)]
        held: list[list[int]] = [[], []]

        def look() -> list[list[int]]:
            for number, member in enumerate(members):
                for joined in member.taken()["joined"]:
                    held[number] = joined["memberAssignment"].get(made, [])
            return held

        for member in members:
            member.call("subscribe", topics=[made])
            member.run()
        eventually(lambda: sorted(look()) == [[0], [1]])
        (described,) = admin.call("describeGroups", [group])["groups"]
        assert (described["state"], described["protocol"]) == ("Stable", "RoundRobinAssigner")
        assert len(described["members"]) == 2
        members.pop().close()
        eventually(lambda: look()[0] == [0, 1])
        members.pop().close()

    def test_seek_and_pause(self, js: KafkaJs, made: str, group: str) -> None:
        producer = js.open("producer")
        producer.call("send", topic=made, messages=numbered(range(20)))
        producer.close()
        consumer = js.open("consumer", {"groupId": group, "maxWaitTimeInMs": 100})
        consumer.call("subscribe", topics=[made], fromBeginning=True)
        consumer.run()
        consumer.call("seek", topic=made, partition=0, offset="17")
        assert values(taken(consumer, 3))[-3:] == [b"17", b"18", b"19"]
        consumer.close()


class TestAdmin:
    def test_topics_come_grow_and_go(self, admin: JsClient, made: str) -> None:
        assert made in admin.call("listTopics")
        assert not admin.call("createTopics", topics=[{"topic": made}]), "it is there already"
        admin.call("createPartitions", topicPartitions=[{"topic": made, "count": 5}])
        (listed,) = admin.call("fetchTopicMetadata", topics=[made])["topics"]
        assert sorted(partition["partitionId"] for partition in listed["partitions"]) == list(range(5))
        assert {partition["leader"] for partition in listed["partitions"]} == {0}
        admin.call("deleteTopics", topics=[made])
        assert made not in admin.call("listTopics")

    def test_wrong_topics_are_refused(self, admin: JsClient, topic: str) -> None:
        with pytest.raises(KafkaJsError) as refused:
            admin.call("createTopics", topics=[{"topic": topic, "replicationFactor": 3}])
        assert refused.value.causes == ["INVALID_REPLICATION_FACTOR"]
        with pytest.raises(KafkaJsError, match="does not host this topic-partition"):
            admin.call("deleteTopics", topics=[topic])

    def test_the_cluster(self, admin: JsClient, broker: Kafka) -> None:
        cluster = admin.call("describeCluster")
        host, _, port = broker.bootstrap.partition(":")
        assert cluster["brokers"] == [{"nodeId": 0, "host": host, "port": int(port)}]
        assert cluster["controller"] == 0
        assert cluster["clusterId"]

    def test_offsets_by_end_time_and_group(self, js: KafkaJs, admin: JsClient, made: str, group: str) -> None:
        producer = js.open("producer")
        now = int(time.time() * 1000)
        stamped = [{"value": "x", "partition": 0, "timestamp": str(now + number)} for number in range(5)]
        producer.call("send", topic=made, messages=stamped)
        producer.close()
        ends = {one["partition"]: (one["low"], one["high"]) for one in admin.call("fetchTopicOffsets", made)}
        assert ends == {0: ("0", "5"), 1: ("0", "0")}
        by_time = admin.call("fetchTopicOffsetsByTimestamp", made, now + 3)
        assert {one["partition"]: one["offset"] for one in by_time} == {0: "3", 1: "0"}
        admin.call("setOffsets", groupId=group, topic=made, partitions=[{"partition": 0, "offset": "4"}])
        assert offsets_of(admin, group, made) == {0: "4"}
        admin.call("resetOffsets", groupId=group, topic=made, earliest=True)
        assert offsets_of(admin, group, made) == {0: "-2", 1: "-2"}, "it commits what stands for the earliest"
        assert offsets_of(admin, group, made, resolveOffsets=True) == {0: "0", 1: "0"}

    def test_settings_of_topics_and_brokers(self, admin: JsClient, made: str) -> None:
        resource = {"type": TOPIC_RESOURCE, "name": made}
        entries = [{"name": "retention.ms", "value": "12345"}]
        admin.call("alterConfigs", validateOnly=False, resources=[{**resource, "configEntries": entries}])
        asked = [resource, {"type": BROKER_RESOURCE, "name": "0", "configNames": ["log.retention.hours"]}]
        found = admin.call("describeConfigs", includeSynonyms=True, resources=asked)["resources"]
        of_topic, of_broker = ({entry["configName"]: entry for entry in one["configEntries"]} for one in found)
        assert of_topic["retention.ms"]["configValue"] == "12345"
        assert not of_topic["retention.ms"]["isDefault"]
        assert of_topic["cleanup.policy"]["configValue"] == "delete"
        assert of_broker["log.retention.hours"]["configValue"] == "168"
        wrong = [{"name": "retention.ms", "value": "soon"}]
        with pytest.raises(KafkaJsError) as refused:
            admin.call("alterConfigs", validateOnly=False, resources=[{**resource, "configEntries": wrong}])
        assert refused.value.type == "INVALID_CONFIG"

    def test_groups_are_listed_and_deleted(self, js: KafkaJs, admin: JsClient, made: str, group: str) -> None:
        producer = js.open("producer")
        producer.call("send", topic=made, messages=numbered(range(1)))
        producer.close()
        read(js, made, group, 1)
        assert {"groupId": group, "protocolType": "consumer"} in admin.call("listGroups")["groups"]
        assert [one["errorCode"] for one in admin.call("deleteGroups", [group])] == [0]
        assert group not in [one["groupId"] for one in admin.call("listGroups")["groups"]]
        with pytest.raises(KafkaJsError) as gone:
            admin.call("deleteGroups", [group])
        assert gone.value.causes == ["GROUP_ID_NOT_FOUND"]

    def test_records_are_deleted(self, js: KafkaJs, admin: JsClient, made: str, group: str) -> None:
        producer = js.open("producer")
        producer.call("send", topic=made, messages=numbered(range(10)))
        producer.close()
        before, after = {0: "0", 1: "0"}, {0: "7", 1: "0"}
        # Asked first because it deletes only where it happens to know the leaders already.
        assert {one["partition"]: one["low"] for one in admin.call("fetchTopicOffsets", made)} == before
        admin.call("deleteTopicRecords", topic=made, partitions=[{"partition": 0, "offset": "7"}])
        assert {one["partition"]: one["low"] for one in admin.call("fetchTopicOffsets", made)} == after
        assert values(read(js, made, group, 3)) == [b"7", b"8", b"9"]

    def test_reassignments_there_are_none(self, admin: JsClient, made: str) -> None:
        assert admin.call("listPartitionReassignments", topics=[{"topic": made, "partitions": [0]}])["topics"] == []

    def test_acls_are_switched_off_without_an_authorizer(self, admin: JsClient) -> None:
        anything = {"resourceType": 2, "resourcePatternType": 1, "operation": 1, "permissionType": 1}
        with pytest.raises(KafkaJsError) as refused:
            admin.call("describeAcls", **anything)
        assert refused.value.type == "SECURITY_DISABLED"


class TestAcls:
    """Numbers are kafkajs's, which are the protocol's."""

    @staticmethod
    def open(js: KafkaJs, properties: Mapping[str, str], kind: str = "admin") -> JsClient:
        return js.open(kind, **connection_settings(properties), retry={"retries": 1})

    @staticmethod
    def acl(topic: str, operation: int) -> dict[str, Any]:
        resource = {"resourceType": TOPIC_RESOURCE, "resourceName": topic, "resourcePatternType": LITERAL}
        return {**resource, "principal": PRINCIPAL, "host": "*", "operation": operation, "permissionType": ALLOW}

    @staticmethod
    def all_of(topic: str) -> dict[str, Any]:
        resource = {"resourceType": TOPIC_RESOURCE, "resourceName": topic, "resourcePatternType": ANY}
        return {**resource, "operation": ANY, "permissionType": ANY}

    def test_they_are_created_described_and_deleted(self, js: KafkaJs, guarded: Guarded, topic: str) -> None:
        admin = self.open(js, guarded.super_user)
        assert admin.call("createAcls", acl=[self.acl(topic, READ), self.acl(topic, WRITE)])
        (found,) = admin.call("describeAcls", **self.all_of(topic))["resources"]
        assert (found["resourceName"], found["resourcePatternType"]) == (topic, LITERAL)
        assert sorted((one["principal"], one["operation"]) for one in found["acls"]) == [
            (PRINCIPAL, READ),
            (PRINCIPAL, WRITE),
        ]
        (deleted,) = admin.call("deleteAcls", filters=[self.all_of(topic)])["filterResponses"]
        assert (deleted["errorCode"], len(deleted["matchingAcls"])) == (0, 2)
        assert admin.call("describeAcls", **self.all_of(topic))["resources"] == []
        admin.close()

    def test_they_need_a_right_over_the_cluster(self, js: KafkaJs, guarded: Guarded, topic: str) -> None:
        alice = self.open(js, guarded.alice)
        for method, options in (
            ("createAcls", {"acl": [self.acl(topic, READ)]}),
            ("describeAcls", self.all_of(topic)),
            ("deleteAcls", {"filters": [self.all_of(topic)]}),
        ):
            with pytest.raises(KafkaJsError) as refused:
                alice.call(method, **options)
            assert refused.value.type == "CLUSTER_AUTHORIZATION_FAILED", method
        alice.close()

    def test_who_lacks_a_right_is_told_which(self, js: KafkaJs, guarded: Guarded, topic: str, group: str) -> None:
        admin, alice = self.open(js, guarded.super_user), self.open(js, guarded.alice)
        with pytest.raises(KafkaJsError) as refused:
            alice.call("createTopics", topics=[{"topic": topic}])
        assert refused.value.causes == ["TOPIC_AUTHORIZATION_FAILED"]
        admin.call("createTopics", topics=[{"topic": topic}], waitForLeaders=True)
        admin.call("createAcls", acl=[self.acl(topic, DESCRIBE)])
        producer = self.open(js, guarded.alice, "producer")
        with pytest.raises(KafkaJsError) as refused:
            producer.call("send", topic=topic, messages=numbered(range(1)))
        assert refused.value.type == "TOPIC_AUTHORIZATION_FAILED"
        with pytest.raises(KafkaJsError, match="Failed to find group coordinator"):  # all that it says of any error
            alice.call("fetchOffsets", groupId=group, topics=[topic])
        admin.call("createAcls", acl=[self.acl(topic, WRITE)])
        (answer,) = producer.call("send", topic=topic, messages=numbered(range(1)))
        assert answer["baseOffset"] == "0"
        for client in (producer, alice, admin):
            client.close()


def offsets_of(admin: JsClient, group: str, topic: str, **options: Any) -> dict[int, str]:
    """Those that were committed."""
    (found,) = admin.call("fetchOffsets", groupId=group, topics=[topic], **options)
    return {one["partition"]: one["offset"] for one in found["partitions"] if one["offset"] != "-1"}


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, zookeeper: str) -> Iterator[SecuredBroker]:
    directory = tmp_path_factory.mktemp("kafkajs-secured")
    certificates = Certificates.make(directory)
    with SecuredBroker(directory / "data", certificates, f"{zookeeper}/kafkajs", SESSION_SETTINGS) as process:
        with Cluster(process.listeners["PLAINTEXT"]) as cluster:
            Admin(cluster).create_topic("shared", partitions=1)
        yield process


class TestListeners:
    @pytest.mark.parametrize(("listener", "mechanism"), WAYS, ids=lambda part: part or "none")
    def test_records_pass(
        self, js: KafkaJs, secured: SecuredBroker, group: str, listener: str, mechanism: str | None
    ) -> None:
        connection = connection_settings(secured.properties(listener, mechanism))
        producer = js.open("producer", **connection)
        (answer,) = producer.call("send", topic="shared", messages=[{"key": group, "value": bytes(range(256)) * 3000}])
        producer.close()
        consumer = js.open("consumer", {"groupId": group, "maxWaitTimeInMs": 200}, **connection)
        consumer.call("subscribe", topics=["shared"], fromBeginning=True)
        consumer.run()
        found = taken(consumer, int(answer["baseOffset"]) + 1)
        consumer.close()
        assert found[-1]["key"] == group.encode()
        assert found[-1]["value"] == bytes(range(256)) * 3000

    def test_a_connection_outlives_its_session_by_logging_in_again(self, js: KafkaJs, tmp_path: Path) -> None:
        """KIP-368; other clients that are tested here open a new connection."""
        # It begins 2.5 s before the session ends, that a busy machine is not late.
        limits = {"connections.max.reauth.ms": "3000", "metrics.listener": "HTTP://127.0.0.1:0"}
        with GuardedBroker(tmp_path, limits) as broker:

            def count(what: str) -> float:
                name = f"kafka_server_socketservermetrics_connection_{what}_total"
                return Scrape(broker.metrics_url).total(name, listener="SASL_PLAINTEXT")

            with Cluster(broker.super_user) as cluster:
                Admin(cluster).create_topic("t", partitions=1)
                everything = AccessControlEntry(PRINCIPAL, AclOperation.ALL)
                Admin(cluster).create_acls([Acl(ResourcePattern(AclResourceType.TOPIC, "t"), everything)])
            producer = js.open("producer", **connection_settings(broker.alice), reauthenticationThreshold=2500)
            producer.call("send", topic="t", messages=[{"value": "first"}])
            before, started = (count("creation"), count("close")), time.monotonic()
            while time.monotonic() - started < 4:
                producer.call("send", topic="t", messages=[{"value": "more"}])
            assert (count("creation"), count("close")) == before
            producer.close()

    @pytest.mark.parametrize("mechanism", MECHANISMS)
    def test_a_wrong_password_is_refused(self, js: KafkaJs, secured: SecuredBroker, mechanism: str) -> None:
        connection = connection_settings(secured.properties("SASL_SSL", mechanism, password="wrong-s3cret"))
        with pytest.raises(KafkaJsError, match="(?i)authentication failed"):
            js.open("producer", **connection, retry={"retries": 0})


def connection_settings(properties: Mapping[str, str]) -> dict[str, Any]:
    """kafkajs's way to say it."""
    found: dict[str, Any] = {"brokers": [properties["bootstrap.servers"]]}
    if "ssl.ca.location" in properties:
        found["ssl"] = {"ca": Path(properties["ssl.ca.location"]).read_text()}
        if "ssl.key.location" in properties:
            found["ssl"]["cert"] = Path(properties["ssl.key.location"]).read_text()
    if "sasl.mechanism" in properties:
        found["sasl"] = {
            "mechanism": properties["sasl.mechanism"].lower(),
            "username": properties["sasl.username"],
            "password": properties["sasl.password"],
        }
    return found

"""Every call of the admin clients of confluent-kafka and kafka-python about topics, partitions, settings and brokers.

Their calls about groups, offsets, transactions and users are in the tests of those.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ElectionType, IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka import admin as confluent
from kafka import KafkaAdminClient
from kafka import TopicPartition as Partition
from kafka import admin as kafka_python
from kafka import errors as kafka_errors
from kafka.structs import TopicPartitionReplica

from broker.api.table import API_TABLE
from tests.support.broker_process import BrokerProcess
from tests.support.kafka import Kafka, await_topics
from tests.support.waiting import eventually

TIMEOUT = 60.0


def code_of(future: Any) -> int:
    """The Kafka error code that a call of confluent-kafka's ended with; 0 for none."""
    try:
        future.result(TIMEOUT)
    except KafkaException as error:
        return int(error.args[0].code())
    return 0


class TestConfluentKafka:
    @pytest.fixture
    def admin(self, broker: Kafka) -> confluent.AdminClient:
        return confluent.AdminClient({"bootstrap.servers": broker.bootstrap})

    @pytest.fixture
    def made(self, broker: Kafka, admin: confluent.AdminClient, topic: str) -> str:
        """A topic of two partitions."""
        admin.create_topics([confluent.NewTopic(topic, 2, 1)])[topic].result(TIMEOUT)
        await_topics(broker.bootstrap, topic, partitions=2)
        return topic

    def test_create_with_an_assignment(
        self, broker: Kafka, admin: confluent.AdminClient, topic: str, broker_id: int
    ) -> None:
        new = confluent.NewTopic(topic, num_partitions=2, replica_assignment=[[broker_id], [broker_id]])
        admin.create_topics([new], operation_timeout=TIMEOUT)[topic].result(TIMEOUT)
        await_topics(broker.bootstrap, topic, partitions=2)
        assert len(admin.list_topics(topic, timeout=TIMEOUT).topics[topic].partitions) == 2
        bad = confluent.NewTopic(f"{topic}-bad", num_partitions=1, replica_assignment=[[999]])
        assert code_of(admin.create_topics([bad])[bad.topic]) == KafkaError.INVALID_REPLICA_ASSIGNMENT

    def test_create_some_of_many(self, admin: confluent.AdminClient, made: str) -> None:
        names = [made, f"{made}-x", f"{made}/y"]
        futures = admin.create_topics([confluent.NewTopic(name, 1, 1) for name in names])
        assert [code_of(futures[name]) for name in names] == [
            KafkaError.TOPIC_ALREADY_EXISTS,
            0,
            KafkaError.TOPIC_EXCEPTION,
        ]

    def test_create_partitions(self, admin: confluent.AdminClient, made: str, broker_id: int) -> None:
        grown = confluent.NewPartitions(made, 4, replica_assignment=[[broker_id], [broker_id]])
        assert code_of(admin.create_partitions([grown], validate_only=True)[made]) == 0
        assert code_of(admin.create_partitions([grown])[made]) == 0
        eventually(lambda: len(admin.list_topics(made, timeout=TIMEOUT).topics[made].partitions) == 4)
        assert code_of(admin.create_partitions([grown])[made]) == KafkaError.INVALID_PARTITIONS

    def test_describe_topics(self, admin: confluent.AdminClient, made: str) -> None:
        asked = TopicCollection([made, "no-such-topic"])
        futures = admin.describe_topics(asked, include_authorized_operations=True)
        described = futures[made].result(TIMEOUT)
        assert [(p.id, [r.id for r in p.isr]) for p in described.partitions] == [
            (number, [described.partitions[number].leader.id]) for number in (0, 1)
        ]
        assert confluent.AclOperation.WRITE in described.authorized_operations
        assert code_of(futures["no-such-topic"]) == KafkaError.UNKNOWN_TOPIC_OR_PART

    def test_describe_the_cluster(self, admin: confluent.AdminClient, broker: Kafka) -> None:
        described = admin.describe_cluster(include_authorized_operations=True).result(TIMEOUT)
        assert described.cluster_id == admin.list_topics(timeout=TIMEOUT).cluster_id
        assert described.controller.id in [node.id for node in described.nodes]
        assert set(broker.bootstrap.split(",")) <= {f"{node.host}:{node.port}" for node in described.nodes}
        assert confluent.AclOperation.ALTER_CONFIGS in described.authorized_operations

    def test_list_offsets(self, admin: confluent.AdminClient, made: str) -> None:
        asked = {
            TopicPartition(made, 0): confluent.OffsetSpec.earliest(),
            TopicPartition(made, 1): confluent.OffsetSpec.latest(),
        }
        futures = admin.list_offsets(asked, isolation_level=IsolationLevel.READ_COMMITTED)
        assert [future.result(TIMEOUT).offset for future in futures.values()] == [0, 0]

    def test_elect_leaders(self, admin: confluent.AdminClient, made: str) -> None:
        wanted = [TopicPartition(made, 0), TopicPartition(made, 7)]
        for kind in (ElectionType.PREFERRED, ElectionType.UNCLEAN):
            errors = admin.elect_leaders(kind, wanted).result(TIMEOUT)
            assert [error.code() for error in errors.values()] == [
                KafkaError.ELECTION_NOT_NEEDED,
                KafkaError.UNKNOWN_TOPIC_OR_PART,
            ]

    def test_settings_of_a_topic(self, admin: confluent.AdminClient, made: str) -> None:
        resource = confluent.ConfigResource(confluent.ResourceType.TOPIC, made)
        entry = confluent.ConfigEntry(
            "cleanup.policy", "compact", incremental_operation=confluent.AlterConfigOpType.APPEND
        )
        change = confluent.ConfigResource(confluent.ResourceType.TOPIC, made, incremental_configs=[entry])
        assert code_of(admin.incremental_alter_configs([change], validate_only=True)[change]) == 0
        assert code_of(admin.incremental_alter_configs([change])[change]) == 0

        def settings() -> dict[str, confluent.ConfigEntry]:
            now: dict[str, confluent.ConfigEntry] = admin.describe_configs([resource])[resource].result(TIMEOUT)
            return now

        eventually(lambda: settings()["cleanup.policy"].value == "delete,compact")
        found = settings()["cleanup.policy"]
        assert confluent.ConfigSource(found.source) is confluent.ConfigSource.DYNAMIC_TOPIC_CONFIG
        assert list(found.synonyms) == ["cleanup.policy", "log.cleanup.policy"]
        replacing = confluent.ConfigResource(confluent.ResourceType.TOPIC, made, set_config={"segment.ms": "9000"})
        with pytest.deprecated_call():
            assert code_of(admin.alter_configs([replacing])[replacing]) == 0
        eventually(lambda: settings()["segment.ms"].value == "9000")
        assert settings()["cleanup.policy"].value == "delete"

    def test_settings_of_the_broker(self, admin: confluent.AdminClient, broker_id: int) -> None:
        kinds = confluent.ResourceType.BROKER

        def alter(name: str, value: str | None) -> int:
            operation = confluent.AlterConfigOpType.DELETE if value is None else confluent.AlterConfigOpType.SET
            entry = confluent.ConfigEntry(name, value, incremental_operation=operation)
            change = confluent.ConfigResource(kinds, str(broker_id), incremental_configs=[entry])
            return code_of(admin.incremental_alter_configs([change])[change])

        broker = confluent.ConfigResource(kinds, str(broker_id))
        assert alter("log.retention.bytes", "123456789") == 0

        def setting(name: str) -> confluent.ConfigEntry:
            return admin.describe_configs([broker])[broker].result(TIMEOUT)[name]

        eventually(lambda: setting("log.retention.bytes").value == "123456789")
        retention = setting("log.retention.bytes")
        assert not retention.is_read_only
        assert confluent.ConfigSource(retention.source) is confluent.ConfigSource.DYNAMIC_BROKER_CONFIG
        assert setting("broker.id").is_read_only
        assert alter("log.retention.bytes", None) == 0
        assert alter("broker.id", "5") == KafkaError.INVALID_REQUEST

    def test_access_is_not_controlled(self, admin: confluent.AdminClient) -> None:
        kind = confluent.ResourceType.TOPIC, "t", confluent.ResourcePatternType.LITERAL, "User:a", "*"
        rights = confluent.AclOperation.READ, confluent.AclPermissionType.ALLOW
        binding = confluent.AclBinding(*kind, *rights)
        everything = confluent.AclBindingFilter(*kind, *rights)
        off = KafkaError.SECURITY_DISABLED
        assert admin.describe_acls(everything).result(TIMEOUT) == []  # this client drops the error
        assert code_of(admin.create_acls([binding])[binding]) == off
        assert code_of(admin.delete_acls([everything])[everything]) == off

    def test_delete_some_of_many(self, admin: confluent.AdminClient, made: str) -> None:
        futures = admin.delete_topics([made, "no-such-topic"])
        assert code_of(futures[made]) == 0
        assert code_of(futures["no-such-topic"]) == KafkaError.UNKNOWN_TOPIC_OR_PART


class TestKafkaPython:
    @pytest.fixture
    def admin(self, broker: Kafka) -> Iterator[KafkaAdminClient]:
        client = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
        yield client
        client.close()

    @pytest.fixture
    def made(self, broker: Kafka, admin: KafkaAdminClient, topic: str) -> str:
        """A topic of two partitions."""
        admin.create_topics({topic: {"num_partitions": 2, "replication_factor": 1}}, wait_for_metadata=True)
        await_topics(broker.bootstrap, topic, partitions=2)
        return topic

    def test_topics_are_listed_and_described(self, admin: KafkaAdminClient, made: str) -> None:
        assert made in admin.list_topics()
        (described,) = admin.describe_topics([made])
        assert len(described["partitions"]) == 2

    def test_partitions_are_described_in_pages(self, admin: KafkaAdminClient, made: str) -> None:
        (topic,) = admin.describe_topic_partitions([made], response_partition_limit=2)["topics"]
        assert [p["partition_index"] for p in topic["partitions"]] == [0, 1]
        assert all(p["leader_id"] in p["isr_nodes"] for p in topic["partitions"])

    def test_partitions_are_added(self, admin: KafkaAdminClient, made: str, broker_id: int) -> None:
        admin.create_partitions({made: {"count": 3, "assignments": [[broker_id]]}})
        eventually(lambda: len(admin.describe_topics([made])[0]["partitions"]) == 3)
        with pytest.raises(kafka_errors.InvalidPartitionsError):
            admin.create_partitions({made: 2})

    def test_the_cluster_is_described(self, admin: KafkaAdminClient, broker: Kafka) -> None:
        described = admin.describe_cluster()
        assert described["controller_id"] in [one["broker_id"] for one in described["brokers"]]
        assert set(broker.bootstrap.split(",")) <= {f"{one['host']}:{one['port']}" for one in described["brokers"]}

    @pytest.mark.usefixtures("own_broker")
    def test_apis_and_features_are_what_we_say(self, admin: KafkaAdminClient) -> None:
        assert len(admin.api_versions()) == len(API_TABLE)
        features = admin.describe_features()
        assert {name: one["supported"] for name, one in features.items()} == {"transaction.version": (0, 2)}

    def test_log_directories(self, admin: KafkaAdminClient, own_broker: BrokerProcess, made: str) -> None:
        (described,) = admin.describe_log_dirs({made: [0, 1]})
        (directory,) = described["log_dirs"]
        assert Path(directory["log_dir"]) == own_broker.data_dir / "broker"
        assert directory["usable_bytes"] > 0
        (topic,) = directory["topics"]
        assert (topic["name"], len(topic["partitions"])) == (made, 2)
        moved = admin.alter_replica_log_dirs(
            {
                TopicPartitionReplica(made, 0, 0): directory["log_dir"],
                TopicPartitionReplica(made, 1, 0): "/no/such/directory",
            }
        )
        assert list(moved.values()) == [kafka_errors.NoError, kafka_errors.LogDirNotFoundError]

    def test_elections(self, admin: KafkaAdminClient, made: str) -> None:
        for partitions in ({made: [0]}, [made], None):
            admin.elect_leaders(0, partitions)
        with pytest.raises(kafka_errors.UnknownTopicOrPartitionError):
            admin.elect_leaders(0, {made: [9]})

    def test_reassignments(self, admin: KafkaAdminClient, made: str) -> None:
        (topic,) = admin.describe_topics([made])
        (leader,) = [one["leader_id"] for one in topic["partitions"] if one["partition_index"] == 0]
        wanted = {Partition(made, 0): [leader], Partition(made, 1): [999]}
        answer = admin.alter_partition_reassignments(wanted)
        assert list(answer.values()) == [None, kafka_errors.InvalidReplicationAssignmentError]
        cancelled = admin.alter_partition_reassignments({Partition(made, 0): None})
        assert list(cancelled.values()) == [kafka_errors.NoReassignmentInProgressError]
        assert admin.list_partition_reassignments() == {}
        assert admin.list_partition_reassignments([Partition(made, 0)]) == {}

    def test_settings_of_a_topic(self, admin: KafkaAdminClient, made: str) -> None:
        topic = kafka_python.ConfigResourceType.TOPIC

        def described() -> dict[str, Any]:
            resource = kafka_python.ConfigResource(topic, made)
            found: dict[str, Any] = admin.describe_configs([resource], include_synonyms=True)["topic"][made]
            return found

        admin.alter_configs([kafka_python.ConfigResource(topic, made, {"segment.ms": "9000"})])
        altered: dict[str, Any] = {}

        def has_changed() -> bool:
            altered.update(described().get("segment.ms", {}))
            return altered.get("value") == "9000"

        eventually(has_changed)
        assert altered["config_type"] == "LONG"
        admin.reset_configs([kafka_python.ConfigResource(topic, made, {"segment.ms": None})])
        eventually(lambda: "segment.ms" not in described())

    def test_settings_of_the_broker(self, admin: KafkaAdminClient, broker_id: int) -> None:
        kind, name = kafka_python.ConfigResourceType.BROKER, str(broker_id)

        def described() -> dict[str, Any]:
            found: dict[str, Any] = admin.describe_configs([kafka_python.ConfigResource(kind, name)])["broker"][name]
            return found

        change = kafka_python.ConfigResource(kind, name, {"log.flush.interval.ms": "77000"})
        admin.alter_configs([change], incremental=True)
        eventually(lambda: "log.flush.interval.ms" in described())
        assert described()["log.flush.interval.ms"]["config_source"] == "DYNAMIC_BROKER_CONFIG"
        admin.reset_configs([kafka_python.ConfigResource(kind, name, {"log.flush.interval.ms": None})])
        eventually(lambda: "log.flush.interval.ms" not in described())

    def test_log_levels(self, admin: KafkaAdminClient, broker_id: int) -> None:
        kind = kafka_python.ConfigResourceType.BROKER_LOGGER
        resource = kafka_python.ConfigResource(kind, str(broker_id))
        found = admin.describe_configs([resource], config_filter="all")["broker_logger"][str(broker_id)]
        assert found["root"]["config_source"] == "DYNAMIC_BROKER_LOGGER_CONFIG"

    @pytest.mark.usefixtures("own_broker")  # KIP-1142: Kafka has it since 4.1
    def test_resources_are_listed(self, admin: KafkaAdminClient, made: str) -> None:
        found = admin.list_config_resources()
        assert made in found["topic"]
        assert found["broker"] == ["0"]

    def test_access_is_not_controlled(self, admin: KafkaAdminClient) -> None:
        everything = kafka_python.ACLFilter(
            principal=None,
            host="*",
            operation=kafka_python.ACLOperation.ANY,
            permission_type=kafka_python.ACLPermissionType.ANY,
            resource_pattern=kafka_python.ResourcePattern(kafka_python.ResourceType.TOPIC, "t"),
        )
        with pytest.raises(kafka_errors.SecurityDisabledError):
            admin.describe_acls(everything)

    def test_deletion(self, admin: KafkaAdminClient, made: str) -> None:
        admin.delete_topics([made])
        eventually(lambda: made not in admin.list_topics())
        with pytest.raises(kafka_errors.UnknownTopicOrPartitionError):
            admin.delete_topics([made])

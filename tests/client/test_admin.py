"""The admin client: topics, settings, groups, transactions and data directories."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from broker.client.admin import Admin, NewTopic, ResourceType
from broker.client.admin_types import ALL_BROKERS, HIGH_WATERMARK
from broker.client.batch_producer import produce_batches
from broker.client.broker_connection import BrokerConnection
from broker.client.cluster import Cluster
from broker.client.cluster_metadata import UnknownTopic
from broker.client.consumer import Consumer
from broker.client.partition_offsets import EARLIEST, LATEST, list_offsets
from broker.client.producer import Producer
from broker.client.transaction_requests import add_partitions, init_transactional_id
from broker.errors import BrokerError, ConfigError, ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.protocol.described_config import ConfigEntry, ConfigSource
from broker.protocol.topic_partition import TopicPartition
from broker.security.acl_types import (
    AccessControlEntry,
    Acl,
    AclFilter,
    AclOperation,
    AclPermission,
    AclResourceType,
    PatternType,
    ResourcePattern,
)
from broker.security.scram import ScramMechanism
from tests.client.conftest import TopicMaker
from tests.client.test_transaction_requests import batch
from tests.conftest import BrokerFactory
from tests.support.guarded import PRINCIPAL, Guarded
from tests.support.kafka import Kafka, await_topics
from tests.support.waiting import eventually


@pytest.fixture
def admin(cluster: Cluster) -> Admin:
    return Admin(cluster)


def code_of(raised: pytest.ExceptionInfo[BrokerError]) -> ErrorCode:
    return raised.value.code


def refusal_of(admin: Admin, topic: str) -> str:
    """Why the topic is not described; empty when it is, by a broker that has yet to hear that it is gone."""
    try:
        admin.describe_topics([topic])
    except UnknownTopic as error:
        return str(error)
    return ""


def test_a_topic_is_created_listed_described_and_deleted(broker: Kafka, admin: Admin, topic: str) -> None:
    admin.create_topic(topic, 3)
    await_topics(broker.bootstrap, topic, partitions=3)
    assert topic in admin.list_topics()
    assert list(admin.describe_topics([topic])[topic].partitions) == [0, 1, 2]
    admin.delete_topics([topic])
    eventually(lambda: topic not in admin.list_topics())
    eventually(lambda: topic in refusal_of(admin, topic))


def test_settings_of_many_topics_come_with_one_request(broker: Kafka, admin: Admin, topic: str) -> None:
    names = [f"{topic}-{number}" for number in range(2)]
    for name in names:
        admin.create_topic(name, configs={"retention.ms": "5000"})
        await_topics(broker.bootstrap, name)
    found = admin.describe_topic_configs([*names, "no-such-topic"], ["retention.ms", "cleanup.policy"])
    assert list(found) == names, "one that does not exist hides no other"
    for of in found.values():
        assert {key: one.value for key, one in of.items()} == {"retention.ms": "5000", "cleanup.policy": "delete"}


def test_the_broker_chooses_what_is_not_given(broker: Kafka, admin: Admin, topic: str) -> None:
    admin.create_topic(topic)
    await_topics(broker.bootstrap, topic)
    assert len(admin.describe_topics([topic])[topic].partitions) >= 1, "num.partitions"


def test_replicas_can_be_placed_by_hand(broker: Kafka, admin: Admin, cluster: Cluster, topic: str) -> None:
    broker_id = cluster.brokers()[0].id
    admin.create_topics([NewTopic(topic, assignment=[[broker_id], [broker_id]])])
    await_topics(broker.bootstrap, topic, partitions=2)
    assert [p.replicas for p in admin.describe_topics([topic])[topic].partitions.values()] == [(broker_id,)] * 2


def test_a_dry_run_creates_nothing(admin: Admin, topic: str) -> None:
    admin.create_topics([NewTopic(topic, 1)], validate_only=True)
    assert topic not in admin.list_topics()


@pytest.mark.parametrize(
    ("name", "partitions", "configs", "code", "said"),
    [
        ("bad name", 1, {}, ErrorCode.invalid_topic_exception, "bad name"),
        ("{topic}", 0, {}, ErrorCode.invalid_partitions, "{topic}"),
        ("{topic}", 1, {"retention.mss": "1"}, ErrorCode.invalid_config, "retention.mss"),
        ("{topic}", 1, {"retention.ms": "x"}, ErrorCode.invalid_config, "retention.ms"),
    ],
)
def test_what_the_broker_refuses_is_told_with_its_reason(
    admin: Admin, topic: str, name: str, partitions: int, configs: dict[str, str], code: ErrorCode, said: str
) -> None:
    with pytest.raises(BrokerError) as raised:
        admin.create_topic(name.format(topic=topic), partitions, configs=configs)
    assert code_of(raised) is code
    assert said.format(topic=topic) in str(raised.value)


def test_a_topic_that_exists_is_not_created_again_and_the_others_are(admin: Admin, topic: str) -> None:
    admin.create_topic(topic)
    with pytest.raises(BrokerError, match=f"creating topic '{topic}'") as raised:
        admin.create_topics([NewTopic(topic), NewTopic(f"{topic}-other")])
    assert code_of(raised) is ErrorCode.topic_already_exists
    eventually(lambda: f"{topic}-other" in admin.list_topics())


def test_deleting_what_is_not_there_is_an_error(admin: Admin, topic: str) -> None:
    with pytest.raises(BrokerError, match=f"deleting topic '{topic}'") as raised:
        admin.delete_topics([topic])
    assert code_of(raised) is ErrorCode.unknown_topic_or_partition


def test_partitions_are_added_but_never_taken_away(admin: Admin, made_topic: str) -> None:
    topic = made_topic
    admin.create_partitions(topic, 4)
    eventually(lambda: list(admin.describe_topics([topic])[topic].partitions) == [0, 1, 2, 3])
    with pytest.raises(BrokerError) as raised:
        admin.create_partitions(topic, 2)
    assert code_of(raised) is ErrorCode.invalid_partitions


def test_a_setting_is_changed_and_brought_back_to_its_default(broker: Kafka, admin: Admin, topic: str) -> None:
    admin.create_topic(topic, configs={"retention.ms": "1000", "segment.bytes": "2097152"})
    await_topics(broker.bootstrap, topic)

    def described(*names: str) -> dict[str, ConfigEntry]:
        return admin.describe_configs(ResourceType.TOPIC, topic, names or None)

    admin.alter_configs(ResourceType.TOPIC, topic, {"retention.ms": "5000"})
    eventually(lambda: described()["retention.ms"].value == "5000")
    changed = described()
    assert changed["retention.ms"].source is ConfigSource.DYNAMIC_TOPIC_CONFIG
    assert changed["segment.bytes"].value == "2097152", "what is not named stays"
    admin.alter_configs(ResourceType.TOPIC, topic, {}, delete=["retention.ms"])
    eventually(lambda: described("retention.ms")["retention.ms"].source is not ConfigSource.DYNAMIC_TOPIC_CONFIG)
    assert set(described("retention.ms")) == {"retention.ms"}


def test_a_setting_that_does_not_exist_is_refused(admin: Admin, topic: str) -> None:
    admin.create_topic(topic)
    with pytest.raises(BrokerError, match=f"changing the configuration of topic '{topic}'") as raised:
        admin.alter_configs(ResourceType.TOPIC, topic, {"no.such.key": "1"})
    assert code_of(raised) is ErrorCode.invalid_config


def test_a_broker_tells_its_own_settings(admin: Admin, cluster: Cluster) -> None:
    node = cluster.brokers()[0]
    assert "log.retention.hours" in admin.describe_configs(ResourceType.BROKER, str(node.id))
    with pytest.raises(BrokerError, match="there is no broker '4711'"):
        admin.describe_configs(ResourceType.BROKER, "4711")


def test_internal_topics_are_listed_on_demand(admin: Admin, cluster: Cluster, group: str) -> None:
    cluster.coordinator(group)  # creates __consumer_offsets
    assert "__consumer_offsets" not in admin.list_topics()
    assert "__consumer_offsets" in admin.list_topics(internal=True)


def test_settings_of_all_brokers_come_with_source_and_synonyms(admin: Admin, make_topic: TopicMaker) -> None:
    topic = make_topic(retention_ms="1000")
    entry = admin.describe_configs(ResourceType.TOPIC, topic, ["retention.ms"])["retention.ms"]
    assert entry.source is ConfigSource.DYNAMIC_TOPIC_CONFIG
    assert entry.synonyms[0].source is ConfigSource.DYNAMIC_TOPIC_CONFIG
    admin.alter_configs(ResourceType.BROKER, ALL_BROKERS, {"log.retention.ms": "86400001"})
    eventually(lambda: "log.retention.ms" in admin.describe_configs(ResourceType.BROKER, ALL_BROKERS))
    changed = admin.describe_configs(ResourceType.BROKER, ALL_BROKERS)["log.retention.ms"]
    assert (changed.value, changed.source) == ("86400001", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)
    admin.alter_configs(ResourceType.BROKER, ALL_BROKERS, {}, delete=["log.retention.ms"])
    eventually(lambda: "log.retention.ms" not in admin.describe_configs(ResourceType.BROKER, ALL_BROKERS))


def test_a_request_changes_one_credential(cluster: Cluster, group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """KRaft refuses two of a user: "A user credential cannot be altered twice in the same request"."""
    changes: list[int] = []
    request = BrokerConnection.request

    def spy(connection: BrokerConnection, api: ApiKey, body: Mapping[str, Any], **options: Any) -> Any:
        if api is ApiKey.ALTER_USER_SCRAM_CREDENTIALS:
            changes.append(len(body["upsertions"]) + len(body["deletions"]))
        return request(connection, api, body, **options)

    monkeypatch.setattr(BrokerConnection, "request", spy)
    users, both = Admin(cluster), list(ScramMechanism)
    users.set_password(group, "s3cret", both)
    eventually(lambda: set(users.describe_users().get(group, {})) == set(both))
    users.delete_user(group, both)
    eventually(lambda: group not in users.describe_users())
    assert changes == [1, 1, 1, 1]


@pytest.fixture
def member(broker: Kafka, make_topic: TopicMaker, group: str) -> Iterator[Consumer]:
    """A consumer that has its two partitions."""
    topic = make_topic(2)
    properties = {"group.id": group, "client.id": "someone", "auto.offset.reset": "earliest"}
    with Consumer(broker.bootstrap, properties) as consumer:
        consumer.subscribe([topic])
        eventually(lambda: consumer.poll(0.05) == [] and len(consumer.assignment()) == 2)
        yield consumer


def test_a_group_is_listed_and_described_with_its_members(
    admin: Admin, member: Consumer, topic: str, group: str
) -> None:
    (listed,) = [one for one in admin.list_groups(states=["stable"]) if one.group_id == group]
    assert (listed.protocol_type, listed.state, listed.group_type) == ("consumer", "Stable", "classic")
    assert group not in {one.group_id for one in admin.list_groups(states=["Empty"])}
    described = admin.describe_group(group)
    assert (described.state, described.protocol, described.active) == ("Stable", "range", True)
    (only,) = described.members
    assert (only.client_id, only.host) == ("someone", "127.0.0.1")
    assert only.partitions == (TopicPartition(topic, 0), TopicPartition(topic, 1))


def test_what_an_active_group_forbids(admin: Admin, member: Consumer, topic: str, group: str) -> None:
    first = TopicPartition(topic, 0)
    member.commit({first: 0})
    with pytest.raises(BrokerError) as raised:
        admin.alter_group_offsets(group, {first: 3})
    assert raised.value.code is ErrorCode.unknown_member_id
    with pytest.raises(BrokerError, match=group) as raised:
        admin.delete_group(group)
    assert raised.value.code is ErrorCode.non_empty_group
    failure = admin.delete_group_offsets(group, [first])[first]
    assert failure is not None
    assert failure.code is ErrorCode.group_subscribed_to_topic


def test_offsets_of_an_empty_group_are_set_and_deleted(admin: Admin, make_topic: TopicMaker, group: str) -> None:
    topic = make_topic(2)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    admin.alter_group_offsets(group, {first: 3, second: 4})
    assert admin.group_offsets(group) == {first: 3, second: 4}
    assert admin.describe_group(group).state == "Empty"
    assert admin.delete_group_offsets(group, [first]) == {first: None}
    assert admin.group_offsets(group) == {second: 4}
    admin.delete_group(group)
    assert admin.group_offsets(group) == {}


def test_a_group_that_is_not_there_is_dead(admin: Admin, group: str) -> None:
    described = admin.describe_group(group)
    assert (described.state, described.members, described.active) == ("Dead", (), False)
    with pytest.raises(BrokerError) as raised:
        admin.delete_group(group)
    assert raised.value.code is ErrorCode.group_id_not_found


def test_an_open_transaction_is_listed_and_described(
    admin: Admin, broker: Kafka, make_topic: TopicMaker, group: str
) -> None:
    tp = TopicPartition(make_topic(), 0)
    properties = {"transactional.id": group, "transaction.timeout.ms": "30000"}
    with Producer(broker.bootstrap, properties) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(tp.topic, b"open").result()
        (listed,) = [one for one in admin.list_transactions(states=["Ongoing"]) if one.transactional_id == group]
        described = admin.describe_transaction(group)
        assert (described.state, described.timeout_ms, described.partitions) == ("Ongoing", 30_000, (tp,))
        assert described.start_ms > 0
        assert described.producer_id == listed.producer_id
        (entry,) = admin.describe_producers([tp])[tp]
        assert (entry.producer_id, entry.last_sequence, entry.transaction_start_offset) == (listed.producer_id, 0, 0)
        assert listed not in admin.list_transactions(running_longer_than_ms=60_000)
        producer.abort_transaction()
    eventually(lambda: admin.describe_producers([tp])[tp][0].transaction_start_offset == -1)  # its marker is there


def test_what_does_not_exist_is_told(admin: Admin, group: str) -> None:
    with pytest.raises(BrokerError) as raised:
        admin.describe_transaction(group)
    assert raised.value.code is ErrorCode.transactional_id_not_found
    with pytest.raises(ConfigError, match="there is no transaction state Nonsense"):
        admin.list_transactions(states=["Nonsense"])


def test_a_transaction_is_ended_past_its_coordinator(
    admin: Admin, cluster: Cluster, make_topic: TopicMaker, group: str
) -> None:
    tp = TopicPartition(make_topic(), 0)
    handle = init_transactional_id(cluster, group)
    add_partitions(cluster, handle, [tp])
    produce_batches(cluster, tp, [batch(1)], transaction=handle)
    assert list_offsets(cluster, {tp: LATEST}, isolation_level="read_committed")[tp].offset == 0
    (hanging,) = admin.describe_producers([tp])[tp]
    admin.abort_transaction(tp, hanging)
    assert list_offsets(cluster, {tp: LATEST}, isolation_level="read_committed")[tp].offset == 2
    eventually(lambda: admin.describe_producers([tp])[tp][0].transaction_start_offset == -1)  # its marker is there


def test_records_are_deleted_up_to_an_offset(admin: Admin, cluster: Cluster, make_topic: TopicMaker) -> None:
    topic = make_topic(2)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    for tp in (first, second):
        produce_batches(cluster, tp, [batch(1, 2, 3, transactional=False)])
    assert admin.delete_records({first: 2, second: HIGH_WATERMARK}) == {first: 2, second: 3}
    assert [found.offset for found in list_offsets(cluster, {first: EARLIEST, second: EARLIEST}).values()] == [2, 3]
    with pytest.raises(BrokerError, match=f"{topic}-0 before offset 9") as raised:
        admin.delete_records({first: 9})
    assert raised.value.code is ErrorCode.offset_out_of_range


def test_directories_tell_what_lies_in_them(admin: Admin, cluster: Cluster, make_topic: TopicMaker) -> None:
    tp = TopicPartition(make_topic(), 0)
    produce_batches(cluster, tp, [batch(*range(100), transactional=False)])
    leader = cluster.leader(tp).id
    (directory,) = (one for one in admin.describe_log_dirs([leader], topics=[tp.topic]) if one.partitions)
    assert list(directory.partitions) == [tp]
    assert directory.partitions[tp].size > 500
    assert directory.total_bytes >= directory.usable_bytes > 0
    assert directory.error is None
    assert any(tp in one.partitions for one in admin.describe_log_dirs([leader]))
    assert any(tp in one.partitions for one in admin.describe_log_dirs(topics=[tp.topic]))
    with pytest.raises(BrokerError, match="there is no broker '4711'"):
        admin.describe_log_dirs([4711])


@pytest.fixture
def guard(guarded: Guarded) -> Iterator[Admin]:
    """A super user of the broker whose ACLs decide."""
    with Cluster(guarded.super_user) as cluster:
        yield Admin(cluster)


@pytest.fixture
def alice(guarded: Guarded) -> Iterator[Admin]:
    with Cluster(guarded.alice) as cluster:
        yield Admin(cluster)


def acl(name: str, operation: AclOperation, pattern: PatternType = PatternType.LITERAL, **entry: Any) -> Acl:
    resource = ResourcePattern(AclResourceType.TOPIC, name, pattern)
    return Acl(resource, AccessControlEntry(PRINCIPAL, operation, **entry))


class TestAcls:
    def test_they_are_added_described_and_deleted(self, guard: Admin, topic: str) -> None:
        read = acl(topic, AclOperation.READ)
        denied = acl(topic, AclOperation.WRITE, permission=AclPermission.DENY, host="192.0.2.1")
        prefixed = acl(topic[:-1], AclOperation.DESCRIBE, PatternType.PREFIXED)
        guard.create_acls([read, denied, prefixed])
        guard.create_acls([read])
        assert set(guard.describe_acls()) >= {read, denied, prefixed}
        literal = AclFilter(AclResourceType.TOPIC, topic, PatternType.LITERAL)
        assert guard.describe_acls(literal) == sorted([read, denied])
        matching = literal._replace(pattern=PatternType.MATCH)
        assert guard.describe_acls(matching) == sorted([read, denied, prefixed])
        assert guard.describe_acls(AclFilter.of(denied)) == [denied]
        assert guard.delete_acls([AclFilter.of(denied), matching._replace(operation=AclOperation.DESCRIBE)]) == sorted(
            [denied, prefixed]
        )
        assert guard.describe_acls(matching) == [read]
        assert guard.delete_acls([matching]) == [read]
        assert guard.delete_acls([matching]) == []

    def test_one_that_is_refused_is_named_and_the_others_are_added(self, guard: Admin, topic: str) -> None:
        fine = acl(topic, AclOperation.READ)
        wrong = Acl(ResourcePattern(AclResourceType.CLUSTER, topic), fine.entry)
        with pytest.raises(
            BrokerError, match=f"adding the ACL Allow {PRINCIPAL} Read .* on Cluster:LITERAL:"
        ) as raised:
            guard.create_acls([wrong, fine])
        assert code_of(raised) is ErrorCode.invalid_request
        assert guard.delete_acls([AclFilter.of(fine)]) == [fine]

    def test_terms_that_nobody_knows_are_refused(self, own_guarded: Guarded, guard: Admin, topic: str) -> None:
        with pytest.raises(BrokerError, match=r"adding the ACL .* on Topic:MATCH:") as raised:
            guard.create_acls([acl(topic, AclOperation.READ, PatternType.MATCH)])
        assert code_of(raised) is ErrorCode.invalid_request
        with pytest.raises(BrokerError, match="deleting ACLs: 0 is no AclOperation") as raised:
            guard.delete_acls([AclFilter(operation=AclOperation.UNKNOWN)])
        assert code_of(raised) is ErrorCode.invalid_request

    def test_they_decide(self, guard: Admin, alice: Admin, topic: str) -> None:
        create = acl(topic, AclOperation.CREATE)
        with pytest.raises(BrokerError, match=f"creating topic '{topic}'") as raised:
            alice.create_topic(topic)
        assert code_of(raised) is ErrorCode.topic_authorization_failed
        guard.create_acls([create])
        alice.create_topic(topic)
        assert guard.delete_acls([AclFilter.of(create)]) == [create]

    def test_they_need_a_right_over_the_cluster(self, alice: Admin, topic: str) -> None:
        read = acl(topic, AclOperation.READ)
        for call in (
            lambda: alice.create_acls([read]),
            alice.describe_acls,
            lambda: alice.delete_acls([AclFilter.of(read)]),
        ):
            with pytest.raises(BrokerError) as raised:
                call()
            assert code_of(raised) is ErrorCode.cluster_authorization_failed

    @pytest.mark.usefixtures("own_broker")
    def test_without_an_authorizer_there_are_none(self, admin: Admin, topic: str) -> None:
        read = acl(topic, AclOperation.READ)
        for call in (
            lambda: admin.create_acls([read]),
            admin.describe_acls,
            lambda: admin.delete_acls([AclFilter.of(read)]),
        ):
            with pytest.raises(BrokerError, match="set authorizer.class.name") as raised:
                call()
            assert code_of(raised) is ErrorCode.security_disabled

    def test_when_the_last_one_is_gone_everybody_may_go_on(self, broker_factory: BrokerFactory, topic: str) -> None:
        settings = {
            "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
            "allow.everyone.if.no.acl.found": "true",
        }
        with Cluster(broker_factory(settings).bootstrap) as cluster:
            admin, other = Admin(cluster), acl(f"{topic}-other", AclOperation.READ)
            for _ in range(2):
                admin.create_acls([other])
                assert admin.delete_acls([AclFilter.of(other)]) == [other]
            admin.create_topic(topic)

    def test_what_only_a_newer_kafka_knows_is_unknown(self) -> None:
        assert AclOperation(99) is AclOperation.UNKNOWN

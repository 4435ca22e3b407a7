"""What the client says when it lacks a right: who lacks what on what, and the command that grants it."""

from __future__ import annotations

import pickle
import shlex
import time

import pytest

from broker.client.admin import Admin, ResourceType
from broker.client.client_settings import ClientSettings
from broker.client.cluster import Cluster
from broker.client.consumer import Consumer
from broker.client.denials import DENIED, check, principal_of, refusal
from broker.client.producer import Producer
from broker.errors import BrokerError, ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.protocol.permissions import PERMISSIONS, lacking
from broker.security.acl_types import AccessControlEntry, Acl, AclOperation, AclResourceType, ResourcePattern
from tests.support.guarded import PRINCIPAL, Guarded

AT_ONCE_S = 20.0
"""A retry would go on for a minute."""

PLAIN = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.password": "secret"}

TOKENS = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_mechanism": "OAUTHBEARER",
    "sasl_oauthbearer_token_endpoint_url": "https://localhost:1/token",
    "sasl_oauthbearer_client_id": "etl",
    "sasl_oauthbearer_client_secret": "secret",
}


def settings_of(user: str | None = None, **more: str) -> ClientSettings:
    login = {} if user is None else {**PLAIN, "sasl.username": user}
    return ClientSettings.of("localhost:1", {**login, **{key.replace("_", "."): text for key, text in more.items()}})


def text_of(api: ApiKey, code: ErrorCode, name: str = "", user: str | None = "etl") -> str:
    return str(refusal(settings_of(user), api, code, "doing it", name))


def test_the_text_says_who_lacks_what_on_what_and_how_it_is_granted() -> None:
    assert text_of(ApiKey.FETCH, ErrorCode.topic_authorization_failed, "orders") == (
        "TOPIC_AUTHORIZATION_FAILED (29): doing it: User:etl lacks Read on topic orders; an admin grants it with: "
        "pykafka acls add --allow-principal User:etl --operation Read --topic orders"
    )


@pytest.mark.parametrize(
    ("api", "code", "name", "lacks", "option"),
    [
        (ApiKey.METADATA, "topic", "t", "Describe on topic t", "Describe --topic t"),
        (ApiKey.PRODUCE, "topic", "t", "Write on topic t", "Write --topic t"),
        (ApiKey.TXN_OFFSET_COMMIT, "topic", "t", "Read on topic t", "Read --topic t"),
        (ApiKey.OFFSET_FETCH, "group", "g", "Describe on group g", "Describe --group g"),
        (ApiKey.OFFSET_COMMIT, "group", "g", "Read on group g", "Read --group g"),
        (ApiKey.END_TXN, "transactional_id", "x", "Write on transactional id x", "Write --transactional-id x"),
        (ApiKey.FIND_COORDINATOR, "group", "g", "Describe on group g", "Describe --group g"),
        (ApiKey.FIND_COORDINATOR, "transactional_id", "x", "Describe on trans", "Describe --transactional-id x"),
        (ApiKey.DESCRIBE_CONFIGS, "cluster", "1", "DescribeConfigs on the cluster;", "DescribeConfigs --cluster"),
        (ApiKey.CREATE_TOPICS, "topic", "t", "Create on topic t", "Create --topic t"),
        (ApiKey.DELETE_TOPICS, "topic", "t", "Delete on topic t", "Delete --topic t"),
        (ApiKey.WRITE_TXN_MARKERS, "cluster", "", "Alter on the cluster", "Alter --cluster"),
        (
            ApiKey.INIT_PRODUCER_ID,
            "cluster",
            "",
            "IdempotentWrite on the cluster (or Write on any",
            "IdempotentWrite --cluster",
        ),
    ],
)
def test_the_right_follows_from_the_api_and_the_code(
    api: ApiKey, code: str, name: str, lacks: str, option: str
) -> None:
    text = text_of(api, ErrorCode[f"{code}_authorization_failed"], name)
    assert f"User:etl lacks {lacks}" in text
    assert text.endswith(option)


def test_every_right_that_a_client_may_lack_is_found() -> None:
    for row in PERMISSIONS:
        found = lacking(row.api, row.code)
        if row.operation is not AclOperation.CLUSTER_ACTION:
            same = [one for one in PERMISSIONS if (one.api, one.code) == (row.api, row.code)]
            assert found in same
            tokens = {AclResourceType.DELEGATION_TOKEN, AclResourceType.USER}  # in one code for both
            assert {one.resource for one in same} in ({row.resource}, tokens)
        else:
            assert found is None or found.operation is not AclOperation.CLUSTER_ACTION
    assert {row.code for row in PERMISSIONS} == DENIED


def test_other_codes_are_about_no_right() -> None:
    assert text_of(ApiKey.FETCH, ErrorCode.offset_out_of_range, "t") == "OFFSET_OUT_OF_RANGE (1): doing it"
    check(settings_of(), ApiKey.FETCH, ErrorCode.none, "doing it")
    with pytest.raises(BrokerError, match="doing it"):
        check(settings_of(), ApiKey.FETCH, ErrorCode.offset_out_of_range, "doing it")


def test_names_that_a_shell_would_misread_are_quoted() -> None:
    text = text_of(ApiKey.OFFSET_COMMIT, ErrorCode.group_authorization_failed, "it's $HOME", "ann lee")
    command = shlex.split(text.partition("grants it with: ")[2])
    assert command[-1] == "it's $HOME"
    assert "User:ann lee" in command


@pytest.mark.parametrize(
    ("settings", "principal"),
    [
        (settings_of(), "User:ANONYMOUS"),
        (settings_of("ann"), "User:ann"),
        (settings_of(security_protocol="SSL"), "User:ANONYMOUS"),
        (settings_of(security_protocol="SSL", ssl_certificate_location="/c.pem", ssl_key_location="/k.pem"), ""),
        (settings_of(security_protocol="SSL", ssl_keystore_location="/k.p12"), ""),
        (settings_of(**TOKENS), ""),
    ],
)
def test_the_principal_follows_from_the_settings(settings: ClientSettings, principal: str) -> None:
    assert principal_of(settings)[0] == principal


def test_the_owner_of_a_certificate_is_named_by_its_file() -> None:
    settings = settings_of(
        security_protocol="SSL", ssl_certificate_location="/etc/etl.pem", ssl_key_location="/etc/etl.pem"
    )
    text = str(refusal(settings, ApiKey.FETCH, ErrorCode.topic_authorization_failed, "doing it", "t"))
    assert "the owner of the certificate in /etc/etl.pem lacks Read on topic t" in text
    assert "--allow-principal User:NAME" in text


def test_no_password_is_told_and_the_error_can_be_pickled() -> None:
    error = refusal(settings_of("etl"), ApiKey.FETCH, ErrorCode.topic_authorization_failed, "doing it", "t")
    again = pickle.loads(pickle.dumps(error))
    assert (again.code, str(again), again.retriable) == (error.code, str(error), False)
    assert "secret" not in str(error)


def give(guarded: Guarded, operation: AclOperation, type: AclResourceType, name: str) -> None:
    acl = Acl(ResourcePattern(type, name), AccessControlEntry(PRINCIPAL, operation))
    with Cluster(guarded.super_user) as cluster:
        Admin(cluster).create_acls([acl])


def lacks(what: str) -> str:
    option = what.partition(" on ")[2].replace("the cluster", "cluster")
    return rf"{PRINCIPAL} lacks {what}.*pykafka acls add --allow-principal {PRINCIPAL} --operation .* --{option}"


def test_a_producer_fails_at_once_and_says_what_it_lacks(guarded: Guarded, topic: str) -> None:
    with Cluster(guarded.super_user) as cluster:
        Admin(cluster).create_topic(topic, 1)
    began = time.monotonic()
    with Producer(guarded.alice) as producer, pytest.raises(BrokerError, match=lacks(f"Describe on topic {topic}")):
        producer.send(topic, b"x").result(30)
    give(guarded, AclOperation.DESCRIBE, AclResourceType.TOPIC, topic)
    plain = {**guarded.alice, "enable.idempotence": False}
    with Producer(plain) as producer, pytest.raises(BrokerError, match=lacks(f"Write on topic {topic}")):
        producer.send(topic, b"x").result(30)
    assert time.monotonic() - began < AT_ONCE_S


def test_a_consumer_fails_at_once_and_says_what_it_lacks(guarded: Guarded, topic: str, group: str) -> None:
    with Cluster(guarded.super_user) as cluster:
        Admin(cluster).create_topic(topic, 1)
    give(guarded, AclOperation.DESCRIBE, AclResourceType.TOPIC, topic)
    given = {**guarded.alice, "group.id": group, "auto.offset.reset": "earliest"}
    for operation, needed in ((None, "Describe"), (AclOperation.DESCRIBE, "Read")):
        if operation is not None:
            give(guarded, operation, AclResourceType.GROUP, group)
        with Consumer(given) as consumer:
            consumer.subscribe([topic])
            assert_fails(consumer, f"{needed} on group {group}")
    give(guarded, AclOperation.READ, AclResourceType.GROUP, group)
    with Consumer(given) as consumer:
        consumer.subscribe([topic])
        assert_fails(consumer, f"Read on topic {topic}")


def assert_fails(consumer: Consumer, what: str) -> None:
    with pytest.raises(BrokerError, match=lacks(what)):
        consumer.poll(timeout_s=AT_ONCE_S)


def test_an_admin_is_told_what_to_ask_for(guarded: Guarded, topic: str) -> None:
    with Cluster(guarded.alice) as cluster:
        admin = Admin(cluster)
        with pytest.raises(BrokerError, match=lacks(f"Create on topic {topic}")):
            admin.create_topic(topic, 1)
        with pytest.raises(BrokerError, match=lacks("Describe on the cluster")):
            admin.describe_users()
        with pytest.raises(BrokerError, match=lacks("Describe on the cluster")):
            admin.describe_acls()
        with pytest.raises(BrokerError, match=lacks(f"DescribeConfigs on topic {topic}")):
            admin.describe_configs(ResourceType.TOPIC, topic)
        with pytest.raises(BrokerError, match=lacks(f"Delete on topic {topic}")):
            admin.delete_topics([topic])

"""Delegation tokens with the clients of others: Java's `Admin` asks for them, and Java and librdkafka log in by them.

One broker of its own: the session's has no secret.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from broker.client.admin import Admin
from broker.client.cluster import Cluster
from tests.support.broker_process import BrokerProcess
from tests.support.kafka_java import KafkaJava, each, thrown, type_of
from tests.support.token_broker import TOKEN_SETTINGS, properties_of, settings_of


@pytest.fixture(scope="module")
def issuing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {name: value for name, value in TOKEN_SETTINGS.items() if not name.startswith("authorizer")}
    with BrokerProcess(tmp_path_factory.mktemp("tokens"), settings, standalone=True) as process:
        yield process


def by_token(issuing: BrokerProcess, token_id: str, password: str, mechanism: str) -> dict[str, str]:
    jaas = (
        "org.apache.kafka.common.security.scram.ScramLoginModule required "
        f'username="{token_id}" password="{password}" tokenauth="true";'
    )
    found = {name: value for name, value in properties_of(issuing, "").items() if not name.startswith("sasl")}
    return {**found, "sasl.mechanism": mechanism, "sasl.jaas.config": jaas}


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_javas_admin_creates_a_token_and_java_logs_in_by_it(
    java: KafkaJava, issuing: BrokerProcess, mechanism: str
) -> None:
    admin = java.admin(properties_of(issuing, "alice"))
    renewer = java.kafka.common.security.auth.KafkaPrincipal("User", "bob")
    options = java.kafka.clients.admin.CreateDelegationTokenOptions().renewers([renewer]).maxLifetimeMs(120_000)
    made = admin.createDelegationToken(options).delegationToken().get()
    info, hmac = made.tokenInfo(), bytes(made.hmac())
    assert info.ownerAsString() == info.tokenRequesterAsString() == "User:alice"
    assert [str(one) for one in each(info.renewersAsString())] == ["User:bob"]
    assert info.maxTimestamp() - info.issueTimestamp() == 120_000

    client = java.admin(by_token(issuing, info.tokenId(), made.hmacAsBase64String(), mechanism))
    assert client.describeCluster().clusterId().get()
    refused = thrown(lambda: client.createDelegationToken().delegationToken().get())
    assert type_of(refused) == "UnsupportedByAuthenticationException"

    shown = admin.describeDelegationToken().delegationTokens().get()
    assert hmac in {bytes(one.hmac()) for one in each(shown)}
    periods = java.kafka.clients.admin
    renewing = java.admin(properties_of(issuing, "bob"))
    options = periods.RenewDelegationTokenOptions().renewTimePeriodMs(10_000)
    expires_ms = renewing.renewDelegationToken(hmac, options).expiryTimestamp().get()
    assert expires_ms < info.expiryTimestamp()
    admin.expireDelegationToken(
        hmac, periods.ExpireDelegationTokenOptions().expiryTimePeriodMs(-1)
    ).expiryTimestamp().get()
    gone = thrown(lambda: renewing.renewDelegationToken(hmac).expiryTimestamp().get())
    assert type_of(gone) == "DelegationTokenNotFoundException"


def test_java_creates_a_token_of_another_user(java: KafkaJava, issuing: BrokerProcess) -> None:
    admin = java.admin(properties_of(issuing, "admin"))
    owner = java.kafka.common.security.auth.KafkaPrincipal("User", "carol")
    options = java.kafka.clients.admin.CreateDelegationTokenOptions().owner(owner)
    info = admin.createDelegationToken(options).delegationToken().get().tokenInfo()
    assert (info.ownerAsString(), info.tokenRequesterAsString()) == ("User:carol", "User:admin")


def test_java_without_a_login_is_told_that_it_gets_no_token(java: KafkaJava, issuing: BrokerProcess) -> None:
    admin = java.admin({"bootstrap.servers": issuing.listeners["PLAINTEXT"]})
    refused = thrown(lambda: admin.createDelegationToken().delegationToken().get())
    assert type_of(refused) == "UnsupportedByAuthenticationException"


def test_java_logs_in_by_a_token_of_our_admin(java: KafkaJava, issuing: BrokerProcess) -> None:
    with contextlib.closing(Cluster(settings_of(issuing, "alice"))) as cluster:
        issued = Admin(cluster).create_delegation_token()
    properties: dict[str, Any] = by_token(issuing, issued.token.token_id, issued.password, "SCRAM-SHA-256")
    assert java.admin(properties).describeCluster().clusterId().get()

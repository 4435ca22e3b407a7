"""OAUTHBEARER with confluent-kafka, kafka-python, aiokafka, kafkajs and our client, and an identity provider."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka as confluent
import kafka
import kafka.net.sasl.oauth
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider

from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.client.consumer import Consumer
from broker.client.producer import Producer
from broker.errors import AuthenticationFailed
from tests.conftest import SESSION_SETTINGS
from tests.support.broker_process import BrokerProcess
from tests.support.identity_provider import CLIENT_ID, CLIENT_SECRET, IdentityProvider
from tests.support.kafkajs import KafkaJs
from tests.support.requirements import Unavailable, give_up
from tests.support.waiting import eventually

VALUES = [b"%d" % number for number in range(200)]
TIMEOUT_S = 60.0
MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"


@pytest.fixture
def clients_leftovers() -> Iterator[None]:
    """aiokafka and kafka-python leave sockets unclosed: the collector's complaint is no later test's fault."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture(scope="module")
def provider() -> Iterator[IdentityProvider]:
    with IdentityProvider() as found:
        yield found


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, provider: IdentityProvider) -> Iterator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("oauthbearer")
    settings = {**SESSION_SETTINGS, **provider.listener_settings()}
    with BrokerProcess(directory / "data", settings, standalone=True) as process:
        yield process
    assert "Traceback" not in process.output
    assert "eyJ" not in process.output, "a token"


@pytest.fixture
def oidc(broker: BrokerProcess, provider: IdentityProvider) -> dict[str, str]:
    """A client's settings in librdkafka's names, which ours takes as well."""
    return {
        "bootstrap.servers": broker.listeners["SASL_PLAINTEXT"],
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": CLIENT_ID,
        "sasl.oauthbearer.client.secret": CLIENT_SECRET,
        "sasl.oauthbearer.token.endpoint.url": provider.token_url,
        "sasl.oauthbearer.extensions": "purpose=test",
    }


@pytest.mark.parametrize("way", ["oidc", "callback"])
def test_confluent_kafka(oidc: dict[str, str], provider: IdentityProvider, topic: str, group: str, way: str) -> None:
    settings: dict[str, Any] = dict(oidc)
    if way == "callback":
        settings = {name: text for name, text in oidc.items() if not name.startswith("sasl.oauthbearer.")}
        settings["oauth_cb"] = lambda _: (provider.token(), time.time() + provider.lifetime_s)
    producer = confluent.Producer(settings)
    for value in VALUES:
        producer.produce(topic, value)
    assert producer.flush(TIMEOUT_S) == 0
    consumer = confluent.Consumer({**settings, "group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found: list[bytes | None] = []
    deadline = time.monotonic() + TIMEOUT_S
    while len(found) < len(VALUES) and time.monotonic() < deadline:
        found += [message.value() for message in consumer.consume(500, 0.5) if not message.error()]
    consumer.close()
    assert found == VALUES


def test_confluent_kafka_is_told_of_a_bad_token(oidc: dict[str, str], provider: IdentityProvider) -> None:
    said: list[confluent.KafkaError] = []
    settings = {name: text for name, text in oidc.items() if not name.startswith("sasl.oauthbearer.")}
    producer = confluent.Producer(
        {
            **settings,
            "oauth_cb": lambda _: (provider.token(aud="elsewhere"), time.time() + 3600),
            "error_cb": said.append,
            "log_level": 0,
        }
    )
    deadline = time.monotonic() + TIMEOUT_S
    while not said and time.monotonic() < deadline:
        producer.poll(0.1)
    assert said[0].code() == confluent.KafkaError._AUTHENTICATION
    assert "invalid_token" in said[0].str() or "invalid credentials" in said[0].str()


@pytest.mark.usefixtures("clients_leftovers")
async def test_aiokafka(oidc: dict[str, str], provider: IdentityProvider, topic: str, group: str) -> None:
    class Tokens(AbstractTokenProvider):  # type: ignore[misc]
        async def token(self) -> str:
            return provider.token()

        def extensions(self) -> dict[str, str]:
            return {"purpose": "test"}

    settings = {
        "bootstrap_servers": oidc["bootstrap.servers"],
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauth_token_provider": Tokens(),
    }
    async with AIOKafkaProducer(**settings) as producer:
        for sent in [await producer.send(topic, value) for value in VALUES]:
            await sent
    async with (
        asyncio.timeout(TIMEOUT_S),
        AIOKafkaConsumer(topic, **settings, group_id=group, auto_offset_reset="earliest") as consumer,
    ):
        assert [(await consumer.getone()).value for _ in VALUES] == VALUES


@pytest.mark.usefixtures("clients_leftovers")
def test_kafka_python(oidc: dict[str, str], provider: IdentityProvider, topic: str, group: str) -> None:
    class Tokens(kafka.net.sasl.oauth.AbstractTokenProvider):  # type: ignore[misc]
        def token(self) -> str:
            return provider.token()

    settings = {
        "bootstrap_servers": oidc["bootstrap.servers"],
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauth_token_provider": Tokens(),
    }
    producer = kafka.KafkaProducer(**settings)
    for value in VALUES:
        producer.send(topic, value)
    producer.close()
    consumer = kafka.KafkaConsumer(
        topic, **settings, group_id=group, auto_offset_reset="earliest", consumer_timeout_ms=60_000
    )
    assert [message.value for _, message in zip(VALUES, consumer, strict=False)] == VALUES
    consumer.close()


def test_kafkajs(oidc: dict[str, str], provider: IdentityProvider, topic: str) -> None:
    sasl = {"mechanism": "oauthbearer", "token": provider.token()}
    try:
        connected = KafkaJs({"brokers": [oidc["bootstrap.servers"]], "sasl": sasl})
    except Unavailable as error:
        give_up(str(error))
    with connected as js:
        admin = js.open("admin")
        admin.call("createTopics", topics=[{"topic": topic}])
        assert topic in admin.call("listTopics")


class TestOurClient:
    def test_reads_and_writes(self, oidc: dict[str, str], topic: str, group: str) -> None:
        with Producer(oidc) as producer:
            for value in VALUES:
                producer.send(topic, value)
        assert consumed({**oidc, "group.id": group}, topic) == VALUES

    def test_takes_javas_names(self, oidc: dict[str, str]) -> None:
        settings = {name: text for name, text in oidc.items() if not name.startswith("sasl.oauthbearer.")}
        settings |= {
            "sasl.oauthbearer.token.endpoint.url": oidc["sasl.oauthbearer.token.endpoint.url"],
            "sasl.jaas.config": f'{MODULE} clientId="{CLIENT_ID}" clientSecret="{CLIENT_SECRET}" scope="kafka" '
            'extension_purpose="test";',
        }
        with Cluster(settings) as cluster:
            assert cluster.cluster_id()

    def test_goes_on_with_new_tokens_while_the_old_expire(
        self, oidc: dict[str, str], provider: IdentityProvider, topic: str, group: str
    ) -> None:
        provider.lifetime_s = 1.5
        asked = len(provider.token_requests)
        written = 0
        try:
            with Producer(oidc) as producer:
                deadline = time.monotonic() + TIMEOUT_S
                while len(provider.token_requests) < asked + 4 and time.monotonic() < deadline:
                    producer.send(topic, b"%d" % written).result(TIMEOUT_S)
                    written += 1
            found = consumed({**oidc, "group.id": group}, topic, written)
        finally:
            provider.lifetime_s = 3600.0
        assert found == [b"%d" % number for number in range(written)]

    def test_goes_on_after_the_keys_were_rotated(
        self, oidc: dict[str, str], provider: IdentityProvider, broker: BrokerProcess
    ) -> None:
        provider.rotate()
        with Cluster(oidc) as cluster:
            assert cluster.cluster_id()

    def test_says_what_to_look_at(self, oidc: dict[str, str], provider: IdentityProvider) -> None:
        wrong = {**oidc, "sasl.oauthbearer.client.secret": "wrong-s3cret"}
        with (
            Cluster(wrong) as cluster,
            pytest.raises(AuthenticationFailed, match=r"HTTP 401 \(invalid_client\)") as one,
        ):
            cluster.topics()
        provider.lifetime_s = -100
        try:
            other = {**oidc, "sasl.oauthbearer.scope": "other"}  # no token of another test
            said = (
                "access token of loader from token provider oidc: invalid_token.*check sasl.oauthbearer.token.endpoint"
            )
            with Cluster(other) as cluster, pytest.raises(AuthenticationFailed, match=said) as two:
                cluster.topics()
        finally:
            provider.lifetime_s = 3600.0
        assert "are sasl.oauthbearer.token.endpoint.url and the credentials for it right?" in str(two.value).lower()
        assert "s3cret" not in str(one.value) + str(two.value)


def test_a_broker_that_starts_before_its_provider_lets_clients_in_later(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    provider = IdentityProvider()
    with provider:
        token = provider.token("ann")
    settings = provider.listener_settings()
    with BrokerProcess(tmp_path_factory.mktemp("early") / "data", settings, standalone=True) as process:
        file = process.log_file.parent / "token"
        file.write_text(token)
        client = {
            "bootstrap.servers": process.listeners["SASL_PLAINTEXT"],
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.token.endpoint.url": file.as_uri(),
        }
        eventually(lambda: "logins wait for them" in process.output)
        with provider, Cluster(client) as cluster:
            assert cluster.cluster_id()


def test_brokers_replicate_while_their_tokens_expire(tmp_path: Path, zookeeper: str, topic: str) -> None:
    with IdentityProvider() as provider, contextlib.ExitStack() as stack:
        provider.lifetime_s = 1.5
        settings = provider.listener_settings() | {
            "inter.broker.listener.name": "SASL_PLAINTEXT",
            "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
            "sasl.oauthbearer.token.endpoint.url": provider.token_url,
            "listener.name.sasl_plaintext.oauthbearer.sasl.jaas.config": f'{MODULE} clientId="{CLIENT_ID}" '
            f'clientSecret="{CLIENT_SECRET}";',
        }
        brokers = [
            stack.enter_context(
                BrokerProcess(
                    tmp_path / f"{number}", {**settings, "broker.id": f"{number}"}, zookeeper=f"{zookeeper}/oauth"
                )
            )
            for number in (1, 2)
        ]
        with Cluster(brokers[0].listeners["PLAINTEXT"]) as cluster:
            Admin(cluster).create_topic(topic, 2, 2)
        written = 0
        with Producer(brokers[0].listeners["PLAINTEXT"]) as producer:
            deadline = time.monotonic() + TIMEOUT_S
            while len(provider.token_requests) < 8 and time.monotonic() < deadline:
                producer.send(topic, b"%d" % written).result(TIMEOUT_S)
                written += 1
        assert len(provider.token_requests) >= 8
        with Cluster(brokers[0].listeners["PLAINTEXT"]) as cluster:
            partitions = Admin(cluster).describe_topics([topic])[topic].partitions
        assert [sorted(one.isr) for one in partitions.values()] == [[1, 2]] * 2
    for broker in brokers:
        assert "Traceback" not in broker.output
        assert CLIENT_SECRET not in broker.output


def consumed(settings: dict[str, str], topic: str, count: int = len(VALUES)) -> list[bytes | None]:
    found: list[bytes | None] = []
    with Consumer({**settings, "auto.offset.reset": "earliest"}) as consumer:
        consumer.subscribe([topic])
        deadline = time.monotonic() + TIMEOUT_S
        while len(found) < count and time.monotonic() < deadline:
            found += [record.value for record in consumer.poll(0.5)]
    return found

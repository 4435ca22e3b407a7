"""Logins by Kerberos: our client, Java's and kafka-python against our broker, with the tickets of a real KDC.

One broker and one JVM for the file, a KDC for the session. confluent-kafka's wheels have no GSSAPI.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kafka
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.client.consumer import Consumer
from broker.client.producer import Producer
from broker.errors import AuthenticationFailed
from broker.security.kerberos import gssapi
from tests.conftest import SESSION_SETTINGS
from tests.support.broker_process import BrokerProcess
from tests.support.console import answer_of
from tests.support.kafka_java import KafkaJava, java_or_give_up, thrown, type_of
from tests.support.kerberos import SERVICE, Kdc, keytab_module, listener_settings, principal_of

VALUES = [b"%d" % number for number in range(100)]
TIMEOUT_S = 60.0


@pytest.fixture
def clients_leftovers() -> Iterator[None]:
    """kafka-python leaves sockets unclosed: the collector's complaint is no later test's fault."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture(scope="module")
def ann(kerberos: Kdc) -> Path:
    """A user's keytab."""
    return kerberos.principal("ann")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, kerberos: Kdc) -> Iterator[BrokerProcess]:
    settings = {**SESSION_SETTINGS, **listener_settings(kerberos.keytab(SERVICE))}
    with BrokerProcess(tmp_path_factory.mktemp("kerberos") / "data", settings, standalone=True) as process:
        yield process
    assert "Traceback" not in process.output


@pytest.fixture(scope="module")
def java(kerberos: Kdc) -> Iterator[KafkaJava]:
    with java_or_give_up(f"-Djava.security.krb5.conf={kerberos.config}") as started, started.closing():
        yield started


@pytest.fixture
def address(broker: BrokerProcess) -> dict[str, str]:
    return {
        "bootstrap.servers": broker.listeners["SASL_PLAINTEXT"],
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "GSSAPI",
    }


@pytest.fixture
def javas(address: dict[str, str], ann: Path) -> dict[str, str]:
    """A client's settings in Java's names."""
    return {
        **address,
        "sasl.kerberos.service.name": "kafka",
        "sasl.jaas.config": keytab_module(ann, principal_of("ann")),
    }


@pytest.fixture
def librdkafkas(address: dict[str, str], ann: Path) -> dict[str, str]:
    return {**address, "sasl.kerberos.keytab": str(ann), "sasl.kerberos.principal": principal_of("ann")}


class TestOurClient:
    @pytest.mark.parametrize("names", ["javas", "librdkafkas"])
    def test_reads_and_writes(self, request: pytest.FixtureRequest, names: str, topic: str, group: str) -> None:
        settings: dict[str, str] = request.getfixturevalue(names)
        with Producer(settings) as producer:
            for value in VALUES:
                producer.send(topic, value)
        assert consumed({**settings, "group.id": group}, topic) == VALUES

    def test_takes_the_ticket_of_kinit(self, address: dict[str, str], kerberos: Kdc, ann: Path, tmp_path: Path) -> None:
        cache = tmp_path / "tickets"
        module = f'Krb5LoginModule required useTicketCache=true ticketCache="{cache}" renewTGT=true;'
        with Cluster({**address, "sasl.jaas.config": module}) as cluster:
            with pytest.raises(
                AuthenticationFailed, match="there is no Kerberos ticket in the ticket cache .* run kinit"
            ):
                cluster.topics()
            kerberos.kinit("ann", ann, cache)
            assert cluster.topics() is not None

    def test_is_told_that_the_broker_has_other_keys(
        self, librdkafkas: dict[str, str], kerberos: Kdc, tmp_path: Path
    ) -> None:
        wrong = {**librdkafkas, "sasl.kerberos.service.name": "nobodys"}
        with Cluster(wrong) as cluster, pytest.raises(AuthenticationFailed, match="knows no service nobodys/localhost"):
            cluster.topics()
        kerberos.principal("http/localhost")
        wrong = {**librdkafkas, "sasl.kerberos.service.name": "http"}
        with (
            Cluster(wrong) as cluster,
            pytest.raises(AuthenticationFailed, match="refused the Kerberos ticket of ann@"),
        ):
            cluster.topics()

    def test_logs_in_again_while_tickets_and_sessions_end(
        self, broker: BrokerProcess, librdkafkas: dict[str, str], kerberos: Kdc, topic: str, group: str
    ) -> None:
        keytab = kerberos.principal("hasty", "-maxlife", "2 seconds")
        settings = {
            **librdkafkas,
            "bootstrap.servers": broker.listeners["BRIEF"],
            "sasl.kerberos.keytab": str(keytab),
            "sasl.kerberos.principal": principal_of("hasty"),
        }
        written = 0
        with Producer(settings) as producer:
            deadline = time.monotonic() + TIMEOUT_S
            while kerberos.tickets_given("hasty") < 4 and time.monotonic() < deadline:
                producer.send(topic, b"%d" % written).result(TIMEOUT_S)
                written += 1
        assert kerberos.tickets_given("hasty") >= 4
        assert consumed({**settings, "group.id": group}, topic, written) == [b"%d" % one for one in range(written)]

    def test_the_commands_log_in(self, javas: dict[str, str], topic: str, tmp_path: Path) -> None:
        file = tmp_path / "client.properties"
        file.write_text("".join(f"{name}={text}\n" for name, text in javas.items()))
        address = ("--bootstrap-server", javas["bootstrap.servers"], "--command-config", str(file))
        answer_of("topics", "create", "--topic", topic, *address)
        assert topic in answer_of("topics", "list", *address)
        assert "the owner of the Kerberos ticket of ann@" in answer_of("doctor", *address)

    def test_one_whom_no_rule_names_is_refused(self, address: dict[str, str], kerberos: Kdc) -> None:
        keytab = kerberos.principal("too/many/parts")
        settings = {**address, "sasl.kerberos.keytab": str(keytab), "sasl.kerberos.principal": "too/many/parts"}
        with (
            Cluster(settings) as cluster,
            pytest.raises(AuthenticationFailed, match="refused the Kerberos ticket of too/many/parts"),
        ):
            cluster.topics()


class TestJava:
    def test_a_client_reads_and_writes(self, java: KafkaJava, javas: dict[str, str], topic: str, group: str) -> None:
        producer = java.producer(javas)
        for value in VALUES:
            producer.send(java.record(topic, value))
        producer.flush()
        consumer = java.consumer({**javas, "group.id": group})
        consumer.subscribe([topic])
        found: list[Any] = []
        deadline = time.monotonic() + TIMEOUT_S
        while len(found) < len(VALUES) and time.monotonic() < deadline:
            found += [bytes(record.value()) for record in java.poll(consumer)]
        assert found == VALUES

    def test_a_client_whose_ticket_is_for_another_service_is_refused(
        self, java: KafkaJava, javas: dict[str, str], kerberos: Kdc
    ) -> None:
        kerberos.principal("imap/localhost")
        admin = java.admin({**javas, "sasl.kerberos.service.name": "imap"})
        error = thrown(lambda: admin.listTopics().names().get())
        assert type_of(error) == "SaslAuthenticationException"


@pytest.mark.usefixtures("clients_leftovers")
async def test_aiokafka(
    address: dict[str, str], kerberos: Kdc, ann: Path, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kerberos.kinit("ann", ann, tmp_path / "tickets")
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{tmp_path / 'tickets'}")
    monkeypatch.setattr("aiokafka.conn.gssapi", gssapi())  # which it looks for when it is imported
    settings = {
        "bootstrap_servers": address["bootstrap.servers"],
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "GSSAPI",
        "sasl_kerberos_domain_name": "localhost",
    }
    async with asyncio.timeout(TIMEOUT_S), AIOKafkaProducer(**settings) as producer:
        for value in VALUES:
            await producer.send_and_wait(topic, value)
    async with (
        asyncio.timeout(TIMEOUT_S),
        AIOKafkaConsumer(topic, **settings, auto_offset_reset="earliest") as consumer,
    ):
        assert [(await consumer.getone()).value for _ in VALUES] == VALUES


@pytest.mark.usefixtures("clients_leftovers")
def test_kafka_python(
    address: dict[str, str], kerberos: Kdc, ann: Path, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kerberos.kinit("ann", ann, tmp_path / "tickets")
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{tmp_path / 'tickets'}")
    settings = {
        "bootstrap_servers": address["bootstrap.servers"],
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "GSSAPI",
        "sasl_kerberos_service_name": "kafka",
        "sasl_kerberos_domain_name": "localhost",
    }
    producer = kafka.KafkaProducer(**settings)
    for value in VALUES:
        producer.send(topic, value)
    producer.close()
    consumer = kafka.KafkaConsumer(topic, **settings, auto_offset_reset="earliest", consumer_timeout_ms=60_000)
    assert [message.value for _, message in zip(VALUES, consumer, strict=False)] == VALUES
    consumer.close()


def test_brokers_log_in_to_each_other(tmp_path: Path, zookeeper: str, kerberos: Kdc, topic: str) -> None:
    settings = listener_settings(kerberos.keytab(SERVICE)) | {
        "inter.broker.listener.name": "SASL_PLAINTEXT",
        "sasl.mechanism.inter.broker.protocol": "GSSAPI",
        "super.users": "User:kafka",
    }
    with contextlib.ExitStack() as stack:
        brokers = [
            stack.enter_context(
                BrokerProcess(
                    tmp_path / f"{number}", {**settings, "broker.id": f"{number}"}, zookeeper=f"{zookeeper}/kerberos"
                )
            )
            for number in (1, 2)
        ]
        with Cluster(brokers[0].listeners["PLAINTEXT"]) as cluster:
            Admin(cluster).create_topic(topic, 2, 2)
        with Producer(brokers[0].listeners["PLAINTEXT"]) as producer:
            for value in VALUES:
                producer.send(topic, value).result(TIMEOUT_S)
        with Cluster(brokers[0].listeners["PLAINTEXT"]) as cluster:
            partitions = Admin(cluster).describe_topics([topic])[topic].partitions
        assert [sorted(one.isr) for one in partitions.values()] == [[1, 2]] * 2
    for broker in brokers:
        assert "Traceback" not in broker.output


def consumed(settings: dict[str, str], topic: str, count: int = len(VALUES)) -> list[bytes | None]:
    found: list[bytes | None] = []
    with Consumer({**settings, "auto.offset.reset": "earliest"}) as consumer:
        consumer.subscribe([topic])
        deadline = time.monotonic() + TIMEOUT_S
        while len(found) < count and time.monotonic() < deadline:
            found += [record.value for record in consumer.poll(0.5)]
    return found

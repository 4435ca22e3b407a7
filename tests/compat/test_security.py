"""confluent-kafka, aiokafka, kafka-python and our own client and console, through every kind of listener."""

from __future__ import annotations

import asyncio
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka as confluent
import kafka
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from broker.client.consumer import Consumer
from broker.client.producer import Producer
from tests.conftest import SESSION_SETTINGS
from tests.support.console import answer_of, output_of, pykafka
from tests.support.secured import MECHANISMS, SECRETS, SIMPLE_USER, WAYS, Certificates, SecuredBroker
from tests.support.waiting import eventually

LARGE = bytes(range(256)) * 3000
VALUES = [b"%d" % number for number in range(200)] + [LARGE]
TIMEOUT_S = 60.0

each_way = pytest.mark.parametrize(("listener", "mechanism"), WAYS, ids=lambda part: part or "none")


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, zookeeper: str) -> Iterator[SecuredBroker]:
    directory = tmp_path_factory.mktemp("secured")
    certificates = Certificates.make(directory)
    with SecuredBroker(directory / "data", certificates, f"{zookeeper}/secured", SESSION_SETTINGS) as process:
        yield process
    assert "Traceback" not in process.output
    for secret in (*SECRETS, "PRIVATE KEY", "wrong-s3cret"):
        assert secret not in process.output
        assert secret not in (directory / "data" / "broker.out").read_text()


@each_way
def test_confluent_kafka(secured: SecuredBroker, topic: str, group: str, listener: str, mechanism: str | None) -> None:
    properties = secured.properties(listener, mechanism)
    producer = confluent.Producer({**properties, "linger.ms": 5})
    for value in VALUES:
        producer.produce(topic, value)
    assert producer.flush(TIMEOUT_S) == 0
    consumer = confluent.Consumer({**properties, "group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found: list[bytes | None] = []
    deadline = time.monotonic() + TIMEOUT_S
    while len(found) < len(VALUES) and time.monotonic() < deadline:
        found += [message.value() for message in consumer.consume(500, 0.5) if not message.error()]
    assert found == VALUES
    host, _, port = secured.listeners[listener].partition(":")
    (node,) = consumer.list_topics(timeout=TIMEOUT_S).brokers.values()
    assert (node.host, node.port) == (host, int(port)), "the address of the listener it came through"
    consumer.close()


def aiokafka_settings(secured: SecuredBroker, listener: str, mechanism: str | None) -> dict[str, Any]:
    """aiokafka's and kafka-python's way to say it."""
    properties = secured.properties(listener, mechanism)
    settings: dict[str, Any] = {
        "bootstrap_servers": properties["bootstrap.servers"],
        "security_protocol": properties["security.protocol"],
    }
    if properties["security.protocol"].endswith("SSL"):
        context = settings["ssl_context"] = ssl.create_default_context(cafile=str(secured.certificates.ca))
        if listener == "MTLS":
            context.load_cert_chain(secured.certificates.client)
    if mechanism is not None:
        settings["sasl_mechanism"] = mechanism
        settings["sasl_plain_username"] = properties["sasl.username"]
        settings["sasl_plain_password"] = properties["sasl.password"]
    return settings


@each_way
@pytest.mark.usefixtures("clients_leftovers")
async def test_aiokafka(secured: SecuredBroker, topic: str, group: str, listener: str, mechanism: str | None) -> None:
    settings = aiokafka_settings(secured, listener, mechanism)
    async with AIOKafkaProducer(**settings, linger_ms=5) as producer:
        for sent in [await producer.send(topic, value) for value in VALUES]:
            await sent
    async with (
        asyncio.timeout(TIMEOUT_S),
        AIOKafkaConsumer(topic, **settings, group_id=group, auto_offset_reset="earliest") as consumer,
    ):
        assert [(await consumer.getone()).value for _ in VALUES] == VALUES


@pytest.mark.parametrize(
    ("listener", "mechanism"), [("SSL", None), ("SASL_PLAINTEXT", "PLAIN"), ("SASL_SSL", "SCRAM-SHA-512")]
)
@pytest.mark.usefixtures("clients_leftovers")
def test_kafka_python(secured: SecuredBroker, topic: str, group: str, listener: str, mechanism: str | None) -> None:
    settings = aiokafka_settings(secured, listener, mechanism)
    if mechanism != "PLAIN" and mechanism is not None:
        settings["sasl_plain_username"] = SIMPLE_USER
    producer = kafka.KafkaProducer(**settings)
    for value in VALUES:
        producer.send(topic, value)
    producer.close()
    consumer = kafka.KafkaConsumer(
        topic, **settings, group_id=group, auto_offset_reset="earliest", consumer_timeout_ms=60_000
    )
    assert [message.value for _, message in zip(VALUES, consumer, strict=False)] == VALUES
    consumer.close()


@each_way
def test_our_own_client(secured: SecuredBroker, topic: str, group: str, listener: str, mechanism: str | None) -> None:
    properties = secured.properties(listener, mechanism)
    with Producer(properties) as producer:
        for value in VALUES:
            producer.send(topic, value)
    with Consumer({**properties, "group.id": group, "auto.offset.reset": "earliest"}) as consumer:
        consumer.subscribe([topic])
        found: list[bytes | None] = []
        deadline = time.monotonic() + TIMEOUT_S
        while len(found) < len(VALUES) and time.monotonic() < deadline:
            found += [record.value for record in consumer.poll(0.5)]
    assert found == VALUES


@pytest.mark.parametrize(("listener", "mechanism"), [("MTLS", None), ("SASL_SSL", "SCRAM-SHA-256")])
def test_the_console(secured: SecuredBroker, topic: str, listener: str, mechanism: str | None, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    properties = secured.properties(listener, mechanism)
    file.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    output_of("topics", "create", "--topic", topic, "--command-config", str(file))
    answer_of("produce", "--topic", topic, "--config", str(file), stdin=b"one\ntwo\n")
    shown = answer_of("consume", "--topic", topic, "--from-beginning", "--max-messages", "2", "--config", str(file))
    assert shown == "one\ntwo\n"


@pytest.mark.parametrize("mechanism", MECHANISMS)
class TestAWrongPassword:
    def test_confluent_kafka_is_told_so(self, secured: SecuredBroker, mechanism: str) -> None:
        said: list[confluent.KafkaError] = []
        properties = secured.properties("SASL_SSL", mechanism, password="wrong-s3cret")
        producer = confluent.Producer({**properties, "error_cb": said.append, "log_level": 0})
        deadline = time.monotonic() + TIMEOUT_S
        while not said and time.monotonic() < deadline:
            producer.poll(0.1)
        assert said[0].code() == confluent.KafkaError._AUTHENTICATION
        assert f"Authentication failed: invalid credentials with SASL mechanism {mechanism}" in said[0].str()

    @pytest.mark.usefixtures("clients_leftovers")
    async def test_aiokafka_is_told_so(self, secured: SecuredBroker, mechanism: str) -> None:
        settings = aiokafka_settings(secured, "SASL_SSL", mechanism) | {"sasl_plain_password": "wrong-s3cret"}
        producer = AIOKafkaProducer(**settings)
        with pytest.raises(Exception, match=r"(?i)authentication|unable to bootstrap"):
            await producer.start()
        await producer.stop()

    def test_the_console_is_told_so(self, secured: SecuredBroker, mechanism: str, tmp_path: Path) -> None:
        file = tmp_path / "client.properties"
        properties = secured.properties("SASL_SSL", mechanism, password="wrong-s3cret")
        file.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        started = time.monotonic()
        done = pykafka("topics", "list", "--command-config", str(file))
        assert done.returncode == 1
        assert b"are sasl.username and sasl.password right?" in done.stderr
        assert b"wrong-s3cret" not in done.stderr
        assert time.monotonic() - started < 25, "it is not tried again and again"


def test_confluents_admin_keeps_the_users(secured: SecuredBroker) -> None:
    admin = AdminClient({"bootstrap.servers": secured.listeners["PLAINTEXT"]})
    wanted = [
        UserScramCredentialUpsertion("dave", ScramCredentialInfo(mechanism, 8192), b"dave-s3cret")
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
    ]
    for made in wanted:
        admin.alter_user_scram_credentials([made])["dave"].result(TIMEOUT_S)
    asked: Any = admin.describe_user_scram_credentials(["dave", "nobody"])
    described = asked["dave"].result(TIMEOUT_S)
    assert {(info.mechanism, info.iterations) for info in described.scram_credential_infos} == {
        (ScramMechanism.SCRAM_SHA_256, 8192),
        (ScramMechanism.SCRAM_SHA_512, 8192),
    }
    login: dict[str, Any] = {**secured.properties("SASL_PLAINTEXT"), "sasl.mechanism": "SCRAM-SHA-512"}
    login |= {"sasl.username": "dave", "sasl.password": "dave-s3cret"}
    assert AdminClient(login).list_topics(timeout=TIMEOUT_S).brokers

    gone = UserScramCredentialDeletion("dave", ScramMechanism.SCRAM_SHA_512)
    admin.alter_user_scram_credentials([gone])["dave"].result(TIMEOUT_S)
    with pytest.raises(confluent.KafkaException, match="does not exist"):
        admin.alter_user_scram_credentials([gone])["dave"].result(TIMEOUT_S)
    few = UserScramCredentialUpsertion("dave", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4095), b"x")
    with pytest.raises(confluent.KafkaException, match="Too few iterations"):
        admin.alter_user_scram_credentials([few])["dave"].result(TIMEOUT_S)
    with pytest.raises(confluent.KafkaException, match="does not exist: nobody"):
        asked["nobody"].result(TIMEOUT_S)


def test_a_password_can_be_changed_under_load(secured: SecuredBroker, topic: str) -> None:
    """Connections that are logged in go on; new ones need the new password."""
    admin = AdminClient({"bootstrap.servers": secured.listeners["PLAINTEXT"]})
    mechanism = ScramMechanism.SCRAM_SHA_256

    def set_password(password: bytes) -> None:
        made = UserScramCredentialUpsertion("erin", ScramCredentialInfo(mechanism, 4096), password)
        admin.alter_user_scram_credentials([made])["erin"].result(TIMEOUT_S)

    def settings(password: str) -> dict[str, Any]:
        login = {"sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "erin", "sasl.password": password, "log_level": 0}
        return {**secured.properties("SASL_PLAINTEXT"), **login}

    set_password(b"first-s3cret")
    failed: list[Any] = []
    stop = threading.Event()

    def produce() -> None:
        producer = confluent.Producer({**settings("first-s3cret"), "error_cb": failed.append, "linger.ms": 0})
        while not stop.is_set():
            producer.produce(topic, b"x", callback=lambda error, _: failed.append(error) if error else None)
            assert producer.flush(TIMEOUT_S) == 0
            sent.append(b"x")

    sent: list[bytes] = []
    writer = threading.Thread(target=produce)
    writer.start()
    try:
        eventually(lambda: len(sent) > 10)
        set_password(b"second-s3cret")
        before = len(sent)
        eventually(lambda: len(sent) > before + 50)
        with pytest.raises(confluent.KafkaException):
            AdminClient(settings("first-s3cret")).list_topics(timeout=2)
        assert AdminClient(settings("second-s3cret")).list_topics(timeout=TIMEOUT_S).brokers
    finally:
        stop.set()
        writer.join(TIMEOUT_S)
    assert failed == []

"""What a client asks for and may not have it is told in words that it shows: no client waits for ever.

docs/compatibility.md has the table. What clients find out by themselves, from ApiVersions, is here for Java alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PythonPartition
from kafka.errors import UnsupportedVersionError

from tests.support.broker_process import BrokerProcess
from tests.support.kafka_java import KafkaJava, thrown, type_of
from tests.support.kafkajs import KafkaJs, KafkaJsError
from tests.support.kcat import Kcat
from tests.support.raw_requests import Requests
from tests.support.requirements import Unavailable, give_up
from tests.support.share_members import ShareMember
from tests.support.waiting import PATIENCE_S, eventually

SOON_S = PATIENCE_S  # of what must come
OLD = {"api.version.request": "false", "broker.version.fallback": "0.9.0"}
"""librdkafka speaks as to a broker of 2015: Produce 1, Fetch 1."""
REFUSED = "API version not supported"


@pytest.fixture
def made(own_broker: BrokerProcess, topic: str) -> str:
    """A topic with a record."""
    with Requests(own_broker.bootstrap) as ask:
        ask.create(topic)
        ask.put(topic, b"v")
    return topic


@pytest.fixture
def confluent(own_broker: BrokerProcess) -> Iterator[Callable[..., Consumer]]:
    """A consumer; each is closed after the test."""
    made: list[Consumer] = []

    def make(**settings: str) -> Consumer:
        base = {"bootstrap.servers": own_broker.bootstrap, "auto.offset.reset": "earliest", "log_level": "0"}
        made.append(Consumer({**base, **settings}))
        return made[-1]

    yield make
    for consumer in made:
        consumer.close()


def error_of(consumer: Consumer) -> KafkaError:
    """The first that its poll gives."""
    end = time.monotonic() + SOON_S
    while time.monotonic() < end:
        message = consumer.poll(0.5)
        error = None if message is None else message.error()
        if error is not None:
            return error
    raise AssertionError("nothing was told")


def test_librdkafka_tells_that_its_produce_is_too_old(own_broker: BrokerProcess, made: str) -> None:
    told: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": own_broker.bootstrap, "log_level": "0", **OLD})
    producer.produce(made, b"v", on_delivery=lambda error, _: told.append(error))
    assert producer.flush(SOON_S) == 0
    assert [(error and error.code(), error and REFUSED in error.str()) for error in told] == [
        (KafkaError.UNSUPPORTED_VERSION, True)
    ]


def test_librdkafka_tells_that_its_fetch_is_too_old(confluent: Callable[..., Consumer], made: str) -> None:
    consumer = confluent(**{"group.id": made, **OLD})
    consumer.assign([TopicPartition(made, 0, OFFSET_BEGINNING)])
    error = error_of(consumer)
    assert (error.code(), REFUSED in error.str()) == (KafkaError.UNSUPPORTED_VERSION, True)


@pytest.mark.kcat
def test_kcat_tells_that_it_is_too_old(own_broker: BrokerProcess, made: str) -> None:
    try:
        kcat = Kcat(own_broker.bootstrap)
    except Unavailable as error:
        give_up(f"kcat: {error}")
    options = [word for name, value in OLD.items() for word in ("-X", f"{name}={value}")]
    for how in (("-P",), ("-C", "-e")):
        with pytest.raises(AssertionError, match=REFUSED):
            kcat.run(*how, "-t", made, *options, stdin=b"v\n", timeout=SOON_S)


@pytest.mark.usefixtures("clients_leftovers")
def test_kafka_python_tells_that_the_version_it_was_given_is_too_old(own_broker: BrokerProcess, made: str) -> None:
    given: Mapping[str, Any] = {"bootstrap_servers": own_broker.bootstrap, "api_version": (0, 10, 0)}
    producer = KafkaProducer(**given, enable_idempotence=False)
    with pytest.raises(UnsupportedVersionError):
        producer.send(made, b"v").get(timeout=SOON_S)
    producer.close()
    consumer = KafkaConsumer(**given, consumer_timeout_ms=int(SOON_S * 1000))
    consumer.assign([PythonPartition(made, 0)])
    with pytest.raises(UnsupportedVersionError):
        next(consumer)
    consumer.close()


def test_librdkafka_tells_that_an_assignor_is_unknown(
    confluent: Callable[..., Consumer], made: str, group: str
) -> None:
    consumer = confluent(**{"group.id": group, "group.protocol": "consumer", "group.remote.assignor": "nope"})
    consumer.subscribe([made])
    assert "assignor or its version range is not supported" in error_of(consumer).str()


def test_librdkafka_tells_that_an_instance_is_in_the_group_already(
    confluent: Callable[..., Consumer], made: str, group: str
) -> None:
    settings = {"group.id": group, "group.protocol": "consumer", "group.instance.id": "one"}
    first, second = confluent(**settings), confluent(**settings)
    first.subscribe([made])
    end = time.monotonic() + SOON_S
    while not first.assignment() and time.monotonic() < end:
        first.poll(0.2)
    second.subscribe([made])
    assert "The instance ID is still used by another member" in error_of(second).str()


@pytest.mark.slow
def test_kafkajs_tells_that_its_group_is_a_share_group(own_broker: BrokerProcess, made: str, group: str) -> None:
    try:
        kafkajs = KafkaJs({"brokers": [own_broker.bootstrap]})
    except Unavailable as error:
        give_up(f"kafkajs: {error}")
    with Requests(own_broker.bootstrap) as ask, kafkajs as js:
        ShareMember(ask, group, made).join()
        consumer = js.open("consumer", {"groupId": group})
        consumer.call("subscribe", topics=[made])
        consumer.run()
        said: list[str | None] = []

        def crashed() -> bool:
            said.append(consumer.taken()["crashed"])
            return said[-1] is not None

        eventually(crashed, SOON_S)
        assert "supported protocols are incompatible with those of existing members" in str(said[-1])

        transaction = js.open("producer", {"transactionalId": made, "maxInFlightRequests": 1}).transaction()
        offsets = [{"topic": made, "partitions": [{"partition": 0, "offset": "1"}]}]
        with pytest.raises(KafkaJsError, match="The group id was not found"):
            transaction.call("sendOffsets", consumerGroupId=group, topics=offsets)
        transaction.call("abort")
        with pytest.raises(KafkaJsError) as told:
            js.open("admin").call("deleteGroups", [group])
        assert told.value.causes == ["NON_EMPTY_GROUP"]


JAVA_ASKS: Mapping[str, Callable[[KafkaJava, Any], Any]] = {
    "DESCRIBE_QUORUM": lambda java, admin: admin.describeMetadataQuorum().quorumInfo(),
    "UNREGISTER_BROKER": lambda java, admin: admin.unregisterBroker(7).all(),
    "STREAMS_GROUP_DESCRIBE": lambda java, admin: admin.describeStreamsGroups(["g"]).all(),
}


@pytest.mark.parametrize("api", JAVA_ASKS)
def test_java_names_the_api_that_is_not_served(java: KafkaJava, own_broker: BrokerProcess, api: str) -> None:
    admin = java.admin({"bootstrap.servers": own_broker.bootstrap})
    error = thrown(lambda: JAVA_ASKS[api](java, admin).get())
    assert type_of(error) == "UnsupportedVersionException"
    assert f"The node does not support {api}" in error.getMessage()

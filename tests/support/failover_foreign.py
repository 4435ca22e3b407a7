"""Writers and readers for tests/compat/test_failover.py that are not in Python: kafkajs, Kafka's own client, kcat."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterable
from typing import Any

from py4j.protocol import Py4JJavaError

from broker.client.cluster import Cluster
from broker.client.committed_offsets import GroupOffsets
from broker.protocol.topic_partition import TopicPartition
from tests.support.failover_contract import PARTITIONS, PATIENCE_S, Aborted, Reader, Writer, partition_of
from tests.support.kafka_java import java_or_give_up
from tests.support.kafkajs import KafkaJs, KafkaJsError
from tests.support.kcat import Kcat
from tests.support.requirements import Unavailable, give_up
from tests.support.waiting import eventually


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

"""Clients that work in a loop and print when each step succeeded: how long does a fault stop them?

`python -m tests.support.pauses KIND BOOTSTRAP TOPIC` works on partition 0 of the topic until it is killed. Each line
`done …` has the time of a success (monotonic seconds, which all processes of a machine share) and what was done.
`pause` of these times says the rest.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from broker.client.cluster import Cluster
from broker.client.cluster_metadata import CoordinatorKind
from broker.client.consumer import Consumer
from broker.client.partition_offsets import LATEST, list_offsets
from broker.client.producer import Producer
from broker.protocol.topic_partition import TopicPartition

_EVERY_S = 0.1


def pause(times: Sequence[float], cut_at: float) -> float | None:
    """Seconds from the cut to the first success of a step that the cut has stopped: the end of the longest gap that
    ends after it. None while there is no success a second after the last gap."""
    gaps = [(after - before, after) for before, after in itertools.pairwise(times) if after > cut_at]
    longest, ended = max(gaps, default=(0.0, 0.0))
    return ended - cut_at if longest > 1.0 else None


def producing(bootstrap: str, topic: str) -> Iterator[Any]:
    with Producer(bootstrap) as producer:
        for number in itertools.count():
            yield producer.send(topic, b"%d" % number, partition=0).result().offset


def producing_transactions(bootstrap: str, topic: str) -> Iterator[Any]:
    """With a coordinator on the broker that leads the partition, so that one cut takes both."""
    with Cluster(bootstrap) as cluster:
        leader = cluster.leader(TopicPartition(topic, 0))
        ids = (f"pauses-{number}" for number in itertools.count())
        chosen = next(one for one in ids if cluster.coordinator(one, CoordinatorKind.TRANSACTION).id == leader.id)
    with Producer(bootstrap, {"transactional.id": chosen}) as producer:
        producer.init_transactions()
        for number in itertools.count():
            producer.begin_transaction()
            producer.send(topic, b"%d" % number, partition=0)
            producer.commit_transaction()
            yield number


def consuming(bootstrap: str, topic: str) -> Iterator[Any]:
    with Consumer(bootstrap) as consumer:
        consumer.assign({TopicPartition(topic, 0): 0})
        while True:
            records = consumer.poll(1.0)
            if records:
                yield records[-1].offset


def asking_for_offsets(bootstrap: str, topic: str) -> Iterator[Any]:
    """As the driver of a stream does before each micro-batch."""
    with Cluster(bootstrap) as cluster:
        tp = TopicPartition(topic, 0)
        while True:
            yield list_offsets(cluster, {tp: LATEST})[tp].offset


def starting(bootstrap: str, topic: str) -> Iterator[Any]:
    """A new client for each step, as a console command or the planning of a batch query has it."""
    while True:
        with Cluster(bootstrap) as cluster:
            tp = TopicPartition(topic, 0)
            yield list_offsets(cluster, {tp: LATEST})[tp].offset


def confluent_producing(bootstrap: str, topic: str, **settings: Any) -> Iterator[Any]:
    from confluent_kafka import Producer as Librdkafkas

    producer = Librdkafkas({"bootstrap.servers": bootstrap, "enable.idempotence": True, **settings})
    delivered: list[int] = []

    def note(error: Any, message: Any) -> None:
        if error is None:
            delivered.append(message.offset())

    for number in itertools.count():
        producer.produce(topic, b"%d" % number, partition=0, on_delivery=note)
        while not delivered:
            producer.poll(0.1)
        yield delivered.pop()


def tuned_confluent_producing(bootstrap: str, topic: str) -> Iterator[Any]:
    return confluent_producing(bootstrap, topic, **{"socket.timeout.ms": 10_000})


def streaming(bootstrap: str, topic: str) -> Iterator[Any]:
    """Micro-batches that write exactly once, to the topic whose name ends in `-out`."""
    options = {"kafka.bootstrap.servers": bootstrap}
    frame = _session().readStream.format("pykafka").options(**options, subscribe=topic).load()
    writer = frame.select("value").writeStream.format("pykafka").options(**options, topic=f"{topic}-out")
    query = writer.option("checkpointLocation", tempfile.mkdtemp()).start()
    told = -1
    while True:
        query.awaitTermination(0.1)
        done = query.lastProgress
        if done is not None and done["batchId"] > told and done["numInputRows"]:
            told = done["batchId"]
            yield told


def loading(bootstrap: str, topic: str) -> Iterator[Any]:
    """Loads into a Delta table, one after the other."""
    from spark_connector.load import load

    spark, where = _session(), tempfile.mkdtemp()
    for _ in itertools.count():
        result = load(spark, bootstrap_servers=bootstrap, topic=topic, to=f"{where}/table", format="delta", group="g")
        if result.rows:
            yield result.rows


def _session() -> Any:
    from pyspark.sql import SparkSession

    quiet: dict[str, Any] = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    return SparkSession.builder.master("local[2]").config(map=quiet).getOrCreate()


KINDS: dict[str, Callable[[str, str], Iterator[Any]]] = {
    "producer": producing,
    "transactions": producing_transactions,
    "consumer": consuming,
    "offsets": asking_for_offsets,
    "new-clients": starting,
    "stream": streaming,
    "loads": loading,
    "confluent": confluent_producing,
    "confluent-tuned": tuned_confluent_producing,
}


if __name__ == "__main__":
    kind, *where = sys.argv[1:]
    for done in KINDS[kind](*where):
        print(f"done {time.monotonic():.3f} {done}", flush=True)
        time.sleep(_EVERY_S)

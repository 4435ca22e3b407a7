"""A cluster of three with something of everything that the console shows, under some load: for its pictures.

Typed topics and a registry, an archive, groups of which one falls behind, a share group, transactions, a stream and
loads into Iceberg, Delta and files, with bad records and a series that is late.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

import fastavro
from confluent_kafka import AcknowledgeType, ShareConsumer
from pyiceberg.catalog.sql import SqlCatalog

from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.client.consumer import Consumer
from broker.client.producer import Producer
from broker.embedded import EmbeddedCluster
from broker.protocol.described_config import ResourceType
from pykafka_demo.flights import SCHEMA, flights
from spark_connector.cli.session import LazySession
from spark_connector.listener import ConsoleReports, LagListener
from spark_connector.load import load
from spark_connector.registry.embedded_registry import EmbeddedRegistry

SETTINGS = {
    "default.replication.factor": "3",
    "remote.log.storage.system.enable": "true",
    "log.retention.check.interval.ms": "5000",
}
ARCHIVED = {
    "remote.storage.enable": "true",
    "segment.bytes": "250000",
    "retention.ms": "-1",
    "local.retention.bytes": "500000",
}
"""Most of such a topic is in the archive only when the pictures are taken."""
TOPICS: dict[str, tuple[int, dict[str, str]]] = {
    "flights": (6, ARCHIVED),
    "bookings": (3, {}),
    "fares": (2, {}),
    "planes": (2, {"cleanup.policy": "compact"}),
    "payments": (2, {}),
    "tickets": (1, {}),
    "dlq.tickets": (1, {"errors.deadletterqueue.group.enable": "true"}),
    "weather": (1, {"retention.ms": "86400000"}),
}
"""Partitions and settings."""
FARE = {
    "type": "record",
    "name": "Fare",
    "fields": [
        {"name": "flight", "type": "int"},
        {"name": "dest", "type": "string"},
        {"name": "dollars", "type": "double"},
    ],
}
SHARE = {
    "share.auto.offset.reset": "earliest",
    "errors.deadletterqueue.topic.name": "dlq.tickets",
    "errors.deadletterqueue.copy.record.enable": "true",
}
_ANSWERS = [AcknowledgeType.ACCEPT] * 17 + [AcknowledgeType.RELEASE] * 2 + [AcknowledgeType.REJECT]


class Busy(NamedTuple):
    """What a console of the cluster is started with, beside the catalog and table of below: `loads` are directories.

    `console` is to be given the console's address, to which the stream reports. The loads begin then.
    """

    bootstrap: str
    registry: str
    loads: list[str]
    console: Future[str]
    check: Callable[[], None]


CATALOG, TABLE = "lake", "iceberg:lake.flights"


@contextlib.contextmanager
def busy_cluster(directory: Path) -> Iterator[Busy]:
    """The cluster for as long as the block runs, and its life goes on: `check` raises what has failed of it."""
    with contextlib.ExitStack() as opened:
        opened.enter_context(_catalog(directory))
        cluster = opened.enter_context(EmbeddedCluster(3, settings={**SETTINGS, "archive.url": f"{directory}/archive"}))
        registry = opened.enter_context(EmbeddedRegistry(cluster.bootstrap))
        with Cluster(cluster.bootstrap) as made:
            for name, (partitions, settings) in TOPICS.items():
                Admin(made).create_topic(name, partitions, 3, settings)
        schema = registry.register("fares-value", json.dumps(FARE))
        life = opened.enter_context(_Life(cluster.bootstrap, directory).going_on(schema))
        yield Busy(
            cluster.bootstrap, registry.url, [f"{directory}/delta", f"{directory}/files"], life.console, life.check
        )


@contextlib.contextmanager
def _catalog(directory: Path) -> Iterator[None]:
    """The catalog, for this process and those that it starts."""
    properties = {"type": "sql", "uri": f"sqlite:///{directory}/catalog.db", "warehouse": f"file://{directory}/lake"}
    (directory / "lake").mkdir(parents=True)
    SqlCatalog(CATALOG, **properties).create_namespace("lake")
    names = {f"PYICEBERG_CATALOG__{CATALOG.upper()}__{name.upper()}": value for name, value in properties.items()}
    os.environ.update(names)
    try:
        yield
    finally:
        for name in names:
            del os.environ[name]


class _Life:
    """Threads that write and read until they are to end."""

    def __init__(self, bootstrap: str, directory: Path) -> None:
        self.bootstrap = bootstrap
        self.directory = directory
        self.ended = threading.Event()
        self.console: Future[str] = Future()
        self._failed: list[BaseException] = []

    @contextlib.contextmanager
    def going_on(self, schema: int) -> Iterator[_Life]:
        works: list[tuple[Callable[..., None], tuple[Any, ...]]] = [
            (self._write, (schema,)),
            (self._pay, ()),
            (self._stay_open, ()),
            (self._read, ("dashboard", 0.05, 500)),
            (self._read, ("delays", 0.9, 100)),
            (self._share, ()),
            (self._load, ()),
        ]
        threads = [threading.Thread(target=self._run, args=work) for work in works]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self.ended.set()
            self.console.cancel()
            for thread in threads:
                thread.join()

    def check(self) -> None:
        """Raises what has failed."""
        if self._failed:
            raise self._failed[0]

    def _run(self, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        try:
            work(*arguments)
        except BaseException as error:
            self._failed.append(error)

    def _write(self, schema: int) -> None:
        """Flights in waves; now and then a record that is none."""
        with Producer(self.bootstrap) as producer:
            for number, row in enumerate(flights().slice(0, 200_000).to_pylist()):
                value, key = json.dumps(row, default=str).encode(), str(row["tailnum"] or "").encode()
                producer.send("flights", value, key=key)
                if number % 3 == 0:
                    producer.send("bookings", value, headers=[("channel", b"web"), ("agent", b"ann")])
                    producer.send("fares", _fare(schema, row), key=key)
                if number % 10 == 0:
                    producer.send("planes", json.dumps({"last": row["dest"]}).encode(), key=key or b"none")
                    producer.send("tickets", b'{"flight": %d}' % row["flight"])
                if number % 700 == 0:
                    producer.send("flights", b"end of hour %d" % (number // 700), key=b"clock")
                    producer.send("weather", b'{"origin": "JFK", "wind": %d}' % (number % 23))
                if number % 100 == 99 and self.ended.wait(0.2 + 0.2 * ((number // 3_000) % 3)):
                    return

    def _pay(self) -> None:
        """A transaction a second."""
        with Producer(self.bootstrap, {"transactional.id": "payments-1"}) as producer:
            producer.init_transactions()
            for number in range(1_000_000):
                producer.begin_transaction()
                producer.send("payments", b'{"payment": %d}' % number)
                stop = self.ended.wait(1.0)
                producer.commit_transaction()
                if stop:
                    return

    def _stay_open(self) -> None:
        settings = {"transactional.id": "settlement", "transaction.timeout.ms": "900000"}
        with Producer(self.bootstrap, settings) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("payments", b'{"settlement": 1}')
            producer.flush(30)
            self.ended.wait()

    def _read(self, group: str, pause_s: float, records: int) -> None:
        """At most so many in a poll: a group with few falls behind."""
        settings = {"group.id": group, "auto.offset.reset": "earliest", "max.poll.records": str(records)}
        with Consumer(self.bootstrap, settings) as consumer:
            consumer.subscribe(["flights"])
            while not self.ended.wait(pause_s):
                consumer.poll(0.1)
                consumer.commit()

    def _share(self) -> None:
        """A member of a share group: it is done with most of what it takes, gives some back and rejects some."""
        with Cluster(self.bootstrap) as cluster:
            Admin(cluster).alter_configs(ResourceType.GROUP, "ticket-desk", SHARE)
        settings = {"bootstrap.servers": self.bootstrap, "group.id": "ticket-desk", "max.poll.records": 40}
        consumer = ShareConsumer({**settings, "share.acknowledgement.mode": "explicit"})
        consumer.subscribe(["tickets"])
        while not self.ended.wait(0.7):
            for number, message in enumerate(consumer.poll(0.5)):
                consumer.acknowledge(message, _ANSWERS[number % len(_ANSWERS)])
            consumer.commit_sync(30.0)
        consumer.close()

    def _load(self) -> None:
        """A stream, and loads in turn. The first series ends early, and is late when the pictures are taken."""
        common: dict[str, Any] = {"bootstrap_servers": self.bootstrap, "topic": "flights"}
        typed = {"columns": "value.*,topic,partition,offset", "options": {"valueFormat": "json", "valueSchema": SCHEMA}}
        table = {"to": TABLE, "catalog": CATALOG, "group": "nightly", "dead_letters": f"{TABLE}_bad"}
        delta = {"to": f"{self.directory}/delta", "format": "delta", "group": "reports"}
        series: list[dict[str, Any]] = [
            {"to": f"{self.directory}/files", "group": "hourly"},
            {**table, **typed},
            {**delta, "dead_letters": f"delta:{self.directory}/bad", **typed},
        ]
        with LazySession("pictures", "local[2]", {}, self.directory / "spark.log") as lazy:
            spark = lazy.session()
            spark.streams.addListener(LagListener(ConsoleReports(self.console.result(120))))
            stream = spark.readStream.format("pykafka").option("kafka.bootstrap.servers", self.bootstrap)
            stream = stream.options(subscribe="bookings", offsetStore="group", group="bookings-live")
            sink = stream.load().writeStream.format("noop").trigger(processingTime="4 seconds")
            query = sink.queryName("bookings live").option("checkpointLocation", f"{self.directory}/checkpoint").start()
            for turn in range(1_000_000):
                for one in series[1 if turn > 4 else 0 :]:
                    load(spark, **common, **one)
                if self.ended.wait(5.0):
                    query.stop()
                    return


def _fare(schema: int, row: dict[str, Any]) -> bytes:
    """A value in Confluent's wire format."""
    out = io.BytesIO()
    out.write(b"\0" + schema.to_bytes(4, "big"))
    fastavro.schemaless_writer(
        out, FARE, {"flight": row["flight"], "dest": row["dest"], "dollars": row["distance"] / 4}
    )
    return out.getvalue()

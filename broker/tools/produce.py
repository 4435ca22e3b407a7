"""`pykafka produce`: lines of standard input to records (kafka-console-producer.sh).

Records are sent in batches while lines are read. A record that cannot be delivered is reported on standard error and
makes the exit status 1; the others are still sent. With `--transactional-id` all lines are one transaction, or several
of `--transaction-size` lines each. There a record that cannot be delivered aborts its transaction and ends the run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from broker.client.admin import Admin
from broker.client.client_settings import ClientSettings
from broker.client.cluster import Cluster
from broker.client.cluster_metadata import UnknownTopic
from broker.client.producer import Producer, RecordFuture
from broker.client.transaction_errors import FatalTransactionError
from broker.errors import ConfigError, PykafkaError
from broker.tools.client_options import (
    BootstrapServer,
    OneTopic,
    ProducerProperties,
    client_settings,
    config_option,
    flag,
    option,
    parse_pairs,
    with_options,
)
from broker.tools.output import counted, note
from broker.tools.record_text import LineReader

SHOWN_FAILURES = 5

PROPERTIES = (
    "How a line is read: parse.key, key.separator, parse.headers, headers.delimiter, headers.separator, "
    "headers.key.separator, null.marker, ignore.error; may be repeated."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProduceOptions:
    topic: OneTopic
    partition: Annotated[int | None, option("Send to this partition.", "N", "--partition", "-p", min=0)] = None
    properties: Annotated[list[str] | None, option(PROPERTIES, "KEY=VALUE", "--property")] = None
    compression_codec: Annotated[
        str | None, option("none, gzip, snappy, lz4 or zstd.", "CODEC", "--compression-codec", "-z")
    ] = None
    batch_size: Annotated[int | None, option("Largest batch.", "BYTES", min=0)] = None
    linger: Annotated[int | None, option("How long a batch that is not full waits.", "MS", "--timeout", min=0)] = None
    acks: Annotated[
        str | None, option("Acknowledgements: 0, 1 or all.", "ACKS", "--request-required-acks", "--acks")
    ] = None
    sync: Annotated[bool, flag("Wait for the broker after each line.", "--sync")] = False
    transactional_id: Annotated[
        str | None, option("Send in a transaction of this id, committed when the input ends.", "ID")
    ] = None
    transaction_size: Annotated[
        int | None, option("Commit after so many lines and begin a new transaction.", "N", min=1)
    ] = None
    producer_property: ProducerProperties = None
    as_json: Annotated[bool, flag("Print where each record was written, as JSON.", "--json")] = False
    bootstrap_server: BootstrapServer = None
    config_file: Annotated[Path | None, config_option("producer")] = None

    @property
    def settings(self) -> ClientSettings:
        """Raises ConfigError."""
        options = {
            "compression.type": self.compression_codec,
            "batch.size": self.batch_size,
            "linger.ms": self.linger,
            "acks": self.acks,
            "transactional.id": self.transactional_id,
        }
        given = parse_pairs(self.producer_property, "--producer-property")
        settings = client_settings(self.bootstrap_server, self.config_file, given, options)
        if self.transaction_size is not None and not settings.transactional_id:
            raise ConfigError("--transaction-size needs --transactional-id")
        return settings


@with_options
def produce(options: ProduceOptions) -> None:
    """Write the lines of standard input to a topic.

    \b
    Examples:
      pykafka produce --topic flights < lines.txt
      echo "k1:hello" | pykafka produce --topic flights --property parse.key=true --property key.separator=:
      seq 1000 | pykafka produce --topic numbers -z zstd --transactional-id seq-1
    """
    topic, settings = options.topic, options.settings
    reader = LineReader(parse_pairs(options.properties, "--property"))
    deliveries = Deliveries(show=options.as_json)
    missing = not _exists(settings, topic)
    with Producer(settings) as producer, transacted(producer, records=options.transaction_size) as on_sent:
        for line in read_lines():
            record = reader.read(line)
            where, told = options.partition, deliveries.on_delivery
            future = producer.send(topic, record.value, record.key, record.headers, where, on_delivery=told)
            if missing:
                missing = False
                count = producer.partitions(topic)
                note(f"pykafka: created topic {topic} with {count} partition{'s' if count > 1 else ''}")
            if options.sync:
                future.exception()
            on_sent()
    deliveries.raise_if_any_failed()


def read_lines() -> Iterator[bytes]:
    """Lines of standard input, with a prompt if a person types them. Ctrl-C ends the input."""
    typed = sys.stdin.isatty()
    try:
        while True:
            if typed:
                typer.echo("> ", nl=False, err=True)
            line = sys.stdin.buffer.readline()
            if not line:
                return
            yield line
    except KeyboardInterrupt:
        return


class Deliveries:
    """Counts the records that were not delivered and prints the first errors; with `show`, prints where others went.

    Called from the producer's sender thread.
    """

    def __init__(self, *, show: bool = False) -> None:
        self._show = show
        self._failures = 0
        self._lock = threading.Lock()

    def on_delivery(self, future: RecordFuture) -> None:
        error = future.exception()
        if error is None:
            if self._show:
                typer.echo(json.dumps(future.result()._asdict()))
            return
        with self._lock:
            self._failures += 1
            if self._failures <= SHOWN_FAILURES:
                typer.secho(f"pykafka: not delivered: {error}", fg=typer.colors.RED, err=True)

    def raise_if_any_failed(self) -> None:
        """PykafkaError with the number of records that were not delivered."""
        if self._failures:
            were = "was" if self._failures == 1 else "were"
            raise PykafkaError(f"{counted(self._failures, 'record')} {were} not delivered")


@contextlib.contextmanager
def transacted(
    producer: Producer, *, records: int | None = None, duration_ms: int | None = None
) -> Iterator[Callable[[], None]]:
    """Send in transactions, if the producer has a `transactional.id`.

    The caller calls the yielded function after each record. It commits a transaction that has `records` records or is
    `duration_ms` old, and begins the next one. The last one is committed at the end; an error aborts it.
    """
    if not producer.settings.transactional_id:
        yield lambda: None
        return
    producer.init_transactions()
    producer.begin_transaction()
    count, begun = 0, time.monotonic()

    def on_sent() -> None:
        nonlocal count, begun
        count += 1
        full = records is not None and count >= records
        if full or (duration_ms is not None and (time.monotonic() - begun) * 1000 >= duration_ms):
            producer.commit_transaction()
            producer.begin_transaction()
            count, begun = 0, time.monotonic()

    try:
        yield on_sent
        producer.commit_transaction()
    except FatalTransactionError:
        raise
    except BaseException:
        with contextlib.suppress(PykafkaError):
            producer.abort_transaction()
        raise


def _exists(settings: ClientSettings, topic: str) -> bool:
    """Whether the topic is there before the producer asks for it, which may create it."""
    with Cluster(settings, create_topics=False) as cluster:
        try:
            Admin(cluster).describe_topics([topic])
        except UnknownTopic:
            return False
    return True

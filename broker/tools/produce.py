"""`pykafka produce`: lines of standard input to records (kafka-console-producer.sh).

Records are sent in batches while lines are read; `--sync` waits for each. A record that cannot be delivered is
reported on standard error and makes the exit status 1, the others are sent nevertheless. With `--transactional-id` all
lines are one transaction, or several of `--transaction-size`; then a record that cannot be delivered aborts its
transaction and ends the run. `--json` tells where each record went.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from broker.client.producer import Producer, RecordFuture
from broker.errors import PykafkaError
from broker.tools.client_options import BootstrapServer, JsonOutput, OneTopic, client_settings, parse_pairs
from broker.tools.line_reader import LineReader
from broker.tools.transacted import transacted
from broker.tools.usage import UsageError

__all__ = ["produce"]

SHOWN_FAILURES = 5

PROPERTIES = (
    "parse.key, key.separator, parse.headers, headers.delimiter, headers.separator, headers.key.separator, "
    "null.marker, ignore.error; may be repeated."
)


def produce(
    topic: OneTopic,
    partition: Annotated[int | None, typer.Option("--partition", "-p", min=0, help="Only into this one.")] = None,
    properties: Annotated[list[str] | None, typer.Option("--property", help=PROPERTIES, metavar="KEY=VALUE")] = None,
    compression_codec: Annotated[
        str | None, typer.Option("--compression-codec", "-z", help="none, gzip, snappy, lz4 or zstd.")
    ] = None,
    batch_size: Annotated[int | None, typer.Option(min=0, help="Bytes of a batch.")] = None,
    linger: Annotated[
        int | None, typer.Option("--timeout", min=0, help="Milliseconds that a batch which is not full waits.")
    ] = None,
    acks: Annotated[str | None, typer.Option("--request-required-acks", "--acks", help="0, 1 or all.")] = None,
    sync: Annotated[bool, typer.Option("--sync", help="Wait for the broker after each line.")] = False,
    transactional_id: Annotated[
        str | None, typer.Option(help="Send in a transaction of this id, committed when the input ends.")
    ] = None,
    transaction_size: Annotated[
        int | None, typer.Option(min=1, help="Commit after so many lines, and begin another transaction.")
    ] = None,
    producer_property: Annotated[
        list[str] | None, typer.Option(help="Setting of the producer; may be repeated.", metavar="KEY=VALUE")
    ] = None,
    as_json: JsonOutput = False,
    bootstrap_server: BootstrapServer = None,
    config_file: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "--producer-config",
            "--producer.config",
            "--command-config",
            "--config-file",
            help="Its properties file.",
            metavar="FILE",
        ),
    ] = None,
) -> None:
    """Write the lines of standard input to a topic."""
    options = {
        "compression.type": compression_codec,
        "batch.size": batch_size,
        "linger.ms": linger,
        "acks": acks,
        "transactional.id": transactional_id,
    }
    given = {key: str(value) for key, value in options.items() if value is not None}
    settings = client_settings(
        bootstrap_server, config_file, parse_pairs(producer_property, "--producer-property"), given
    )
    if transaction_size is not None and not settings.transactional_id:
        raise UsageError("--transaction-size needs --transactional-id")
    reader = LineReader(parse_pairs(properties, "--property"))
    deliveries = Deliveries(show=as_json)
    with Producer(settings) as producer, transacted(producer, records=transaction_size) as sent_one:
        for line in read_lines():
            record = reader.read(line)
            future = producer.send(
                topic, record.value, record.key, record.headers, partition, on_delivery=deliveries.look_at
            )
            if sync:
                future.exception()
            sent_one()
    deliveries.raise_if_any_failed()


def read_lines() -> Iterator[bytes]:
    """Lines of standard input; with a prompt when a person types them. Ctrl-C ends the input."""
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
    """Counts the records that were not delivered and shows the first few errors; with `show`, where the others went.

    Called from the sender's thread.
    """

    def __init__(self, *, show: bool = False) -> None:
        self._show = show
        self._failures = 0
        self._lock = threading.Lock()

    def look_at(self, future: RecordFuture) -> None:
        """Note what became of a record."""
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
            raise PykafkaError(f"{self._failures} records were not delivered")

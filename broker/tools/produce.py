"""`pykafka produce`: lines of standard input to records (kafka-console-producer.sh).

Records are sent in batches while lines are read; `--sync` waits for each. A record that cannot be delivered is
reported on standard error and makes the exit status 1, the others are sent nevertheless.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from broker.client.producer import Producer, RecordFuture
from broker.errors import PykafkaError
from broker.tools.client_options import BootstrapServer, client_settings, parse_pairs
from broker.tools.line_reader import LineReader

__all__ = ["produce"]

SHOWN_FAILURES = 5

PROPERTIES = (
    "parse.key, key.separator, parse.headers, headers.delimiter, headers.separator, headers.key.separator, "
    "null.marker, ignore.error; may be repeated."
)


def produce(
    topic: Annotated[str, typer.Option("--topic", help="Topic to write to.", metavar="NAME")],
    partition: Annotated[int | None, typer.Option(min=0, help="Only into this partition.")] = None,
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
    producer_property: Annotated[
        list[str] | None, typer.Option(help="Setting of the producer; may be repeated.", metavar="KEY=VALUE")
    ] = None,
    producer_config: Annotated[
        Path | None,
        typer.Option("--producer-config", "--producer.config", "--config", help="Its properties file.", metavar="FILE"),
    ] = None,
    bootstrap_server: BootstrapServer = None,
) -> None:
    """Write the lines of standard input to a topic."""
    options = {"compression.type": compression_codec, "batch.size": batch_size, "linger.ms": linger, "acks": acks}
    given = {key: str(value) for key, value in options.items() if value is not None}
    settings = client_settings(
        bootstrap_server, producer_config, parse_pairs(producer_property, "--producer-property"), given
    )
    reader = LineReader(parse_pairs(properties, "--property"))
    failures = Failures()
    with Producer(settings) as producer:
        for line in read_lines():
            record = reader.read(line)
            future = producer.send(
                topic, record.value, record.key, record.headers, partition, on_delivery=failures.look_at
            )
            if sync:
                future.exception()
    failures.raise_if_any()


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


class Failures:
    """Counts the records that were not delivered and shows the first few errors. Called from the sender's thread."""

    def __init__(self) -> None:
        self._count = 0
        self._lock = threading.Lock()

    def look_at(self, future: RecordFuture) -> None:
        """Note what became of a record."""
        error = future.exception()
        if error is None:
            return
        with self._lock:
            self._count += 1
            if self._count <= SHOWN_FAILURES:
                typer.secho(f"pykafka: not delivered: {error}", fg=typer.colors.RED, err=True)

    def raise_if_any(self) -> None:
        """PykafkaError with the number of records that were not delivered."""
        if self._count:
            raise PykafkaError(f"{self._count} records were not delivered")

"""`pykafka consume`: records to standard output (kafka-console-consumer.sh).

With a group (`--group`, or `group.id` of the properties) the partitions are shared and what was shown is committed.
Without one every partition is read and nothing is committed. Ends after `--max-messages`, after `--timeout-ms` without
a record, on Ctrl-C or SIGTERM, and when nobody reads its output any more.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from broker.client.consumer import Consumer, ConsumerRecord
from broker.errors import ConfigError, PykafkaError
from broker.protocol.topic_partition import TopicPartition
from broker.tools.client_options import BootstrapServer, client_settings, parse_pairs
from broker.tools.completion import complete_groups, complete_topics
from broker.tools.formatter import Formatter, make_formatter
from broker.tools.usage import UsageError

__all__ = ["consume"]

_POLL_S = 0.5

PROPERTIES = (
    "print.timestamp, print.partition, print.offset, print.headers, print.key, print.value, key.separator, "
    "headers.separator, line.separator, null.literal; may be repeated."
)


def consume(
    topic: Annotated[
        str | None,
        typer.Option("--topic", "-t", help="Topic to read.", metavar="NAME", autocompletion=complete_topics),
    ] = None,
    include: Annotated[
        str | None, typer.Option("--include", "--whitelist", help="Topics whose whole name matches.", metavar="REGEX")
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, help="Only this partition; no group then.")
    ] = None,
    offset: Annotated[
        str | None, typer.Option(help="Where to begin in --partition: a number, earliest or latest.")
    ] = None,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="From the first record, where the group has no offset yet.")
    ] = False,
    group: Annotated[
        str | None,
        typer.Option("--group", "-g", help="Group to read as; offsets are committed.", autocompletion=complete_groups),
    ] = None,
    max_messages: Annotated[int | None, typer.Option("--max-messages", "-n", min=1, help="End after so many.")] = None,
    timeout_ms: Annotated[int | None, typer.Option(min=0, help="End after so long without a record.")] = None,
    formatter: Annotated[str, typer.Option(help="default, json, noop or module:function.")] = "default",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per record: --formatter json.")] = False,
    properties: Annotated[list[str] | None, typer.Option("--property", help=PROPERTIES, metavar="KEY=VALUE")] = None,
    skip_message_on_error: Annotated[
        bool, typer.Option("--skip-message-on-error", help="Go on when a record cannot be shown.")
    ] = False,
    isolation_level: Annotated[str | None, typer.Option(help="read_uncommitted or read_committed.")] = None,
    consumer_property: Annotated[
        list[str] | None, typer.Option(help="Setting of the consumer; may be repeated.", metavar="KEY=VALUE")
    ] = None,
    bootstrap_server: BootstrapServer = None,
    config_file: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "--consumer-config",
            "--consumer.config",
            "--command-config",
            "--config-file",
            help="Its properties file.",
            metavar="FILE",
        ),
    ] = None,
) -> None:
    """Write the records of a topic to standard output."""
    _check_together(topic, include, partition, offset, from_beginning, group)
    options = {
        "group.id": group,
        "isolation.level": isolation_level,
        "auto.offset.reset": "earliest" if from_beginning else None,
    }
    settings = client_settings(
        bootstrap_server,
        config_file,
        parse_pairs(consumer_property, "--consumer-property"),
        {key: value for key, value in options.items() if value is not None},
    )
    show = make_formatter("json" if as_json else formatter, parse_pairs(properties, "--property"))
    with Consumer(settings) as consumer:
        display = Display(consumer, show, sys.stdout.buffer, skip_errors=skip_message_on_error)
        with _on_signal(display.stop):
            if settings.group_id and partition is None:
                consumer.subscribe([topic] if topic else None, pattern=include)
            else:
                _assign(consumer, topic, include, partition, offset)
            display.run(max_messages, timeout_ms)
    typer.echo(f"Processed a total of {display.count} messages", err=True)


class Display:
    """Shows what a consumer polls. A record counts as consumed, and is committed, when its text is written."""

    def __init__(self, consumer: Consumer, show: Formatter, out: BinaryIO, *, skip_errors: bool) -> None:
        self.count = 0
        self._consumer = consumer
        self._show = show
        self._out = out
        self._skip_errors = skip_errors
        self._stopped = False

    def stop(self, *_: object) -> None:
        """A signal: the first ends the run between two polls, so that no record is lost; the second at once."""
        if self._stopped:
            raise KeyboardInterrupt
        self._stopped = True

    def run(self, max_messages: int | None, timeout_ms: int | None) -> None:
        """Until there were `max_messages`, or none for `timeout_ms`; None is no limit."""
        waiting_since = time.monotonic()
        while not self._stopped and (max_messages is None or self.count < max_messages):
            left = _POLL_S if timeout_ms is None else waiting_since + timeout_ms / 1000 - time.monotonic()
            records = self._consumer.poll(max(0.0, min(left, _POLL_S)))
            if records:
                if not self._write(records, max_messages):
                    return
                waiting_since = time.monotonic()
            elif left <= 0:
                return

    def _write(self, records: Sequence[ConsumerRecord], max_messages: int | None) -> bool:
        """False when nobody reads the output any more."""
        shown = 0
        wanted = records if max_messages is None else records[: max_messages - self.count]
        try:
            for record in wanted:
                self._write_one(record)
                shown += 1
            self._out.flush()
        except BrokenPipeError:
            shown = 0
            _discard_output()
            return False
        finally:
            self.count += shown
            self._give_back(records[shown:])
        return True

    def _write_one(self, record: ConsumerRecord) -> None:
        try:
            text = self._show(record)
        except Exception as error:
            where = f"the record of {record.topic}-{record.partition} at offset {record.offset}"
            if not self._skip_errors:
                raise PykafkaError(f"{where} cannot be shown: {error!r}; --skip-message-on-error goes on") from error
            typer.secho(f"pykafka: skipped {where}: {error!r}", fg=typer.colors.RED, err=True)
        else:
            self._out.write(text)

    def _give_back(self, records: Sequence[ConsumerRecord]) -> None:
        """Records that were polled but not shown: the position, and so the commit, goes before them."""
        for record in reversed(records):
            self._consumer.seek(TopicPartition(record.topic, record.partition), record.offset)


@contextlib.contextmanager
def _on_signal(stop: Callable[..., None]) -> Iterator[None]:
    """Have SIGINT and SIGTERM call `stop` inside."""
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _check_together(
    topic: str | None,
    include: str | None,
    partition: int | None,
    offset: str | None,
    from_beginning: bool,
    group: str | None,
) -> None:
    if (topic is None) == (include is None):
        raise UsageError("give one of --topic and --include")
    if partition is not None and topic is None:
        raise UsageError("--partition needs --topic")
    if partition is not None and group is not None:
        raise UsageError("--partition reads without a group: leave out --group")
    if offset is not None and partition is None:
        raise UsageError("--offset needs --partition")
    if offset is not None and from_beginning:
        raise UsageError("give one of --offset and --from-beginning")
    if offset is not None and offset not in ("earliest", "latest") and not offset.isdecimal():
        raise UsageError(f"--offset {offset}: expected a number, earliest or latest")


def _assign(
    consumer: Consumer, topic: str | None, include: str | None, partition: int | None, offset: str | None
) -> None:
    """Every partition of the topics, or the one, without a group."""
    topics = [topic] if topic is not None else _matching(consumer, include or "")
    consumer.cluster.include(topics)
    found = [TopicPartition(name, index) for name in topics for index in consumer.cluster.partitions(name)]
    if partition is not None:
        found = [tp for tp in found if tp.partition == partition]
        if not found:
            raise ConfigError(f"--partition {partition}: topic {topic!r} has no such partition")
    consumer.assign(found)
    if offset == "earliest":
        consumer.seek_to_beginning()
    elif offset == "latest":
        consumer.seek_to_end()
    elif offset is not None:
        consumer.seek(found[0], int(offset))


def _matching(consumer: Consumer, include: str) -> list[str]:
    try:
        pattern = re.compile(include)
    except re.error as error:
        raise ConfigError(f"--include {include}: {error}") from error
    topics = consumer.cluster.topics().values()
    names = sorted(topic.name for topic in topics if not topic.internal and pattern.fullmatch(topic.name))
    if not names:
        raise ConfigError(f"--include {include}: no topic matches")
    return names


def _discard_output() -> None:
    """Let what Python flushes at exit go nowhere instead of failing once more."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)

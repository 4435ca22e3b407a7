"""`pykafka consume`: records to standard output (kafka-console-consumer.sh, and what kcat -C adds to it).

With a group (`--group`, or `group.id` of the properties) partitions are shared and shown records are committed.
Without one, every partition is read and nothing is committed. Ends at `--max-messages`, after `--timeout-ms` without a
record, with `--exit-at-end` at the end of the log, on Ctrl-C or SIGTERM, and when the reader of the output is gone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from broker.client.client_settings import ClientSettings
from broker.client.cluster_metadata import UnknownTopic
from broker.client.consumer import Consumer, ConsumerRecord
from broker.errors import ConfigError, PykafkaError
from broker.patterns.java import JavaPattern, UnsupportedPattern
from broker.protocol.topic_partition import TopicPartition
from broker.tools.client_options import (
    BootstrapServer,
    ConsumerProperties,
    MemberOfGroup,
    client_settings,
    complete_topics,
    config_option,
    flag,
    option,
    parse_pairs,
    parse_time,
    with_options,
)
from broker.tools.record_text import Formatter, format_string, make_formatter

_POLL_S = 0.5

_PROPERTIES = (
    "What --formatter default shows: print.timestamp, print.partition, print.offset, print.headers, print.key, "
    "print.value, key.separator, headers.separator, line.separator, null.literal; may be repeated."
)
_OFFSET = "Where to begin: earliest, latest, a number, or -5 for the last five of each partition."
_FORMAT = (
    "As kcat: %t topic, %p partition, %o offset, %k key, %v or %s value, %T timestamp in ms, %h headers, %K and %S "
    r"bytes of key and value, %R the latter in binary; \n, \t and \x1f are escapes."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConsumeOptions:
    topic: Annotated[str | None, option("Topic to read.", "NAME", "--topic", "-t", autocompletion=complete_topics)] = (
        None
    )
    include: Annotated[str | None, option("Topics whose whole name matches.", "REGEX", "--include", "--whitelist")] = (
        None
    )
    partition: Annotated[
        int | None, option("Only this partition, without a group.", "N", "--partition", "-p", min=0)
    ] = None
    offset: Annotated[str | None, option(_OFFSET, "OFFSET", "--offset", "-o")] = None
    from_beginning: Annotated[
        bool, flag("Begin at the first record; with --group, if it has no offset.", "--from-beginning")
    ] = False
    from_timestamp: Annotated[
        str | None, option("Begin at the first record since then: ms since 1970, or a time (UTC).", "TIME")
    ] = None
    group: MemberOfGroup = None
    max_messages: Annotated[int | None, option("End after so many records.", "N", "--max-messages", "-n", min=1)] = None
    timeout_ms: Annotated[int | None, option("End after this time without a record.", "MS", min=0)] = None
    exit_at_end: Annotated[bool, flag("End when everything up to now is read.", "--exit-at-end", "-e")] = False
    format: Annotated[str | None, option(_FORMAT, "TEXT", "--format", "-f")] = None
    formatter: Annotated[str, option("default, json, noop or module:function.", "NAME")] = "default"
    as_json: Annotated[bool, flag("One JSON object per record: --formatter json.", "--json")] = False
    properties: Annotated[list[str] | None, option(_PROPERTIES, "KEY=VALUE", "--property")] = None
    skip_message_on_error: Annotated[bool, flag("Skip a record that cannot be shown.", "--skip-message-on-error")] = (
        False
    )
    isolation_level: Annotated[str | None, option("read_uncommitted or read_committed.", "LEVEL")] = None
    consumer_property: ConsumerProperties = None
    bootstrap_server: BootstrapServer = None
    config_file: Annotated[Path | None, config_option("consumer")] = None

    def check(self) -> None:
        """Raises ConfigError for options that contradict each other."""
        if (self.topic is None) == (self.include is None):
            raise ConfigError("give one of --topic and --include")
        if self.partition is not None and self.topic is None:
            raise ConfigError("--partition needs --topic")
        placed = not (self.partition is None and self.offset is None and self.from_timestamp is None)
        if self.group is not None and placed:
            raise ConfigError("--partition, --offset and --from-timestamp read without a group: leave out --group")

    @property
    def settings(self) -> ClientSettings:
        given = parse_pairs(self.consumer_property, "--consumer-property")
        options = {
            "group.id": self.group,
            "isolation.level": self.isolation_level,
            "auto.offset.reset": "earliest" if self.from_beginning else None,
        }
        return client_settings(self.bootstrap_server, self.config_file, given, options)


@with_options
def consume(options: ConsumeOptions) -> None:
    """Write the records of a topic to standard output. Without an option it waits for new ones.

    \b
    Examples:
      pykafka consume --topic flights --from-beginning --max-messages 3
      pykafka consume --topic flights --offset -5 --exit-at-end
      pykafka consume --topic flights --from-timestamp 2026-01-31T12:00:00 --format '%k %v\\n'
      pykafka consume --topic flights --group etl --json
    """
    options.check()
    start = _start(options)
    show = _formatter(options)
    settings = options.settings
    with Consumer(settings) as consumer:
        display = Display(consumer, show, sys.stdout.buffer, skip_errors=options.skip_message_on_error)
        with _on_signal(display.stop):
            if settings.group_id and options.partition is None and start is None:
                pattern = _include(options.include) if options.include is not None else None
                consumer.subscribe([options.topic] if options.topic else None, pattern=pattern)
            else:
                consumer.assign(_partitions(consumer, options))
                if start is not None:
                    start(consumer)
            display.run(options.max_messages, options.timeout_ms, options.exit_at_end)
    typer.echo(f"Processed a total of {display.count} messages", err=True)


def _start(options: ConsumeOptions) -> Callable[[Consumer], None] | None:
    """What moves the assigned partitions of a consumer to `--offset` or `--from-timestamp`; None without either."""
    offset, from_timestamp = options.offset, options.from_timestamp
    given = sum((offset is not None, options.from_beginning, from_timestamp is not None))
    if given > 1:
        raise ConfigError(f"give one of --offset, --from-beginning and --from-timestamp, not {given} of them")
    if from_timestamp is not None:
        since = parse_time("--from-timestamp", from_timestamp)
        return lambda consumer: consumer.seek_to_times(dict.fromkeys(consumer.assignment(), since))
    if offset is None:
        return None
    if not re.fullmatch(r"earliest|latest|-?\d+", offset):
        raise ConfigError(f"--offset {offset}: expected a number, earliest or latest")
    return lambda consumer: _seek(consumer, offset)


def _seek(consumer: Consumer, offset: str) -> None:
    if offset == "earliest":
        consumer.seek_to_beginning()
    elif offset == "latest":
        consumer.seek_to_end()
    elif offset.startswith("-"):
        consumer.seek_to_end()
        consumer.rewind(-int(offset))
    else:
        for tp in consumer.assignment():
            consumer.seek(tp, int(offset))


def _formatter(options: ConsumeOptions) -> Formatter:
    formatter, properties = options.formatter, options.properties
    if options.format is None:
        return make_formatter("json" if options.as_json else formatter, parse_pairs(properties, "--property"))
    if options.as_json or properties or formatter != "default":
        raise ConfigError("--format goes without --formatter, --json and --property")
    return format_string(options.format)


class Display:
    """Shows what a consumer polls. A record counts as consumed, and is committed, once its text is written."""

    def __init__(self, consumer: Consumer, show: Formatter, out: BinaryIO, *, skip_errors: bool) -> None:
        self.count = 0
        self._consumer = consumer
        self._show = show
        self._out = out
        self._skip_errors = skip_errors
        self._stopped = False

    def stop(self, *_: object) -> None:
        """Signal handler. The first signal ends the run after the current poll, the second at once."""
        if self._stopped:
            raise KeyboardInterrupt
        self._stopped = True

    def run(self, max_messages: int | None, timeout_ms: int | None, exit_at_end: bool) -> None:
        """Show records until `max_messages`, until there was none for `timeout_ms`, or to the end; None is no limit."""
        waiting_since = time.monotonic()
        ends: dict[TopicPartition, int] | None = None
        while not self._stopped and (max_messages is None or self.count < max_messages):
            if exit_at_end:
                assigned = self._consumer.assignment()
                if assigned and (ends is None or ends.keys() != set(assigned)):
                    ends = self._consumer.end_offsets(assigned)
                if ends and all(self._consumer.position(tp) >= end for tp, end in ends.items()):
                    return
            left = _POLL_S if timeout_ms is None else waiting_since + timeout_ms / 1000 - time.monotonic()
            records = self._consumer.poll(max(0.0, min(left, _POLL_S)))
            if records:
                if not self._write(records, max_messages):
                    return
                waiting_since = time.monotonic()
            elif left <= 0:
                return

    def _write(self, records: Sequence[ConsumerRecord], max_messages: int | None) -> bool:
        """False if nobody reads the output any more."""
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
            self._seek_back(records[shown:])
        return True

    def _write_one(self, record: ConsumerRecord) -> None:
        try:
            text = self._show(record)
        except Exception as error:
            where = f"the record of {record.topic}-{record.partition} at offset {record.offset}"
            if not self._skip_errors:
                raise PykafkaError(
                    f"{where} cannot be shown: {error!r}; --skip-message-on-error skips such records"
                ) from error
            typer.secho(f"pykafka: skipped {where}: {error!r}", fg=typer.colors.RED, err=True)
        else:
            self._out.write(text)

    def _seek_back(self, records: Sequence[ConsumerRecord]) -> None:
        """Seek before records that were polled but not shown, so that they are not committed."""
        for record in reversed(records):
            self._consumer.seek(TopicPartition(record.topic, record.partition), record.offset)


@contextlib.contextmanager
def _on_signal(stop: Callable[..., None]) -> Iterator[None]:
    """Have SIGINT and SIGTERM call `stop` inside the block."""
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _partitions(consumer: Consumer, options: ConsumeOptions) -> list[TopicPartition]:
    topic, partition = options.topic, options.partition
    topics = [topic] if topic is not None else _matching(consumer, options.include or "")
    consumer.cluster.include(topics)
    found = [TopicPartition(name, index) for name in topics for index in consumer.cluster.partitions(name)]
    if partition is None:
        return found
    if TopicPartition(topics[0], partition) not in found:
        raise UnknownTopic(f"--partition {partition}: topic {topic!r} has no such partition")
    return [TopicPartition(topics[0], partition)]


def _include(text: str) -> JavaPattern:
    """Raises ConfigError."""
    try:
        return JavaPattern(text)
    except UnsupportedPattern as error:
        raise ConfigError(f"--include {text}: {error}") from None


def _matching(consumer: Consumer, include: str) -> list[str]:
    pattern = _include(include)
    topics = consumer.cluster.topics().values()
    names = sorted(topic.name for topic in topics if not topic.internal and pattern.fullmatch(topic.name))
    if not names:
        raise UnknownTopic(f"--include {include}: no topic matches")
    return names


def _discard_output() -> None:
    """Send what Python flushes at exit to /dev/null, so that it does not fail again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)

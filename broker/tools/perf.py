"""`pykafka perf`: how fast this client and a cluster are (kafka-producer-perf-test.sh, kafka-consumer-perf-test.sh).

It is Python's own speed that limits small records; `docs/performance.md` says what the broker can do. The result is one
line, or one JSON document; while it runs a terminal shows a bar. Ctrl-C ends the run early, with what was reached.
Raises PykafkaError when records were not delivered.
"""

from __future__ import annotations

import random
import string
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from broker.client.consumer import Consumer
from broker.client.producer import Producer
from broker.errors import ConfigError, PykafkaError
from broker.protocol.topic_partition import TopicPartition
from broker.tools.client_options import BootstrapServer, ConfigFile, JsonOutput, OneTopic, client_settings, parse_pairs
from broker.tools.completion import complete_groups
from broker.tools.output import print_json, progress_bar
from broker.tools.perf_figures import Deliveries, megabytes, rounded
from broker.tools.transacted import transacted

__all__ = ["app"]

app = typer.Typer(help="Measure how fast records are produced and consumed.", no_args_is_help=True)

_PAYLOADS = 64
"""Different values that are sent in turn."""
_SHOW_EVERY_S = 0.1
_FLUSH_WAIT_S = 0.2
_POLL_RECORDS = "5000"
_POLL_S = 0.2


@app.command("produce")
def perf_produce(
    topic: OneTopic,
    num_records: Annotated[int, typer.Option("--num-records", "-n", min=1, help="How many to send.")] = 100_000,
    record_size: Annotated[int, typer.Option("--record-size", "-s", min=1, help="Bytes of a value.")] = 100,
    payload_file: Annotated[
        Path | None, typer.Option(help="Its lines are the values, in turn, instead.", metavar="FILE")
    ] = None,
    throughput: Annotated[float, typer.Option(help="Records per second at most; -1 for no limit.")] = -1,
    producer_property: Annotated[
        list[str] | None, typer.Option(help="Setting of the producer; may be repeated.", metavar="KEY=VALUE")
    ] = None,
    transactional_id: Annotated[str | None, typer.Option(help="Send in transactions of this id.")] = None,
    transaction_duration_ms: Annotated[int, typer.Option(min=1, help="How long each of them is open.")] = 3000,
    as_json: JsonOutput = False,
    bootstrap_server: BootstrapServer = None,
    config_file: ConfigFile = None,
) -> None:
    """Send records as fast as can be, or at a rate, and tell the latency of their acknowledgement."""
    payloads = _payloads(payload_file, record_size)
    named = {} if transactional_id is None else {"transactional.id": transactional_id}
    properties = parse_pairs(producer_property, "--producer-property")
    settings = client_settings(bootstrap_server, config_file, properties, named)
    deliveries = Deliveries(num_records)
    with Producer(settings) as producer:
        producer.partitions(topic)  # so that its metadata, or the topic's creation, is not measured
        started = time.perf_counter()
        sent = _send_all(producer, topic, payloads, num_records, throughput, deliveries, transaction_duration_ms)
        seconds = time.perf_counter() - started
        traffic = producer.stats().total
    rounds, rest = divmod(sent, len(payloads))
    size = rounds * sum(map(len, payloads)) + sum(map(len, payloads[:rest]))
    latency = deliveries.figures()
    result: dict[str, Any] = {
        "records": sent,
        "failedRecords": traffic.failed_records,
        "seconds": seconds,
        "recordsPerSecond": sent / seconds,
        "megabytesPerSecond": megabytes(size / seconds),
        "averageBatchRecords": traffic.records / traffic.batches if traffic.batches else 0.0,
        "latencyMs": rounded(latency),
    }
    if as_json:
        print_json(rounded(result))
    else:
        shown = ", ".join(f"{value:.2f} ms {name}" for name, value in latency.items())
        typer.echo(f"{_rate('sent', result)}, latency: {shown or 'unknown'}")
    if traffic.failed_records:
        why = f": {deliveries.failure}" if deliveries.failure else ""
        raise PykafkaError(f"{traffic.failed_records} of {sent} records were not delivered{why}")


@app.command("consume")
def perf_consume(
    topic: OneTopic,
    messages: Annotated[
        int | None, typer.Option("--messages", "-n", min=1, help="Most to read; default: all there are.")
    ] = None,
    timeout_ms: Annotated[
        int, typer.Option("--timeout", min=1, help="End after so many ms without a record.")
    ] = 10_000,
    group: Annotated[
        str | None,
        typer.Option("--group", "-g", help="Read as this group, and commit.", autocompletion=complete_groups),
    ] = None,
    from_latest: Annotated[
        bool, typer.Option("--from-latest", help="Wait for new records where the group has no offset.")
    ] = False,
    consumer_property: Annotated[
        list[str] | None, typer.Option(help="Setting of the consumer; may be repeated.", metavar="KEY=VALUE")
    ] = None,
    as_json: JsonOutput = False,
    bootstrap_server: BootstrapServer = None,
    config_file: ConfigFile = None,
) -> None:
    """Read records as fast as can be."""
    defaults = {
        "max.poll.records": _POLL_RECORDS,
        "auto.offset.reset": "latest" if from_latest else "earliest",
        **({} if group is None else {"group.id": group}),
    }
    properties = defaults | parse_pairs(consumer_property, "--consumer-property")
    settings = client_settings(bootstrap_server, config_file, properties)
    with Consumer(settings) as consumer:
        partitions = [TopicPartition(topic, index) for index in consumer.cluster.partitions(topic)]
        wanted = messages
        if settings.group_id:
            consumer.subscribe([topic])
        else:
            consumer.assign(partitions)
            if messages is None and not from_latest:
                begins, ends = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
                # Markers and compacted records count as offsets too: a bound for the bar, not for the run.
                wanted = sum(ends[tp] - begins[tp] for tp in partitions)
        result = _read_all(consumer, messages, wanted, timeout_ms / 1000, wait=from_latest)
    if as_json:
        print_json(rounded(result))
    else:
        typer.echo(f"{_rate('read', result)}, the first one after {result['firstRecordMs']:.1f} ms")


def _send_all(
    producer: Producer,
    topic: str,
    payloads: Sequence[bytes],
    count: int,
    rate: float,
    deliveries: Deliveries,
    duration_ms: int,
) -> int:
    """How many were sent: fewer than `count` after Ctrl-C."""
    sent, sampling, different = 0, deliveries.sampling, len(payloads)
    with progress_bar("producing", count) as advance, transacted(producer, duration_ms=duration_ms) as sent_one:
        started = shown = time.perf_counter()
        try:
            while sent < count:
                measured = deliveries.callback() if sent % sampling == 0 else None
                producer.send(topic, payloads[sent % different], on_delivery=measured)
                sent += 1
                sent_one()
                now = time.perf_counter()
                if rate > 0 and (ahead := sent / rate - (now - started)) > 0:
                    time.sleep(ahead)
                if now - shown > _SHOW_EVERY_S:
                    shown = now
                    advance(sent, f"{sent / (now - started):,.0f} records/s")
        except KeyboardInterrupt:
            pass
        producer.flush()
    return sent


def _read_all(
    consumer: Consumer, most: int | None, expected: int | None, patience_s: float, *, wait: bool
) -> dict[str, Any]:
    """Read until there were `most`, or nothing comes, or without `wait` the end; waiting at the end does not count."""
    count = size = 0
    started = last = time.perf_counter()
    first = None
    with progress_bar("consuming", expected) as advance:
        try:
            while most is None or count < most:
                records = consumer.poll(_POLL_S)
                now = time.perf_counter()
                if not records:
                    if now - last > patience_s or (most is None and not wait and _at_end(consumer)):
                        break
                    continue
                first = now if first is None else first
                last = now
                used = records if most is None else records[: most - count]
                count += len(used)
                size += sum(len(record.value or b"") + len(record.key or b"") for record in used)
                advance(count, f"{count / (now - started):,.0f} records/s")
        except KeyboardInterrupt:
            pass
    seconds = max(last - started, 1e-9)
    return {
        "records": count,
        "seconds": seconds if count else 0.0,
        "recordsPerSecond": count / seconds if count else 0.0,
        "megabytes": megabytes(size),
        "megabytesPerSecond": megabytes(size / seconds) if count else 0.0,
        "firstRecordMs": ((first or started) - started) * 1000,
    }


def _at_end(consumer: Consumer) -> bool:
    """Whether everything there is was read: not while a group still shares out the partitions."""
    assigned = consumer.assignment()
    return bool(assigned) and not any(consumer.lag(assigned).values())


def _payloads(file: Path | None, size: int) -> list[bytes]:
    if file is None:
        letters = random.Random(0)
        return ["".join(letters.choices(string.ascii_uppercase, k=size)).encode() for _ in range(_PAYLOADS)]
    try:
        lines = [line for line in file.read_bytes().splitlines() if line]
    except OSError as error:
        raise ConfigError(f"--payload-file {file}: {error.strerror}") from None
    if not lines:
        raise ConfigError(f"--payload-file {file}: it is empty")
    return lines


def _rate(verb: str, result: dict[str, Any]) -> str:
    return (
        f"{result['records']:,} records {verb} in {result['seconds']:.2f} s, "
        f"{result['recordsPerSecond']:,.0f} records/s ({result['megabytesPerSecond']:.2f} MB/s)"
    )

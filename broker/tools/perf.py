"""`pykafka perf`: measure this client and a cluster (kafka-producer-perf-test.sh, kafka-consumer-perf-test.sh).

With small records Python's speed is the limit; `docs/performance.md` says what the broker can do. The result is one
line, or one JSON document. Ctrl-C ends the run early and prints the figures so far. Raises PykafkaError if records
were not delivered.
"""

from __future__ import annotations

import math
import random
import string
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from broker.client.consumer import Consumer
from broker.client.producer import Producer, RecordFuture
from broker.errors import ConfigError, PykafkaError
from broker.protocol.topic_partition import TopicPartition
from broker.tools.client_options import (
    BootstrapServer,
    ConfigFile,
    ConsumerProperties,
    JsonOutput,
    MemberOfGroup,
    OneTopic,
    ProducerProperties,
    client_settings,
    flag,
    option,
    parse_pairs,
)
from broker.tools.output import print_json, progress_bar
from broker.tools.produce import transacted

app = typer.Typer(
    help="Measure how fast records are produced and consumed.\n\n\b\nExamples:\n"
    "  pykafka perf produce --topic load-test --num-records 1000000\n"
    "  pykafka perf consume --topic load-test",
    no_args_is_help=True,
)

PERCENTILES: Final = (50.0, 95.0, 99.0, 99.9)
_MOST_SAMPLES: Final = 500_000
"""Of more records only every n-th is timed, as in Kafka's tool."""
_PAYLOADS = 64
"""How many different values are sent in turn."""
_SHOW_EVERY_S = 0.1
_POLL_RECORDS = "5000"
_POLL_S = 0.2


@app.command("produce")
def perf_produce(
    topic: OneTopic,
    num_records: Annotated[int, option("How many to send.", "N", "--num-records", "-n", min=1)] = 100_000,
    record_size: Annotated[int, option("Size of a value.", "BYTES", "--record-size", "-s", min=1)] = 100,
    payload_file: Annotated[
        Path | None, option("Send the lines of this file in turn instead of random values.", "FILE")
    ] = None,
    throughput: Annotated[float, option("Records per second at most; -1 for no limit.", "N")] = -1,
    producer_property: ProducerProperties = None,
    transactional_id: Annotated[str | None, option("Send in transactions of this id.", "ID")] = None,
    transaction_duration_ms: Annotated[int, option("How long each transaction stays open.", "MS", min=1)] = 3000,
    as_json: JsonOutput = False,
    bootstrap_server: BootstrapServer = None,
    config_file: ConfigFile = None,
) -> None:
    """Send records at full speed or at a rate; print throughput and latency of the acknowledgements.

    \b
    Examples:
      pykafka perf produce --topic load-test --num-records 1000000 --record-size 100
      pykafka perf produce --topic load-test --throughput 5000 --producer-property acks=1
    """
    payloads = _payloads(payload_file, record_size)
    given = parse_pairs(producer_property, "--producer-property")
    settings = client_settings(bootstrap_server, config_file, given, {"transactional.id": transactional_id})
    latencies = _Latencies(num_records)
    with Producer(settings) as producer:
        producer.partitions(topic)  # fetches metadata or creates the topic, which is not measured
        started = time.perf_counter()
        sent = _send_all(producer, topic, payloads, num_records, throughput, latencies, transaction_duration_ms)
        seconds = time.perf_counter() - started
        traffic = producer.stats().total
    rounds, rest = divmod(sent, len(payloads))
    size = rounds * sum(map(len, payloads)) + sum(map(len, payloads[:rest]))
    latency = latencies.figures()
    result: dict[str, Any] = {
        "records": sent,
        "failedRecords": traffic.failed_records,
        "seconds": seconds,
        "recordsPerSecond": sent / seconds,
        "megabytesPerSecond": _megabytes(size / seconds),
        "averageBatchRecords": traffic.records / traffic.batches if traffic.batches else 0.0,
        "latencyMs": _rounded(latency),
    }
    if as_json:
        print_json(_rounded(result))
    else:
        shown = ", ".join(f"{value:.2f} ms {name}" for name, value in latency.items())
        typer.echo(f"{_rate('sent', result)}, latency: {shown or 'unknown'}")
    if traffic.failed_records:
        why = f": {latencies.failure}" if latencies.failure else ""
        raise PykafkaError(f"{traffic.failed_records} of {sent} records were not delivered{why}")


@app.command("consume")
def perf_consume(
    topic: OneTopic,
    messages: Annotated[
        int | None, option("Records to read at most; default: all.", "N", "--messages", "-n", min=1)
    ] = None,
    timeout_ms: Annotated[int, option("End after this time without a record.", "MS", "--timeout", min=1)] = 10_000,
    group: MemberOfGroup = None,
    from_latest: Annotated[bool, flag("Wait for new records if the group has no offset.", "--from-latest")] = False,
    consumer_property: ConsumerProperties = None,
    as_json: JsonOutput = False,
    bootstrap_server: BootstrapServer = None,
    config_file: ConfigFile = None,
) -> None:
    """Read records at full speed; print throughput and the time to the first record.

    \b
    Examples:
      pykafka perf consume --topic load-test
      pykafka perf consume --topic load-test --messages 100000 --json
    """
    defaults = {
        "max.poll.records": _POLL_RECORDS,
        "auto.offset.reset": "latest" if from_latest else "earliest",
        "group.id": group,
    }
    given = parse_pairs(consumer_property, "--consumer-property")
    settings = client_settings(bootstrap_server, config_file, defaults, given)
    with Consumer(settings) as consumer:
        partitions = [TopicPartition(topic, index) for index in consumer.cluster.partitions(topic)]
        wanted = messages
        if settings.group_id:
            consumer.subscribe([topic])
        else:
            consumer.assign(partitions)
            if messages is None and not from_latest:
                begins, ends = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
                # Only for the bar: transaction markers and compacted records have offsets too, but are never read.
                wanted = sum(ends[tp] - begins[tp] for tp in partitions)
        result = _read_all(consumer, messages, wanted, timeout_ms / 1000, wait=from_latest)
    if as_json:
        print_json(_rounded(result))
    else:
        typer.echo(f"{_rate('read', result)}, the first one after {result['firstRecordMs']:.1f} ms")


def _send_all(
    producer: Producer,
    topic: str,
    payloads: Sequence[bytes],
    count: int,
    rate: float,
    latencies: _Latencies,
    duration_ms: int,
) -> int:
    """Returns how many were sent: fewer than `count` after Ctrl-C."""
    sent, sampling, different = 0, latencies.sampling, len(payloads)
    with progress_bar("producing", count) as advance, transacted(producer, duration_ms=duration_ms) as on_sent:
        started = shown = time.perf_counter()
        try:
            while sent < count:
                measured = latencies.callback() if sent % sampling == 0 else None
                producer.send(topic, payloads[sent % different], on_delivery=measured)
                sent += 1
                on_sent()
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
    """Read `most` records, until none comes for `patience_s`, or without `wait` to the end of the log.

    The wait after the last record does not count.
    """
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
        "megabytes": _megabytes(size),
        "megabytesPerSecond": _megabytes(size / seconds) if count else 0.0,
        "firstRecordMs": ((first or started) - started) * 1000,
    }


def _at_end(consumer: Consumer) -> bool:
    """Whether all is read. False while a group still assigns its partitions."""
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


class _Latencies:
    """Times from `send` to the acknowledgement, in ms, and the first error. Filled by the producer's sender thread."""

    def __init__(self, records: int) -> None:
        self.sampling = max(1, math.ceil(records / _MOST_SAMPLES))
        self.failure: Exception | None = None
        self._latencies: list[float] = []
        self._lock = threading.Lock()

    def callback(self) -> partial[None]:
        """The `on_delivery` callback for a record that is sent now."""
        return partial(self._delivered, time.perf_counter())

    def figures(self) -> dict[str, float]:
        """Average, percentiles and maximum; empty if nothing was delivered."""
        with self._lock:
            ordered = sorted(self._latencies)
        if not ordered:
            return {}
        named = {f"p{percentile:g}": percentile for percentile in PERCENTILES}
        return {
            "average": sum(ordered) / len(ordered),
            **{name: ordered[max(0, math.ceil(len(ordered) * p / 100) - 1)] for name, p in named.items()},
            "max": ordered[-1],
        }

    def _delivered(self, sent: float, future: RecordFuture) -> None:
        took_ms = (time.perf_counter() - sent) * 1000
        error = future.exception()
        with self._lock:
            if error is None:
                self._latencies.append(took_ms)
            elif self.failure is None:
                self.failure = error


def _megabytes(size: float) -> float:
    """In 2^20 bytes, as Kafka's tools count."""
    return size / (1 << 20)


def _rounded(figures: dict[str, Any]) -> dict[str, Any]:
    """Floats with the three digits that mean something."""
    return {name: round(value, 3) if isinstance(value, float) else value for name, value in figures.items()}

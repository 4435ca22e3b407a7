"""List and describe transactions, find the ones that hang, and end them (kafka-transactions.sh).

Reached as `pykafka transactions …`. A transaction hangs when a partition still waits for its end and no coordinator
knows of it any more; readers of committed data stand still before it. `abort` writes the marker that is missing, into
one partition, and refuses while the coordinator may still write it itself. Raises BrokerError, UsageError.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Annotated, Any, NamedTuple

import typer

from broker.client.admin import Admin
from broker.client.admin_types import ProducerState
from broker.errors import BrokerError, ErrorCode, PykafkaError
from broker.protocol.topic_partition import TopicPartition
from broker.tools.client_options import BootstrapServer, ConfigFile, JsonOutput, OneTopic, administration
from broker.tools.completion import complete_topics, complete_transactional_ids
from broker.tools.output import as_time, print_json, print_table, report
from broker.tools.partitions import named_partitions

__all__ = ["app"]

app = typer.Typer(help="List and describe transactions; find and abort those that hang.", no_args_is_help=True)

OnePartition = Annotated[int, typer.Option("--partition", "-p", min=0, help="Number of the partition.")]
Topics = Annotated[
    list[str] | None,
    typer.Option(
        "--topic",
        "-t",
        help="A topic, or some of its partitions; may be repeated.",
        metavar="NAME[:PARTITION,…]",
        autocompletion=complete_topics,
    ),
]

_PRODUCER_COLUMNS = (
    "topic",
    "partition",
    "producerId",
    "producerEpoch",
    "coordinatorEpoch",
    "lastSequence",
    "lastTimestamp",
    "transactionStartOffset",
)


class Hanging(NamedTuple):
    """A transaction that a partition waits for, and nobody will end."""

    tp: TopicPartition
    producer: ProducerState


@app.command("list")
def list_transactions(
    state: Annotated[
        list[str] | None, typer.Option("--state", help="Only this state, such as Ongoing; may be repeated.")
    ] = None,
    producer_id: Annotated[list[int] | None, typer.Option("--producer-id", help="Only this; may be repeated.")] = None,
    duration: Annotated[int, typer.Option("--duration", help="Only those open longer than so many ms.")] = -1,
    as_json: JsonOutput = False,
    bootstrap_server: BootstrapServer = None,
    config_file: ConfigFile = None,
) -> None:
    """List transactional ids and their states."""
    with administration(bootstrap_server, config_file) as admin:
        found = admin.list_transactions(
            states=state or (), producer_ids=producer_id or (), running_longer_than_ms=duration
        )
    rows = [(one.transactional_id, one.coordinator.id, one.producer_id, one.state) for one in found]
    if as_json:
        names = ("transactionalId", "coordinator", "producerId", "state")
        print_json([dict(zip(names, row, strict=True)) for row in rows])
    else:
        head = ["transactional-id", "coordinator", "producer-id", "state"]
        print_table(head, rows, nothing="There are no transactions.")


@app.command()
def describe(
    transactional_id: Annotated[
        str,
        typer.Option("--transactional-id", help="As `list` shows it.", autocompletion=complete_transactional_ids),
    ],
    as_json: JsonOutput = False,
    bootstrap_server: BootstrapServer = None,
    config_file: ConfigFile = None,
) -> None:
    """Show one: producer, state, since when it is open, and its partitions."""
    with administration(bootstrap_server, config_file) as admin:
        found = admin.describe_transaction(transactional_id)
    now_ms = time.time_ns() // 1_000_000
    open_ms = max(0, now_ms - found.start_ms) if found.start_ms >= 0 else None
    document = {
        "transactionalId": found.transactional_id,
        "coordinator": found.coordinator.id,
        "producerId": found.producer_id,
        "producerEpoch": found.producer_epoch,
        "state": found.state,
        "timeoutMs": found.timeout_ms,
        "startTimeMs": found.start_ms,
        "openMs": open_ms,
        "partitions": [tp._asdict() for tp in found.partitions],
    }
    if as_json:
        print_json(document)
        return
    producer = (found.coordinator.id, found.producer_id, found.producer_epoch)
    print_table(
        ["coordinator", "producer-id", "epoch", "state", "timeout-ms", "start-time", "open-ms"],
        [(*producer, found.state, found.timeout_ms, as_time(found.start_ms), open_ms)],
    )
    for tp in found.partitions:
        typer.echo(f"  {tp.topic}-{tp.partition}")


@app.command()
def producers(
    topic: Topics,
    as_json: JsonOutput = False,
    bootstrap_server: BootstrapServer = None,
    config_file: ConfigFile = None,
) -> None:
    """Show what partitions know of their producers, open transactions among it."""
    with administration(bootstrap_server, config_file) as admin:
        found = admin.describe_producers(named_partitions(admin, topic or ()))
    states = [Hanging(tp, producer) for tp, known in found.items() for producer in known]
    _print_producers(states, as_json, nothing="No producer is known there.")


@app.command("find-hanging")
def find_hanging(
    topic: Topics = None,
    max_transaction_timeout: Annotated[
        int, typer.Option("--max-transaction-timeout", min=0, help="Minutes a transaction may at most be open.")
    ] = 15,
    as_json: JsonOutput = False,
    bootstrap_server: BootstrapServer = None,
    config_file: ConfigFile = None,
) -> None:
    """Find transactions that partitions wait for and no coordinator will end."""
    oldest_ms = time.time_ns() // 1_000_000 - max_transaction_timeout * 60_000
    with administration(bootstrap_server, config_file) as admin:
        names = topic or admin.list_topics(internal=True)
        found = admin.describe_producers(named_partitions(admin, names))
        suspects = [
            Hanging(tp, producer)
            for tp, known in found.items()
            for producer in known
            if producer.transaction_start_offset >= 0 and producer.last_timestamp_ms <= oldest_ms
        ]
        hanging = [one for one in suspects if _coordinator_of(admin, one) is None] if suspects else []
    _print_producers(hanging, as_json, nothing="No transaction hangs.")


@app.command()
def abort(
    topic: OneTopic,
    partition: OnePartition,
    start_offset: Annotated[int, typer.Option("--start-offset", min=0, help="Where it begins, as `producers` shows.")],
    force: Annotated[
        bool, typer.Option("--force", help="Even when a coordinator knows it, and would end it some time.")
    ] = False,
    as_json: JsonOutput = False,
    bootstrap_server: BootstrapServer = None,
    config_file: ConfigFile = None,
) -> None:
    """Abort a transaction that hangs in a partition."""
    tp = TopicPartition(topic, partition)
    with administration(bootstrap_server, config_file) as admin:
        (known,) = admin.describe_producers(named_partitions(admin, [f"{topic}:{partition}"])).values()
        opened = {one.transaction_start_offset: one for one in known if one.transaction_start_offset >= 0}
        if start_offset not in opened:
            there = f"they begin at {', '.join(map(str, sorted(opened)))}" if opened else "none is open there"
            raise PykafkaError(f"no open transaction of {topic}-{partition} begins at offset {start_offset}: {there}")
        producer = opened[start_offset]
        owner = None if force else _coordinator_of(admin, Hanging(tp, producer))
        if owner is not None:
            raise PykafkaError(
                f"the transaction belongs to {owner!r}, whose coordinator ends it by itself after its time-out; "
                "--force aborts it in this partition nevertheless"
            )
        admin.abort_transaction(tp, producer)
    report(
        as_json,
        f"Aborted the transaction of producer {producer.producer_id} in {topic}-{partition}.",
        {**tp._asdict(), "producerId": producer.producer_id, "startOffset": start_offset, "aborted": True},
    )


def _coordinator_of(admin: Admin, suspect: Hanging) -> str | None:
    """The transactional id whose coordinator still counts this partition to the producer's open transaction."""
    for one in admin.list_transactions(producer_ids=[suspect.producer.producer_id]):
        try:
            described = admin.describe_transaction(one.transactional_id)
        except BrokerError as error:
            if error.code is not ErrorCode.transactional_id_not_found:
                raise
            continue
        if suspect.tp in described.partitions:
            return one.transactional_id
    return None


def _print_producers(found: Iterable[Hanging], as_json: bool, *, nothing: str) -> None:
    rows: list[dict[str, Any]] = []
    for tp, one in found:
        last = one.last_timestamp_ms if as_json else as_time(one.last_timestamp_ms)
        start = one.transaction_start_offset
        row = (*tp, one.producer_id, one.producer_epoch, one.coordinator_epoch, one.last_sequence, last)
        rows.append(dict(zip(_PRODUCER_COLUMNS, (*row, None if start < 0 else start), strict=True)))
    if as_json:
        print_json(rows)
    else:
        columns = ["topic", "partition", "producer-id", "epoch", "coordinator-epoch", "last-sequence", "last-timestamp"]
        print_table([*columns, "start-offset"], [list(row.values()) for row in rows], nothing=nothing)

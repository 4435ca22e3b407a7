"""List and describe transactions; find and abort those that hang (kafka-transactions.sh).

A transaction hangs if a partition waits for its end, but no coordinator knows it any more. Then read_committed
consumers of the partition stop before it. `abort` writes the missing marker into one partition. It refuses while a
coordinator may still write the marker itself. Raises BrokerError.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Annotated

import typer

from broker.client.admin import Admin
from broker.client.hanging_transactions import OpenInPartition, coordinator_of, hanging_transactions
from broker.errors import PykafkaError
from broker.protocol.topic_partition import TopicPartition
from broker.tools.client_options import (
    JsonOutput,
    OneTopic,
    TopicsOrPartitions,
    admin_command,
    complete_transactional_ids,
    flag,
    named_partitions,
    option,
)
from broker.tools.output import as_time, print_json, print_rows, print_view, report

app = typer.Typer(
    help="List and describe transactions; find and abort those that hang.\n\n\b\nExamples:\n"
    "  pykafka transactions list\n"
    "  pykafka transactions find-hanging",
    no_args_is_help=True,
)

OnePartition = Annotated[int, option("Number of the partition.", "N", "--partition", "-p", min=0)]


@admin_command(app, "list")
def list_transactions(
    admin: Admin,
    state: Annotated[list[str] | None, option("Only this state, such as Ongoing; may be repeated.", "STATE")] = None,
    producer_id: Annotated[list[int] | None, option("Only this producer; may be repeated.", "ID")] = None,
    duration: Annotated[int, option("Only those open for longer.", "MS")] = -1,
    as_json: JsonOutput = False,
) -> None:
    """List transactional ids and their states.

    \b
    Examples:
      pykafka transactions list
      pykafka transactions list --state Ongoing --duration 60000
    """
    found = admin.list_transactions(states=state or (), producer_ids=producer_id or (), running_longer_than_ms=duration)
    rows = [(one.transactional_id, one.coordinator.id, one.producer_id, one.state) for one in found]
    names = ("transactionalId", "coordinator", "producerId", "state")
    print_rows(names, rows, as_json, nothing="There are no transactions.")


@admin_command(app)
def describe(
    admin: Admin,
    transactional_id: Annotated[
        str,
        option(
            "Id of the transaction's producer, as `list` shows it.", "ID", autocompletion=complete_transactional_ids
        ),
    ],
    as_json: JsonOutput = False,
) -> None:
    """Show a transaction: producer, state, time since its start, and its partitions.

    \b
    Examples:
      pykafka transactions describe --transactional-id etl-1
    """
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
    columns = "coordinator, producer-id, epoch=producerEpoch, state, timeout-ms, start-time=startTimeMs, open-ms"
    print_view([document], columns, shown={"start-time": as_time})
    for tp in found.partitions:
        typer.echo(f"  {tp}")


@admin_command(app)
def producers(admin: Admin, topic: TopicsOrPartitions, as_json: JsonOutput = False) -> None:
    """Show the producers that partitions remember, with their open transactions.

    \b
    Examples:
      pykafka transactions producers --topic flights:0
    """
    found = admin.describe_producers(named_partitions(admin, topic or ()))
    states = [OpenInPartition(tp, producer) for tp, known in found.items() for producer in known]
    _print_producers(states, as_json, nothing="The partitions remember no producer.")


@admin_command(app, "find-hanging")
def find_hanging(
    admin: Admin,
    topic: TopicsOrPartitions = None,
    max_transaction_timeout: Annotated[int, option("How long a transaction may stay open.", "MINUTES", min=0)] = 15,
    as_json: JsonOutput = False,
) -> None:
    """Find transactions that partitions wait for, although no coordinator will end them.

    \b
    Examples:
      pykafka transactions find-hanging
      pykafka transactions find-hanging --topic flights --max-transaction-timeout 60
    """
    names = topic or admin.list_topics(internal=True)
    hanging = hanging_transactions(admin, named_partitions(admin, names), max_transaction_timeout * 60_000)
    _print_producers(hanging, as_json, nothing="No transaction hangs.")


@admin_command(app)
def abort(
    admin: Admin,
    topic: OneTopic,
    partition: OnePartition,
    start_offset: Annotated[int, option("Its first offset, as `producers` shows it.", "OFFSET", min=0)],
    force: Annotated[bool, flag("Abort it even if a coordinator knows it and would end it later.", "--force")] = False,
    as_json: JsonOutput = False,
) -> None:
    """Abort a transaction that hangs in a partition.

    \b
    Examples:
      pykafka transactions abort --topic flights --partition 0 --start-offset 42
    """
    tp = TopicPartition(topic, partition)
    (known,) = admin.describe_producers(named_partitions(admin, [f"{topic}:{partition}"])).values()
    opened = {one.transaction_start_offset: one for one in known if one.transaction_start_offset >= 0}
    if start_offset not in opened:
        there = f"they begin at {', '.join(map(str, sorted(opened)))}" if opened else "none is open"
        raise PykafkaError(f"no open transaction of {topic}-{partition} begins at offset {start_offset}: {there}")
    producer = opened[start_offset]
    owner = None if force else coordinator_of(admin, OpenInPartition(tp, producer))
    if owner is not None:
        raise PykafkaError(
            f"the transaction belongs to {owner!r}, whose coordinator will end it after its time-out; "
            "--force aborts it in this partition now"
        )
    admin.abort_transaction(tp, producer)
    report(
        as_json,
        f"Aborted the transaction of producer {producer.producer_id} in {topic}-{partition}.",
        {**tp._asdict(), "producerId": producer.producer_id, "startOffset": start_offset, "aborted": True},
    )


def _print_producers(found: Iterable[OpenInPartition], as_json: bool, *, nothing: str) -> None:
    rows = [
        {
            **tp._asdict(),
            "producerId": one.producer_id,
            "producerEpoch": one.producer_epoch,
            "coordinatorEpoch": one.coordinator_epoch,
            "lastSequence": one.last_sequence,
            "lastTimestamp": one.last_timestamp_ms,
            "transactionStartOffset": None if one.transaction_start_offset < 0 else one.transaction_start_offset,
        }
        for tp, one in found
    ]
    columns = (
        "topic, partition, producer-id, epoch=producerEpoch, coordinator-epoch, last-sequence, last-timestamp, "
        "start-offset=transactionStartOffset"
    )
    print_view(rows, columns, as_json, shown={"last-timestamp": as_time}, nothing=nothing)

"""The decision that makes a batch visible: its content, its encoding, and the next step that follows from it. Pure.

A streaming batch is decided when its decision is committed: the batch's number, and the transactions that its tasks
have left open. Only then are these transactions committed, one by one; a driver that finds the decision later commits
those that are still open. So a batch is visible as a whole or not at all (W1), whichever process dies (W2)
(docs/decisions/spark-write.md has the interleavings). The decision is stored as metadata of committed offsets, which
brokers limit to 4096 characters by default (`offset.metadata.max.bytes`). So it is packed and split into parts.
decision_log.py stores them.
"""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from broker.errors import CorruptBatch
from broker.records.varint import encode_varint, read_varint
from spark_connector.errors import ConnectorError

ATTEMPT_IDS: Final = 8
"""The attempts at one task partition of a query use this many transactional ids in turn."""

PART_CHARACTERS: Final = 4096
"""Kafka's default of `offset.metadata.max.bytes`."""

_HEAD: Final = re.compile(r"3 (D|W) (\d{1,24}) (\d{1,6})/(\d{1,6}) ", re.ASCII)
_MOST_BYTES: Final = 64 << 20


class Prepared(NamedTuple):
    """A transaction that a task has left open. The task's partition and the number of the attempt give the id."""

    partition: int
    number: int
    producer_id: int
    epoch: int
    rows: int


@dataclass(frozen=True)
class Decision:
    """The batch to make visible, and its transactions. `withdrawn`: the batch is not visible, write it again.

    `run`: the run of the query for a write inside foreachBatch, otherwise 0.
    """

    batch_id: int
    prepared: tuple[Prepared, ...]
    withdrawn: bool = False
    run: int = 0

    @property
    def final_batch(self) -> int:
        """The last batch that must not be written again."""
        return self.batch_id - 1 if self.withdrawn else self.batch_id

    def refuse_namesake(self, name: str, batch_id: int, run: int) -> None:
        """Raise if another write of the same batch and run has this name. Only a new run repeats a write."""
        if run and run == self.run and batch_id == self.final_batch:
            raise ConnectorError(
                "PYKAFKA_SINK_NAME_TWICE",
                f"batch {batch_id} was already written under txnAppId='{name}', by another write of the same batch: "
                "give each write in foreachBatch a txnAppId of its own.",
            )


class Part(NamedTuple):
    """One part of the text of a decision; parts with the same stamp belong together."""

    withdrawn: bool
    stamp: int
    number: int
    parts: int
    text: str


class Nothing(NamedTuple):
    """No task wrote anything."""


class Record(NamedTuple):
    """Decide the batch, then commit its transactions."""

    decision: Decision


class Finish(NamedTuple):
    """The batch is decided: commit its open transactions; abort `strays`, which are not part of it."""

    decision: Decision
    strays: tuple[Prepared, ...]


class Fail(NamedTuple):
    """This driver can neither decide nor finish the batch."""

    condition: str
    message: str


Step = Nothing | Record | Finish | Fail


class Standing(NamedTuple):
    """The coordinator's state of a prepared transaction's id: Kafka's name of the state, and the current epoch.

    An abort by the broker itself counts as one epoch, however the broker numbers it.
    """

    state: str
    epoch: int


def next_step(
    decision: Decision | None, batch_id: int, prepared: Sequence[Prepared], decided: Sequence[int] = (), run: int = 0
) -> Step:
    """What the driver does for `batch_id`, once no other driver can record a decision.

    decision: the newest one. prepared: the transactions that the batch's tasks have left open. decided: the batches of
    the decisions that tasks found, and therefore wrote nothing. run: the run to record in a new decision.
    """
    final = -1 if decision is None else decision.final_batch
    if final > batch_id or any(batch > batch_id for batch in decided):
        return Fail(
            "PYKAFKA_SINK_SUPERSEDED",
            f"batch {max((final, *decided))} is committed already, and this is batch {batch_id}: either another "
            "driver runs the query, or its checkpoint was restored to an earlier state. Nothing of this batch is "
            "committed; with a new checkpointLocation the query starts over.",
        )
    if decision is not None and final == batch_id:
        mine = {one[:3] for one in decision.prepared}
        return Finish(decision, tuple(one for one in prepared if one[:3] not in mine))
    if decided:
        return Fail(
            "PYKAFKA_SINK_BATCH_WITHDRAWN",
            f"the decision for batch {batch_id} was withdrawn while its tasks ran. Nothing of it is visible; a restart "
            "of the query writes it again.",
        )
    return Record(Decision(batch_id, tuple(sorted(prepared)), run=run)) if prepared else Nothing()


def overtaken(earlier: Decision | None, attempts: Iterable[tuple[int, int, int]]) -> list[tuple[int, int]]:
    """(partition, number) of the attempts without a report, which may have left transactions open (W7).

    attempts: partition, number and Spark's attemptNumber of the attempts that have reported. Attempts between these and
    the ones of the earlier decision failed, were lost, or belonged to a driver that died. An attempt whose id is used
    again is fenced by that use.
    """
    before = {one.partition: one.number for one in earlier.prepared} if earlier else {}
    return [
        (partition, number)
        for partition, last, tries in attempts
        for number in range(max(before.get(partition, last - tries - 1) + 1, last - ATTEMPT_IDS + 1, 0), last)
    ]


def may_withdraw(decision: Decision, standings: Sequence[Standing | None]) -> bool:
    """Whether it is certain that nothing of a decided batch is visible, and that some of it never will be (W6).

    standings: of each of its transactions; None if unknown. Call it only while the decision is not marked done: until
    then no task of a later batch runs, so an abort at the next epoch is the timeout of this transaction.
    """
    lost = False
    for one, standing in zip(decision.prepared, standings, strict=True):
        if standing is None:
            return False
        if standing == Standing("Ongoing", one.epoch):
            continue
        if standing.state not in ("CompleteAbort", "PrepareAbort") or standing.epoch not in (one.epoch, one.epoch + 1):
            return False
        lost = True
    return lost


def pack(decision: Decision, stamp: int, *, limit: int = PART_CHARACTERS) -> list[str]:
    """The decision as texts of at most `limit` characters. `stamp`: a number that is unique for each recording."""
    numbers = [decision.run]
    partition = producer_id = 0
    for one in decision.prepared:
        numbers += (one.partition - partition, one.number, one.producer_id - producer_id, one.epoch, one.rows)
        partition, producer_id = one.partition, one.producer_id
    packed = base64.urlsafe_b64encode(zlib.compress(b"".join(map(encode_varint, numbers)), 9)).decode()
    state = "W" if decision.withdrawn else "D"
    room = limit - len(f"3 {state} {stamp} 999999/999999 ")
    pieces = [packed[start : start + room] for start in range(0, len(packed), room)]
    return [f"3 {state} {stamp} {index}/{len(pieces)} {piece}" for index, piece in enumerate(pieces)]


def parse_part(text: str) -> Part:
    """Parse one text of `pack`. Raises ConnectorError for any other text."""
    match = _HEAD.match(text)
    if match is None or not int(match[3]) < int(match[4]):
        raise _unreadable(f"{text[:60]!r} is not a part of a decision of this version")
    return Part(match[1] == "W", int(match[2]), int(match[3]), int(match[4]), text[match.end() :])


def unpack(batch_id: int, parts: Sequence[Part]) -> Decision:
    """Decode a decision from all its parts in order. Raises ConnectorError."""
    try:
        packed = base64.urlsafe_b64decode("".join(part.text for part in parts).encode())
        inflate = zlib.decompressobj()
        plain = inflate.decompress(packed, _MOST_BYTES)
        if not inflate.eof:
            raise ValueError("it is cut off")
        numbers: list[int] = []
        position = 0
        while position < len(plain):
            number, position = read_varint(plain, position)
            numbers.append(number)
        run, *numbers = numbers
        if len(numbers) % 5:
            raise ValueError(f"{len(numbers)} numbers")
    except (ValueError, CorruptBatch, binascii.Error, zlib.error) as error:
        raise _unreadable(f"the decision for batch {batch_id}: {error}") from error
    prepared = []
    partition = producer_id = 0
    for start in range(0, len(numbers), 5):
        step, number, difference, epoch, rows = numbers[start : start + 5]
        partition, producer_id = partition + step, producer_id + difference
        prepared.append(Prepared(partition, number, producer_id, epoch, rows))
    return Decision(batch_id, tuple(prepared), parts[0].withdrawn, run)


def _unreadable(why: str) -> ConnectorError:
    return ConnectorError(
        "PYKAFKA_SINK_DECISION_UNREADABLE",
        f"the group of this query does not hold the query's last decision: {why}. Only the query may commit to it.",
    )

"""The decision that makes a batch visible: what it says, how it is written down, and what follows from it. Pure.

A streaming batch is decided when its decision is committed: the batch's number and the transactions its tasks have left
open. Only then are these ended, one by one; whoever finds the decision later ends what is still open. So a batch
is visible as a whole or not at all, whatever dies in between (docs/decisions.md has the interleavings).

The text goes into the metadata of committed offsets, which brokers limit to 4096 characters by default
(`offset.metadata.max.bytes`), so it is packed, and cut into parts. decision_log.py keeps them; commit.py acts.
"""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from spark_connector.errors import ConnectorError
from spark_connector.write.write_plan import ATTEMPT_IDS

__all__ = [
    "PART_CHARACTERS",
    "Decision",
    "Fail",
    "Finish",
    "Nothing",
    "Part",
    "Prepared",
    "Record",
    "Standing",
    "Step",
    "may_withdraw",
    "next_step",
    "overtaken",
    "pack",
    "parse_part",
    "unpack",
]

PART_CHARACTERS: Final = 4096
"""Kafka's default of `offset.metadata.max.bytes`."""

_HEAD: Final = re.compile(r"2 (D|W) (\d{1,24}) (\d{1,6})/(\d{1,6}) ", re.ASCII)
_MOST_BYTES: Final = 64 << 20
_MOST_FIELD: Final = 1 << 64


class Prepared(NamedTuple):
    """A transaction that a task has left open: the task's partition, the number of the attempt at it, which names the
    transactional id, the producer, and what it wrote."""

    partition: int
    number: int
    producer_id: int
    epoch: int
    rows: int


@dataclass(frozen=True)
class Decision:
    """The batch that is to be visible, and by which transactions; `withdrawn`: it is not, after all. `run`: of a write
    inside foreachBatch the run of the query, else 0."""

    batch_id: int
    prepared: tuple[Prepared, ...]
    withdrawn: bool = False
    run: int = 0

    @property
    def settled_batch(self) -> int:
        """The last batch that must not be written again."""
        return self.batch_id - 1 if self.withdrawn else self.batch_id

    def refuse_namesake(self, name: str, batch_id: int, run: int) -> None:
        """Raise when another write of the same batch, in the same run, has this name: only a new run repeats one."""
        if run and run == self.run and batch_id == self.settled_batch:
            raise ConnectorError(
                "PYKAFKA_SINK_NAME_TWICE",
                f"batch {batch_id} was written under txnAppId='{name}' already, by another write of the same batch: "
                "give each write in foreachBatch a txnAppId of its own.",
            )


class Part(NamedTuple):
    """One of the texts a decision is cut into; those with the same stamp belong together."""

    withdrawn: bool
    stamp: int
    number: int
    parts: int
    text: str


class Nothing(NamedTuple):
    """No task wrote anything."""


class Record(NamedTuple):
    """Decide the batch, then end its transactions."""

    decision: Decision


class Finish(NamedTuple):
    """The batch was decided before: end what is open of it; abort `strays`, which are not part of it."""

    decision: Decision
    strays: tuple[Prepared, ...]


class Fail(NamedTuple):
    """The batch can be neither decided nor finished by this driver."""

    condition: str
    message: str


Step = Nothing | Record | Finish | Fail


class Standing(NamedTuple):
    """What the coordinator says of a prepared transaction's id: Kafka's name of its state, and the epoch it is at."""

    state: str
    epoch: int


def next_step(
    decision: Decision | None, batch_id: int, prepared: Sequence[Prepared], decided: Sequence[int] = (), run: int = 0
) -> Step:
    """What the driver does for `batch_id`, once no other driver can decide anything any more.

    decision: the newest there is. prepared: what the batch's tasks have left open. decided: of the tasks that wrote
    nothing because they found a decision, the batch it was for. run: the one that goes into a new decision.
    """
    settled = -1 if decision is None else decision.settled_batch
    if settled > batch_id or any(batch > batch_id for batch in decided):
        return Fail(
            "PYKAFKA_SINK_SUPERSEDED",
            f"batch {max((settled, *decided))} is committed already, and this is batch {batch_id}: either another "
            "driver runs the query, or its checkpoint was taken back to an earlier state. Nothing of this batch is "
            "committed; with a new checkpointLocation a query begins anew.",
        )
    if decision is not None and settled == batch_id:
        mine = {one[:3] for one in decision.prepared}
        return Finish(decision, tuple(one for one in prepared if one[:3] not in mine))
    if decided:
        return Fail(
            "PYKAFKA_SINK_BATCH_WITHDRAWN",
            f"the decision for batch {batch_id} was withdrawn while its tasks ran. Nothing of it is visible; a restart "
            "of the query writes it anew.",
        )
    return Record(Decision(batch_id, tuple(sorted(prepared)), run=run)) if prepared else Nothing()


def overtaken(earlier: Decision | None, attempts: Iterable[tuple[int, int, int]]) -> list[tuple[int, int]]:
    """(partition, number) of the attempts that came to nothing: nobody waits for what they may have left open.

    attempts: partition, number and Spark's attemptNumber of those that have reported. The ones between them and those
    in the decision before failed, were lost, or belonged to a driver that died. Those whose id is in use again are
    fenced by that.
    """
    before = {one.partition: one.number for one in earlier.prepared} if earlier else {}
    return [
        (partition, number)
        for partition, last, tries in attempts
        for number in range(max(before.get(partition, last - tries - 1) + 1, last - ATTEMPT_IDS + 1, 0), last)
    ]


def may_withdraw(decision: Decision, standings: Sequence[Standing | None]) -> bool:
    """Whether it is certain that of a decided batch nothing is visible, and something never can be.

    standings: of each of its transactions, None where it is not known. To be asked only while the decision is not
    marked done: no task of a later batch has run then, so an abort one epoch on is the transaction's own time-out.
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
    """The decision as texts of at most `limit` characters. `stamp`: a number of its own for each recording."""
    numbers = [decision.run]
    partition = producer_id = 0
    for one in decision.prepared:
        numbers += (one.partition - partition, one.number, _zigzag(one.producer_id - producer_id), one.epoch, one.rows)
        partition, producer_id = one.partition, one.producer_id
    packed = base64.urlsafe_b64encode(zlib.compress(b"".join(map(_varint, numbers)), 9)).decode()
    state = "W" if decision.withdrawn else "D"
    room = limit - len(f"2 {state} {stamp} 999999/999999 ")
    pieces = [packed[start : start + room] for start in range(0, len(packed), room)]
    return [f"2 {state} {stamp} {index}/{len(pieces)} {piece}" for index, piece in enumerate(pieces)]


def parse_part(text: str) -> Part:
    """One of the texts of `pack`. Raises ConnectorError for any other."""
    match = _HEAD.match(text)
    if match is None or not int(match[3]) < int(match[4]):
        raise _unreadable(f"{text[:60]!r} is no part of a decision of this version")
    return Part(match[1] == "W", int(match[2]), int(match[3]), int(match[4]), text[match.end() :])


def unpack(batch_id: int, parts: Sequence[Part]) -> Decision:
    """The decision of all its parts in order. Raises ConnectorError."""
    try:
        packed = base64.urlsafe_b64decode("".join(part.text for part in parts).encode())
        inflate = zlib.decompressobj()
        plain = inflate.decompress(packed, _MOST_BYTES)
        if not inflate.eof:
            raise ValueError("it is cut off")
        run, *numbers = _varints(plain)
        if len(numbers) % 5:
            raise ValueError(f"{len(numbers)} numbers")
    except (ValueError, UnicodeError, binascii.Error, zlib.error) as error:
        raise _unreadable(f"the decision for batch {batch_id}: {error}") from error
    prepared = []
    partition = producer_id = 0
    for start in range(0, len(numbers), 5):
        step, number, difference, epoch, rows = numbers[start : start + 5]
        partition, producer_id = partition + step, producer_id + _unzigzag(difference)
        prepared.append(Prepared(partition, number, producer_id, epoch, rows))
    return Decision(batch_id, tuple(prepared), parts[0].withdrawn, run)


def _unreadable(why: str) -> ConnectorError:
    return ConnectorError(
        "PYKAFKA_SINK_DECISION_UNREADABLE",
        f"the group of this query holds something else than its last decision: {why}. It belongs to a query alone.",
    )


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _varints(data: bytes) -> list[int]:
    numbers = []
    number = shift = 0
    for byte in data:
        number |= (byte & 0x7F) << shift
        shift += 7
        if number >= _MOST_FIELD:
            raise ValueError("a number beyond 64 bits")
        if byte < 0x80:
            numbers.append(number)
            number = shift = 0
    if shift:
        raise ValueError("the last number is cut off")
    return numbers


def _zigzag(number: int) -> int:
    return number << 1 if number >= 0 else (-number << 1) - 1


def _unzigzag(number: int) -> int:
    return number >> 1 if number & 1 == 0 else -((number + 1) >> 1)

"""The one writer of an internal partition: keeps appends in order and joins those that come together.

Used by the shards of both coordinators. While one append is under way the writes that arrive are collected and go out
as one, but for those of transactions, which need batches of their own. Promises that each write's `done` is called
exactly once, in the order of the log, which the markers of transactions share, and that a caller who stops waiting
disturbs nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from itertools import groupby
from typing import NamedTuple, TypeAlias

from broker.coordinator.record_store import KeyValue, RecordStore
from broker.coordinator.transaction_state import ProducerIdAndEpoch
from broker.errors import BrokerError, ErrorCode

__all__ = ["RecordWriter"]

logger = logging.getLogger(__name__)

# Called with none, or with the reason why the records are not stored.
Done = Callable[[ErrorCode], None]

# How an append ended, or what to wait for.
_Outcome: TypeAlias = ErrorCode | Awaitable[object]

LATE_S = 0.05

_TOO_LARGE = (ErrorCode.message_too_large, ErrorCode.record_list_too_large)


class _Write(NamedTuple):
    records: Sequence[KeyValue]
    done: Done
    producer: ProducerIdAndEpoch | None
    is_refused: bool = False


class RecordWriter:
    """Appends to one partition of a `RecordStore`."""

    def __init__(self, store: RecordStore, partition: int) -> None:
        self._store = store
        self._partition = partition
        self._name = f"internal partition {partition}"
        self._queue: list[_Write] = []
        self._task: asyncio.Task[None] | None = None
        # What the store was given, in the order of the log, with who is to be told how it ended. While there is any
        # the store is given no more, and `_task` runs.
        self._untold: deque[tuple[_Outcome, list[Done]]] = deque()
        # What waits for the next write, and whether a timer is set to write it without one.
        self._late: list[_Write] = []
        self._is_late_due = False

    def write(self, records: Sequence[KeyValue], done: Done, producer: ProducerIdAndEpoch | None = None) -> None:
        """Store `records` after everything written before them, together with what else is written meanwhile."""
        self._queue.append(_Write(records, done, producer))
        self._start()

    def write_now(self, records: Sequence[KeyValue], done: Done, producer: ProducerIdAndEpoch | None = None) -> None:
        """As `write`, but without waiting for others to join when nothing is under way: `done` is then called
        before this returns, if the store has the records safe by then."""
        if self._task is not None:
            self.write(records, done, producer)
            return
        write = _Write(records, done, producer)
        self._write_at_once([*self._take_late(), write] if self._late and producer is None else [write])

    def _write_at_once(self, writes: list[_Write]) -> None:
        outcome = self._append(writes)
        if outcome in _TOO_LARGE and len(writes) > 1:
            self._queue[:0] = writes  # they go in smaller parts
            self._start()
        elif isinstance(outcome, ErrorCode):
            self._tell([write.done for write in writes], outcome)
        else:
            self._untold.append((outcome, [write.done for write in writes]))
            self._start()

    def _start(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._drain())

    def write_late(self, records: Sequence[KeyValue], done: Done) -> None:
        """Store `records` together with whatever is written next, or by themselves after a moment (LATE_S)."""
        self._late.append(_Write(records, done, None))
        if not self._is_late_due:
            self._is_late_due = True
            asyncio.get_running_loop().call_later(LATE_S, self._write_late)

    def _write_late(self) -> None:
        self._is_late_due = False
        if self._late and self._task is None:
            self._write_at_once(self._take_late())

    def _take_late(self) -> list[_Write]:
        late, self._late = self._late, []
        return late

    def transaction_ended(self, producer_id: int, done: Done, waiting: Awaitable[object] | None = None) -> None:
        """The producer's marker was appended past this writer or, with `waiting`, is on its way, behind all that the
        store was given so far and before what it is given from now on.

        `done` is called in its place, too: after that of all before the marker, and before that of what comes later.
        What the store was not given yet of the transaction comes too late and is refused: behind the marker it would
        open one that nobody ends.
        """
        self._queue = [
            write._replace(is_refused=True) if write.producer and write.producer.producer_id == producer_id else write
            for write in self._queue
        ]
        if waiting is None and not self._untold:
            done(ErrorCode.none)
            return
        self._untold.append((ErrorCode.none if waiting is None else waiting, [done]))
        self._start()

    async def flush(self) -> None:
        """Wait until everything written so far has ended."""
        self._write_late()
        while self._task is not None:
            await asyncio.wait([self._task])

    async def _drain(self) -> None:
        try:
            while self._untold or self._queue or self._late:
                if self._untold:
                    outcome, dones = self._untold[0]
                    self._tell(dones, await self._code_after(outcome))
                    self._untold.popleft()
                    continue
                self._queue[:0] = self._take_late()
                writes = list(next(groupby(self._queue, key=lambda write: (write.producer, write.is_refused)))[1])
                del self._queue[: len(writes)]
                self._write_together(writes)
        finally:
            self._task = None

    def _write_together(self, writes: list[_Write]) -> None:
        outcome = self._append(writes)
        if outcome in _TOO_LARGE and len(writes) > 1:
            # Together they were too much: the one that is too large alone must not fail the others.
            half = len(writes) // 2
            self._write_together(writes[:half])
            self._write_together(writes[half:])
        else:
            self._untold.append((outcome, [write.done for write in writes]))

    def _append(self, writes: list[_Write]) -> _Outcome:
        if writes[0].is_refused:
            return ErrorCode.transaction_abortable
        records = writes[0].records if len(writes) == 1 else [record for write in writes for record in write.records]
        try:
            waiting = self._store.append(self._partition, records, writes[0].producer)
        except Exception as error:
            return self._code_of(error)
        return ErrorCode.none if waiting is None else waiting

    async def _code_after(self, outcome: _Outcome) -> ErrorCode:
        if isinstance(outcome, ErrorCode):
            return outcome
        try:
            await outcome
        except Exception as error:
            return self._code_of(error)
        return ErrorCode.none

    def _tell(self, dones: Sequence[Done], code: ErrorCode) -> None:
        for done in dones:
            try:
                done(code)
            except Exception:
                logger.exception("What should follow an append to %s failed", self._name)

    def _code_of(self, error: Exception) -> ErrorCode:
        if isinstance(error, BrokerError):
            logger.warning("Append to %s failed: %s", self._name, error)
            return error.code
        if isinstance(error, OSError):
            logger.error("Append to %s failed: %s", self._name, error)
            return ErrorCode.kafka_storage_error
        logger.error("Append to %s failed", self._name, exc_info=error)
        return ErrorCode.unknown_server_error

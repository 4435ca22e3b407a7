"""The one writer of an internal partition: keeps appends in order and joins those that come together.

Used by the shards of both coordinators. While one append is under way the writes that arrive are collected and go out
as one, but for those of transactions, which need batches of their own. Promises that each write's `done` is called
exactly once, in the order of the writes, and that a caller who stops waiting disturbs nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from itertools import groupby
from typing import NamedTuple

from broker.coordinator.record_store import KeyValue, RecordStore
from broker.coordinator.transaction_state import ProducerIdAndEpoch
from broker.errors import BrokerError, ErrorCode

__all__ = ["RecordWriter"]

logger = logging.getLogger(__name__)

# Called with none, or with the reason why the records are not stored.
Done = Callable[[ErrorCode], None]

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
        # Records stand in the partition whose `done` has not been called yet.
        self._is_untold = False
        self._events: list[Callable[[], None]] = []
        # What waits for the next write, and whether a timer is set to write it without one.
        self._late: list[_Write] = []
        self._is_late_due = False

    def write(self, records: Sequence[KeyValue], done: Done, producer: ProducerIdAndEpoch | None = None) -> None:
        """Store `records` after everything written before them, together with what else is written meanwhile."""
        self._queue.append(_Write(records, done, producer))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._drain())

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
            self._task = asyncio.get_running_loop().create_task(self._drain())
        elif isinstance(outcome, ErrorCode):
            self._tell(writes, outcome)
        else:
            self._task = asyncio.get_running_loop().create_task(self._drain((outcome, writes)))

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

    def in_order(self, event: Callable[[], None]) -> None:
        """Something was appended to the partition past this writer. Call `event` after the `done` of all that stands
        before it, and before that of what comes later: at once, unless an append waits to be safe."""
        if self._is_untold:
            self._events.append(event)
        else:
            event()

    def transaction_ended(self, producer_id: int) -> None:
        """The producer's marker was appended past this writer. What is not appended yet of its transaction comes too
        late and is refused: behind the marker it would open one that nobody ends."""
        self._queue = [
            write._replace(is_refused=True) if write.producer and write.producer.producer_id == producer_id else write
            for write in self._queue
        ]

    async def flush(self) -> None:
        """Wait until everything written so far has ended."""
        self._write_late()
        while self._task is not None:
            await asyncio.wait([self._task])

    async def _drain(self, first: tuple[Awaitable[None], list[_Write]] | None = None) -> None:
        try:
            if first is not None:
                waiting, together = first
                self._tell(together, await self._code_after(waiting))
            while self._queue or self._late:
                self._queue[:0] = self._take_late()
                writes = list(next(groupby(self._queue, key=lambda write: (write.producer, write.is_refused)))[1])
                del self._queue[: len(writes)]
                await self._write_together(writes)
        finally:
            self._task = None

    async def _write_together(self, writes: list[_Write]) -> None:
        outcome = self._append(writes)
        code = outcome if isinstance(outcome, ErrorCode) else await self._code_after(outcome)
        if code in _TOO_LARGE and len(writes) > 1:
            # Together they were too much: the one that is too large alone must not fail the others.
            half = len(writes) // 2
            await self._write_together(writes[:half])
            await self._write_together(writes[half:])
            return
        self._tell(writes, code)

    def _append(self, writes: list[_Write]) -> ErrorCode | Awaitable[None]:
        """How it ended, or what to wait for."""
        if writes[0].is_refused:
            return ErrorCode.transaction_abortable
        records = writes[0].records if len(writes) == 1 else [record for write in writes for record in write.records]
        try:
            waiting = self._store.append(self._partition, records, writes[0].producer)
        except Exception as error:
            return self._code_of(error)
        if waiting is None:
            return ErrorCode.none
        self._is_untold = True
        return waiting

    async def _code_after(self, waiting: Awaitable[None]) -> ErrorCode:
        try:
            await waiting
        except Exception as error:
            return self._code_of(error)
        return ErrorCode.none

    def _tell(self, writes: Sequence[_Write], code: ErrorCode) -> None:
        for write in writes:
            self._call(lambda done=write.done: done(code))  # type: ignore[misc]
        self._is_untold = False
        events, self._events = self._events, []
        for event in events:
            self._call(event)

    def _call(self, what: Callable[[], None]) -> None:
        try:
            what()
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

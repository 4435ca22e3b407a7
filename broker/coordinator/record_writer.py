"""The one writer of an internal partition: keeps appends in order and joins those that come together.

Used by the shards of both coordinators. While one append is under way the writes that arrive are collected and go out
as one. Promises that each write's `done` is called exactly once, in the order of the writes, and that
a caller who stops waiting disturbs nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from broker.coordinator.record_store import KeyValue, RecordStore
from broker.errors import BrokerError, ErrorCode

__all__ = ["RecordWriter"]

logger = logging.getLogger(__name__)

# Called with none, or with the reason why the records are not stored.
Done = Callable[[ErrorCode], None]
Write = tuple[Sequence[KeyValue], Done]

_TOO_LARGE = (ErrorCode.message_too_large, ErrorCode.record_list_too_large)


class RecordWriter:
    """Appends to one partition of a `RecordStore`."""

    def __init__(self, store: RecordStore, partition: int) -> None:
        self._store = store
        self._partition = partition
        self._name = f"internal partition {partition}"
        self._queue: list[Write] = []
        self._task: asyncio.Task[None] | None = None

    def write(self, records: Sequence[KeyValue], done: Done) -> None:
        """Store `records` after everything written before them, together with what else is written meanwhile."""
        self._queue.append((records, done))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._drain())

    def write_now(self, records: Sequence[KeyValue], done: Done) -> None:
        """As `write`, but without waiting for others to join when nothing is under way: `done` is then called
        before this returns, if the store has the records safe by then."""
        if self._task is not None:
            self.write(records, done)
            return
        try:
            waiting = self._store.append(self._partition, records)
        except Exception as error:
            self._tell(done, self._code_of(error))
            return
        if waiting is None:
            self._tell(done, ErrorCode.none)
        else:
            self._task = asyncio.get_running_loop().create_task(self._drain((waiting, done)))

    async def flush(self) -> None:
        """Wait until everything written so far has ended."""
        while self._task is not None:
            await asyncio.wait([self._task])

    async def _drain(self, first: tuple[Awaitable[None], Done] | None = None) -> None:
        try:
            if first is not None:
                waiting, done = first
                self._tell(done, await self._code_after(waiting))
            while self._queue:
                writes, self._queue = self._queue, []
                await self._write_together(writes)
        finally:
            self._task = None

    async def _write_together(self, writes: list[Write]) -> None:
        records = writes[0][0] if len(writes) == 1 else [record for records, _ in writes for record in records]
        try:
            waiting = self._store.append(self._partition, records)
        except Exception as error:
            code = self._code_of(error)
        else:
            code = ErrorCode.none if waiting is None else await self._code_after(waiting)
        if code in _TOO_LARGE and len(writes) > 1:
            # Together they were too much: the one that is too large alone must not fail the others.
            for write in writes:
                await self._write_together([write])
            return
        for _, done in writes:
            self._tell(done, code)

    async def _code_after(self, waiting: Awaitable[None]) -> ErrorCode:
        try:
            await waiting
        except Exception as error:
            return self._code_of(error)
        return ErrorCode.none

    def _tell(self, done: Done, code: ErrorCode) -> None:
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

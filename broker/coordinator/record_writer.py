"""The only writer of an internal partition: it keeps appends in order and batches them.

Used by the shards of both coordinators. Writes that arrive during an append are collected and appended together, except
for those of transactions, which need batches of their own. Each write's `done` is called exactly once, in the order of
the log. Transaction markers have their place in that order too. A caller may stop waiting at any time.
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

__all__ = ["APPEND_ERRORS", "RecordWriter"]

logger = logging.getLogger(__name__)

# Called with `none`, or with the reason why the records are not stored.
Done = Callable[[ErrorCode], None]

# How an append ended, or an awaitable of it.
_Outcome: TypeAlias = ErrorCode | Awaitable[object]

LAZY_WRITE_S = 0.05
"""How long a lazy write waits for another write to join."""

_TOO_LARGE = (ErrorCode.message_too_large, ErrorCode.record_list_too_large)

# The errors that clients get when an append to an internal topic failed, as in Kafka.
APPEND_ERRORS = {
    ErrorCode.unknown_topic_or_partition: ErrorCode.coordinator_not_available,
    ErrorCode.not_enough_replicas: ErrorCode.coordinator_not_available,
    ErrorCode.not_enough_replicas_after_append: ErrorCode.coordinator_not_available,
    ErrorCode.not_leader_or_follower: ErrorCode.not_coordinator,
    ErrorCode.kafka_storage_error: ErrorCode.not_coordinator,
}


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
        # Appends whose callbacks have not been called yet, in the order of the log. While there are any, nothing more
        # is appended and `_task` runs.
        self._unreported: deque[tuple[_Outcome, list[Done]]] = deque()
        # Lazy writes that wait for the next write, and whether the timer that ends their wait is set.
        self._lazy: list[_Write] = []
        self._is_lazy_timer_set = False

    def write(self, records: Sequence[KeyValue], done: Done, producer: ProducerIdAndEpoch | None = None) -> None:
        """Append `records` after all earlier writes, together with others that arrive before the append."""
        self._queue.append(_Write(records, done, producer))
        self._start()

    def write_now(self, records: Sequence[KeyValue], done: Done, producer: ProducerIdAndEpoch | None = None) -> None:
        """As `write`, but without a delay if no append is under way. `done` may be called before this returns."""
        if self._task is not None:
            self.write(records, done, producer)
            return
        write = _Write(records, done, producer)
        self._write_at_once([*self._take_lazy(), write] if self._lazy and producer is None else [write])

    def _write_at_once(self, writes: list[_Write]) -> None:
        outcome = self._append(writes)
        if outcome in _TOO_LARGE and len(writes) > 1:
            self._queue[:0] = writes  # the task appends them in smaller parts
            self._start()
        elif isinstance(outcome, ErrorCode):
            self._notify([write.done for write in writes], outcome)
        else:
            self._unreported.append((outcome, [write.done for write in writes]))
            self._start()

    def _start(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._drain())

    def write_lazily(self, records: Sequence[KeyValue], done: Done) -> None:
        """Append `records` together with the next write, or alone after LAZY_WRITE_S."""
        self._lazy.append(_Write(records, done, None))
        if not self._is_lazy_timer_set:
            self._is_lazy_timer_set = True
            asyncio.get_running_loop().call_later(LAZY_WRITE_S, self._write_lazy)

    def _write_lazy(self) -> None:
        self._is_lazy_timer_set = False
        if self._lazy and self._task is None:
            self._write_at_once(self._take_lazy())

    def _take_lazy(self) -> list[_Write]:
        lazy, self._lazy = self._lazy, []
        return lazy

    def transaction_ended(self, producer_id: int, done: Done, waiting: Awaitable[object] | None = None) -> None:
        """The producer's marker was appended past this writer or, with `waiting`, is being appended.

        The marker's place is after all writes that were given to the store and before those that were not. `done` is
        called in that order too. Writes of the transaction that were not given to the store are refused: after the
        marker they would open a transaction that nobody ends.
        """
        self._queue = [
            write._replace(is_refused=True) if write.producer and write.producer.producer_id == producer_id else write
            for write in self._queue
        ]
        if waiting is None and not self._unreported:
            done(ErrorCode.none)
            return
        self._unreported.append((ErrorCode.none if waiting is None else waiting, [done]))
        self._start()

    async def flush(self) -> None:
        """Wait until all writes so far have ended."""
        self._write_lazy()
        while self._task is not None:
            await asyncio.wait([self._task])

    async def _drain(self) -> None:
        try:
            while self._unreported or self._queue or self._lazy:
                if self._unreported:
                    outcome, dones = self._unreported[0]
                    self._notify(dones, await self._code_after(outcome))
                    self._unreported.popleft()
                    continue
                self._queue[:0] = self._take_lazy()
                writes = list(next(groupby(self._queue, key=lambda write: (write.producer, write.is_refused)))[1])
                del self._queue[: len(writes)]
                self._write_together(writes)
        finally:
            self._task = None

    def _write_together(self, writes: list[_Write]) -> None:
        outcome = self._append(writes)
        if outcome in _TOO_LARGE and len(writes) > 1:
            # Append smaller parts: one write that is too large must not fail the others.
            half = len(writes) // 2
            self._write_together(writes[:half])
            self._write_together(writes[half:])
        else:
            self._unreported.append((outcome, [write.done for write in writes]))

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

    def _notify(self, dones: Sequence[Done], code: ErrorCode) -> None:
        for done in dones:
            try:
                done(code)
            except Exception:
                logger.exception("The callback after an append to %s failed", self._name)

    def _code_of(self, error: Exception) -> ErrorCode:
        if isinstance(error, BrokerError):
            logger.warning("Append to %s failed: %s", self._name, error)
            return error.code
        if isinstance(error, OSError):
            logger.error("Append to %s failed: %s", self._name, error)
            return ErrorCode.kafka_storage_error
        logger.error("Append to %s failed", self._name, exc_info=error)
        return ErrorCode.unknown_server_error

"""The only writer of an internal partition: it keeps appends in order and batches them.

Used by the shards of both coordinators. Writes that arrive during an append are collected and appended together, except
for those of transactions: they need batches of their own, so they are appended at once, and nobody waits for the
replication of another producer's batch. The callbacks of stored writes are called in the order of the log, and every
callback is called exactly once. Transaction markers have their place in that order too. A caller may stop waiting at
any time.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from broker.coordinator.record_format import KeyValue
from broker.coordinator.record_store import RecordStore
from broker.coordinator.transaction_state import ProducerIdAndEpoch
from broker.errors import BrokerError, ErrorCode

logger = logging.getLogger(__name__)

# Called with `none`, or with the reason why the records are not stored.
Done = Callable[[ErrorCode], None]

# How an append ended, or an awaitable of it.
_Outcome: TypeAlias = ErrorCode | Awaitable[object]

LAZY_WRITE_S = 0.05
"""How long a lazy write waits for another write to join."""

MOST_WAITING = 10_000
"""Writes that may wait for an append under way. Further ones are refused with NOT_ENOUGH_REPLICAS."""

JOINED_BYTES = 1 << 18
"""How many bytes of records are joined in one append. It keeps the event loop free, and the batch small enough for the
usual max.message.bytes."""

_TOO_LARGE = (ErrorCode.message_too_large, ErrorCode.record_list_too_large)

# The errors that clients get when an append to an internal topic failed, as in Kafka.
APPEND_ERRORS = {
    ErrorCode.unknown_topic_or_partition: ErrorCode.coordinator_not_available,
    ErrorCode.not_enough_replicas: ErrorCode.coordinator_not_available,
    ErrorCode.not_leader_or_follower: ErrorCode.not_coordinator,
    ErrorCode.kafka_storage_error: ErrorCode.not_coordinator,
}


class _Write(NamedTuple):
    records: Sequence[KeyValue]
    done: Done


class RecordWriter:
    """Appends to one partition of a `RecordStore`."""

    def __init__(self, store: RecordStore, partition: int) -> None:
        self._store = store
        self._partition = partition
        self._name = f"internal partition {partition}"
        self._queue: list[_Write] = []
        self._task: asyncio.Task[None] | None = None
        # Appends and markers under way, in the order of the log, whose callbacks have not been called yet. While there
        # are any, `_task` runs.
        self._unreported: deque[tuple[_Outcome, list[Done]]] = deque()
        # Lazy writes that wait for the next write, and whether the timer that ends their wait is set.
        self._lazy: list[_Write] = []
        self._is_lazy_timer_set = False
        self._is_closed = False

    def close(self) -> None:
        """Append nothing more: this broker does not lead the partition any more (P7).

        Writes that were not given to the store end with NOT_LEADER_OR_FOLLOWER.
        """
        self._is_closed = True

    def write(self, records: Sequence[KeyValue], done: Done) -> None:
        """Append `records` after all earlier writes, together with others that arrive before the append.

        While too few replicas are in sync it is refused soon, as an append would be: it must not wait for an earlier
        append, which may wait for ever (P1).
        """
        code = self._refusal() if self._unreported else ErrorCode.none
        if code is ErrorCode.none:
            self._queue.append(_Write(records, done))
            self._start()
        else:
            asyncio.get_running_loop().call_soon(self._notify, [done], code)

    def write_now(self, records: Sequence[KeyValue], done: Done, producer: ProducerIdAndEpoch | None = None) -> None:
        """As `write`, but without a delay if no append is under way. `done` may be called before this returns.

        With `producer` the records are a part of its transaction, and are always appended before this returns.
        """
        if producer is None and self._unreported:
            self.write(records, done)
        elif producer is None and (self._queue or self._lazy):
            self._queue.append(_Write(records, done))
            self._append_queued()
        else:
            if self._queue:
                self._append_queued()
            self._append([_Write(records, done)], producer)

    def write_lazily(self, records: Sequence[KeyValue], done: Done) -> None:
        """Append `records` together with the next write, or alone after LAZY_WRITE_S."""
        self._lazy.append(_Write(records, done))
        if not self._is_lazy_timer_set:
            self._is_lazy_timer_set = True
            asyncio.get_running_loop().call_later(LAZY_WRITE_S, self._lazy_timer_fired)

    def _lazy_timer_fired(self) -> None:
        self._is_lazy_timer_set = False
        self._append_queued()

    def transaction_ended(self, done: Done, waiting: Awaitable[object] | None = None) -> None:
        """A transaction's marker was appended past this writer or, with `waiting`, is being appended.

        Its place is after all writes that were given to the store and before those that were not. `done` is called in
        that order too.
        """
        self._append_outcome(ErrorCode.none if waiting is None else waiting, [done])

    async def flush(self) -> None:
        """Wait until all writes so far have ended."""
        self._append_queued()
        while self._task is not None:
            await asyncio.wait([self._task])
            self._append_queued()

    def _refusal(self) -> ErrorCode:
        """Why nothing can be appended now, or NONE."""
        if len(self._queue) >= MOST_WAITING:
            return ErrorCode.not_enough_replicas
        try:
            self._store.check(self._partition)
        except BrokerError as error:
            return error.code
        return ErrorCode.none

    def _start(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._drain())

    async def _drain(self) -> None:
        try:
            while self._unreported or self._queue:
                if self._unreported:
                    outcome, dones = self._unreported[0]
                    self._notify(dones, await self._code_after(outcome))
                    self._unreported.popleft()
                if self._queue:
                    self._append_queued()
                if self._queue and not self._unreported:
                    await asyncio.sleep(0)  # a callback wrote again, perhaps because the append was refused at once
        finally:
            self._task = None

    def _append_queued(self) -> None:
        """Give to the store what was collected."""
        writes = [*self._lazy, *self._queue]
        self._lazy, self._queue = [], []
        for joined in _joined(writes):
            self._append(joined)

    def _append(self, writes: list[_Write], producer: ProducerIdAndEpoch | None = None) -> None:
        outcome = self._outcome(writes, producer)
        if outcome in _TOO_LARGE and len(writes) > 1:
            # Append smaller parts: one write that is too large must not fail the others.
            half = len(writes) // 2
            self._append(writes[:half])
            self._append(writes[half:])
        else:
            self._append_outcome(outcome, [write.done for write in writes])

    def _append_outcome(self, outcome: _Outcome, dones: list[Done]) -> None:
        """Call `dones` when the append has ended, after those of earlier appends. An error that is known is told now:
        an earlier append may wait for ever."""
        if isinstance(outcome, ErrorCode) and (outcome is not ErrorCode.none or not self._unreported):
            self._notify(dones, outcome)
        else:
            self._unreported.append((outcome, dones))
            self._start()

    def _outcome(self, writes: list[_Write], producer: ProducerIdAndEpoch | None) -> _Outcome:
        if self._is_closed:
            return ErrorCode.not_leader_or_follower
        records = writes[0].records if len(writes) == 1 else [record for write in writes for record in write.records]
        try:
            waiting = self._store.append(self._partition, records, producer)
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


def _joined(writes: list[_Write]) -> Iterator[list[_Write]]:
    """The writes in groups of about JOINED_BYTES or less, in order."""
    joined: list[_Write] = []
    total = 0
    for write in writes:
        size = sum(len(key) + len(value or b"") for key, value in write.records)
        if joined and total + size > JOINED_BYTES:
            yield joined
            joined, total = [], 0
        joined.append(write)
        total += size
    if joined:
        yield joined

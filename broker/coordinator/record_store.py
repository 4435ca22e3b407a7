"""Where the coordinators keep their records: the logs of their internal topics.

`RecordStore` is what the coordinators need, `LogRecordStore` implements it over the partitions of one topic. Records
are appended in batches and read back in order for replay.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from typing import NamedTuple, Protocol

from broker.clock import Clock
from broker.cluster.metadata_cache import MetadataCache
from broker.coordinator.record_format import KeyValue
from broker.coordinator.transaction_state import ProducerIdAndEpoch
from broker.errors import BrokerError, CorruptBatch, ErrorCode
from broker.log.segment_file import FileSlice
from broker.protocol.topic_partition import TopicPartition
from broker.records.batch import verify_batch, walk_batches
from broker.records.builder import BatchBuilder
from broker.records.control import ControlType, read_control_type
from broker.records.record import decode_batch

READ_BYTES = 1 << 20
_RESTORED_AT_ONCE = 1000
_RESTORED_RETRY_S = 0.5
_NO_LIMIT = 2**31 - 1


class RecordRun(NamedTuple):
    """Consecutive records of the log, or the marker that ends a transaction."""

    records: Sequence[KeyValue] = ()
    # Whose transaction the records belong to, or which ends here. -1: outside of transactions.
    producer_id: int = -1
    # Markers only: how the transaction ended.
    commit: bool | None = None


class RecordStore(Protocol):
    """Keyed records in numbered partitions of one internal topic."""

    def check(self, partition: int) -> None:
        """Raise BrokerError if an append would be refused now: `not_enough_replicas`, `not_leader_or_follower`."""

    def append(
        self, partition: int, records: Sequence[KeyValue], producer: ProducerIdAndEpoch | None = None
    ) -> Awaitable[object] | None:
        """Append all of `records` to a partition, or none, within the transaction of `producer` if one is given.

        More than max.message.bytes allows become several batches, unless they are of a transaction. If the leader is
        lost before they are safe, the next one may have the first of them only.

        Returns None if they are safe already, otherwise an awaitable that ends when they are: on disk, if the topic
        asks for it, and below the high watermark. Appends keep the order of the calls. Raises BrokerError if the
        records are not in the log (`not_enough_replicas`, `kafka_storage_error`, `invalid_producer_epoch` …), either at
        once or when awaited. `message_too_large` and `record_list_too_large` are raised at once.
        `not_leader_or_follower` is raised when this broker has stopped leading the partition: the next leader may have
        the records or not.
        """

    def read(self, partition: int) -> AsyncIterator[RecordRun]:
        """Every committed record of a partition, oldest first, with control records as markers. Raises BrokerError."""


class Restored(Protocol):
    """The records of a cluster that was restored without its logs."""

    async def records(self, partition: int) -> Sequence[KeyValue]:
        """Those that the log of a partition may lack; none in any other cluster. Raises BrokerError."""

    async def loaded(self, partition: int) -> None:
        """The log has them now. Raises BrokerError."""


class LogRecordStore:
    """A `RecordStore` over the partitions of `topic` that this broker leads."""

    def __init__(self, topics: MetadataCache, topic: str, clock: Clock, restored: Restored | None = None) -> None:
        self._topics = topics
        self._topic = topic
        self._clock = clock
        self._restored = restored

    def check(self, partition: int) -> None:
        self._topics.partition(TopicPartition(self._topic, partition)).check_min_isr()

    def append(
        self, partition: int, records: Sequence[KeyValue], producer: ProducerIdAndEpoch | None = None
    ) -> Awaitable[object] | None:
        leader = self._topics.partition(TopicPartition(self._topic, partition))
        leader.check_min_isr()
        if producer is None:
            batches = _batches(records, self._clock.now_ms(), leader.log.config.max_message_bytes)
        else:
            batches = _batches(records, self._clock.now_ms(), _NO_LIMIT, *producer)
        return leader.until_safe(leader.append(b"".join(batches)))

    async def read(self, partition: int) -> AsyncIterator[RecordRun]:
        """Reads what `RecordStore.read` promises, including appends that are still under way.

        It waits until the high watermark has reached the start of this leader epoch. Before that nobody knows which of
        the earlier leaders' records are committed (P7). The event loop owns the log and looks up the positions. A
        worker thread reads and decodes 1 MiB at a time.
        """
        tp = TopicPartition(self._topic, partition)
        leader = self._topics.partition(tp)
        await leader.queue.drain()
        waiting = leader.caught_up()
        if waiting is not None:
            await asyncio.wait([waiting])
            waiting.result()
        missing = dict(await self._restored.records(partition) if self._restored else ())
        is_restored = bool(missing)
        offset = leader.log.log_start_offset
        while (found := leader.read(offset, READ_BYTES)) is not None:
            before = offset
            runs, offset = await asyncio.to_thread(_decode, found, before)
            if offset <= before:
                raise CorruptBatch(f"{self._topic}-{partition} has no whole batch at offset {before}")
            for run in runs:
                yield run
                for key, _ in run.records if missing else ():
                    missing.pop(key, None)
            if self._topics.partition(tp) is not leader:
                raise BrokerError(ErrorCode.not_leader_or_follower, f"{tp} has another leader epoch")
        if is_restored and self._restored is not None:
            await self._append_restored(partition, list(missing.items()))
            yield RecordRun(list(missing.items()))
            await self._restored.loaded(partition)

    def bounds(self, partition: int) -> tuple[int, int]:
        """Where the log starts, and its end. Raises BrokerError."""
        log = self._topics.partition(TopicPartition(self._topic, partition)).log
        return log.log_start_offset, log.log_end_offset

    def delete_before(self, partition: int, offset: int) -> None:
        """Delete the committed records below an offset. Raises BrokerError."""
        leader = self._topics.partition(TopicPartition(self._topic, partition))
        leader.delete_records(min(offset, leader.high_watermark))

    async def _append_restored(self, partition: int, records: Sequence[KeyValue]) -> None:
        """In batches that any message.max.bytes takes. While too few replicas are in sync, as when a restored cluster
        starts, it waits. After a crash the next load appends what is missing."""
        for first in range(0, len(records), _RESTORED_AT_ONCE):
            while True:
                try:
                    waiting = self.append(partition, records[first : first + _RESTORED_AT_ONCE])
                    if waiting is not None:
                        await waiting
                    break
                except BrokerError as error:
                    if error.code is not ErrorCode.not_enough_replicas:
                        raise
                    await asyncio.sleep(_RESTORED_RETRY_S)


def _batches(
    records: Sequence[KeyValue], now_ms: int, max_bytes: int, producer_id: int = -1, producer_epoch: int = -1
) -> Iterator[bytes]:
    def begin() -> BatchBuilder:
        return BatchBuilder(
            max_bytes=max_bytes,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transactional=producer_id >= 0,
        )

    builder = begin()
    for key, value in records:
        if not builder.append(now_ms, key, value):
            yield builder.build()
            builder = begin()
            builder.append(now_ms, key, value)
    yield builder.build()


def _decode(found: FileSlice, low: int) -> tuple[list[RecordRun], int]:
    """The records from offset `low` on, and the offset after the last one. Raises CorruptBatch."""
    chunk = os.pread(found.file.fileno(), found.length, found.position)
    runs: list[RecordRun] = []
    plain: list[KeyValue] = []
    next_offset = low
    for position, header in walk_batches(chunk):
        next_offset = header.next_offset
        verify_batch(chunk, position, header)
        if header.is_control:
            ending = read_control_type(chunk, position, header)
            if ending in (ControlType.ABORT, ControlType.COMMIT):
                runs.append(RecordRun((), header.producer_id, ending == ControlType.COMMIT))
                plain = []
            continue
        batch = decode_batch(chunk, position, header)
        records = [(record.key or b"", record.value) for record in batch if record.offset >= low]
        if header.is_transactional:
            runs.append(RecordRun(records, header.producer_id))
            plain = []
        else:
            if not plain:
                runs.append(RecordRun(plain))
            plain += records
    return runs, next_offset

"""The record store over the logs of one internal topic, a partition per share of the groups or transactions.

Used by the server in place of the in-memory twin of record_store.py. Records go in as one batch; reading
back gives them in order, for the replay at start.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Sequence

from broker.clock import Clock
from broker.cluster.topics import Topics
from broker.coordinator.record_store import KeyValue, RecordRun
from broker.coordinator.transaction_state import ProducerIdAndEpoch
from broker.errors import CorruptBatch
from broker.log.log import AppendResult
from broker.log.segment_file import FileSlice
from broker.protocol.topic_partition import TopicPartition
from broker.records.batch import verify_batch, walk_batches
from broker.records.builder import BatchBuilder
from broker.records.control import ControlType, read_control_type
from broker.records.record import decode_batch

__all__ = ["LogRecordStore"]

READ_BYTES = 1 << 20
_NO_LIMIT = 2**31 - 1


class LogRecordStore:
    """Append to and read from the partitions of `topic` that this broker leads."""

    def __init__(self, topics: Topics, topic: str, clock: Clock) -> None:
        self._topics = topics
        self._topic = topic
        self._clock = clock

    def append(
        self, partition: int, records: Sequence[KeyValue], producer: ProducerIdAndEpoch | None = None
    ) -> Awaitable[object] | None:
        """Append all of `records` as one batch, while the disk is slow in its turn. Raises BrokerError."""
        if producer is None:
            builder = BatchBuilder(max_bytes=_NO_LIMIT)
        else:
            producer_id, epoch = producer
            builder = BatchBuilder(
                max_bytes=_NO_LIMIT, producer_id=producer_id, producer_epoch=epoch, transactional=True
            )
        now = self._clock.now_ms()
        for key, value in records:
            builder.append(now, key, value)
        held = self._topics.partition(TopicPartition(self._topic, partition))
        appended = held.append(builder.build())
        return held.flushed() if isinstance(appended, AppendResult) else appended

    async def read(self, partition: int) -> AsyncIterator[RecordRun]:
        """Every record of the partition, oldest first. The log is asked on the event loop, which owns it; reading and
        decoding, a MiB at a time, is done in a worker thread. What is being appended is waited for: nobody else will
        tell of it. Raises BrokerError."""
        held = self._topics.partition(TopicPartition(self._topic, partition))
        await held.settled()
        offset = held.log.log_start_offset
        while (found := held.read(offset, READ_BYTES)) is not None:
            before = offset
            runs, offset = await asyncio.to_thread(_decode, found, before)
            if offset <= before:
                raise CorruptBatch(f"{self._topic}-{partition} has no whole batch at offset {before}")
            for run in runs:
                yield run


def _decode(found: FileSlice, low: int) -> tuple[list[RecordRun], int]:
    """The records from offset `low` on, and the offset after the last. Raises CorruptBatch."""
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

"""The record store over the logs of one internal topic, a partition per share of the groups or transactions.

Used by the server in place of the in-memory twin of record_store.py. Records go in as one batch; reading
back gives them in order, for the replay at start.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Iterator, Sequence

from broker.clock import Clock
from broker.cluster.topics import Topics
from broker.coordinator.record_store import KeyValue
from broker.protocol.topic_partition import TopicPartition
from broker.records.batch import walk_batches
from broker.records.builder import BatchBuilder
from broker.records.record import decode_records

__all__ = ["LogRecordStore"]

READ_BYTES = 1 << 20


class LogRecordStore:
    """Append to and read from the partitions of `topic` that this broker leads."""

    def __init__(self, topics: Topics, topic: str, clock: Clock) -> None:
        self._topics = topics
        self._topic = topic
        self._clock = clock

    def append(self, partition: int, records: Sequence[KeyValue]) -> Awaitable[None] | None:
        """Append all of `records` as one batch. Raises BrokerError."""
        builder = BatchBuilder(max_bytes=2**31 - 1)
        now = self._clock.now_ms()
        for key, value in records:
            builder.append(now, key, value)
        held = self._topics.partition(TopicPartition(self._topic, partition))
        held.append(builder.build())
        return asyncio.to_thread(held.log.flush) if held.log.flush_due() else None

    def read(self, partition: int) -> Iterator[KeyValue]:
        """Every record of the partition, oldest first."""
        held = self._topics.partition(TopicPartition(self._topic, partition))
        offset = held.log.log_start_offset
        while (found := held.read(offset, READ_BYTES)) is not None:
            chunk = os.pread(found.file.fileno(), found.length, found.position)
            for record in decode_records(chunk, low=offset):
                yield record.key or b"", record.value
            for _, header in walk_batches(chunk):
                offset = header.next_offset

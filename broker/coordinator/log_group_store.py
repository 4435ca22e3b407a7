"""The group store over the log: __consumer_offsets, a partition per share of the groups.

Used by the server in place of the in-memory twin of group_store.py. Records go in as one batch; reading
back gives them in order, for the replay at start.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence

from broker.clock import Clock
from broker.cluster.topic_names import GROUP_OFFSETS_TOPIC
from broker.cluster.topics import Topics
from broker.protocol.topic_partition import TopicPartition
from broker.records.batch import walk_batches
from broker.records.builder import BatchBuilder
from broker.records.record import decode_records

__all__ = ["LogGroupStore"]

READ_BYTES = 1 << 20


class LogGroupStore:
    """Append to and read from the partitions of __consumer_offsets that this broker leads."""

    def __init__(self, topics: Topics, clock: Clock) -> None:
        self._topics = topics
        self._clock = clock

    async def append(self, partition: int, records: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Append all of `records` as one batch. Raises BrokerError."""
        builder = BatchBuilder(max_bytes=2**31 - 1)
        now = self._clock.now_ms()
        for key, value in records:
            builder.append(now, key, value)
        held = self._topics.partition(TopicPartition(GROUP_OFFSETS_TOPIC, partition))
        held.append(builder.build())
        if held.log.flush_due():
            await asyncio.to_thread(held.log.flush)

    def read(self, partition: int) -> Iterator[tuple[bytes, bytes | None]]:
        """Every record of the partition, oldest first."""
        held = self._topics.partition(TopicPartition(GROUP_OFFSETS_TOPIC, partition))
        offset = held.log.log_start_offset
        while (found := held.read(offset, READ_BYTES)) is not None:
            chunk = os.pread(found.file.fileno(), found.length, found.position)
            for record in decode_records(chunk, low=offset):
                yield record.key or b"", record.value
            for _, header in walk_batches(chunk):
                offset = header.next_offset

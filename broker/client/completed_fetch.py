"""The records of a fetch that a consumer has not returned yet. Called by consumer.py; decoded poll by poll."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

from broker.client.client_stats import Statistics
from broker.client.fetch_protocol import FetchFrom
from broker.client.fetcher import measure_batches
from broker.errors import CorruptBatch
from broker.protocol.fetch_parser import FetchedPartition
from broker.records.record import Record, decode_records


class CompletedFetch:
    """The records of one partition in a fetch response, decoded piece by piece."""

    def __init__(self, asked: FetchFrom, fetched: FetchedPartition, *, check_crcs: bool) -> None:
        self.tp = asked.tp
        self.leader_epoch = asked.leader_epoch
        """The epoch of the leader that responded."""
        self.position = offset = asked.offset
        """Offset of the next record. Continue only while it is the consumer's position."""
        self.high_watermark = fetched.high_watermark
        self._end, self._batches = measure_batches(fetched.records, offset)
        self._size = len(fetched.records)
        self._error: CorruptBatch | None = None
        self._records: Iterator[Record] = decode_records(
            fetched.records, low=offset, check_crcs=check_crcs, aborted=fetched.aborted
        )

    def read(self, limit: int) -> list[Record]:
        """The next records, up to `limit`; fewer only at the end, then `position` is after everything fetched.

        Raises CorruptBatch when the batch at `position` cannot be read.
        """
        records: list[Record] = []
        try:
            if self._error is not None:
                raise self._error
            records.extend(itertools.islice(self._records, limit))
        except CorruptBatch as error:
            if not records:
                raise
            self._error = error
        if self._error is not None or len(records) == limit:
            self.position = records[-1].offset + 1
        else:
            self.position = self._end
        return records

    def count(self, statistics: Statistics, records: int) -> None:
        """Count records that were returned; the first call counts the bytes and batches of the fetch too."""
        size, batches = self._size, self._batches
        self._size = self._batches = 0
        statistics.batches(self.tp.topic, time.monotonic(), records=records, size=size, batches=batches)

    @property
    def exhausted(self) -> bool:
        return self.position >= self._end

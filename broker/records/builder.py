"""Builds a batch record by record, for the producer, the console and the coordinators.

`columns.py` builds batches from columns of records instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from broker.records.batch import HEADER_SIZE, build_batch
from broker.records.compression import Codec, compress
from broker.records.record import Header, encode_record

DEFAULT_BATCH_BYTES: Final = 16384
"""Kafka's `batch.size`."""


class BatchBuilder:
    """Builds one batch of at most `max_bytes` before compression, header included.

    Producer id, epoch and base sequence are those of an idempotent or transactional producer, or -1.
    """

    def __init__(
        self,
        *,
        codec: int = Codec.NONE,
        max_bytes: int = DEFAULT_BATCH_BYTES,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        transactional: bool = False,
    ) -> None:
        self._codec = codec
        self._max_bytes = max_bytes
        self._producer_id = producer_id
        self._producer_epoch = producer_epoch
        self._base_sequence = base_sequence
        self._transactional = transactional
        self._records: list[bytes] = []
        self._base_timestamp = -1
        self._max_timestamp = -1
        self.size = HEADER_SIZE
        """Bytes of the batch so far, before compression."""

    @property
    def record_count(self) -> int:
        return len(self._records)

    def append(self, timestamp: int, key: bytes | None, value: bytes | None, headers: Sequence[Header] = ()) -> bool:
        """Add a record, `timestamp` in ms. Returns False, and adds nothing, when it does not fit.

        The first record always fits, so a record larger than `max_bytes` gets a batch of its own.
        """
        records = self._records
        if not records:
            self._base_timestamp = self._max_timestamp = timestamp
        record = encode_record(timestamp - self._base_timestamp, len(records), key, value, headers)
        size = self.size + len(record)
        if size > self._max_bytes and records:
            return False
        records.append(record)
        self.size = size
        if timestamp > self._max_timestamp:
            self._max_timestamp = timestamp
        return True

    def build(self) -> bytes:
        """The batch, with base offset 0, because the broker assigns offsets. Does not change the builder."""
        return build_batch(
            compress(self._codec, b"".join(self._records)),
            len(self._records),
            codec=self._codec,
            base_timestamp=self._base_timestamp,
            max_timestamp=self._max_timestamp,
            producer_id=self._producer_id,
            producer_epoch=self._producer_epoch,
            base_sequence=self._base_sequence,
            transactional=self._transactional,
        )

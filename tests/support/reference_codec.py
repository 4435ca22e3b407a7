"""The column codec in plain Python, record by record: slow, but obviously right; tests compare the other with it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import pyarrow as pa

from broker.errors import CorruptBatch
from broker.records.batch import verify_batch, walk_batches
from broker.records.builder import BatchBuilder
from broker.records.column_decoder import FIELDS, HEADERS_TYPE, Columns
from broker.records.compression import Codec
from broker.records.control import AbortedTransactions
from broker.records.record import Record, decode_batch
from broker.records.record_sections import NO_LIMIT

Buffer = bytes | bytearray | memoryview


def decode_reference(
    chunk: Buffer,
    *,
    fields: Collection[str] = FIELDS,
    low: int = 0,
    high: int = NO_LIMIT,
    check_crcs: bool = True,
    aborted: Iterable[tuple[int, int]] = (),
) -> Columns:
    """What `columns.decode_columns` promises. Raises CorruptBatch."""
    transactions = AbortedTransactions(aborted)
    records: list[Record] = []
    next_offset, last_offset = low, -1
    for position, header in walk_batches(chunk):
        if not last_offset < header.base_offset <= header.last_offset < NO_LIMIT:
            raise CorruptBatch(f"offset {header.base_offset} follows {last_offset}")
        if header.base_offset >= high:
            break
        last_offset = header.last_offset
        if last_offset >= low or header.is_control:
            verify_batch(chunk, position, header, check_crc=check_crcs)
            dropped = transactions.drops(chunk, position, header)
            if header.record_count and not header.is_control and not dropped:
                records += decode_batch(chunk, position, header)
        next_offset = max(low, header.next_offset)
    return _to_columns([record for record in records if low <= record.offset < high], fields, next_offset)


def _to_columns(records: list[Record], fields: Collection[str], next_offset: int) -> Columns:
    pairs = [[{"key": key, "value": value} for key, value in record.headers] or None for record in records]
    try:
        timestamp = pa.array([record.timestamp for record in records], pa.int64())
    except (OverflowError, pa.ArrowInvalid) as error:
        raise CorruptBatch(f"a timestamp does not fit in 64 bits: {error}") from error
    columns = {
        "key": pa.array([record.key for record in records], pa.binary()),
        "value": pa.array([record.value for record in records], pa.binary()),
        "offset": pa.array([record.offset for record in records], pa.int64()),
        "timestamp": timestamp,
        "timestamp_type": pa.array([record.timestamp_type for record in records], pa.int32()),
        "headers": pa.array(pairs, HEADERS_TYPE),
    }
    asked = {name: column if name in fields else None for name, column in columns.items()}
    return Columns(**asked, num_rows=len(records), next_offset=next_offset)


def encode_reference(
    records: Sequence[Record],
    batch_rows: Sequence[int],
    *,
    codec: int = Codec.NONE,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
) -> list[bytes]:
    """Batches of as many records each as `batch_rows` says, every one with base offset 0."""
    batches: list[bytes] = []
    row = 0
    for count in batch_rows:
        builder = BatchBuilder(
            codec=codec,
            max_bytes=1 << 31,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence if base_sequence < 0 else (base_sequence + row) & 0x7FFFFFFF,
            transactional=transactional,
        )
        for record in records[row : row + count]:
            builder.append(record.timestamp, record.key, record.value, record.headers)
        batches.append(builder.build())
        row += count
    return batches

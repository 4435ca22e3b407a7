"""Record batches to Arrow columns and back: the hot path between a fetch and Spark.

Called by the connector, whole fetch responses (1 to 4 MB is best) or Arrow batches at a time; numpy
and pyarrow do the work, so the cost per record is a fraction of a microsecond. How it is done is
behind these two functions; columns_reference.py does the same slowly and plainly, and the tests
hold the two against each other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

import pyarrow as pa

from broker.errors import ConfigError
from broker.records.builder import DEFAULT_BATCH_BYTES
from broker.records.column_decoder import decode
from broker.records.column_encoder import EncodeOptions, encode
from broker.records.column_types import FIELDS, HEADERS_TYPE, NO_LIMIT, TIMESTAMP_TYPE, Columns
from broker.records.compression import DECOMPRESSION_LIMIT, Codec
from broker.records.record_sections import DecodeOptions

__all__ = ["HEADERS_TYPE", "TIMESTAMP_TYPE", "Columns", "decode_columns", "encode_columns"]

Buffer = bytes | bytearray | memoryview

_MOST_PLAIN_BYTES: Final = 512 << 20


def decode_columns(
    chunk: Buffer,
    *,
    fields: Collection[str] | None = None,
    headers: bool = False,
    low: int | None = None,
    high: int | None = None,
    check_crcs: bool = True,
    aborted: Iterable[tuple[int, int]] = (),
    max_bytes: int = _MOST_PLAIN_BYTES,
    batch_limit: int = DECOMPRESSION_LIMIT,
) -> Columns:
    """The records of all whole batches in `chunk`; a batch cut off at its end is left for the next fetch.

    fields: the columns that are wanted, of "key", "value", "offset", "timestamp", "timestamp_type" and
        "headers"; the others stay None and cost next to nothing. None: all but the headers, and those
        too if `headers` says so, which means nothing else.
    low, high: only records with `low <= offset < high`; the first batch of a fetch usually begins
        before the offset that was asked for.
    aborted: (producer id, first offset) of the aborted transactions that a read-committed fetch
        names; their records are left out. Control batches always are; `next_offset` counts both.
    max_bytes: decompressed bytes to stop at, though after one batch at least; `next_offset` says
        where to fetch again.
    batch_limit: decompressed bytes beyond which one batch is taken for an attack.

    Raises CorruptBatch for whatever is malformed, in any field; inside the headers that is only seen
    when they are asked for. Raises ConfigError for a field of another name.
    """
    wanted = (FIELDS if headers else FIELDS - {"headers"}) if fields is None else frozenset(fields)
    if not wanted <= FIELDS:
        raise ConfigError(
            f"{', '.join(sorted(wanted - FIELDS))}: no such column, use some of {', '.join(sorted(FIELDS))}"
        )
    options = DecodeOptions(
        fields=wanted,
        low=0 if low is None else low,
        high=NO_LIMIT if high is None else high,
        check_crcs=check_crcs,
        aborted=aborted,
        max_bytes=max_bytes,
        batch_limit=batch_limit,
    )
    return decode(chunk, options)


def encode_columns(
    key: pa.Array | None,
    value: pa.Array,
    timestamp: pa.Array | int,
    headers: pa.Array | None = None,
    *,
    codec: int = Codec.NONE,
    max_bytes: int = DEFAULT_BATCH_BYTES,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
) -> list[bytes]:
    """Record batches of the rows in order, each at most `max_bytes` before compression, or of one row.

    key: binary, or None for no keys at all. value: binary.
    timestamp: int64 in ms without nulls, or one number for all rows.
    headers: HEADERS_TYPE; null and empty lists both mean none.
    codec: a `Codec`.
    producer_id, producer_epoch, base_sequence, transactional: of an idempotent or transactional
        producer; the sequence goes on from batch to batch.

    The base offset of every batch is 0, which is all that Kafka takes from a producer (`UnifiedLog`): the log assigns
    the offsets.

    Raises ConfigError for columns of other types or lengths, BrokerError (message_too_large) for a
    row of more than 1 GiB.
    """
    if isinstance(timestamp, int):
        timestamp = pa.repeat(pa.scalar(timestamp, pa.int64()), len(value))
    expected = {
        "key": (key, pa.binary()),
        "value": (value, pa.binary()),
        "timestamp": (timestamp, pa.int64()),
        "headers": (headers, HEADERS_TYPE),
    }
    for name, (column, kind) in expected.items():
        if column is None:
            continue
        if column.type != kind:
            raise ConfigError(f"column {name} is {column.type}: cast it to {kind}")
        if len(column) != len(value):
            raise ConfigError(f"column {name} has {len(column)} rows, column value {len(value)}")
    if timestamp.null_count:
        raise ConfigError("column timestamp has nulls: fill them, with the time of now for example")
    options = EncodeOptions(codec, max_bytes, producer_id, producer_epoch, base_sequence, transactional)
    return encode(key, value, timestamp, headers, options)

"""Record batches to Arrow columns and back: the hot path between a fetch and Spark.

The connector passes whole fetch responses (1 to 4 MB is best) or Arrow batches. A record costs a fraction of a
microsecond. The tests compare both functions with a slow codec in plain Python (tests/records/test_columns_parity.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from broker.errors import ConfigError
from broker.records import native
from broker.records.batch import Buffer
from broker.records.builder import DEFAULT_BATCH_BYTES
from broker.records.column_decoder import FIELDS, HEADERS_TYPE, TIMESTAMP_TYPE, Columns, decode
from broker.records.compression import DECOMPRESSION_LIMIT, Codec
from broker.records.key_hash import partition_of_key
from broker.records.record_sections import NO_LIMIT, DecodeOptions

__all__ = [
    "HEADERS_TYPE",
    "TIMESTAMP_TYPE",
    "Columns",
    "RecordColumns",
    "decode_columns",
    "encode_columns",
    "encode_partitions",
    "partitions_of_keys",
]

_MOST_PLAIN_BYTES: Final = 512 << 20

NO_KEY: Final = -1
"""Stands for a null key, whose partition the caller chooses."""


class RecordColumns(NamedTuple):
    """Rows to encode: key (None: no row has one) and value binary, timestamp int64 in ms, headers HEADERS_TYPE."""

    key: pa.Array | None
    value: pa.Array
    timestamp: pa.Array
    headers: pa.Array | None


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
    consume: bool = False,
) -> Columns:
    """The records of all whole batches in `chunk`; a cut batch at the end is left for the next fetch.

    fields: the requested columns, of "key", "value", "offset", "timestamp", "timestamp_type" and "headers". The others
        are None and cost almost nothing. The default is all but the headers, or all if `headers` is True.
    low, high: only records with `low <= offset < high`. The first batch of a fetch usually begins before `low`.
    aborted: (producer id, first offset) of each aborted transaction, as a read_committed fetch reports them. Their
        records are skipped, and so are control batches; `next_offset` counts both.
    max_bytes: stop after so many decompressed bytes, but not before one batch; `next_offset` says where to continue.
    batch_limit: the most decompressed bytes of one batch, against decompression bombs.
    consume: the caller gives `chunk` away. If it is writable, the batches that were read may be overwritten, and the
        values may lie there, which saves a copy of them.

    Raises CorruptBatch for malformed data in any field, in headers only if they are requested. Raises ConfigError for
    an unknown field.
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
        aborted=list(aborted),
        max_bytes=max_bytes,
        batch_limit=batch_limit,
        consume=consume,
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

    key: binary, or None without keys. value: binary.
    timestamp: int64 in ms without nulls, or one number for all rows.
    headers: HEADERS_TYPE; a null and an empty list both mean no headers.
    codec: a `Codec`.
    producer_id, producer_epoch, base_sequence, transactional: of an idempotent or transactional producer; the sequence
        continues from batch to batch.

    The base offset of every batch is 0, as Kafka requires from producers, because the log assigns offsets.

    Raises ConfigError for columns of other types or lengths, BrokerError (message_too_large) for a row above 1 GiB.
    """
    if isinstance(timestamp, int):
        timestamp = pa.repeat(pa.scalar(timestamp, pa.int64()), len(value))
    (batches,) = encode_partitions(
        [RecordColumns(key, value, timestamp, headers)],
        None,
        codec=codec,
        max_bytes=max_bytes,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequences=[base_sequence],
        transactional=transactional,
    )
    return batches


def encode_partitions(
    chunks: Sequence[RecordColumns],
    partitions: npt.NDArray[np.int32] | None,
    *,
    base_sequences: Sequence[int],
    codec: int = Codec.NONE,
    max_bytes: int = DEFAULT_BATCH_BYTES,
    producer_id: int = -1,
    producer_epoch: int = -1,
    transactional: bool = False,
) -> list[list[bytes]]:
    """The record batches of each partition, its rows in the order of all `chunks`. No row is copied before.

    partitions: of each row of all chunks, below the number of `base_sequences`; None for one partition.
    Else as `encode_columns`.
    """
    from broker.records.column_encoder import EncodeOptions, encode

    for key, value, timestamp, headers in chunks:
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
    return encode(
        chunks,
        partitions,
        EncodeOptions(codec, max_bytes, producer_id, producer_epoch, base_sequences, transactional),
    )


def partitions_of_keys(keys: pa.Array, partitions: int) -> npt.NDArray[np.int32]:
    """The partition of each key as `partition_of_key` gives it, or NO_KEY where it is null.

    So all records of a key are in one partition, whoever wrote them.

    keys: a binary or string array, perhaps a slice. Raises ConfigError for another type and for `partitions` below 1.
    """
    if partitions < 1:
        raise ConfigError(f"{partitions} partitions: a topic has at least one")
    if keys.type not in (pa.binary(), pa.string()):
        raise ConfigError(f"keys of type {keys.type}: cast them to {pa.binary()}")
    result = np.full(len(keys), NO_KEY, np.int32)
    if keys.null_count == len(keys):
        return result
    if native.kernel is not None:
        native.kernel.partitions(len(keys), native.column_buffers(keys), partitions, result)
        return result
    for row, key in enumerate(keys.cast(pa.binary()).to_pylist()):
        if key is not None:
            result[row] = partition_of_key(key, partitions)
    return result

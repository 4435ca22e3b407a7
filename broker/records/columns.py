"""Record batches to Arrow columns and back: the hot path between a fetch and Spark.

Called by the connector, whole fetch responses (1 to 4 MB is best) or Arrow batches at a time; numpy
and pyarrow do the work, so the cost per record is a fraction of a microsecond. How it is done is
behind these two functions; columns_reference.py does the same slowly and plainly, and the tests
hold the two against each other.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from broker.records.column_sections import DecodeOptions
from broker.records.column_types import HEADERS_TYPE, NO_LIMIT, TIMESTAMP_TYPE, Columns
from broker.records.columns_decode import decode
from broker.records.compression import DECOMPRESSION_LIMIT

__all__ = ["HEADERS_TYPE", "TIMESTAMP_TYPE", "Columns", "decode_columns"]

Buffer = bytes | bytearray | memoryview

_MOST_PLAIN_BYTES: Final = 512 << 20


def decode_columns(
    chunk: Buffer,
    *,
    headers: bool = False,
    low: int | None = None,
    high: int | None = None,
    check_crcs: bool = True,
    aborted: Iterable[tuple[int, int]] = (),
    max_bytes: int = _MOST_PLAIN_BYTES,
    batch_limit: int = DECOMPRESSION_LIMIT,
) -> Columns:
    """The records of all whole batches in `chunk`; a batch cut off at its end is left for the next fetch.

    low, high: only records with `low <= offset < high`; the first batch of a fetch usually begins
        before the offset that was asked for.
    aborted: (producer id, first offset) of the aborted transactions that a read-committed fetch
        names; their records are left out. Control batches always are; `next_offset` counts both.
    max_bytes: decompressed bytes to stop at, though after one batch at least; `next_offset` says
        where to fetch again.
    batch_limit: decompressed bytes beyond which one batch is taken for an attack.

    Raises CorruptBatch for whatever is malformed. Inside the headers that is only seen when
    `headers` asks for them.
    """
    options = DecodeOptions(
        headers=headers,
        low=0 if low is None else low,
        high=NO_LIMIT if high is None else high,
        check_crcs=check_crcs,
        aborted=aborted,
        max_bytes=max_bytes,
        batch_limit=batch_limit,
    )
    return decode(chunk, options)

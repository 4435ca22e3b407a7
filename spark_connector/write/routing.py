"""Which partition each row goes to, for a whole column of rows at a time.

Called by rows_writer.py. Spark's rules: the column `partition` where it is not null; else the key by Kafka's murmur2,
so that records of one key meet whoever wrote them; rows without a key change partition from run to run, a batch's
worth of bytes each (KIP-480's sticky partitioner, which does it by batch as well).
"""

from __future__ import annotations

import random

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from broker.errors import ConfigError
from broker.records.key_hash import partitions_of_keys

__all__ = ["StickyRuns", "partitions_of_rows"]

Int32s = npt.NDArray[np.int32]


class StickyRuns:
    """Hands out partitions of one topic to rows without a key, in turn from a random one on."""

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions
        self._next = random.randrange(partitions)

    def take(self, rows: int, rows_per_run: int) -> Int32s:
        """Partitions of so many rows: runs of at most `rows_per_run`, or shorter so that each gets one."""
        length = max(1, min(rows_per_run, -(-rows // self._partitions)))
        runs = -(-rows // length)
        turns = (self._next + np.arange(runs, dtype=np.int64)) % self._partitions
        self._next = (self._next + runs) % self._partitions
        return np.repeat(turns.astype(np.int32), length)[:rows]


def partitions_of_rows(
    rows: pa.Table, topic: str, partitions: int, sticky: StickyRuns, *, rows_per_run: int, by_key: bool = True
) -> Int32s:
    """The partition of each row of `topic`, which has so many. Raises ConfigError for one it does not have."""
    result = np.full(rows.num_rows, -1, np.int32)
    names = rows.schema.names
    if "partition" in names:
        column = rows["partition"]
        asked = column.fill_null(-1).to_numpy()
        wrong = ((asked < 0) | (asked >= partitions)) & pc.is_valid(column).to_numpy()
        if wrong.any():
            raise ConfigError(
                f"Invalid partition given with record: {asked[wrong][0]} is not in the range [0...{partitions}) of "
                f"topic '{topic}' (column 'partition')"
            )
        result = asked.astype(np.int32, copy=True)
    if by_key and "key" in names and (open_ := result < 0).any():
        keys = _one(rows["key"])
        result = np.where(open_, partitions_of_keys(keys, partitions), result).astype(np.int32)
    free = np.flatnonzero(result < 0)
    if len(free):
        result[free] = sticky.take(len(free), rows_per_run)
    return result


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()

"""The last offset of every key in the dirty part of a log, as far as memory allows.

Used by compaction.py. Exact: the keys themselves are held, not hashes of them. Idea: Kafka's `SkimpyOffsetMap`,
which holds 24 bytes a key; a Python dict takes about 150 and the key, so fewer keys fit in the same buffer and a log
with more is compacted in several goes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat

import numpy as np

from broker.records.plain_bytes import Int64s

__all__ = ["OffsetMap"]

_BYTES_PER_ENTRY = 150


class OffsetMap:
    """Key → last offset. `end` is the offset up to which all keys were noted."""

    def __init__(self, memory: int, start: int) -> None:
        """Full when it takes `memory` bytes; keys count from offset `start` on."""
        self._memory = memory
        self._offsets: dict[bytes, int] = {}
        self._key_bytes = 0
        self.end = start

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def is_full(self) -> bool:
        return len(self._offsets) * _BYTES_PER_ENTRY + self._key_bytes >= self._memory

    def note(self, keys: Sequence[bytes], offsets: Iterable[int]) -> None:
        """Keys with their offsets, in the log's order: a later one wins."""
        before = len(self._offsets)
        self._offsets.update(zip(keys, offsets, strict=True))
        if keys:
            self._key_bytes += (len(self._offsets) - before) * sum(map(len, keys)) // len(keys)

    def last_offsets(self, keys: Sequence[bytes]) -> Int64s:
        """The last known offset of each key; -1 where the dirty part has none."""
        return np.fromiter(map(self._offsets.get, keys, repeat(-1)), np.int64, len(keys))

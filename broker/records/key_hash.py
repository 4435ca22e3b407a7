"""The partitions of a whole column of keys: Kafka's murmur2 for all keys at once.

Used by the connector's sink. `broker.client.partitioner.partition_of_key` gives the same result for one key, so all
records of a key are in one partition, whoever wrote them (Kafka's `BuiltInPartitioner.partitionForKey`).
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from broker.errors import ConfigError
from broker.records import native

NO_KEY: Final = -1
"""Stands for a null key, whose partition the caller chooses."""

_SEED: Final = np.uint32(0x9747B28C)
_M: Final = np.uint32(0x5BD1E995)
_R: Final = np.uint32(24)
_POSITIVE: Final = np.uint32(0x7FFFFFFF)

UInt32s = npt.NDArray[np.uint32]
Int32s = npt.NDArray[np.int32]


def partitions_of_keys(keys: pa.Array, partitions: int) -> Int32s:
    """The partition of each key, 0 to `partitions` - 1, or NO_KEY where it is null; an empty key is a key.

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
    edges = np.frombuffer(keys.buffers()[1], np.int32, len(keys) + 1, 4 * keys.offset).astype(np.int64)
    data = np.frombuffer(keys.buffers()[2] or b"", np.uint8)
    hashes = _murmur2(data, edges[:-1], np.diff(edges))
    result[:] = (hashes & _POSITIVE) % np.uint32(partitions)
    if keys.null_count:
        result[keys.is_null().to_numpy(zero_copy_only=False)] = NO_KEY
    return result


def _murmur2(data: npt.NDArray[np.uint8], start: npt.NDArray[np.int64], length: npt.NDArray[np.int64]) -> UInt32s:
    """The hash of each range of `data`: first all keys' first words at once, then the second ones, and so on."""
    longest_first = np.argsort(-length, kind="stable")  # keys that still have a word are then a prefix
    start, length = start[longest_first], length[longest_first]
    words = length >> 2
    # The four bytes at every position as one number; the last three positions hold no whole word.
    word_at = np.ndarray((max(len(data) - 3, 0),), "<u4", data, 0, (1,))
    h = _SEED ^ length.astype(np.uint32)
    for step, alive in enumerate(np.searchsorted(-words, -np.arange(int(words[0])), "left").tolist()):
        k = word_at[start[:alive] + 4 * step] * _M
        k ^= k >> _R
        k *= _M
        h[:alive] *= _M
        h[:alive] ^= k
    _mix_tails(h, data, start + 4 * words, length & 3)
    h ^= h >> np.uint32(13)
    h *= _M
    h ^= h >> np.uint32(15)
    result = np.empty_like(h)
    result[longest_first] = h
    return result


def _mix_tails(
    h: UInt32s, data: npt.NDArray[np.uint8], start: npt.NDArray[np.int64], size: npt.NDArray[np.int64]
) -> None:
    """Mix in the one to three bytes after the last whole word."""
    for position in (2, 1, 0):
        has = np.flatnonzero(size > position)
        h[has] ^= data[start[has] + position].astype(np.uint32) << np.uint32(8 * position)
    h[np.flatnonzero(size)] *= _M

"""Kafka's murmur2, and the partition that it gives a key (Kafka's `BuiltInPartitioner.partitionForKey`)."""

from __future__ import annotations

import struct
from functools import lru_cache

_SEED = 0x9747B28C
_M = 0x5BD1E995
_R = 24
_MASK = 0xFFFFFFFF


@lru_cache(maxsize=65536)
def murmur2(data: bytes) -> int:
    """The 32-bit murmur2 hash of Kafka's `Utils.murmur2`, unsigned. Cached, because keys repeat."""
    length = len(data)
    words, tail = divmod(length, 4)
    h = _SEED ^ length
    for k in struct.unpack_from(f"<{words}I", data):
        k = (k * _M) & _MASK
        k = ((k ^ (k >> _R)) * _M) & _MASK
        h = ((h * _M) & _MASK) ^ k
    if tail:
        h ^= int.from_bytes(data[-tail:], "little")
        h = (h * _M) & _MASK
    h ^= h >> 13
    h = (h * _M) & _MASK
    return h ^ (h >> 15)


def partition_of_key(key: bytes, partitions: int) -> int:
    """The partition of `key` among `partitions`; an empty key counts as a key."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions

"""The partition of a record: by its key as in Kafka's Java client, or the sticky partition of the topic.

Records with the same key go to the same partition, the one that Kafka's Java client chooses too (KIP-480, Kafka's
`BuiltInPartitioner`). The setting `partitioner` or a function of the caller replaces this rule.
"""

from __future__ import annotations

import itertools
import random
import struct
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import lru_cache

Partitioner = Callable[[str, bytes | None, bytes | None, int], int | None]
"""`(topic, key, value, partitions) -> partition`; None for the topic's sticky partition."""

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


def next_sticky_partition(current: int, partitions: int) -> int:
    """The next sticky partition: random, but another than `current`. Each gets one batch (KIP-480)."""
    if partitions == 1:
        return 0
    other = random.randrange(partitions - 1)
    return other + 1 if other >= current >= 0 else other


def named_partitioner(name: str) -> Partitioner | None:
    """The function for a value of the setting `partitioner`; None for the default, which is built into Producer."""
    if name == "sticky":
        return lambda topic, key, value, partitions: None
    if name == "roundrobin":
        turns: dict[str, Iterator[int]] = defaultdict(itertools.count)
        return lambda topic, key, value, partitions: next(turns[topic]) % partitions
    return None

"""The partition of a record: by its key as in Kafka's Java client, or the sticky partition of the topic.

Records with the same key go to the same partition, the one that Kafka's Java client chooses too (KIP-480, Kafka's
`BuiltInPartitioner`). The setting `partitioner` or a function of the caller replaces this rule.
"""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Callable, Iterator

Partitioner = Callable[[str, bytes | None, bytes | None, int], int | None]
"""`(topic, key, value, partitions) -> partition`; None for the topic's sticky partition."""


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

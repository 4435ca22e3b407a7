"""The leader epochs under which logs reached up to where a group stands: by them the next load sees that one was cut.

A log that loses its end and grows again looks like one that went on. But a new leader begins a new epoch where its log
ends, so a broker that is asked where an older epoch ended (OffsetForLeaderEpoch, KIP-320) answers with an offset below
the group's exactly when the log was cut below it. Kept in every load's record, of all partitions of the group, for one
that is quiet now may be cut now. Made and asked for by loads/planner.py. Pure.
"""

from __future__ import annotations

import json
import zlib
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from broker.client.partition_offsets import NO_EPOCH
from broker.protocol.topic_partition import TopicPartition

__all__ = ["ReachedEpochs"]

Offsets = Mapping[TopicPartition, int]


@dataclass(frozen=True)
class ReachedEpochs:
    """`topics`: topic → leader epoch → its partitions as text, for thousands of them share one; `offsets`: a checksum
    of where the group stood, so that what another program has stored since is not taken for a load's."""

    topics: Mapping[str, Mapping[str, str]]
    offsets: int

    @classmethod
    def of(cls, epochs: Mapping[TopicPartition, int], offsets: Offsets) -> Self | None:
        """For a group that stands at `offsets`; None where no epoch is known, as of brokers before Kafka 2.1."""
        partitions: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        for tp, epoch in sorted(epochs.items()):
            if epoch > NO_EPOCH and tp in offsets:
                partitions[tp.topic][str(epoch)].append(tp.partition)
        if not partitions:
            return None
        texts = {t: {epoch: _text(found) for epoch, found in by_epoch.items()} for t, by_epoch in partitions.items()}
        return cls(texts, _checksum(offsets))

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Raises KeyError, TypeError, ValueError, AttributeError for what `asdict` has not made."""
        reached = cls({str(t): dict(found) for t, found in document["topics"].items()}, int(document["offsets"]))
        reached.by_partition()
        return reached

    def by_partition(self) -> dict[TopicPartition, int]:
        return {
            TopicPartition(topic, partition): int(epoch)
            for topic, by_epoch in self.topics.items()
            for epoch, text in by_epoch.items()
            for partition in _numbers(text)
        }

    def at(self, stored: Offsets, own: Offsets) -> dict[TopicPartition, int]:
        """The epochs that hold for `stored`. When others have moved some of that, only for partitions that stand where
        `own`, the ends of the load itself, say."""
        whole = self.offsets == _checksum(stored)
        return {
            tp: epoch
            for tp, epoch in self.by_partition().items()
            if tp in stored and (whole or own.get(tp) == stored[tp])
        }


def _checksum(offsets: Offsets) -> int:
    return zlib.crc32(json.dumps([[*tp, offset] for tp, offset in sorted(offsets.items())]).encode())


def _text(numbers: list[int]) -> str:
    """Ascending numbers as `0-3,7`."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def _numbers(text: str) -> list[int]:
    spans = (span.partition("-") for span in text.split(","))
    return [number for first, _, last in spans for number in range(int(first), int(last or first) + 1)]

"""What was written in the hour before the console began to look: brokers know the offset at a time.

Asked once for each topic, and for all together. The times are those of records, which their producers may choose.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping

from broker.client.cluster import Cluster
from broker.client.partition_offsets import LATEST, known_offsets
from broker.protocol.topic_partition import TopicPartition
from pykafka_ui.history import HOUR_S
from pykafka_ui.snapshot import Snapshot

Point = tuple[float, float | None]
_MOST_ASKED = 1_200
"""Offsets of one series: a broker looks into an index and a batch for each."""
_MOST_POINTS, _FEWEST_POINTS = 60, 6
_PATIENCE_S = 5.0
_MOST_KEPT = 100
"""Series."""


class Past:
    """Rates by topic, and by "" of all topics that are not internal. Thread-safe."""

    def __init__(self, cluster: Cluster, seen: Callable[[], Snapshot]) -> None:
        self._cluster = cluster
        self._seen = seen
        self._lock = threading.Lock()
        self._known: dict[str, list[Point]] = {}

    def rate(self, topic: str, until_s: float) -> list[Point]:
        """(Unix seconds, records per second) in the hour before `until_s`; none of a topic that is too large.

        Less than an hour where the brokers are slow. Raises PykafkaError.
        """
        known = self._known.get(topic)
        if known is not None:
            return known
        found = self._ask(self._partitions(topic), until_s)
        if found:  # else brokers may be away
            with self._lock:
                while len(self._known) >= _MOST_KEPT:
                    self._known.pop(next(iter(self._known)))
                self._known[topic] = found
        return found

    def _partitions(self, name: str) -> list[TopicPartition]:
        topics = self._seen().topics
        wanted = [topics[name]] if name in topics else [one for one in topics.values() if not name and not one.internal]
        return [TopicPartition(one.name, row.index) for one in wanted for row in one.partitions if row.leader >= 0]

    def _ask(self, tps: list[TopicPartition], until_s: float) -> list[Point]:
        points = min(_MOST_ASKED // max(len(tps), 1), _MOST_POINTS) if tps else 0
        if points < _FEWEST_POINTS:
            return []
        step, deadline = HOUR_S / points, time.monotonic() + _PATIENCE_S
        self._cluster.topics()  # by its leaders the offsets are asked for
        offsets: Mapping[TopicPartition, int] = known_offsets(self._cluster, tps, LATEST)
        found = [(until_s, offsets)]
        for number in range(1, points + 1):
            if not offsets or time.monotonic() > deadline:
                break
            at = until_s - step * number
            earlier = known_offsets(self._cluster, tps, int(at * 1000))
            # Where no record is as late as that, nothing was written since.
            offsets = {tp: earlier[tp] if earlier[tp] >= 0 else offsets[tp] for tp in offsets if tp in earlier}
            found.append((at, offsets))
        found.reverse()
        return [(now, _grown(before, after) / step) for (_, before), (now, after) in itertools.pairwise(found)]


def _grown(before: Mapping[TopicPartition, int], after: Mapping[TopicPartition, int]) -> int:
    return sum(max(after[tp] - at, 0) for tp, at in before.items() if tp in after)

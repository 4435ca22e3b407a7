"""Numbers over the last hour: series of points in eight bytes each, counters that only grow, what came before, and what
the last minutes say: whether a group falls behind, and how fast it reads."""

from __future__ import annotations

import itertools
import math
import threading
import time
from array import array
from collections.abc import Callable, Mapping, Sequence

from broker.client.cluster import Cluster
from broker.client.partition_offsets import LATEST, known_offsets
from broker.protocol.topic_partition import TopicPartition
from pykafka_ui.seen.snapshot import Snapshot

STEP_S = 30
"""The shortest time between two points."""
HOUR_S = 3600
Point = tuple[float, float | None]
_MOST_ASKED = 1_200
"""Offsets of one series: a broker looks into an index and a batch for each."""
_MOST_POINTS, _FEWEST_POINTS = 60, 6
_PATIENCE_S = 5.0
_MOST_KEPT = 100
"""Series."""
RECENT_S = 300.0
"""What is said of now is of these last seconds."""
RECENT_POINTS = int(RECENT_S / STEP_S) + 1
"""That many at most."""
_FEWEST = 6
"""Points. With fewer a group that commits seldom would seem to fall behind between two commits, as each load does."""


class History:
    """Series of numbers that share their times. Points, and names that are not recorded any more, are kept an hour."""

    def __init__(self) -> None:
        self._times = array("d")
        self._series: dict[tuple[str, str], array[float]] = {}

    @property
    def began_s(self) -> float | None:
        """When its oldest point was recorded; None while it has none."""
        return self._times[0] if self._times else None

    def is_due(self, now_s: float) -> bool:
        return not self._times or now_s - self._times[-1] >= STEP_S

    def record(self, now_s: float, values: Mapping[tuple[str, str], float]) -> None:
        """Add a point to each series; one that has no value gets a gap."""
        self._times.append(now_s)
        for key in values.keys() - self._series.keys():
            self._series[key] = array("d", [math.nan] * (len(self._times) - 1))
        for key, series in self._series.items():
            series.append(values.get(key, math.nan))
        old = sum(now_s - at > HOUR_S for at in self._times)
        if old:
            del self._times[:old]
            for series in self._series.values():
                del series[:old]
        for key in [key for key, series in self._series.items() if key not in values and all(map(math.isnan, series))]:
            del self._series[key]

    def values(self, kind: str, name: str = "", last: int = 0) -> list[Point]:
        """(Unix seconds, value) by time; None is a gap. With `last` only the newest so many."""
        series = self._series.get((kind, name), array("d"))
        points = zip(self._times[-last:], series[-last:], strict=False)
        return [(at, None if math.isnan(value) else value) for at, value in points]

    def rate(self, kind: str, name: str = "") -> list[Point]:
        """The growth of a counter per second. A gap where it fell: a topic was deleted and made again."""
        points = self.values(kind, name)
        steps = itertools.pairwise(points)
        return [(now, _per_second(before, earlier, now, value)) for (earlier, before), (now, value) in steps]

    def last_rate(self, kind: str, name: str = "") -> float | None:
        """The growth per second between the last two points; None while there are not two."""
        series = self._series.get((kind, name))
        if len(self._times) < 2:
            return None
        if series is None:
            return 0.0
        found = (series[-1] - series[-2]) / (self._times[-1] - self._times[-2])
        return found if found > 0 else 0.0  # also for NaN


class Growth:
    """Counts, by name, how far positions in logs have moved. One that is new, or lower than before, adds nothing.

    So a partition that is first seen at a high offset, or whose leader was away, is no sudden burst.
    """

    def __init__(self) -> None:
        self._before: Mapping[tuple[str, TopicPartition], int] = {}
        self._totals: dict[str, int] = {}
        self._all = 0

    def add(
        self, now: Mapping[tuple[str, TopicPartition], int], counts: Callable[[str], bool] = lambda name: True
    ) -> dict[str, float]:
        """The counters of the names of `now`, and "" for all names that `counts` accepts."""
        totals = dict.fromkeys((name for name, _ in now), 0)
        totals.update((name, total) for name, total in self._totals.items() if name in totals)
        for key, position in now.items():
            grown = position - self._before.get(key, position)
            if grown > 0:
                totals[key[0]] += grown
                self._all += grown if counts(key[0]) else 0
        self._before, self._totals = now, totals
        return {**totals, "": self._all}


def _per_second(before: float | None, earlier: float, now: float, value: float | None) -> float | None:
    if before is None or value is None or value < before or now <= earlier:
        return None
    return (value - before) / (now - earlier)


class PastRates:
    """What was written in the hour before the console began to look: brokers know the offset at a time.

    Rates by topic, and by "" of all topics that are not internal, each asked for once. The times are those of records,
    which their producers may choose. Thread-safe.
    """

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


def is_growing(lags: Sequence[Point]) -> bool | None:
    """Whether a lag grows: all of its later half lies above all of its earlier half. None while too little is known.

    So one that commits once a minute, whose lag is a saw, does not grow.
    """
    known = [value for _, value in recent(lags) if value is not None]
    if len(known) < _FEWEST or lags[-1][1] is None:
        return None
    half = len(known) // 2
    return min(known[-half:]) > max(known[:half])


def per_second(positions: Sequence[Point]) -> float | None:
    """How fast a position moves on. None while two points are not known, or if it was set back meanwhile."""
    known = [(at, value) for at, value in recent(positions) if value is not None]
    if len(known) < 2 or any(after[1] < before[1] for before, after in itertools.pairwise(known)):
        return None
    return (known[-1][1] - known[0][1]) / (known[-1][0] - known[0][0])


def recent(points: Sequence[Point]) -> list[Point]:
    """Those of the last minutes before the newest."""
    return [point for point in points if points[-1][0] - point[0] <= RECENT_S]

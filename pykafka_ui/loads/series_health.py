"""How a series of loads is: the facts of it that a list shows, its lag, and whether it is late, failed or all right.

`Series.of` makes the facts of a history once; a list of thousands keeps them and no history. Pure.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlencode

from broker.protocol.topic_partition import TopicPartition
from pykafka_ui.loads.places import GroupOfLoads
from pykafka_ui.render import duration_text
from pykafka_ui.seen.snapshot import Snapshot
from spark_connector.loads.history import WHAT_TO_DO, HistoryEntry, LoadState
from spark_connector.loads.request import LAKE_FORMATS

if TYPE_CHECKING:
    from pykafka_ui.loads.survey import Survey

_RECENT = 20
"""The newest loads by which the usual interval is told, and whose rows are drawn."""
_LATE = 3
"""A series is late when nothing was loaded for so many times its usual interval, …"""
_LEAST_LATE_S = 60.0
"""… and for at least so long."""
_WEEK_MS, _DAY_MS = 7 * 86_400_000, 86_400_000
MANY_FILES, SMALL_FILES = 50, 16 << 20
"""Compaction is worth it for so many files of which half are smaller than so many bytes: it makes files of 128 MiB."""

STATES = {"failed": "bad", "hidden": "bad", "late": "warn", "unknown": "unknown", "running": "ok", "ok": "ok"}
"""Word → kind, worst first."""
WORDS = {
    LoadState.HIDDEN: "hidden",
    **dict.fromkeys((LoadState.ABSENT, LoadState.UNKNOWN, LoadState.SEALED, LoadState.DEAD), "failed"),
    LoadState.UNFINISHED: "unknown",
    LoadState.RUNNING: "running",
}
"""What a load or an attempt in such a state makes of its series; others make nothing of it."""
_OF_ATTEMPTS = {
    LoadState.DEAD: "was killed before its end",
    LoadState.UNFINISHED: "is unfinished: it runs on another host, or was killed there",
    LoadState.RUNNING: "runs",
}


class Health(NamedTuple):
    """A `word` of `STATES`, and a sentence `why`, "" where it says nothing more."""

    word: str
    why: str = ""

    @property
    def kind(self) -> str:
        return STATES[self.word]


_WELL = Health("ok")


@dataclass(frozen=True)
class Series:
    """The loads of a group at a place. Times are ms since 1970, -1 if unknown; what is None is not known.

    `usual_s`: the median of the intervals between its last loads. `a_day`: rows a day in the last week, or since it
    began. `recent`: the rows of its last loads. `bad`: records that it put aside; None if it puts none aside. `files`
    and their median size are those that loads have written and that are still there. `offsets` are the next ones.
    `found`: what its history says of its state.
    """

    place: str
    group: str
    format: str
    topics: Sequence[str] = ()
    newest_ms: int = -1
    usual_s: float | None = None
    a_day: float | None = None
    recent: Sequence[int] = ()
    bad: int | None = None
    dead_letters: Sequence[str] = ()
    files: int | None = None
    median_bytes: int | None = None
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict, repr=False)
    is_whole_topics: bool = True
    cluster_id: str | None = None
    found: Health = _WELL

    @classmethod
    def unread(cls, place: str, error: str) -> Series:
        """A place that cannot be read."""
        return cls(place, "", "", found=Health("unknown", error))

    @classmethod
    def of(cls, place: str, group: GroupOfLoads, now_ms: int) -> Series:
        committed = group.history.committed
        if group.error or not committed:
            return cls(place, group.name, group.target.format or "", group.topics, found=_found(group))
        newest, bad = committed[-1].record, [one.record.bad_rows for one in committed]
        times = [one.record.created_ms for one in committed if one.record.created_ms >= 0]
        sizes = [file.size for one in committed for file in one.files or ()]
        reading = newest.reading or {}
        return cls(
            place,
            group.name,
            newest.format or group.target.format or "",
            group.topics,
            newest_ms=group.newest_ms,
            usual_s=_usual_s(times),
            a_day=_a_day(committed, now_ms) if times else None,
            recent=tuple(one.record.rows for one in committed[-_RECENT:]),
            bad=sum(filter(None, bad)) if any(one is not None for one in bad) else None,
            dead_letters=newest.dead_letters,
            files=len(sizes) if any(one.files is not None for one in committed) else None,
            median_bytes=statistics.median_low(sizes) if sizes else None,
            offsets=next_offsets(group.history.entries),
            is_whole_topics="assign" not in reading,
            cluster_id=newest.origin.cluster_id if newest.origin else None,
            found=_found(group),
        )

    @property
    def address(self) -> str:
        return address("group", self.place, self.group) if self.group else "/loads?state=unknown"

    @property
    def needs_compaction(self) -> bool:
        """See `MANY_FILES`. Only tables of files can be compacted."""
        return (
            self.format in LAKE_FORMATS
            and (self.files or 0) >= MANY_FILES
            and self.median_bytes is not None
            and self.median_bytes < SMALL_FILES
        )

    def lag(self, seen: Snapshot) -> tuple[int | None, str]:
        """Records between what was loaded and the ends of its topics, at most; or None, and why it is not known.

        A partition of its topics without an offset counts from its first record.
        """
        if not self.offsets:
            return None, self.found.why or "nothing was loaded"
        if None not in (self.cluster_id, seen.cluster_id or None) and self.cluster_id != seen.cluster_id:
            return None, f"it was loaded from another cluster, {self.cluster_id}"
        total = 0
        for topic in {tp.topic for tp in self.offsets}:
            if topic not in seen.topics:
                return None, f"the cluster does not show the topic {topic}"
            for one in seen.topics[topic].partitions:
                tp = TopicPartition(topic, one.index)
                offset = self.offsets.get(tp, one.start if self.is_whole_topics else one.end)
                if min(one.end, offset) < 0:
                    return None, f"the end of {tp} is not known"
                if offset > one.end:
                    return None, f"{tp} ends at {one.end}, before what was loaded ({offset}): is the topic a new one?"
                total += one.end - offset
        return total, ""

    def health(self, lag: int | None, now_ms: int) -> Health:
        """Late is only what may have something to load: a load that finds nothing new leaves no trace."""
        if self.found.word not in ("ok", "running") or self.usual_s is None or lag == 0:
            return self.found
        silent_s = (now_ms - self.newest_ms) / 1000
        if self.found.word == "running" or silent_s <= max(_LATE * self.usual_s, _LEAST_LATE_S):
            return self.found
        behind = "whether there is more to load is not known" if lag is None else f"{lag:,} records wait"
        said = f"nothing was loaded for {duration_text(silent_s)}, usually it is every {duration_text(self.usual_s)}"
        return Health("late", f"{said}; {behind}")


class SeriesHealth(NamedTuple):
    """What an overview says of a series; `address` is its page."""

    kind: str
    word: str
    why: str
    place: str
    group: str
    address: str


def series_health(survey: Survey, seen: Snapshot) -> list[SeriesHealth]:
    """Of every series, and of every place that cannot be read, worst first. Reads nothing, and does not wait: it tells
    what the last look saw, and has a new one begun where that is old."""
    looked = survey.seen(wait=False)
    found = [
        SeriesHealth(health.kind, health.word, health.why, one.place, one.group, one.address)
        for one, _, health in judged(looked.series, seen, survey.now_ms())
    ]
    return sorted(found, key=lambda one: list(STATES).index(one.word))


def judged(series: Iterable[Series], seen: Snapshot, now_ms: int) -> list[tuple[Series, int | None, Health]]:
    """Each with its lag and its state."""
    with_lag = ((one, one.lag(seen)[0]) for one in series)
    return [(one, lag, one.health(lag, now_ms)) for one, lag in with_lag]


def address(page: str, place: str, group: str, **more: str) -> str:
    """Of a page of a series."""
    return f"/loads/{page}?{urlencode({'at': place, 'group': group, **more})}"


def next_offsets(entries: Iterable[HistoryEntry]) -> dict[TopicPartition, int]:
    """Where the next load goes on: what the commits have stored, one after the other, those that rewinds have set back,
    too."""
    found: dict[TopicPartition, int] = {}
    for entry in entries:
        if not entry.state.is_staged and entry.state is not LoadState.UNKNOWN:
            found.update(entry.record.committed)
    return found


def _found(group: GroupOfLoads) -> Health:
    if group.error:
        return Health("unknown", group.error)
    newest = max((one.record.id.sequence for one in group.history.entries if not one.state.is_staged), default=0)
    found = [
        Health(WORDS[one.state], f"{one.record.load_id} {_OF_ATTEMPTS.get(one.state) or WHAT_TO_DO[one.state]}")
        for one in group.to_look_at
        if one.state in WORDS and (one.state in WHAT_TO_DO or one.record.id.sequence > newest)
    ]
    if not found and not group.history.committed:
        return Health("unknown", "it has no load that stands")
    return min(found, key=lambda one: list(STATES).index(one.word), default=_WELL)


def _usual_s(times: Sequence[int]) -> float | None:
    """None of fewer than three intervals."""
    gaps = [after - before for before, after in itertools.pairwise(sorted(times)[-_RECENT - 1 :])]
    return statistics.median(gaps) / 1000 if len(gaps) >= 3 else None


def _a_day(committed: Sequence[HistoryEntry], now_ms: int) -> float:
    first = min(one.record.created_ms for one in committed if one.record.created_ms >= 0)
    began = max(now_ms - _WEEK_MS, first)
    rows = sum(one.record.rows for one in committed if one.record.created_ms >= began)
    return rows / max((now_ms - began) / _DAY_MS, 1.0)

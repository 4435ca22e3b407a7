"""How a series of loads is: the facts of it that a list shows, its lag, and whether it is late, failed or all right.

`Series.of` makes the facts of a history once; a list of thousands keeps them and no history. `Survey` makes those of
all places, for the lists, in a thread of its own, and only when somebody asks for them.
"""

from __future__ import annotations

import itertools
import logging
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import urlencode

from broker.protocol.topic_partition import TopicPartition
from broker.storage.url_secrets import text_without_secrets
from pykafka_ui.loads.places import GroupOfLoads, LoadPlaces, read
from pykafka_ui.render import duration_text
from pykafka_ui.seen.snapshot import Snapshot
from spark_connector.loads.history import WHAT_TO_DO, HistoryEntry, LoadState
from spark_connector.loads.request import LAKE_FORMATS

_RECENT = 20
"""The newest loads by which the usual interval is told, and whose rows are drawn."""
_LATE = 3
"""A series is late when nothing was loaded for so many times its usual interval, …"""
_LEAST_LATE_S = 60.0
"""… and for at least so long."""
_FRESH_S, _SEEN_BESIDE_S = 5.0, 60.0
"""The pause between two looks, at least: for who waits for the loads, and for who shows them beside other things."""
_SHARE = 10
"""And the pause as a multiple of the time that the last look took."""
_FIRST_S, _A_MOMENT_S = 3.0, 0.5
"""So long the first look, and a later one, is waited for."""
_WEEK_MS, _DAY_MS = 7 * 86_400_000, 86_400_000
MANY_FILES, SMALL_FILES = 50, 16 << 20
"""Compaction is worth it for so many files of which half are smaller than so many bytes: it makes files of 128 MiB."""

logger = logging.getLogger("pykafka.ui")

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


def series_health(survey: Survey, seen: Snapshot) -> list[Judged]:
    """Of every series, and of every place that cannot be read, worst first. Reads nothing, and does not wait: it tells
    what the last look saw, and has a new one begun where that is old."""
    found = judged(survey.seen(wait=False).series, seen, survey.now_ms())
    return sorted(found, key=lambda one: list(STATES).index(one[2].word))


Judged = tuple[Series, int | None, Health]
"""With its lag and its state."""


def judged(series: Iterable[Series], seen: Snapshot, now_ms: int) -> list[Judged]:
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


@dataclass(frozen=True)
class Surveyed:
    """A place that cannot be read is a series without a group. `empty` are the places without loads. `is_whole`:
    whether a look has ended; else there may be more."""

    series: Sequence[Series] = ()
    empty: Sequence[str] = ()
    is_whole: bool = False


class Survey:
    """A look opens every place and reads every history, which takes as long as it takes. Whoever asks meanwhile gets
    what the look before has seen. The first look shows what it has so far. Thread-safe."""

    def __init__(self, places: LoadPlaces, clock: Callable[[], float] = time.time) -> None:
        """`clock`: Unix seconds."""
        self._places = places
        self._clock = clock
        self._looked = threading.Condition()
        self._seen = Surveyed()
        self._is_looking = False
        self._ended, self._pause_s = float("-inf"), 0.0

    def now_ms(self) -> int:
        return int(self._clock() * 1000)

    def seen(self, *, wait: bool = True) -> Surveyed:
        """What was seen last. Begins a look if that is old, and waits a moment for it."""
        with self._looked:
            pause_s = max(self._pause_s, _FRESH_S if wait else _SEEN_BESIDE_S)
            if not self._is_looking and self._clock() - self._ended >= pause_s:
                self._is_looking = True
                threading.Thread(target=self._look, name="ui-loads", daemon=True).start()
            if wait:
                patience = _A_MOMENT_S if self._seen.is_whole else _FIRST_S
                self._looked.wait_for(lambda: not self._is_looking, patience)
            return self._seen

    def forget(self) -> None:
        """Look again when next asked: something was changed."""
        with self._looked:
            self._ended = float("-inf")

    def _look(self) -> None:
        began = self._clock()
        series: list[Series] = []
        empty: list[str] = []

        def show(*, is_whole: bool) -> None:
            self._seen = Surveyed(tuple(series), tuple(empty), is_whole)

        try:
            for url, targets, error in self._places.each():
                if error:
                    series.append(Series.unread(url, error))
                elif not targets:
                    empty.append(url)
                for target in targets:
                    series.append(Series.of(url, read(target), self.now_ms()))
                    if not self._seen.is_whole and len(series) % 50 == 0:
                        show(is_whole=False)
        except Exception as error:  # of whatever library is behind a place
            logger.exception("looking at the loads failed")
            series.append(Series.unread("the places of loads", text_without_secrets(str(error))))
        finally:
            with self._looked:
                show(is_whole=True)
                self._is_looking, self._ended = False, self._clock()
                self._pause_s = _SHARE * (self._ended - began)
                self._looked.notify_all()

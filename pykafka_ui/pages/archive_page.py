"""The page of the archive."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from starlette.requests import Request
from starlette.responses import Response

from broker.protocol.archive_status import ArchiveStatus
from broker.protocol.topic_partition import TopicPartition
from pykafka_ui.pages.page_set import Key, PageSet, listing, route
from pykafka_ui.seen.group_rows import BAD, OK, UNKNOWN, WARN
from pykafka_ui.seen.snapshot import sum_of


@dataclasses.dataclass(frozen=True)
class ArchiveRow:
    """A topic, or one partition, with the states of its partitions; numbers are sums, None if one is not known."""

    name: str
    topic: str
    of: Sequence[ArchiveStatus]

    @property
    def archived_bytes(self) -> int | None:
        return sum_of(one.archived_bytes for one in self.of)

    @property
    def lag_bytes(self) -> int | None:
        return sum_of(one.lag_bytes for one in self.of)

    @property
    def problems(self) -> list[str]:
        return [one.problem for one in self.of if one.problem]

    @property
    def state(self) -> tuple[str, str]:
        """(ok, warn, bad or unknown; in words)."""
        if self.problems:
            return BAD, "problem"
        if self.lag_bytes is None:
            return UNKNOWN, "not told"
        return (WARN, "behind") if self.lag_bytes else (OK, "archived")

    @property
    def places(self) -> tuple[int, int, int] | None:
        """Records that are only archived, that are archived and local, and that are only local; None if not known."""
        found = [places_of(one) for one in self.of]
        known = [one for one in found if one is not None]
        if not known or len(known) < len(found):
            return None
        first, both, last = (sum(counts) for counts in zip(*known, strict=True))
        return first, both, last

    def oldest_ms(self, known: Mapping[TopicPartition, int]) -> int | None:
        """The time of its oldest record; -1 if it has none, None if it is not known. `known`: of partitions."""
        times = [known.get(one.tp) for one in self.of]
        return None if None in times else min((at for at in times if at is not None and at >= 0), default=-1)

    @property
    def bar(self) -> list[tuple[str, float, str]]:
        """(class, share, words) of those."""
        places = self.places or (0, 0, 0)
        words = ("only in the archive", "in both", "only on brokers")
        return [
            (name, count / (sum(places) or 1), f"{count:,} {text}")
            for name, count, text in zip(("archived", "both", "local"), places, words, strict=True)
        ]


def places_of(one: ArchiveStatus) -> tuple[int, int, int] | None:
    """Of one partition; see `ArchiveRow.places`."""
    if one.start is None or one.local_start is None or one.end is None:
        return None
    archived = max(one.start, one.archived_end or 0)
    local = min(max(one.local_start, one.start), one.end)
    return min(local, archived) - one.start, max(archived - local, 0), one.end - max(archived, local)


class ArchivePage(PageSet):
    @route("/archive")
    def archive(self, request: Request, q: str = "", by: str = "topic") -> Response:
        """What of each topic, or `by` partition, is local, archived, or waits to be archived, and why."""
        self._console.sampler.watch()
        archives = self._console.archives()
        keys: dict[str, Key] = {
            "name": lambda row: (row.topic, row.of[0].tp),
            "state": lambda row: ((BAD, UNKNOWN, WARN, OK).index(row.state[0]), row.name),
            "bytes": lambda row: (-(row.archived_bytes or 0), row.name),
            "behind": lambda row: (-(row.lag_bytes or 0), row.name),
        }
        keys["problem"] = keys["state"]
        rows = [row for row in _rows(archives, by) if q.lower() in row.topic.lower()]
        shown = listing(request, rows, keys)
        return self._render(
            request,
            "archive.html",
            listing=shown,
            by=by,
            store=self._console.archive_store(),
            archived=sum(one.archived_bytes or 0 for one in archives),
            behind=sum(one.lag_bytes or 0 for one in archives),
            unknown=any(None in (one.archived_bytes, one.lag_bytes) for one in archives),
            stuck=sum(bool(one.problem) for one in archives),
            partitions=len(archives),
            bootstrap=self._console.bootstrap,
            oldest=self._console.oldest_ms([one.tp for row in shown.rows for one in row.of if one.end is not None]),
        )


def _rows(archives: Iterable[ArchiveStatus], by: str) -> list[ArchiveRow]:
    if by == "partition":
        return [ArchiveRow(str(one.tp), one.tp.topic, [one]) for one in archives]
    topics: dict[str, list[ArchiveStatus]] = {}
    for one in archives:
        topics.setdefault(one.tp.topic, []).append(one)
    return [ArchiveRow(name, name, of) for name, of in topics.items()]

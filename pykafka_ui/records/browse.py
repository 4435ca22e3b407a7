"""Reads some records of a topic: from the end, the start, an offset, a time, or from where another page ended.

Memory is bounded whatever the topic's size: a page has at most `MOST_RECORDS` records, and a look at most `MOST_BYTES`
of records and one batch beyond, and `MOST_SECONDS`. A filter that finds little says how far it has looked, and can go
on from there. Records of aborted and open transactions are left out, or shown as such.
"""

from __future__ import annotations

import contextlib
import dataclasses
import heapq
import queue
import time
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import Final

from broker.client.client_settings import ClientSettings
from broker.client.cluster import Cluster
from broker.client.cluster_metadata import UnknownTopic
from broker.client.fetcher import Fetched, Fetcher, fetch_together
from broker.client.partition_offsets import EARLIEST, LATEST, offsets_at
from broker.errors import ConfigError, PykafkaError
from broker.protocol.topic_partition import TopicPartition
from broker.records.record import Record, decode_records

MOST_RECORDS: Final = 10_000
MOST_BYTES: Final = 64 << 20
MOST_SECONDS: Final = 5.0
MOST_ROUNDS_WITHOUT_PROGRESS: Final = 20
_FETCH_BYTES: Final = 1 << 20
_OVERHEAD: Final = 500
"""Of a record in memory, at least."""
_MOST_READERS: Final = 4
_PATIENCE_S: Final = 5.0
_USES: Final = 200
"""Of a reader, before it is made anew: it keeps what it knows of every topic."""
_METADATA_MS: Final = 30_000
"""So that a new partition is found soon."""

Offsets = dict[TopicPartition, int]
Predicate = Callable[[Record], bool]


class From(StrEnum):
    """Where a page begins; with `END` and `BEFORE` it ends there."""

    END = "end"
    START = "start"
    OFFSET = "offset"
    TIME = "time"
    AT = "at"
    BEFORE = "before"

    @property
    def is_backward(self) -> bool:
        return self in (From.END, From.BEFORE)


@dataclasses.dataclass(frozen=True)
class Query:
    """`at`: an offset, ms since 1970, or for `AT` and `BEFORE` an offset by partition."""

    topic: str
    start: From = From.END
    at: int | Mapping[int, int] = 0
    partitions: tuple[int, ...] = ()
    """None: all."""
    limit: int = 50
    committed: bool = True
    """Whether records of aborted and open transactions are left out."""


@dataclasses.dataclass(frozen=True, slots=True)
class FoundRecord:
    """A record, its partition, and `state`: "", "aborted", or "not stable" behind the begin of an open transaction."""

    partition: int
    record: Record
    state: str = ""

    @property
    def order(self) -> tuple[int, int, int]:
        return self.record.timestamp, self.partition, self.record.offset


@dataclasses.dataclass(frozen=True)
class Page:
    """Records, oldest first, or newest first for `END` and `BEFORE`."""

    records: list[FoundRecord]
    looked_at: int
    """How many records were looked at."""
    older: Mapping[int, int] | None
    """For a page with `BEFORE`; None when there is nothing older."""
    newer: Mapping[int, int] | None
    """For a page with `AT`."""
    is_complete: bool
    """Whether it was looked as far as the page's limit or the log reaches."""
    ends: Mapping[int, int] = dataclasses.field(default_factory=dict)
    """Of a page that ends somewhere: the offset by partition before which it looked."""


class Readers:
    """Clusters to read with, each used by one request at a time, so that few pages are in memory at once."""

    def __init__(self, settings: ClientSettings) -> None:
        fresh = dataclasses.replace(settings, metadata_max_age_ms=min(settings.metadata_max_age_ms, _METADATA_MS))
        self._settings = {
            level: dataclasses.replace(fresh, isolation_level=level) for level in ("read_committed", "read_uncommitted")
        }
        self._free: queue.LifoQueue[_Reader | None] = queue.LifoQueue()
        for _ in range(_MOST_READERS):
            self._free.put(None)

    def close(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                if reader := self._free.get_nowait():
                    reader.close()

    @contextlib.contextmanager
    def _reader(self) -> Iterator[_Reader]:
        try:
            reader = self._free.get(timeout=_PATIENCE_S)
        except queue.Empty:
            raise PykafkaError("too many pages of records are being read; try again") from None
        if reader is None:
            reader = _Reader({level: Cluster(one, create_topics=False) for level, one in self._settings.items()})
        reader.uses += 1
        is_kept = reader.uses < _USES
        try:
            yield reader
        except (PykafkaError, OSError):
            is_kept = False
            raise
        finally:
            if not is_kept:
                reader.close()
            self._free.put(reader if is_kept else None)

    @contextlib.contextmanager
    def page(self, query: Query, wanted: Predicate = lambda record: True) -> Iterator[Page]:
        """Raises UnknownTopic, ConfigError for a partition that does not exist, and what a fetch raises."""
        if not 0 < query.limit <= MOST_RECORDS:
            raise ConfigError(f"limit={query.limit}: must be from 1 to {MOST_RECORDS}")
        with self._reader() as reader:
            yield _Look(reader.clusters, query, wanted).page()


@dataclasses.dataclass
class _Reader:
    """A cluster by isolation level, and how often it was used."""

    clusters: Mapping[str, Cluster]
    uses: int = 0

    def close(self) -> None:
        for cluster in self.clusters.values():
            cluster.close()


class _Look:
    def __init__(self, clusters: Mapping[str, Cluster], query: Query, wanted: Predicate) -> None:
        self._committed = clusters["read_committed"]
        self._uncommitted = clusters["read_uncommitted"]
        self._query = query
        self._wanted = wanted
        self._looked_at = 0
        self._oldest: dict[TopicPartition, tuple[int, int, int]] = {}
        """The order of the oldest record that was looked at."""
        self._renew()
        wanted_partitions = set(query.partitions)
        existing = list(
            self._committed.topic(query.topic, lambda topic: wanted_partitions <= topic.partitions.keys()).partitions
        )
        if missing := wanted_partitions - set(existing):
            raise UnknownTopic(f"topic {query.topic!r} has {len(existing)} partitions, but no {min(missing)}")
        self._tps = [TopicPartition(query.topic, index) for index in dict.fromkeys(query.partitions or existing)]
        self._stable = None if query.committed else offsets_at(self._committed, self._tps, LATEST)

    def _renew(self) -> None:
        """Begin to count what a look may take."""
        self._bytes, self._deadline = 0, time.monotonic() + MOST_SECONDS

    @property
    def _is_over(self) -> bool:
        return self._bytes >= MOST_BYTES or self._looked_at >= 100 * MOST_RECORDS or time.monotonic() >= self._deadline

    def page(self) -> Page:
        starts, ends = self._offsets(EARLIEST), self._offsets(LATEST)
        return self._backward(starts, ends) if self._query.start.is_backward else self._forward(starts, ends)

    def _offsets(self, timestamp: int) -> Offsets:
        return offsets_at(self._committed if self._query.committed else self._uncommitted, self._tps, timestamp)

    # --- pages

    def _forward(self, starts: Offsets, ends: Offsets) -> Page:
        begins = self._begins(starts, ends)
        rows: dict[TopicPartition, list[FoundRecord]] = {tp: [] for tp in begins}
        positions = {tp: at for tp, at in begins.items() if at < ends[tp]}
        while positions and not self._is_over and not all(len(rows[tp]) >= self._query.limit for tp in positions):
            behind = {tp: at for tp, at in positions.items() if len(rows[tp]) < self._query.limit}
            reached = self._read(behind, ends, rows)
            positions = {tp: at for tp, at in (positions | reached).items() if at < ends[tp]}
        # A partition that was read less far than others must not be passed over.
        merged = list(heapq.merge(*rows.values(), key=lambda found: found.order))
        shown = merged[: self._query.limit]
        at = {tp.partition: positions.get(tp, ends[tp]) for tp in begins}
        for row in merged[len(shown) :]:
            at[row.partition] = min(at[row.partition], row.record.offset)
        return Page(
            shown,
            self._looked_at,
            {tp.partition: begins[tp] for tp in begins} if any(begins[tp] > starts[tp] for tp in begins) else None,
            at if any(at[tp.partition] < ends[tp] for tp in begins) or len(shown) == self._query.limit else None,
            len(shown) == self._query.limit or not positions,
        )

    def _begins(self, starts: Offsets, ends: Offsets) -> Offsets:
        start, at = self._query.start, self._query.at
        if start is From.START:
            wanted: Mapping[TopicPartition, int] = starts
        elif start is From.TIME:
            assert isinstance(at, int)
            found = self._offsets(at)
            wanted = {tp: ends[tp] if offset < 0 else offset for tp, offset in found.items()}
        else:
            wanted = {tp: at if isinstance(at, int) else at.get(tp.partition, ends[tp]) for tp in self._tps}
        return {tp: min(max(wanted[tp], starts[tp]), ends[tp]) for tp in self._tps}

    def _backward(self, starts: Offsets, ends: Offsets) -> Page:
        at = self._query.at
        begins = dict(ends)
        if self._query.start is From.BEFORE and not isinstance(at, int):
            begins = {tp: min(max(at.get(tp.partition, starts[tp]), starts[tp]), ends[tp]) for tp in self._tps}
        uppers, span, is_cut_off = dict(begins), -(-self._query.limit // len(self._tps)), False
        rows: dict[TopicPartition, list[FoundRecord]] = {tp: [] for tp in self._tps}
        while behind := self._behind(rows, uppers, starts):
            lowers = {tp: max(uppers[tp] - span, starts[tp]) for tp in behind}
            found = self._read_all(lowers, {tp: uppers[tp] for tp in behind})
            for tp, more in found.items():
                rows[tp] = more + rows[tp]
                uppers[tp] = lowers[tp]
            if len(found) == len(behind):
                span *= 4
            elif found or any(rows.values()) or span == 1:
                is_cut_off = True
                break
            else:  # the records are so large that not one piece was read: a smaller one may be
                span = max(span // 8, 1)
                self._renew()
        newest_first = [reversed(found) for found in rows.values()]
        merged = list(heapq.merge(*newest_first, key=lambda found: found.order, reverse=True))
        shown = merged[: self._query.limit]
        older = {tp.partition: uppers[tp] for tp in self._tps}
        for row in merged[len(shown) :]:
            older[row.partition] = max(older[row.partition], row.record.offset + 1)
        is_end = all(older[tp.partition] <= starts[tp] for tp in self._tps)
        return Page(
            shown,
            self._looked_at,
            None if is_end else older,
            {tp.partition: begins[tp] for tp in self._tps} if any(begins[tp] < ends[tp] for tp in begins) else None,
            not is_cut_off and (len(shown) == self._query.limit or is_end),
            {tp.partition: begins[tp] for tp in self._tps},
        )

    def _behind(
        self, rows: Mapping[TopicPartition, list[FoundRecord]], uppers: Offsets, starts: Offsets
    ) -> list[TopicPartition]:
        """The partitions that may have newer records than the oldest one that would be shown."""
        unread = [tp for tp in self._tps if uppers[tp] > starts[tp]]
        newest = heapq.nlargest(self._query.limit, (found.order for those in rows.values() for found in those))
        if len(newest) < self._query.limit:
            return unread
        return [tp for tp in unread if tp not in self._oldest or self._oldest[tp] > newest[-1]]

    # --- reading

    def _read_all(self, lowers: Offsets, uppers: Offsets) -> dict[TopicPartition, list[FoundRecord]]:
        """The wanted records between two offsets, of the partitions that could be read in time."""
        rows: dict[TopicPartition, list[FoundRecord]] = {tp: [] for tp in lowers}
        positions = dict(lowers)
        while positions and not self._is_over:
            reached = self._read(positions, uppers, rows)
            positions = {tp: at for tp, at in (positions | reached).items() if at < uppers[tp]}
        return {tp: found for tp, found in rows.items() if tp not in positions}

    def _read(self, positions: Offsets, ends: Offsets, rows: Mapping[TopicPartition, list[FoundRecord]]) -> Offsets:
        """Fetch once at each position, keep what is wanted; returns the positions after it."""
        reached: Offsets = {}
        for _ in range(MOST_ROUNDS_WITHOUT_PROGRESS):
            for tp, (records, next_offset) in self._fetch(positions).items():
                reached[tp] = self._take(tp, records, next_offset, ends[tp], rows[tp])
            if reached or self._is_over:
                return reached
        self._fetch_one(positions)
        raise PykafkaError(f"{self._query.topic}: no records came at offsets that the broker says it has; try again")

    def _fetch_one(self, positions: Offsets) -> None:
        """Raise why nothing comes, such as a right that is lacking: fetches of several partitions do not say."""
        tp, at = next(iter(positions.items()))
        with Fetcher(self._committed, tp, max_bytes=1, max_wait_ms=0) as fetcher:
            fetcher.fetch(at)

    def _take(
        self, tp: TopicPartition, records: Iterator[FoundRecord], next_offset: int, end: int, rows: list[FoundRecord]
    ) -> int:
        """Keep what is wanted; returns the offset to go on at, which is a record's if the bounds are reached."""
        for found in records:
            record = found.record
            if record.offset >= end:
                break
            if self._is_over:
                return record.offset
            self._bytes += len(record.key or b"") + len(record.value or b"") + _OVERHEAD
            self._bytes += sum(len(name) + len(content or b"") for name, content in record.headers)
            self._looked_at += 1
            self._oldest[tp] = min(self._oldest.get(tp, found.order), found.order)
            if self._wanted(record):
                rows.append(found)
        return next_offset

    def _fetch(self, positions: Offsets) -> dict[TopicPartition, tuple[Iterator[FoundRecord], int]]:
        """Records and the next offset. At and beyond the last stable offset only if such records are wanted, too."""
        stable = {tp: at for tp, at in positions.items() if self._stable is None or at < self._stable[tp]}
        found: dict[TopicPartition, tuple[Iterator[FoundRecord], int]] = {}
        for tp, one in fetch_together(self._committed, stable, max_bytes=_FETCH_BYTES).items():
            found[tp] = self._decided(tp, one, positions[tp]), one.next_offset
        unstable = {tp: at for tp, at in positions.items() if tp not in stable}
        for tp, one in fetch_together(self._uncommitted, unstable, max_bytes=_FETCH_BYTES).items():
            records = decode_records(one.records, low=unstable[tp])
            found[tp] = (FoundRecord(tp.partition, record, "not stable") for record in records), one.next_offset
        return found

    def _decided(self, tp: TopicPartition, fetched: Fetched, position: int) -> Iterator[FoundRecord]:
        """Records of transactions that are decided, the aborted ones only if they are wanted, too."""
        kept = decode_records(fetched.records, low=position, aborted=fetched.aborted)
        if self._query.committed or not fetched.aborted:
            return (FoundRecord(tp.partition, record) for record in kept)
        offsets = {record.offset for record in kept}
        records = decode_records(fetched.records, low=position)
        return (FoundRecord(tp.partition, one, "" if one.offset in offsets else "aborted") for one in records)

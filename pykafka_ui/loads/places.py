"""Where loads go, the groups that load there, the history of each, and which loads have a record. Changes nothing.

What has been read is kept for some seconds, for all who look at it. Passwords of database URLs are in no address, page
or message: a place is named by its URL without them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple
from urllib.parse import urlencode

from broker.errors import PykafkaError
from broker.protocol.topic_partition import TopicPartition
from broker.storage.url_secrets import text_without_secrets, without_secrets
from pykafka_ui.seen.recent import Recent
from pykafka_ui.seen.snapshot import Snapshot
from spark_connector.loads.addresses import storage_options_for
from spark_connector.loads.history import WHAT_TO_DO, History, HistoryEntry, LoadState
from spark_connector.loads.record import LoadRange
from spark_connector.loads.request import Target
from spark_connector.maintenance import history, tables, targets

FRESH_S = 5.0
"""So long a history is shown without being read again."""


class UnknownPlace(PykafkaError):
    """No such place, group or load."""


@dataclass(frozen=True)
class LoadPlace:
    """A directory or database URL of `--loads`, or a table in a `catalog`. `storage_options` are Hadoop client
    settings."""

    to: str = field(repr=False)
    zookeeper_connect: str | None = None
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    catalog: str | None = None

    @cached_property
    def shown(self) -> str:
        """Its URL without a password. Raises ConfigError for a database without a table."""
        if self.catalog is not None:
            return f"{self.to} in {self.catalog}"
        checked = Target(self.to, "any").check()
        return checked.address.shown if checked.format == "sql" else without_secrets(self.to)

    def targets(self) -> list[Target]:
        """One for each group that has loads here."""
        storage = storage_options_for(self.to, {}, self.storage_options)
        return targets(self.to, catalog=self.catalog, zookeeper_connect=self.zookeeper_connect, storage_options=storage)


@dataclass(frozen=True)
class GroupOfLoads:
    """A group at a place and its loads. `error`: why they cannot be read; then there are none."""

    target: Target
    history: History
    error: str = ""

    @property
    def name(self) -> str:
        return self.target.group

    @cached_property
    def topics(self) -> list[str]:
        return sorted({topic for entry in self.history.entries for topic in entry.topics})

    @cached_property
    def rows(self) -> int:
        return sum(entry.record.rows for entry in self.history.committed)

    @cached_property
    def newest_ms(self) -> int:
        """When the newest committed load was made; -1 if there is none."""
        return max((entry.record.created_ms for entry in self.history.committed), default=-1)

    @cached_property
    def to_look_at(self) -> list[HistoryEntry]:
        """Attempts that are under way or were killed, and loads that are hidden, gone or unknown."""
        return [entry for entry in self.history.entries if entry.state.is_staged or entry.state in WHAT_TO_DO]

    def to_json(self) -> dict[str, Any]:
        return {
            "group": self.name,
            "format": self.target.format,
            "offsets": self.target.offsets,
            "topics": self.topics,
            "loads": len(self.history.committed),
            "rows": self.rows,
            "newest_ms": self.newest_ms,
            "to_look_at": [{"load_id": one.record.load_id, "state": one.state.value} for one in self.to_look_at],
            "error": self.error,
        }


@dataclass(frozen=True)
class PlaceContent:
    """A place and its groups. `error`: why it cannot be read."""

    url: str
    groups: Sequence[GroupOfLoads] = ()
    error: str = ""


class LoadPlaces:
    """All places. Thread-safe."""

    def __init__(
        self,
        places: Sequence[LoadPlace],
        clock: Callable[[], float] = time.monotonic,
        *,
        catalogs: Sequence[str] = (),
    ) -> None:
        """`catalogs`: the tables that loads write in these catalogs are places, too, as soon as they are there.

        Raises ConfigError for a place that cannot be one.
        """
        self._fixed = {place.shown: place for place in places}
        self._catalogs = catalogs
        self._listed: Recent[dict[str, LoadPlace]] = Recent(FRESH_S, clock)
        self._targets: Recent[list[Target]] = Recent(FRESH_S, clock)
        self._groups: Recent[GroupOfLoads] = Recent(FRESH_S, clock)

    def content(self) -> list[PlaceContent]:
        """Every place with its groups. One that cannot be read does not hide the others, nor does a catalog."""
        return [
            PlaceContent(url, [self._group_of(url, target) for target in targets], error)
            for url, targets, error in self.each()
        ]

    def each(self) -> Iterator[tuple[str, Sequence[Target], str]]:
        """Every place: its URL, a target for each group that has loads there, and why it cannot be read."""
        for url, place in self._fixed.items():
            yield url, *self._tried(url, place)
        for catalog in self._catalogs:
            try:
                tables = self._tables_of(catalog)
            except PykafkaError as error:
                yield f"catalog {catalog}", (), text_without_secrets(str(error))
                continue
            for url, place in tables.items():
                yield url, *self._tried(url, place)

    def forget(self) -> None:
        """Read all anew: something was changed."""
        self._targets.forget()
        self._groups.forget()

    def target(self, url: str, group: str) -> Target:
        """Raises UnknownPlace, and the errors of opening it."""
        place = self._fixed.get(url)
        if place is None:
            of_catalogs = (self._tables_of(name) for name in self._catalogs if url.endswith(f" in {name}"))
            place = next((tables[url] for tables in of_catalogs if url in tables), None)
        if place is None:
            raise UnknownPlace(f"{url} is no place of --loads or --catalog")
        for target in self._targets_at(url, place):
            if target.group == group:
                return target
        raise UnknownPlace(f"{url} has no loads of a group {group!r}")

    def group(self, url: str, group: str) -> GroupOfLoads:
        """Raises UnknownPlace, and the errors of opening the place."""
        return self._group_of(url, self.target(url, group))

    def _group_of(self, url: str, target: Target) -> GroupOfLoads:
        return self._groups.get((url, target.group), lambda: read(target))

    def _tried(self, url: str, place: LoadPlace) -> tuple[Sequence[Target], str]:
        try:
            return self._targets_at(url, place), ""
        except PykafkaError as error:
            return (), text_without_secrets(str(error))

    def _targets_at(self, url: str, place: LoadPlace) -> list[Target]:
        return self._targets.get(url, place.targets)

    def _tables_of(self, catalog: str) -> dict[str, LoadPlace]:
        def listed() -> dict[str, LoadPlace]:
            places = (LoadPlace(name, catalog=catalog) for name in dict.fromkeys(one.table for one in tables(catalog)))
            return {place.shown: place for place in places}

        return self._listed.get(catalog, listed)


def read(target: Target) -> GroupOfLoads:
    """The loads of a group as they are now, or why they cannot be read."""
    if target.offsets == "zookeeper" and target.zookeeper_connect is None:
        return GroupOfLoads(target, History([]), "its offsets are in ZooKeeper: start with --zookeeper HOST:PORT")
    try:
        return GroupOfLoads(target, history(target))
    except PykafkaError as error:
        return GroupOfLoads(target, History([]), text_without_secrets(str(error)))


_KINDS = {LoadState.PUBLISHED: "ok", LoadState.ELSEWHERE: "ok", LoadState.RUNNING: "unknown"}


class Fate(NamedTuple):
    """One load that has the offset. Of its range, `bad` records are dead letters instead of rows."""

    place: str
    entry: HistoryEntry
    range: LoadRange
    address: str

    @property
    def kind(self) -> str:
        """Of its state; what was taken back, is hidden, gone, or not committed is to be looked at."""
        return _KINDS.get(self.entry.state, "warn")


def fates(places: LoadPlaces, tp: TopicPartition, offset: int, cluster_id: str) -> tuple[list[Fate], dict[str, str]]:
    """Of a record of this cluster: loads of another one may have a topic of the same name. Also the places of which it
    is not known, and why."""
    found: list[Fate] = []
    unknown: dict[str, str] = {}
    for place in places.content():
        unknown |= {place.url: place.error} if place.error else {}
        unknown |= {f"{place.url}, group {one.name}": one.error for one in place.groups if one.error}
        for group in place.groups:
            for entry in group.history.entries:
                record = entry.record
                if entry.state is LoadState.REWIND or (record.origin and record.origin.differs_from(cluster_id)):
                    continue
                address = f"/loads/load?{urlencode({'at': place.url, 'group': group.name, 'id': record.load_id})}"
                ranges = (one for one in record.ranges if one.tp == tp and one.start <= offset < one.end)
                found += [Fate(place.url, entry, one, address) for one in ranges]
    return found, unknown


def passed_by(seen: Snapshot, tp: TopicPartition, offset: int) -> list[tuple[str, bool]]:
    """(group, whether it is past the record), of the groups that have committed in its partition."""
    readers = (group for group, _ in seen.readers_of(tp.topic) if group.has_lag and tp in group.offsets)
    return [(group.id, group.offsets[tp].offset > offset) for group in readers]

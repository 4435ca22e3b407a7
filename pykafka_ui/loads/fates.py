"""What became of a record: the loads whose offsets it is among, and the groups that are past it. Changes nothing."""

from __future__ import annotations

import dataclasses
from urllib.parse import urlencode

from broker.protocol.topic_partition import TopicPartition
from pykafka_ui.loads.places import LoadPlaces
from pykafka_ui.snapshot import Snapshot
from spark_connector.loads.history import WHAT_TO_DO, HistoryEntry, LoadState
from spark_connector.loads.record import LoadRange

_KINDS = {LoadState.PUBLISHED: "ok", LoadState.ELSEWHERE: "ok", LoadState.RUNNING: "unknown"}


@dataclasses.dataclass(frozen=True)
class Fate:
    """One load that has the offset. `bad`: how many records of its range are dead letters instead of rows."""

    place: str
    group: str
    entry: HistoryEntry
    range: LoadRange

    @property
    def kind(self) -> str:
        """Of its state; what was taken back, is hidden, gone, or not committed is to be looked at."""
        return _KINDS.get(self.entry.state, "warn")

    @property
    def hint(self) -> str:
        return WHAT_TO_DO.get(self.entry.state, "")

    @property
    def address(self) -> str:
        asked = {"at": self.place, "group": self.group, "id": self.entry.record.load_id}
        return f"/loads/load?{urlencode(asked)}"


@dataclasses.dataclass(frozen=True)
class Fates:
    """`unknown`: places of which it is not known, and why."""

    loads: list[Fate]
    unknown: list[tuple[str, str]]


def fates(places: LoadPlaces, tp: TopicPartition, offset: int, cluster_id: str) -> Fates:
    """Of a record of this cluster: loads of another one may have a topic of the same name."""
    found: list[Fate] = []
    unknown: list[tuple[str, str]] = []
    for place in places.content():
        if place.error:
            unknown.append((place.url, place.error))
        for group in place.groups:
            if group.error:
                unknown.append((f"{place.url}, group {group.name}", group.error))
            for entry in group.history.entries:
                origin = entry.record.origin
                if entry.state is LoadState.REWIND or (origin is not None and origin.differs_from(cluster_id)):
                    continue
                ranges = (one for one in entry.record.ranges if one.tp == tp and one.start <= offset < one.end)
                found += [Fate(place.url, group.name, entry, one) for one in ranges]
    return Fates(found, unknown)


def passed_by(seen: Snapshot, tp: TopicPartition, offset: int) -> list[tuple[str, bool]]:
    """(group, whether it is past the record), of the groups that have committed in its partition."""
    return [
        (group.id, group.offsets[tp].offset > offset)
        for group, _ in seen.readers_of(tp.topic)
        if group.has_lag and tp in group.offsets
    ]

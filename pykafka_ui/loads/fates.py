"""What became of a record: the loads whose offsets it is among, and the groups that are past it. Changes nothing."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlencode

from broker.protocol.topic_partition import TopicPartition
from pykafka_ui.loads.places import LoadPlaces
from pykafka_ui.seen.snapshot import Snapshot
from spark_connector.loads.history import HistoryEntry, LoadState
from spark_connector.loads.record import LoadRange

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

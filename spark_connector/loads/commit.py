"""The commit of a load: the contract of a commit log, and what the brokers are told after the commit.

A destination's commit log says which loads count, and how far the offsets are. `append` is the commit point of a load:
it stores the offsets and the load in one atomic step (L1), or raises OffsetConflict. Then the destination makes the
rows visible where they are not yet (`Destination.commit`).

`publish_offsets` commits the same offsets to the brokers' consumer group of the same name, where lag tools look:
`kafka-consumer-groups`, `pykafka groups describe` and dashboards. load.py calls it after each commit, and also when
there was nothing to load: the load before may have been killed, or the brokers unreachable, after its commit. The
offsets are only information: loads continue from their own commit log, and a failure here never fails a load. If the
group has offsets of an application, nothing is published, because the application would continue from them. Offsets of
loads are recognized by the metadata committed beside them. Brokers delete offsets after `offsets.retention.minutes`, so
every load publishes all offsets of the group again.
"""

from __future__ import annotations

import contextlib
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker.client.cluster import Cluster
from broker.client.cluster_metadata import UnknownTopic
from broker.client.committed_offsets import GroupOffsets
from broker.errors import PykafkaError
from broker.protocol.topic_partition import TopicPartition
from spark_connector.loads.record import LoadRecord
from spark_connector.loads.request import LoadRequest

if TYPE_CHECKING:
    from spark_connector.loads.destination import Destination

logger = logging.getLogger("pykafka.spark")

_METADATA = "pykafka load "
_PATIENCE = 10.0  # seconds; the caller of a load that is done waits
_IDLE = 300.0  # seconds; a service looks for new records much more often
_warned: set[tuple[str, str]] = set()
_published_at: dict[tuple[str, str], float] = {}  # (group, destination) → when its offsets were published


@dataclass(frozen=True)
class Newest:
    """The newest entry of the commit log; number 0 when there is none. `load_id` is None for an entry that is no load.

    `published` is False while the data of a committed load still has to be made visible.
    """

    sequence: int = 0
    load_id: str | None = None
    published: bool = True


class CommitLog(ABC):
    """Loads of one group, numbered from 1."""

    kind = "table"

    @abstractmethod
    def newest(self) -> Newest:
        """The entry with the highest number."""

    @abstractmethod
    def offsets(self, partitions: Collection[TopicPartition] = ()) -> dict[TopicPartition, int]:
        """Next offset of every partition the group has committed.

        A Delta table cannot list them: it looks up `partitions` and those that its newest records name.
        """

    @abstractmethod
    def record(self, sequence: int) -> LoadRecord | None:
        """The load committed under this number; None when there is none, or the entry is no load."""

    @abstractmethod
    def sequences(self) -> list[int]:
        """All numbers, ascending."""

    def records(self) -> list[LoadRecord]:
        """All loads and rewinds, in order of number."""
        return [record for record in map(self.record, self.sequences()) if record is not None]

    def has(self, record: LoadRecord) -> bool:
        """Whether this very attempt is committed."""
        winner = self.record(record.id.sequence)
        return winner is not None and winner.load_id == record.load_id

    def is_overtaken(self, record: LoadRecord) -> bool:
        """Whether another load has taken this one's number, so that it can no longer be committed."""
        newest = self.newest()
        return newest.sequence >= record.id.sequence and newest.load_id != record.load_id

    def check(self, record: LoadRecord) -> None:  # noqa: B027 - most logs have no limit
        """Raise LoadTooLarge for a load that could not be committed, before its rows are written."""

    @abstractmethod
    def append(self, record: LoadRecord) -> None:
        """Commit. Does nothing when a repair has committed this load before. Raises OffsetConflict when another load
        took the number."""

    def mark_published(self, record: LoadRecord) -> None:  # noqa: B027 - in a table, what is committed is visible
        """Note that the load's data is in place. May be called again."""

    @abstractmethod
    def prune(self, keep: int) -> list[int]:
        """Remove all entries but the newest `keep` (at least 1); gives their numbers, oldest first.

        The oldest entry goes first, so that the log never has a gap.
        """

    def close(self) -> None:  # noqa: B027 - most logs hold nothing open
        """The log is not used afterwards."""


def publish_offsets(
    request: LoadRequest, destination: Destination, *, idle: bool = False, clock: Callable[[], float] = time.monotonic
) -> None:
    """Commit the offsets of the group's log to the brokers' group. On a failure warns, once per group and cause.

    `idle`: nothing was loaded; then this process publishes at most every five minutes. A re-run leaves the group where
    it is.
    """
    if not request.given.publish_offsets or request.given.from_load is not None:
        return
    group, place = request.target.group, (request.target.group, destination.url)
    if idle and clock() - _published_at.get(place, -_IDLE) < _IDLE:
        return
    try:
        offsets, newest = destination.log.offsets(), destination.log.newest().load_id
        if not offsets:
            return
        with contextlib.closing(Cluster(request.source.client, create_topics=False)) as cluster:
            committed = GroupOffsets(cluster, group)
            if any(not one.metadata.startswith(_METADATA) for one in committed.committed(timeout_s=_PATIENCE).values()):
                _warn(group, "it has offsets of another application; rename the group, or set publish_offsets=False")
            else:
                committed.commit(_existing(cluster, offsets), f"{_METADATA}{newest or ''}", timeout_s=_PATIENCE)
        _published_at[place] = clock()
    except Exception as error:
        plain = error if isinstance(error, PykafkaError | OSError) else destination.plain_error(error)
        if plain is None:
            raise
        _warn(group, str(plain).partition("\n")[0])


def _existing(cluster: Cluster, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """The offsets of partitions that exist; brokers refuse others."""
    found: dict[str, list[int]] = {}
    cluster.include({tp.topic for tp in offsets})
    for topic in {tp.topic for tp in offsets}:
        with contextlib.suppress(UnknownTopic):
            found[topic] = cluster.partitions(topic)
    return {tp: offset for tp, offset in offsets.items() if tp.partition in found.get(tp.topic, ())}


def _warn(group: str, why: str) -> None:
    if (group, why) not in _warned:
        _warned.add((group, why))
        logger.warning(
            "The load is committed, but its offsets were not published to the consumer group '%s', for lag tools: %s",
            group,
            why,
        )

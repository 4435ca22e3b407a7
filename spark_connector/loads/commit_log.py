"""The commit log of a group's loads: which loads count, and how far the offsets are.

`append` is the commit point of a load: it stores the offsets and the load in one atomic step, or raises OffsetConflict.
Every destination has its own log: files/commit_log.py, files/zookeeper_commit_log.py, delta/commit_log.py and
database/commit_log.py.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from broker.protocol.topic_partition import TopicPartition
from spark_connector.loads.record import LoadRecord

__all__ = ["CommitLog", "Newest"]


@dataclass(frozen=True)
class Newest:
    """The newest entry of the commit log; number 0 when there is none. `load_id` is None for an entry that is no load.

    `published` is False while the data of a committed load still has to be made visible.
    """

    sequence: int = 0
    load_id: str | None = None
    published: bool = True


class CommitLog(Protocol):
    """Loads of one group, numbered from 1."""

    kind: str

    def newest(self) -> Newest:
        """The entry with the highest number."""
        ...

    def offsets(self, partitions: Collection[TopicPartition] = ()) -> dict[TopicPartition, int]:
        """Next offset of every partition the group has committed.

        A Delta table cannot list them: it looks up `partitions` and those that its newest records name.
        """
        ...

    def record(self, sequence: int) -> LoadRecord | None:
        """The load committed under this number; None when there is none, or the entry is no load."""
        ...

    def sequences(self) -> list[int]:
        """All numbers, ascending."""
        ...

    def records(self) -> list[LoadRecord]:
        """All loads and rewinds, in order of number."""
        ...

    def check(self, record: LoadRecord) -> None:
        """Raise LoadTooLarge for a load that could not be committed, before its rows are written."""
        ...

    def append(self, record: LoadRecord) -> None:
        """Commit. Does nothing when a repair has committed this load before. Raises OffsetConflict when another load
        took the number."""
        ...

    def mark_published(self, record: LoadRecord) -> None:
        """Note that the load's data is in place. May be called again."""
        ...

    def prune(self, keep: int) -> list[int]:
        """Remove all entries but the newest `keep` (at least 1); gives their numbers, oldest first.

        The oldest entry goes first, so that the log never has a gap.
        """
        ...

    def close(self) -> None: ...

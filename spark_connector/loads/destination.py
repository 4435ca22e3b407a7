"""The contract of a destination: what load.py, plan.py, maintenance.py and the audit ask of the place of the loads.

files/, delta/ and database/ implement it; spark_connector/destinations.py opens the right one for a target. A
destination is opened for one call and knows neither Spark nor the brokers.

Its commit log says which loads count, and how far the offsets are. `append` is the commit point of a load: it stores
the offsets and the load in one atomic step, or raises OffsetConflict.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from broker.protocol.topic_partition import TopicPartition
from spark_connector.loads.history import History, HistoryEntry
from spark_connector.loads.record import LoadError, LoadRecord
from spark_connector.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


Offsets = npt.NDArray[np.int64]

NewSession = Callable[[], "SparkSession"]
"""Gives the Spark session, and starts it when it is first called."""


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


@dataclass(frozen=True)
class HeldRows:
    """The rows that a destination has of one load: sorted offsets per partition, duplicates included.

    `offsets` is None when they cannot be read; then `problems` or `notes` say why. `notes` do not fail a verification.
    """

    offsets: Mapping[TopicPartition, Offsets] | None
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class Destination(ABC):
    """A directory, a Delta table or a table in a database, and what one group has loaded there.

    Two processes may stage, commit and repair at the same time: the commit log lets one of them win.
    """

    url: str
    """Its name in records and messages; without passwords."""

    log: CommitLog

    output: Storage | None = None
    """The directory that Spark writes files to; None for a database."""

    rows_are_in = "the table"
    """Where the rows are, in words, for the audit."""

    @abstractmethod
    def repair(self) -> list[str]:
        """Finish or remove the unfinished loads of others; gives the ids of the loads that were finished."""

    @abstractmethod
    def stage(self, record: LoadRecord) -> str:
        """Announce the load; gives the place within the destination where its rows must be written."""

    @abstractmethod
    def prepare(self, record: LoadRecord, schema: str) -> None:
        """Make it ready to take rows of this schema (Spark's, as JSON). Raises ConfigError when it cannot take them."""

    def seal(self, record: LoadRecord) -> None:  # noqa: B027 - tables need none: an unfinished attempt starts again
        """Record that all rows are written and counted."""

    @abstractmethod
    def commit(self, record: LoadRecord) -> None:
        """Make rows and offsets visible in one atomic step. For a rewind: remove the rows of the loads it names and set
        the offsets back, in one step.

        Raises OffsetConflict, and leaves nothing behind, when another load took the number.
        """

    @abstractmethod
    def discard(self, load_id: str) -> None:
        """Remove an attempt that is not committed."""

    def is_overtaken(self, record: LoadRecord) -> bool:
        """Whether another load has taken this one's number, so that it can no longer be committed."""
        newest = self.log.newest()
        return newest.sequence >= record.id.sequence and newest.load_id != record.load_id

    def published(self, group: str) -> list[str]:
        """Ids of the group's loads that readers see, where this is known without the commit log."""
        return []

    def groups(self) -> Mapping[str, str]:
        """Every group that has loads here, and where its offsets are kept (`OFFSET_KINDS`)."""
        return dict.fromkeys(self.topics_by_group(), self.log.kind)

    @abstractmethod
    def topics_by_group(self) -> Mapping[str, set[str]]:
        """Every group that has loads here, in whatever commit log, and the topics that it has loaded."""

    def path_of(self, load_id: str) -> str:
        """Where a reader finds the rows of a load."""
        return self.url

    @abstractmethod
    def history(self) -> History:
        """The group's loads. Changes nothing."""

    @abstractmethod
    def held(self, entries: Sequence[HistoryEntry], session: NewSession) -> Iterator[tuple[HistoryEntry, HeldRows]]:
        """The rows of each of these committed loads, in their order. Changes nothing.

        `session` is called only where Spark must read them.
        """

    @abstractmethod
    def unknown_loads(self, history: History) -> list[str]:
        """What looks like a load of this group, but is not in `history`, in words."""

    def check_rewind(self, rewind: LoadRecord) -> None:  # noqa: B027 - directories can always be moved aside
        """Raise ConfigError when the loads that `rewind` names cannot be taken back."""

    def plain_error(self, error: Exception) -> LoadError | None:
        """The LoadError for an error of the library behind the destination; None for any other error."""
        return None

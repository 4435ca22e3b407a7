"""The contract of a destination: what load.py, planner.py, maintenance.py and the audit ask of the place of the loads.

files/, delta/ and database/ implement it; spark_connector/destinations.py opens the right one for a target. A
destination is opened for one call and knows neither Spark nor the brokers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from broker.protocol.topic_partition import TopicPartition
from spark_connector.loads.commit_log import CommitLog
from spark_connector.loads.history import History, HistoryEntry
from spark_connector.loads.record import LoadError, LoadRecord
from spark_connector.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Committer", "Destination", "Held", "Holdings", "NewSession", "Offsets"]

Offsets = npt.NDArray[np.int64]

NewSession = Callable[[], "SparkSession"]
"""Gives the Spark session, and starts it when it is first called."""


class Committer(Protocol):
    """Stages, seals and commits loads, and repairs after a crash.

    Two processes may do any of this at the same time: the commit log lets one of them win.
    """

    def repair(self) -> list[str]:
        """Finish or remove the unfinished loads of others; gives the ids of the loads that were finished."""
        ...

    def stage(self, record: LoadRecord) -> str:
        """Announce the load; gives the place within the destination where its rows must be written."""
        ...

    def seal(self, record: LoadRecord) -> None:
        """Record that all rows are written and counted."""
        ...

    def commit(self, record: LoadRecord) -> None:
        """Make rows and offsets visible in one atomic step. For a rewind: remove the rows of the loads it names and set
        the offsets back, in one step.

        Raises OffsetConflict, and leaves nothing behind, when another load took the number.
        """
        ...

    def discard(self, load_id: str) -> None:
        """Remove an attempt that is not committed."""
        ...

    def is_overtaken(self, record: LoadRecord) -> bool:
        """Whether another load has taken this one's number, so that it can no longer be committed."""
        ...


@dataclass(frozen=True)
class Held:
    """The rows that a destination has of one load: sorted offsets per partition, duplicates included.

    `offsets` is None when they cannot be read; then `problems` or `notes` say why. `notes` do not fail a verification.
    """

    offsets: Mapping[TopicPartition, Offsets] | None
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class Holdings(Protocol):
    """The rows in a destination, read when they are asked for. Changes nothing."""

    @property
    def place(self) -> str:
        """Where the rows are, in words: `the files`, `the table`."""
        ...

    def of(self, entries: Sequence[HistoryEntry]) -> Iterator[tuple[HistoryEntry, Held]]:
        """The rows of each of these committed loads, in their order."""
        ...

    def strangers(self) -> list[str]:
        """What looks like a load of this group, but is not in its commit log."""
        ...


class Destination(Protocol):
    """A directory, a Delta table or a table in a database."""

    @property
    def url(self) -> str:
        """Its name in records and messages; without passwords."""
        ...

    @property
    def output(self) -> Storage | None:
        """The directory that Spark writes files to; None for a database."""
        ...

    @property
    def log(self) -> CommitLog: ...

    @property
    def committer(self) -> Committer: ...

    def plain_error(self, error: Exception) -> LoadError | None:
        """The LoadError for an error of the library behind the destination; None for any other error."""
        ...

    def prepare(self, record: LoadRecord, schema: str) -> None:
        """Make it ready to take rows of this schema (Spark's, as JSON). Raises ConfigError when it cannot take them."""
        ...

    def published(self, group: str) -> list[str]:
        """Ids of the group's loads that readers see, where this is known without the commit log."""
        ...

    def topics_by_group(self) -> Mapping[str, set[str]]:
        """Every group that has loads here, in whatever commit log, and the topics that it has loaded."""
        ...

    def path_of(self, load_id: str) -> str:
        """Where a reader finds the rows of a load."""
        ...

    def history(self) -> History:
        """The group's loads. Changes nothing."""
        ...

    def holdings(self, history: History, session: NewSession) -> Holdings:
        """The rows of the loads of `history`. `session` is called only where Spark must read them."""
        ...

    def check_rewind(self, rewind: LoadRecord) -> None:
        """Raise ConfigError when the loads that `rewind` names cannot be taken back."""
        ...

"""The contract of a destination: what loads ask of their place (`Destination`), and maintenance.py and the audit
beside that (`LoadedDestination`).

files/ implements it; delta/ and database/ do on top of table.py. spark_connector/destinations.py opens the right one
for a target. A destination is opened for one call and knows neither Spark nor the brokers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute

from broker.errors import ConfigError
from broker.protocol.topic_partition import TopicPartition
from spark_connector.loads.commit import CommitLog
from spark_connector.loads.compaction import Compaction
from spark_connector.loads.history import History, HistoryEntry
from spark_connector.loads.record import LoadError, LoadRecord
from spark_connector.loads.shared_path import is_local
from spark_connector.loads.table_snapshot import TableSnapshot, TableVersion
from spark_connector.loads.tasks.file_layout import FileLayout
from spark_connector.loads.tasks.task_output import TaskOutput
from spark_connector.loads.tasks.written_file import WrittenFiles

Offsets = npt.NDArray[np.int64]


@dataclass(frozen=True)
class HeldRows:
    """The rows that a destination has of one load: sorted offsets per partition, duplicates included.

    `offsets` is None when they cannot be read; then `problems` say what is wrong, or `unread` what could not be looked
    at. `notes` are good to know. `rows` counts the rows of a load whose table has no columns that identify them.
    """

    offsets: Mapping[TopicPartition, Offsets] | None
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    rows: int | None = None
    unread: tuple[str, ...] = ()


class RowOffsets:
    """Offsets per partition, collected part by part. Memory: 8 bytes a row."""

    def __init__(self) -> None:
        self._parts: dict[TopicPartition, list[Offsets]] = {}

    def add(self, part: pa.Table) -> None:
        """Add rows with the columns topic, partition and offset. Raises ValueError for a null."""
        if any(part.column(name).null_count for name in ("topic", "partition", "offset")):
            raise ValueError("a row has no topic, partition or offset")
        grouped = part.group_by(["topic", "partition"], use_threads=False).aggregate([("offset", "list")])
        columns = (grouped.column(name) for name in ("topic", "partition", "offset_list"))
        for topic, partition, offsets in zip(*columns, strict=True):
            self.append(TopicPartition(topic.as_py(), partition.as_py()), offsets.values.to_numpy())

    def append(self, tp: TopicPartition, offsets: Offsets) -> None:
        self._parts.setdefault(tp, []).append(offsets)

    def extend(self, other: RowOffsets) -> None:
        for tp, parts in other._parts.items():
            self._parts.setdefault(tp, []).extend(parts)

    def sorted(self) -> dict[TopicPartition, Offsets]:
        """The offsets of every partition, duplicates included."""
        return {tp: np.sort(np.concatenate(parts)) for tp, parts in self._parts.items()}


if TYPE_CHECKING:
    from pyspark.sql import SparkSession


NewSession = Callable[[], "SparkSession"]
"""Gives the Spark session, and starts it when it is first called."""


class Destination(ABC):
    """A directory, a Delta table or a table in a database, as a load of one group needs it.

    Two processes may stage, commit and repair at the same time: the commit log lets one of them win.
    """

    url: str
    """Its name in records and messages; without passwords."""

    log: CommitLog

    @abstractmethod
    def repair(self) -> list[str]:
        """Finish or remove the unfinished loads of others; gives the ids of the loads that were finished."""

    @abstractmethod
    def stage(self, record: LoadRecord) -> str:
        """Announce the load; gives the place within the destination where its rows must be written."""

    @abstractmethod
    def file_layout(self, record: LoadRecord, layout: FileLayout) -> FileLayout:
        """Check that it takes rows of this layout, and make it ready; gives the layout that tasks write in. Raises
        ConfigError, and has changed nothing then."""

    @abstractmethod
    def task_output(self, place: str) -> TaskOutput:
        """Where tasks write the files of the load that was staged at `place`."""

    def local_place(self) -> str | None:
        """Where tasks would write, if that is a path of this host; None for a place that all hosts reach."""
        return self.url if is_local(self.url) else None

    def gather(self, place: str, files: WrittenFiles) -> None:  # noqa: B027 - a table's log names its files
        """Make these files of `task_output` the load's files; others are of attempts that do not count."""

    def seal(self, record: LoadRecord) -> None:  # noqa: B027 - tables need none: an unfinished attempt starts again
        """Record that all rows are written and counted."""

    def decide(self, record: LoadRecord, files: WrittenFiles = ()) -> None:  # noqa: B027 - files need none
        """Refuse now what can still be refused, by the records that `files` hold, and make the table of a first load.

        Called before dead letters are committed; `commit` does it where nobody has.
        """

    @abstractmethod
    def commit(self, record: LoadRecord, files: WrittenFiles = (), layout: FileLayout | None = None) -> None:
        """Make rows and offsets visible in one atomic step. For a rewind: remove the rows of the loads it names and set
        the offsets back, in one step. `files` are those of the tasks, `layout` is what `file_layout` has given.

        Raises OffsetConflict, and leaves nothing behind, when another load took the number.
        """

    @abstractmethod
    def discard(self, load_id: str) -> None:
        """Remove an attempt that is not committed."""

    def published(self, group: str) -> list[str]:
        """Ids of the group's loads that readers see, where this is known without the commit log."""
        return []

    @abstractmethod
    def topics_by_group(self) -> Mapping[str, set[str]]:
        """Every group that has loads here, in whatever commit log, and the topics that it has loaded."""

    def rows_elsewhere(self, loads: Iterator[LoadRecord]) -> str | None:
        """Where the newest of the group's `loads` went, in words, if its rows are not here although the offsets say so,
        because several places share them. None, and nothing is read, where each place has offsets of its own."""
        return None

    def path_of(self, load_id: str) -> str:
        """Where a reader finds the rows of a load."""
        return self.url

    def plain_error(self, error: Exception) -> LoadError | None:
        """The LoadError for an error of the library behind the destination; None for any other error."""
        return None


class LoadedDestination(Destination):
    """And what is asked of the loads that are there: by their history, the audit, rewinds, compaction and reads."""

    rows_are_in = "the table"
    """Where the rows are, in words, for the audit."""

    def groups(self) -> Mapping[str, str]:
        """Every group that has loads here, and where its offsets are kept (`OFFSET_KINDS`)."""
        return dict.fromkeys(self.topics_by_group(), self.log.kind)

    @abstractmethod
    def history(self) -> History:
        """The group's loads. Changes nothing."""

    @abstractmethod
    def held(self, entries: Sequence[HistoryEntry], session: NewSession) -> Iterator[tuple[HistoryEntry, HeldRows]]:
        """The rows of each of these committed loads, in their order. Changes nothing.

        `session` is called only where Spark must read them.
        """

    def stored_rows(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """All rows of a table that upserts write, with these columns, part by part."""
        raise NotImplementedError

    @abstractmethod
    def unknown_loads(self, history: History) -> tuple[list[str], list[str]]:
        """(what looks like a load of this group, but is not in `history`; what could not be looked at), in words."""

    @abstractmethod
    def check_rewind(self, rewind: LoadRecord) -> None:
        """Raise ConfigError when the loads that `rewind` names cannot be taken back."""

    def snapshot(self, partitions: Collection[TopicPartition], version: str | None = None) -> TableSnapshot:
        """Files and offsets of one state of the table, now or at a `version` of an earlier snapshot. Changes nothing.

        `partitions`: as in `CommitLog.offsets`. Raises ConfigError where it cannot be read file by file, and
        ConnectorError for a version that is gone.
        """
        raise ConfigError(
            f"option 'history': {self.url} is no table of files; it can be a directory of loads, a Delta or an Iceberg "
            "table"
        )

    def versions(self, most: int) -> list[TableVersion]:
        """The newest states that the table had, the oldest first; here one for each load and rewind that is known."""
        known = [entry for entry in self.history().entries if not entry.state.is_staged]
        return [
            TableVersion(str(one.record.id.sequence), one.record.created_ms, one.state.value, one.record.load_id)
            for one in known[-most:]
        ]

    def compaction(self) -> Compaction[Any]:
        """What makes large files of small ones. Raises ConfigError where there is nothing of the kind."""
        raise ConfigError(f"{self.url}: only Delta and Iceberg tables can be compacted")

"""What load.py asks of the place that a load goes to, whatever kind of place it is.

Files in a directory are loads/file_site.py, a Delta table is loads/delta.py, a database loads/database.py.
A destination is opened for one call and knows neither Spark nor the brokers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from spark_connector.loads.history import History
from spark_connector.loads.holdings import Holdings
from spark_connector.loads.log import LoadLog
from spark_connector.loads.record import LoadError, LoadRecord
from spark_connector.storage import Storage

__all__ = ["Committer", "Destination"]


class Committer(Protocol):
    """Stage, seal, commit, and repair after a crash. Two processes may do any of it at once; one of them wins."""

    def repair(self) -> list[str]:
        """Finish or remove what others began; gives the ids of the loads that were brought to their end."""
        ...

    def stage(self, record: LoadRecord) -> str:
        """Announce the load; gives the place, within the destination, that its rows are to be written to."""
        ...

    def seal(self, record: LoadRecord) -> None:
        """Say that the rows are all there, counted."""
        ...

    def commit(self, record: LoadRecord) -> None:
        """Make rows and offsets visible in one act. Raises OffsetConflict, with nothing left, for the second of two.

        Of a rewind: take back the rows of the loads it names, and the offsets, in one act."""
        ...

    def discard(self, load_id: str) -> None:
        """Remove an attempt that is not committed."""
        ...

    def is_overtaken(self, record: LoadRecord) -> bool:
        """Whether another load has taken this one's number, so that it can no longer be committed."""
        ...


class Destination(Protocol):
    """A directory, a Delta table or a table in a database."""

    def plain_error(self, error: Exception) -> LoadError | None:
        """What to raise for an error of the library behind it, wherever that comes up; None for any other error."""
        ...

    @property
    def url(self) -> str:
        """What records and messages name it by; without passwords."""
        ...

    @property
    def output(self) -> Storage | None:
        """The directory that Spark writes files to; None for a database."""
        ...

    @property
    def log(self) -> LoadLog: ...

    @property
    def committer(self) -> Committer: ...

    def prepare(self, record: LoadRecord, schema: str) -> None:
        """Make it ready to take rows of this schema (Spark's, as JSON). Raises ConfigError when it cannot."""
        ...

    def published(self, group: str) -> list[str]:
        """Ids of the group's loads that readers see, where that is known without the commit log."""
        ...

    def topics_by_group(self) -> Mapping[str, set[str]]:
        """Every group that has loads here, whatever keeps its offsets, and the topics that it has loaded."""
        ...

    def path_of(self, load_id: str) -> str:
        """Where a reader finds the rows of a load."""
        ...

    def history(self) -> History:
        """The group's loads; changes nothing."""
        ...

    def holdings(self, history: History) -> Holdings:
        """What is there of the loads of `history`."""
        ...

    def check_rewind(self, rewind: LoadRecord) -> None:
        """Raises ConfigError when the loads that `rewind` names cannot be taken back."""
        ...

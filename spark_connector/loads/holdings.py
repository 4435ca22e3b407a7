"""What a destination holds of loads, whatever kind of place it is, as loads/verify.py asks for it: offsets of rows.

Files are loads/file_holdings.py; loads/table_holdings.py serves the Delta table (loads/delta_rows.py) and the database
(loads/database_rows.py). Changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from broker.protocol.topic_partition import TopicPartition
from spark_connector.loads.file_rows import Offsets
from spark_connector.loads.history import HistoryEntry

__all__ = ["Held", "Holdings"]


@dataclass(frozen=True)
class Held:
    """Of one load: the sorted offsets of every partition, doubled ones twice; None when they cannot be told, and then
    `problems` or `notes` say why. `notes` are what could not be checked, or is good to know."""

    offsets: Mapping[TopicPartition, Offsets] | None
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class Holdings(Protocol):
    """What is there, read as it is asked for."""

    @property
    def place(self) -> str:
        """Where the rows are, in words: `the files`, `the table`."""
        ...

    def of(self, entries: Sequence[HistoryEntry]) -> Iterator[tuple[HistoryEntry, Held]]:
        """What is held of each of these committed loads, in their order."""
        ...

    def strangers(self) -> list[str]:
        """What readers see there, and no load has made, where that can be told."""
        ...

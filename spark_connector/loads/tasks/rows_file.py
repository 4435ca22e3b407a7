"""What each format of files (file_formats.py) has to do: take rows, and end a file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from spark_connector.loads.column_bounds import Unsaid


class RowsFile(Protocol):
    """One file that is being written, into a file object that the caller closes."""

    def write(self, rows: pa.Table) -> None:
        """Write rows of the file's schema. Raises OSError, ArrowException and ValueError."""

    def close(self) -> Ending:
        """Write what waits, and the end of the format."""

    def abort(self) -> None:
        """Write no end."""


@dataclass(frozen=True)
class Ending:
    """What a file says at its end: the rows that its writer has counted, and of parquet the footer, and what that does
    not say."""

    rows: int
    footer: bytes | None = None
    unsaid: Unsaid | None = None

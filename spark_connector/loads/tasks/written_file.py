"""A file that a task has written, as the task tells the driver of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from spark_connector.loads.column_bounds import Unsaid
from spark_connector.loads.footers import Count

_MAGIC = b"PAR1"  # with which a file begins


@dataclass(frozen=True)
class WrittenFile:
    """`name` is the path below the load's place, with the directories of partition values; `size` is in bytes.

    `footer` is what the file ends with: parquet's metadata, so that nobody reads the file for it again, else its last
    bytes. `unsaid` is what parquet's does not say of the rows. `counts` are the rows by topic and partition, `values`
    those of the partition columns, which all rows of the file have, and `texts` the same as text. `host` is where the
    task ran. `held` is how many rows the file's own writer has counted; None: the footer says it.
    """

    name: str
    size: int
    footer: bytes = field(repr=False)
    counts: tuple[Count, ...]
    values: Mapping[str, Any]
    texts: Mapping[str, str | None] = field(default_factory=dict)
    host: str = ""
    unsaid: Unsaid = field(default_factory=Unsaid, repr=False)
    held: int | None = None

    @property
    def rows(self) -> int:
        return sum(count.rows for count in self.counts)

    @property
    def where(self) -> str:
        """Where its records are in the topics, in words."""
        held = (f"offsets {c.low} to {c.high} of topic '{c.topic}', partition {c.partition}" for c in self.counts)
        return ", ".join(held)

    def metadata(self) -> Any:
        """pyarrow's `FileMetaData`, of a parquet file."""
        return pyarrow.parquet.read_metadata(pa.BufferReader(_MAGIC + self.footer))


WrittenFiles = Sequence[WrittenFile]

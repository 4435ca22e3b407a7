"""The Delta table that a first load makes: planned before anything is staged, made right before the load's commit.

So a load that is refused, for its settings or for its records, leaves no table behind. A process that dies between the
two commits leaves a table without loads: it has no rows, and the next first load may replace it by one with other
columns, partitions or keys. That is one commit, too, under the number behind the newest: of two processes one wins.

`deltalake` makes the actions, in a directory of its own, so what it refuses is known at once.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema

from broker.errors import ConfigError
from broker.storage.storage import Storage
from spark_connector.loads.delta.delta_merge import upsert_marker
from spark_connector.loads.record import LoadRecord

_MADE = "pykafka.table"
"""In the metadata of a commit that makes a table for a load: the load's id."""


@dataclass(frozen=True)
class NewTable:
    """A table to be made. `schema`: as Delta has it. `actions`: the commit. `version`: what the commit makes; 0, or a
    later one in place of a table without loads."""

    schema: pa.Schema
    partition_by: tuple[str, ...]
    actions: bytes
    version: int

    def make(self, output: Storage) -> bool:
        """False when another process has committed this version. Raises OSError."""
        try:
            output.create(f"_delta_log/{self.version:020d}.json", self.actions)
        except FileExistsError:  # on an object store it may be our own, when the answer was lost
            return False
        return True


def plan_table(
    record: LoadRecord, schema: pa.Schema, partition_by: Sequence[str], shown: str, *, version: int = 0
) -> NewTable:
    """Raises ConfigError for columns that a Delta table cannot hold."""
    made = CommitProperties({"userMetadata": json.dumps({_MADE: record.load_id})})
    with tempfile.TemporaryDirectory(prefix="pykafka-") as directory:
        try:
            there = Schema.from_arrow(schema)
            table = DeltaTable.create(directory, there, partition_by=list(partition_by), commit_properties=made)
        except Exception as error:  # of several classes, Exception itself among them
            first = str(error).partition("\n")[0]
            raise ConfigError(f"the Delta table {shown} cannot have these columns: {first}") from error
        actions = (Path(directory) / "_delta_log" / f"{0:020d}.json").read_bytes()
    lines = [json.loads(line) for line in actions.splitlines()]
    for line in lines:
        if "commitInfo" in line:
            line["commitInfo"].pop("operationParameters", None)  # which names the directory of this process
    text = "\n".join(json.dumps(line, separators=(",", ":")) for line in lines)
    return NewTable(pa.schema(table.schema().to_arrow()), tuple(partition_by), text.encode(), version)


def is_unused(table: DeltaTable) -> bool:
    """Whether a load has made this table, and no load has been committed, and no other program has changed it."""
    if not _is_made(table.history(1)[0], table):
        return False
    return all(_is_made(commit, table) for commit in table.history()) and not pa.table(table.get_add_actions()).num_rows


def _is_made(commit: dict[str, object], table: DeltaTable) -> bool:
    """Whether the commit has made the table. Earlier versions of this package did not say so in it."""
    if _MADE in str(commit.get("userMetadata")):
        return True
    return commit.get("operation") == "CREATE TABLE" and upsert_marker(table) is not None

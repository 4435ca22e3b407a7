"""Compaction of a Delta table: small files become large ones in one commit, which changes no row (`dataChange` false).

The commit sets the application transaction `<group>/compaction` to the number of the compaction. It is made only
against the version that was read: Delta would accept the removal of a file that another commit has removed before, and
the rows would be there twice. Replaced files stay on the disk until VACUUM, so time travel and running queries work on.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction

from broker.errors import ConfigError
from broker.storage.storage import Storage
from spark_connector.loads.compaction import Compaction, NewFile, TableFile
from spark_connector.loads.delta.delta_features import Work, check_features
from spark_connector.loads.delta.delta_files import DeltaFiles
from spark_connector.loads.delta.delta_log import DeltaCommitLog
from spark_connector.loads.delta.delta_merge import COMPACTION
from spark_connector.loads.delta.delta_readback import refuse_unreadable
from spark_connector.loads.delta.delta_statistics import TableStatistics
from spark_connector.loads.record import LoadId, failed_load
from spark_connector.loads.tasks.partition_values import segment_of
from spark_connector.loads.tasks.task_output import TaskOutput
from spark_connector.stored_json import mapping, parsed

_NEAR = 50  # commits to search first


class DeltaCompaction(Compaction[DeltaTable]):
    """The compactions of one group in a Delta table."""

    def __init__(self, log: DeltaCommitLog, group: str, storage: Storage, output: Callable[[str], TaskOutput]) -> None:
        super().__init__(group, f"the Delta table {storage.shown}", storage, output)
        self._log = log

    def table(self) -> DeltaTable:
        table = self._log.table()
        if table is None:
            raise ConfigError(f"there is no Delta table in {self._staging.shown}")
        check_features(table, [Work.COMPACTION], self._staging.shown)
        return table

    def number(self, table: DeltaTable) -> int:
        return table.transaction_version(self._app_id) or 0

    def files(self, table: DeltaTable) -> list[TableFile]:
        return DeltaFiles(table, self._staging).all()

    def rows_of(self, table: DeltaTable, files: Sequence[TableFile]) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        stored = DeltaFiles(table, self._staging)
        schema = pa.schema([field for field in stored.schema if field.name not in stored.partitioning])
        parts = (part for file in files for part in stored.read(file, schema.names))
        return schema, (batch for part in parts for batch in part.to_batches())

    def directory(self, table: DeltaTable, values: Any) -> str:
        """As loads have them: polars cannot read a table of which some files have them and others have not."""
        texts = zip(table.metadata().partition_columns, values, strict=True)
        return "/".join(segment_of(name, text, "delta") for name, text in texts)

    def commit(
        self, table: DeltaTable, attempt: LoadId, removed: Sequence[TableFile], added: Sequence[NewFile]
    ) -> bool:
        partitioning = table.metadata().partition_columns
        now = time.time_ns() // 1_000_000
        statistics = TableStatistics.of_table(table)
        actions: list[AddAction | RemoveAction] = [
            AddAction(
                path=f"{self.place_of(attempt)}/{file.written.name}",
                size=file.written.size,
                partition_values=_by_column(partitioning, file.values),
                modification_time=file.added_ms,
                data_change=False,
                stats=statistics.of(file.written),
            )
            for file in added
        ]
        refuse_unreadable(table.schema(), partitioning, actions)
        actions += [
            RemoveAction(unquote(file.path), False, now, file.size, _by_column(partitioning, file.values))
            for file in removed
        ]
        self._staging.sync(self.place_of(attempt))
        metadata = {"userMetadata": json.dumps({COMPACTION: str(attempt)})}
        try:
            table.create_write_transaction(
                actions,
                "append",
                table.schema(),
                partition_by=partitioning,
                commit_properties=CommitProperties(metadata, 0, [Transaction(self._app_id, attempt.sequence, now)]),
            )
        except (DeltaError, OSError, ValueError) as error:
            after = self.table()
            if self.number(after) >= attempt.sequence:
                return self.is_winner(after, attempt) is True
            if after.version() == table.version():
                raise failed_load(f"{self._shown}: the commit of a compaction failed: {error}", error) from error
            return False
        self._staging.sync(f"_delta_log/{table.version() + 1:020d}.json")
        return True

    def is_winner(self, table: DeltaTable, attempt: LoadId) -> bool | None:
        for limit in (_NEAR, None):
            for commit in table.history(limit):
                winner = _attempt_of(commit)
                if winner is not None and (winner.group, winner.sequence) == (attempt.group, attempt.sequence):
                    return winner == attempt
        return None

    def vacuum(self, table: DeltaTable) -> int:
        """Only files that the log names as removed, by the table's own retention; never those of attempts."""
        return len(table.vacuum(dry_run=False))

    @property
    def _app_id(self) -> str:
        return f"{self._group}/compaction"


def _by_column(partitioning: Sequence[str], values: Any) -> dict[str, str | None]:
    return dict(zip(partitioning, values, strict=True))


def _attempt_of(commit: dict[str, Any]) -> LoadId | None:
    metadata = commit.get("userMetadata")
    if not isinstance(metadata, str) or COMPACTION not in metadata:
        return None
    try:
        return LoadId.parse(str(mapping(parsed(metadata), "userMetadata")[COMPACTION]))
    except (ValueError, KeyError):
        return None

"""The commit log of loads into a Delta table: the table's own log, so that a commit holds rows and offsets or neither.

A load's commit adds its files, a rewind's removes those of the loads that it takes back. Either sets, as application
transactions (Delta's `txn` actions),

    appId <group>                       version <number of the load>
    appId <group>/<topic>/<partition>   version <next offset>

Transactions outlive the log's clean-up, for checkpoints keep them; the load's record, which is for people, stands in
the commit's `userMetadata` and goes with the log's retention. Delta lets one of two commits with the same appId win,
and a table may take several groups. Uses `deltalake`: no JVM, no jar. Opened by loads/delta.py.
"""

from __future__ import annotations

import json
import time
from typing import Any

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from broker.errors import ConfigError, PykafkaError
from broker.protocol.topic_partition import TopicPartition
from spark_connector.loads.delta_rows import DeltaFiles
from spark_connector.loads.delta_transactions import offsets_of, read_transactions
from spark_connector.loads.footers import delta_statistics, read_footers
from spark_connector.loads.layout import values_in_path
from spark_connector.loads.record import LoadError, LoadInterrupted, LoadRecord
from spark_connector.loads.rewind import undone_loads
from spark_connector.loads.state import Newest
from spark_connector.offset_store.base import OffsetConflict, check_expected
from spark_connector.storage import Storage

__all__ = ["DeltaLoadLog"]

_RECORD = "pykafka.load"
_APPEND_ONLY = "delta.appendOnly"
_NEAR = 50  # commits to look at first for a load's record
_TRIES = 20  # of a rewind, which any commit to the table makes fail


class DeltaLoadLog:
    """Loads of one group in the log of one table, which need not exist yet."""

    kind = "table"

    def __init__(self, storage: Storage, group: str) -> None:
        self._storage = storage
        self._group = group

    def table(self) -> DeltaTable | None:
        """The table as it is now. Raises LoadInterrupted when that cannot be found out."""
        try:
            return DeltaTable(self._storage.url, storage_options=self._storage.options or None)
        except TableNotFoundError:
            return None
        except (DeltaError, OSError) as error:
            raise LoadInterrupted(f"the Delta table {self._storage.url} cannot be opened: {error}") from error

    def newest(self) -> Newest:
        table = self.table()
        number = self._number(table)
        if table is None or number == 0:
            return Newest()
        record = self._find(table, number)
        return Newest(number, record.load_id if record else None)

    def offsets(self) -> dict[TopicPartition, int]:
        table = self.table()
        return {} if table is None else self._offsets(table)

    def record(self, sequence: int) -> LoadRecord | None:
        """Also None when the log's retention has taken it."""
        table = self.table()
        return None if table is None else self._find(table, sequence)

    def sequences(self) -> list[int]:
        table = self.table()
        return [] if table is None else sorted(self._records(table))

    def records(self) -> list[LoadRecord]:
        return [record for record in self.records_of_all() if record.id.group == self._group]

    def records_of_all(self) -> list[LoadRecord]:
        """Those of all groups of the table that its log still has, each group's in order of number."""
        table = self.table()
        found = [] if table is None else [record for record in map(self._record_of, table.history()) if record]
        return sorted(found, key=lambda record: (record.id.group, record.id.sequence))

    def offsets_of_all(self) -> dict[str, dict[TopicPartition, int]]:
        """Those of all groups of the table."""
        table = self.table()
        return {} if table is None else offsets_of(read_transactions(self._storage, table.version()))

    def check(self, record: LoadRecord) -> None:
        """The log takes records of any size."""

    def append(self, record: LoadRecord) -> None:
        for _ in range(_TRIES):
            table = self.table()
            if table is None:
                raise LoadError(f"the Delta table {self._storage.url} has vanished")
            if self._is_taken(table, record):
                return
            check_expected(self._group, self._offsets(table), record.expected, record.committed)
            try:
                self._commit(table, record)
                return
            except PykafkaError:
                raise  # some of them are ValueErrors too
            except (DeltaError, OSError, ValueError) as error:
                failed = error
                after = self.table()
                if after is not None and self._is_taken(after, record):
                    return
                if record.rewind is None or after is None or after.version() == table.version():
                    break
        raise LoadInterrupted(f"load {record.load_id}: Delta's commit failed: {failed}") from failed

    def check_rewind(self, record: LoadRecord) -> None:
        """Raise ConfigError when the files of the loads to be taken back cannot be removed from the table."""
        table = self.table()
        if table is not None:
            self._remove_actions(table, record)

    def mark_published(self, record: LoadRecord) -> None:
        """Nothing to note: what is committed is visible."""

    def prune(self, keep: int) -> list[int]:
        raise ConfigError("a Delta table prunes its log itself: set delta.logRetentionDuration")

    def close(self) -> None:
        """Nothing is held open."""

    def _commit(self, table: DeltaTable, record: LoadRecord) -> None:
        """Against this very state. A commit of the same group meanwhile makes it fail. One of others does not make a
        load fail, but it does a rewind: it may have rewritten the very files (of OPTIMIZE Delta does not tell)."""
        is_load = record.rewind is None
        table.create_write_transaction(
            self._add_actions(record) if is_load else self._remove_actions(table, record),
            "append",
            table.schema(),
            partition_by=table.metadata().partition_columns,
            commit_properties=CommitProperties(
                custom_metadata={"userMetadata": json.dumps({_RECORD: record.without_files().to_json()})},
                app_transactions=self._transactions(record),
                max_commit_retries=None if is_load else 0,
            ),
        )

    def _number(self, table: DeltaTable | None) -> int:
        return 0 if table is None else table.transaction_version(self._group) or 0

    def _is_taken(self, table: DeltaTable, record: LoadRecord) -> bool:
        """Whether the record is committed already; OffsetConflict when its number, or one after, is another's."""
        number, newest = record.id.sequence, self._number(table)
        if newest == number - 1:
            return False
        winner = self._find(table, number)
        if winner is not None and winner.load_id == record.load_id:
            return True
        raise OffsetConflict(
            f"group '{self._group}': another load has committed number {newest} to {self._storage.url}; "
            f"{record.load_id} is not committed"
        )

    def _find(self, table: DeltaTable, sequence: int) -> LoadRecord | None:
        return self._records(table, _NEAR).get(sequence) or self._records(table).get(sequence)

    def _records(self, table: DeltaTable, limit: int | None = None) -> dict[int, LoadRecord]:
        """The group's loads among the newest `limit` commits, by number."""
        records = [record for record in map(self._record_of, table.history(limit)) if record is not None]
        return {record.id.sequence: record for record in records if record.id.group == self._group}

    def _record_of(self, commit: dict[str, Any]) -> LoadRecord | None:
        metadata = commit.get("userMetadata")
        if not isinstance(metadata, str) or _RECORD not in metadata:
            return None
        where = f"version {commit.get('version')} of {self._storage.url}"
        try:
            return LoadRecord.from_json(json.loads(metadata)[_RECORD], where)
        except (ValueError, KeyError, TypeError) as error:
            raise LoadError(f"{where} does not hold the record of a load: {error!r}") from error

    def _offsets(self, table: DeltaTable) -> dict[TopicPartition, int]:
        found = read_transactions(self._storage, table.version())
        if found.get(self._group, 0) != self._number(table):
            raise LoadError(f"the log of {self._storage.url} cannot be read: its checkpoint is of an unknown kind")
        return offsets_of(found).get(self._group, {})

    def _transactions(self, record: LoadRecord) -> list[Transaction]:
        now = time.time_ns() // 1_000_000
        partitions = [
            Transaction(f"{self._group}/{tp.topic}/{tp.partition}", offset, now)
            for tp, offset in sorted(record.committed.items())
        ]
        return [Transaction(self._group, record.id.sequence, now), *partitions]

    def _add_actions(self, record: LoadRecord) -> list[AddAction | RemoveAction]:
        footers = read_footers(self._storage, record.load_id, [file.name for file in record.files])
        return [
            AddAction(
                path=f"{record.load_id}/{file.name}",
                size=file.size,
                partition_values=values_in_path(file.name),
                modification_time=record.created_ms,
                data_change=True,
                stats=delta_statistics(footers[file.name]),
            )
            for file in record.files
        ]

    def _remove_actions(self, table: DeltaTable, record: LoadRecord) -> list[AddAction | RemoveAction]:
        """Raises ConfigError when the table is append-only or has no longer the files that a load has written."""
        assert record.rewind is not None
        if table.metadata().configuration.get(_APPEND_ONLY, "").lower() == "true":
            raise ConfigError(f"the Delta table {self._storage.url} has {_APPEND_ONLY}: nothing can be taken back")
        files = DeltaFiles(table)
        now = time.time_ns() // 1_000_000
        actions: list[AddAction | RemoveAction] = []
        known = {found.load_id: found for found in map(self._record_of, table.history()) if found}
        for load in undone_loads(record.rewind, known):
            if not files.is_whole(load):
                raise ConfigError(
                    f"load {load.load_id} cannot be taken back: files that it wrote are no longer in the Delta table "
                    f"{self._storage.url}, which was rewritten since (OPTIMIZE, DELETE, UPDATE, RESTORE, …), or its "
                    "log has no statistics that tell"
                )
            actions += [
                RemoveAction(file.path, True, now, file.size, dict(file.values)) for file in files.of(load.load_id)
            ]
        return actions

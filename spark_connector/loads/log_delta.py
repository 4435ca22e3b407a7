"""The commit log of loads into a Delta table: the table's own log, so that a commit holds rows and offsets or neither.

A load's commit adds its files and, as application transactions (Delta's `txn` actions),

    appId <group>                       version <number of the load>
    appId <group>/<topic>/<partition>   version <next offset>

Transactions outlive the log's clean-up, for checkpoints keep them; the load's record, which is for people, stands in
the commit's `userMetadata` and goes with the log's retention. Delta lets one of two commits with the same appId win,
and a table may take several groups. Uses `deltalake`: no JVM, no jar. Opened by loads/delta.py.
"""

from __future__ import annotations

import io
import json
import re
import time
from collections.abc import Iterator
from typing import Any

import pyarrow.parquet
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from broker.errors import ConfigError
from broker.protocol.topic_partition import TopicPartition
from spark_connector.loads.footers import delta_statistics, read_footers
from spark_connector.loads.layout import values_in_path
from spark_connector.loads.record import LoadError, LoadInterrupted, LoadRecord
from spark_connector.loads.state import Newest
from spark_connector.offset_store.base import OffsetConflict, check_expected
from spark_connector.storage import Storage

__all__ = ["DeltaLoadLog", "read_transactions"]

_LOG = "_delta_log"
_RECORD = "pykafka.load"
_COMMIT = re.compile(r"(\d{20})\.json")
# One file, the n-th of m, or one of version 2, whose name holds an id.
_CHECKPOINT = re.compile(
    r"(?P<version>\d{20})\.checkpoint(\.(?P<part>\d{10})\.(?P<parts>\d{10})|\.[0-9a-f-]{36})?\.(parquet|json)"
)
_NEAR = 50  # commits to look at first for a load's record


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

    def append(self, record: LoadRecord) -> None:
        table = self.table()
        if table is None:
            raise LoadError(f"the Delta table {self._storage.url} has vanished")
        if self._is_taken(table, record):
            return
        check_expected(self._group, self._offsets(table), record.expected, record.committed)
        try:
            # Against this very state: a commit of the same group meanwhile makes it fail, one of others does not.
            table.create_write_transaction(
                self._add_actions(record),
                "append",
                table.schema(),
                partition_by=table.metadata().partition_columns,
                commit_properties=CommitProperties(
                    custom_metadata={"userMetadata": json.dumps({_RECORD: record.without_files().to_json()})},
                    app_transactions=self._transactions(record),
                ),
            )
        except (DeltaError, OSError, ValueError) as error:
            after = self.table()
            if after is None or not self._is_taken(after, record):
                raise LoadInterrupted(f"load {record.load_id}: Delta's commit failed: {error}") from error

    def mark_published(self, record: LoadRecord) -> None:
        """Nothing to note: what is committed is visible."""

    def prune(self, keep: int) -> list[int]:
        raise ConfigError("a Delta table prunes its log itself: set delta.logRetentionDuration")

    def close(self) -> None:
        """Nothing is held open."""

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
        prefix = f"{self._group}/"
        names = ((app.removeprefix(prefix).rpartition("/"), at) for app, at in found.items() if app.startswith(prefix))
        return {TopicPartition(topic, int(partition)): at for (topic, _, partition), at in names}

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


def read_transactions(storage: Storage, version: int) -> dict[str, int]:
    """appId → version of every application transaction in the table's state at `version`.

    `deltalake` looks up one name at a time and gives no list. Reads the newest complete checkpoint and the commits
    after it, of the checkpoint the one column only.
    """
    names = storage.names(_LOG)
    begin, files = _newest_checkpoint(names, version)
    found: dict[str, int] = {}
    for name in files:
        found.update(_of_checkpoint(storage, name))
    commits = ((int(match[1]), match[0]) for match in map(_COMMIT.fullmatch, names) if match)
    for number, name in sorted(commits):
        if begin < number <= version:
            found.update(_of_actions(storage.read(f"{_LOG}/{name}")))
    return found


def _newest_checkpoint(names: list[str], version: int) -> tuple[int, list[str]]:
    """(its version, its files); (-1, []) when there is none."""
    whole: dict[int, list[str]] = {}
    partial: dict[tuple[int, int], list[str]] = {}
    for match in filter(None, map(_CHECKPOINT.fullmatch, names)):
        number = int(match["version"])
        if number > version:
            continue
        if match["parts"] is None:
            whole.setdefault(number, []).append(match[0])
        else:
            partial.setdefault((number, int(match["parts"])), []).append(match[0])
    for (number, parts), files in partial.items():
        if len(files) == parts:
            whole.setdefault(number, []).extend(files)
    newest = max(whole, default=-1)
    return newest, whole.get(newest, [])


def _of_checkpoint(storage: Storage, name: str) -> Iterator[tuple[str, int]]:
    data = storage.read(f"{_LOG}/{name}")
    if name.endswith(".json"):
        yield from _of_actions(data)
        return
    column = pyarrow.parquet.read_table(io.BytesIO(data), columns=["txn"])
    for row in column.to_pylist():
        if row["txn"] is not None:
            yield row["txn"]["appId"], row["txn"]["version"]


def _of_actions(data: bytes) -> Iterator[tuple[str, int]]:
    for line in data.splitlines():
        if b'"txn"' in line:
            action = json.loads(line).get("txn")
            if action is not None:
                yield action["appId"], action["version"]

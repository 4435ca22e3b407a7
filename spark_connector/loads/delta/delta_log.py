"""The commit log of loads into a Delta table is the table's own log: a commit has rows and offsets, or neither.

The commit of a load adds its files. The commit of a rewind deletes the rows of the loads that it takes back. Both set
application transactions (Delta's `txn` actions):

    appId <group>                       version <number of the load>
    appId <group>/<topic>/<partition>   version <next offset>

Transactions outlive the clean-up of the log, because checkpoints keep them. The load's record is in the commit's
`userMetadata` and is lost with the log's retention; the row's column `load` is not. Of two commits with the same appId
Delta lets one win, and a table may have loads of several groups. Uses `deltalake`: no JVM, no jar.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from broker.errors import ConfigError, PykafkaError
from broker.protocol.topic_partition import TopicPartition
from broker.storage.storage import Storage
from spark_connector.loads.change_files import ReadChanges, no_changes
from spark_connector.loads.commit import Newest
from spark_connector.loads.delta.delta_features import check_features, refuse_unopenable, works_of
from spark_connector.loads.delta.delta_feed import commit_with_feed, feed_directory
from spark_connector.loads.delta.delta_merge import Replacement, merged, restore_version, without_loads
from spark_connector.loads.delta.delta_readback import refuse_unreadable
from spark_connector.loads.delta.delta_statistics import TableStatistics
from spark_connector.loads.delta.delta_transactions import versions_of
from spark_connector.loads.record import LoadError, LoadRecord, TableGone, failed_load
from spark_connector.loads.request import LOAD_COLUMN
from spark_connector.loads.table import TableLog
from spark_connector.loads.tasks.written_file import WrittenFile, WrittenFiles
from spark_connector.offset_store.base import OffsetConflict, check_expected
from spark_connector.stored_json import mapping, parsed

_RECORD = "pykafka.load"
_NEAR = 50  # commits to search first for a load's record
_TRIES = 20  # of a rewind, which fails when rows are moved in between


class DeltaCommitLog(TableLog):
    """Loads of one group in the log of one table, which need not exist yet."""

    def __init__(self, storage: Storage, group: str) -> None:
        super().__init__(group)
        self._storage = storage

    def table(self) -> DeltaTable | None:
        """The table as it is now; None when there is none. Raises LoadError when it cannot be opened."""
        try:
            return DeltaTable(self._storage.url, storage_options=self._storage.object_store_options)
        except TableNotFoundError:
            return None
        except (DeltaError, OSError) as error:
            refuse_unopenable(error, self._storage.shown)
            raise failed_load(f"the Delta table {self._storage.shown} cannot be opened: {error}", error) from error

    def is_new_to(self, table: DeltaTable) -> bool:
        """Whether the group has no load in this state of the table."""
        return not self._number(table)

    def newest(self) -> Newest:
        table = self.table()
        number = self._number(table)
        record = self._find(table, number) if table is not None and number else None
        return Newest(number, record.load_id if record else None)

    def offsets(self, partitions: Collection[TopicPartition] = ()) -> dict[TopicPartition, int]:
        table = self.table()
        return {} if table is None else self.state_of(table, partitions)[2]

    def state_of(
        self, table: DeltaTable, partitions: Collection[TopicPartition] = ()
    ) -> tuple[int, LoadRecord | None, dict[TopicPartition, int]]:
        """The number of the group's newest load in this state of the table, its record, and the offsets."""
        known, number = set(partitions), self._number(table)
        # Commits of other writers may have come since the group's newest record.
        records = self._records(table, _NEAR) or (self._records(table) if number else {})
        for record in records.values():
            known.update(record.committed, record.positions)
        return number, records.get(number), self._offsets(table, known)

    def record(self, sequence: int) -> LoadRecord | None:
        """Also None when the log's retention has removed it."""
        table = self.table()
        return None if table is None else self._find(table, sequence)

    def sequences(self) -> list[int]:
        table = self.table()
        return [] if table is None else sorted(self._records(table))

    def records_of_all(self) -> list[LoadRecord]:
        table = self.table()
        found = [] if table is None else [record for record in map(self._record_of, table.history()) if record]
        return sorted(found, key=lambda record: (record.id.group, record.id.sequence))

    def append(self, record: LoadRecord, files: WrittenFiles = (), changes: ReadChanges = no_changes) -> None:
        """`changes` reads those of an upsert, which are merged into the table in place of adding the files."""
        self._storage.probe()
        for _ in range(_TRIES):
            table = self.table()
            if table is None:
                raise TableGone(self._storage.shown)
            if self._is_taken(table, record):
                return
            check_features(table, works_of(record), self._storage.shown)  # another program may have added one since
            check_expected(self._group, self._offsets(table, record.committed), record.expected, record.committed)
            version = table.version()
            try:
                if record.upsert is None:
                    self._commit(table, record, files)
                else:
                    self._merge(table, record, changes())
                self.sync(version)
                return
            except PykafkaError:
                raise  # some of them are ValueErrors too
            except (DeltaError, OSError, ValueError) as error:
                failed = error
                after = self.table()
                if after is not None and self._is_taken(after, record):
                    return
                if after is None or after.version() == version:
                    break
                is_anew = record.rewind is not None or record.upsert is not None
                if not is_anew and not _has_only_grown(table, after):
                    break
                if is_anew:
                    self._forget_files(record)
        raise failed_load(f"load {record.load_id}: Delta's commit failed: {failed}", failed) from failed

    def prune(self, keep: int) -> list[int]:
        raise ConfigError("a Delta table prunes its log itself: set delta.logRetentionDuration")

    def sync(self, version: int) -> None:
        """Make the commits behind this version survive a power failure; the library does not."""
        names = self._storage.names("_delta_log")
        for name in names:
            if name.endswith(".json") and name.removesuffix(".json") > f"{version:020d}":
                self._storage.sync(f"_delta_log/{name}")

    def _commit(self, table: DeltaTable, record: LoadRecord, files: WrittenFiles) -> None:
        """Commit against this state of the table. Another commit of the same group in between makes it fail.

        The DELETE of a rewind removes whole files. It also fails when another commit has moved or removed rows; rows
        that a stream adds in the meantime do not matter. A rewind without a row to delete, or with files that it writes
        anew because a compaction has mixed loads in them, fails on any other commit.
        """
        if record.rewind is not None:
            if (mixed := without_loads(table, self._storage, record)) is not None:
                self._replace(table, record, mixed)
                return
            undone = loads_are(load.load_id for load in record.rewind.undone)
            version = table.version()
            table.delete(undone, commit_properties=self._properties(record, None))
            if table.version() > version:
                return
            # No row was left to delete, so nothing was committed. The offsets still have to go back.
        statistics = TableStatistics.of_table(table)
        actions = [_add_action(record, file, statistics.of(file)) for file in files]
        refuse_unreadable(table.schema(), table.metadata().partition_columns, actions, files)
        self._write(table, actions, self._properties(record, None if record.rewind is None else 0))

    def _merge(self, table: DeltaTable, record: LoadRecord, changes: pa.Table | None) -> None:
        """Commit an upsert, or its rewind, against this state of the table. Any other commit in between makes it fail.

        So what was decided by the rows of the table holds when it is committed.
        """
        assert record.upsert is not None
        properties = self._properties(record, 0)
        if record.is_refusal:
            self._write(table, [], properties)
        elif record.rewind is not None:
            restore_version(table, record, self.loads_by_version(table), properties)
        elif changes is None or (found := merged(table, self._storage, changes, record)) is None:
            self._write(table, [], properties)  # no row has changed, but the offsets move
        else:
            self._replace(table, record, found)

    def _replace(self, table: DeltaTable, record: LoadRecord, change: Replacement) -> None:
        """Commit files in place of others against this state of the table. Any other commit in between makes it fail.
        The new files have survived a power failure before."""
        statistics, files, now = TableStatistics.of_table(table), change.files, time.time_ns() // 1_000_000
        added = [_add_action(record, file, statistics.of(file)) for file in change.added]
        refuse_unreadable(table.schema(), files.partitioning, added)
        removed = [
            RemoveAction(unquote(file.path), True, now, file.size, files.texts_of(file)) for file in change.removed
        ]
        if added:
            self._storage.sync(record.load_id)
        properties = self._properties(record, 0)
        if change.feed is None:
            self._write(table, [*added, *removed], properties)
        else:
            commit_with_feed(table, self._storage, [*added, *removed], change.feed, record.load_id, properties)

    def _properties(self, record: LoadRecord, tries: int | None) -> CommitProperties:
        metadata = {"userMetadata": json.dumps({_RECORD: record.without_files().to_json()})}
        return CommitProperties(metadata, tries, self._transactions(record))

    def _forget_files(self, record: LoadRecord) -> None:
        """Remove the data files of a try that has certainly failed."""
        for directory in (record.load_id, feed_directory(record.load_id)):
            self._storage.remove(directory)

    def _write(self, table: DeltaTable, actions: list[AddAction | RemoveAction], properties: CommitProperties) -> None:
        columns = table.metadata().partition_columns
        table.create_write_transaction(
            actions, "append", table.schema(), partition_by=columns, commit_properties=properties
        )

    def _number(self, table: DeltaTable | None) -> int:
        return 0 if table is None else table.transaction_version(self._group) or 0

    def _is_taken(self, table: DeltaTable, record: LoadRecord) -> bool:
        """Whether the record is committed. Raises OffsetConflict when another load has its number or a later one."""
        number, newest = record.id.sequence, self._number(table)
        if newest == number - 1:
            return False
        winner = self._find(table, number)
        if winner is not None and winner.load_id == record.load_id:
            return True
        raise OffsetConflict(
            f"group '{self._group}': another load has committed number {newest} to {self._storage.shown}; "
            f"{record.load_id} is not committed"
        )

    def _find(self, table: DeltaTable, sequence: int) -> LoadRecord | None:
        return self._records(table, _NEAR).get(sequence) or self._records(table).get(sequence)

    def _records(self, table: DeltaTable, limit: int | None = None) -> dict[int, LoadRecord]:
        """The group's loads among the newest `limit` commits, by number."""
        records = [record for record in map(self._record_of, table.history(limit)) if record is not None]
        return {record.id.sequence: record for record in records if record.id.group == self._group}

    def loads_by_version(self, table: DeltaTable, most: int | None = None) -> dict[int, str]:
        """Version of the table → id of the group's load, or rewind, that made it, of the newest `most` versions."""
        found = ((int(commit["version"]), self._record_of(commit)) for commit in table.history(most))
        return {version: one.load_id for version, one in found if one is not None and one.id.group == self._group}

    def _record_of(self, commit: dict[str, Any]) -> LoadRecord | None:
        metadata = commit.get("userMetadata")
        if not isinstance(metadata, str) or _RECORD not in metadata:
            return None
        where = f"version {commit.get('version')} of {self._storage.shown}"
        try:
            return LoadRecord.from_json(mapping(parsed(metadata), "userMetadata")[_RECORD], where)
        except (ValueError, KeyError) as error:
            raise LoadError(f"{where} does not hold the record of a load: {error!r}") from error

    def _offsets(self, table: DeltaTable, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        app_ids = {tp: self._app_id(tp) for tp in partitions}
        found = versions_of(table, self._storage, app_ids.values())
        return {tp: found[app_id] for tp, app_id in app_ids.items() if app_id in found}

    def _app_id(self, tp: TopicPartition) -> str:
        return f"{self._group}/{tp.topic}/{tp.partition}"

    def _transactions(self, record: LoadRecord) -> list[Transaction]:
        now = time.time_ns() // 1_000_000
        partitions = [Transaction(self._app_id(tp), offset, now) for tp, offset in sorted(record.committed.items())]
        return [Transaction(self._group, record.id.sequence, now), *partitions]


def _has_only_grown(before: DeltaTable, after: DeltaTable) -> bool:
    """Whether another load may have added columns, and nothing else has changed that a load has checked."""
    old, new = before.metadata(), after.metadata()
    names = {field.name for field in after.schema().fields}
    return (
        old.id == new.id
        and old.configuration == new.configuration
        and old.partition_columns == new.partition_columns
        and all(field.name in names for field in before.schema().fields)
    )


def _add_action(record: LoadRecord, file: WrittenFile, stats: str) -> AddAction | RemoveAction:
    return AddAction(
        path=f"{record.load_id}/{file.name}",
        size=file.size,
        partition_values=dict(file.texts),
        modification_time=record.created_ms,
        data_change=True,
        stats=stats,
    )


def loads_are(load_ids: Iterable[str]) -> str:
    """The SQL condition for the rows of these loads."""
    quoted = ("'" + load_id.replace("'", "''") + "'" for load_id in load_ids)
    return f"{LOAD_COLUMN} IN ({', '.join(quoted)})"

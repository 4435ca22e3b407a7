"""The commit log of loads into an Iceberg table is the table itself: a commit has rows and offsets, or neither.

One commit is one `commit_table` of the catalog. It adds a snapshot, and sets a property of the table:

    pykafka.load.<group> = {"record": the load's record, "offsets": {topic: {partition: next offset}}}

The property is the truth. Other programs may let every snapshot expire, and it stays. The summary of the snapshot has
the record, too (`pykafka.load`): this is the history of loads, as long as the table keeps it.

The commit requires that the main branch still ends in the snapshot from which this process has read the group's number
and offsets. So every commit adds a snapshot, also one without rows: properties alone would not be fenced. When another
writer was quicker, number and offsets are read again: a load of the group has won, or the commit is tried anew against
the new state. pyiceberg's own commits, which try again and never ask, are not used.

A commit whose answer is lost may be in the table or not. Then the log looks for its record, and deletes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertRefSnapshotId,
    AssertTableUUID,
    RemoveSnapshotsUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableUpdate,
)

from broker.errors import ConfigError, PykafkaError
from broker.protocol.topic_partition import TopicPartition
from broker.storage.url_secrets import text_without_secrets
from spark_connector.loads.commit import Newest
from spark_connector.loads.iceberg.iceberg_catalog import IcebergPlace, first_line
from spark_connector.loads.iceberg.iceberg_expiry import clean_up, expired_snapshots, requirements_of_expiry
from spark_connector.loads.iceberg.iceberg_files import added_files
from spark_connector.loads.iceberg.iceberg_rewind import rows_removed
from spark_connector.loads.iceberg.iceberg_snapshot import (
    LOAD_SUMMARY,
    Change,
    FilesGone,
    delete_files,
    write_snapshot,
)
from spark_connector.loads.record import LoadError, LoadInterrupted, LoadRecord, LoadTooLarge, TableGone
from spark_connector.loads.table import TableLog
from spark_connector.loads.tasks.written_file import WrittenFiles
from spark_connector.offset_store.base import OffsetConflict, check_expected, offsets_from_json
from spark_connector.stored_json import mapping, parsed

_PROPERTY = "pykafka.load."
_TRIES = 20  # beside writers that commit all the time

KEEP_SNAPSHOTS = 100

Plan = Callable[[Table], Change]
"""What a commit does to the files of the table, as the table is now. Called anew for each try."""


class CommitUnknown(LoadInterrupted):
    """The catalog gave no answer, or an error that leaves open whether it has committed."""


class _NotCommitted(Exception):
    """This try has certainly failed: the table was no longer as the commit requires it."""


@dataclass(frozen=True)
class GroupState:
    """What one state of a table says of a group: all of it belongs to `snapshot_id`, its newest snapshot."""

    snapshot_id: int | None = None
    record: LoadRecord | None = None
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)

    @property
    def number(self) -> int:
        return self.record.id.sequence if self.record else 0

    @property
    def topic_ids(self) -> Mapping[str, str]:
        return self.record.topic_ids if self.record else {}


def state_of(metadata: TableMetadata, group: str, shown: str) -> GroupState:
    """Raises LoadError, naming the table as `shown`, for a property that no load can have written."""
    text = metadata.properties.get(_PROPERTY + group)
    if text is None:
        _refuse_lost_property(metadata, group, shown)
        return GroupState(metadata.current_snapshot_id)
    where = f"property {_PROPERTY}{group} of {shown}"
    try:
        document = mapping(parsed(text), "the property")
        offsets = offsets_from_json(document["offsets"])
        record = LoadRecord.from_json(document["record"], where)
    except (ValueError, KeyError) as error:
        raise LoadError(f"{where} is not what a load has written: {error!r}") from error
    record.refuse_unless(group, record.id.sequence, where)
    return GroupState(metadata.current_snapshot_id, record, offsets)


def groups_of(metadata: TableMetadata) -> list[str]:
    """The groups that have loads in the table."""
    return sorted(name.removeprefix(_PROPERTY) for name in metadata.properties if name.startswith(_PROPERTY))


class IcebergCommitLog(TableLog):
    """Loads of one group in one table, which need not exist yet."""

    MOST_GLUE = 500_000
    """Characters of a property in AWS Glue; its limit is 512,000."""

    def __init__(self, place: IcebergPlace, group: str, keep_snapshots: int | None = KEEP_SNAPSHOTS) -> None:
        super().__init__(group)
        self._place = place
        self._keep_snapshots = keep_snapshots

    def table(self) -> Table | None:
        """The table as it is now; None when there is none. Raises LoadError when it cannot be opened."""
        return self._place.table()

    def state(self, table: Table | None) -> GroupState:
        """Number, offsets and record of the group, in this state of the table."""
        return GroupState() if table is None else state_of(table.metadata, self._group, self._place.shown)

    def newest(self) -> Newest:
        state = self.state(self.table())
        return Newest(state.number, state.record.load_id if state.record else None)

    def offsets(self, partitions: Collection[TopicPartition] = ()) -> dict[TopicPartition, int]:
        return dict(self.state(self.table()).offsets)

    def record(self, sequence: int) -> LoadRecord | None:
        """Also None when the snapshot of the load has expired, unless it is the group's newest."""
        return self._record(self.table(), sequence)

    def sequences(self) -> list[int]:
        return [record.id.sequence for record in self.records()]

    def records_of_all(self) -> list[LoadRecord]:
        table = self.table()
        if table is None:
            return []
        found = [self._record_of(snapshot) for snapshot in table.metadata.snapshots]
        states = [state_of(table.metadata, group, self._place.shown) for group in groups_of(table.metadata)]
        unique = {record.load_id: record for record in (*found, *(state.record for state in states)) if record}
        return sorted(unique.values(), key=lambda record: (record.id.group, record.id.sequence))

    def check(self, record: LoadRecord) -> None:
        """Glue keeps the properties of a table, with a limit for each."""
        table = self.table()
        if not self._place.is_glue or table is None:
            return
        size = len(self._noted(record, self.state(table))[_PROPERTY + self._group])
        if size > self.MOST_GLUE:
            raise LoadTooLarge(
                f"load {record.load_id}: the offsets of {len(record.ranges)} partitions take {size:,} characters in a "
                f"property of {self._place.shown}, and AWS Glue keeps {self.MOST_GLUE:,}: load fewer topics, or use "
                "another catalog"
            )

    def append(self, record: LoadRecord, files: WrittenFiles = (), spec_id: int | None = None) -> None:
        """Commit a load with its files, of the partition spec `spec_id`, or a rewind.

        Raises as `append_change`.
        """
        if record.rewind is None:
            self.append_change(record, lambda table: Change(added_files(table, record.load_id, files, spec_id)))
        else:
            undone, copies = [load.load_id for load in record.rewind.undone], list[str]()

            def plan(table: Table) -> Change:
                delete_files(table.io, copies)  # of a try that has failed
                change = rows_removed(table, undone, record.load_id)
                copies[:] = [file.file_path for file in change.added]
                return change

            self.append_change(record, plan)

    def append_change(self, record: LoadRecord, plan: Plan) -> None:
        """Commit the record and, in the same step, what `plan` does to the files of the table.

        Raises OffsetConflict when another load has the number, and CommitUnknown.
        """
        failed: Exception | None = None
        for _ in range(_TRIES):
            table = self.table()
            if table is None:
                raise TableGone(self._place.shown)
            state = self.state(table)
            if self._is_taken(table, state, record):
                return
            stored = {tp: offset for tp, offset in state.offsets.items() if tp in record.committed}
            check_expected(self._group, stored, record.expected, record.committed)
            try:
                self._commit(table, plan(table), self._noted(record, state), record)
                return
            except (_NotCommitted, FilesGone) as error:
                failed = error
        raise LoadInterrupted(
            f"load {record.load_id} is not committed: other writers of {self._place.shown} were quicker {_TRIES} "
            f"times: {failed}"
        ) from failed

    def replace_files(self, table: Table, change: Change, properties: Mapping[str, str] | None = None) -> bool:
        """Commit a change of files that is no load, to this state of the table: False when it is no longer so.

        For a compaction, which notes itself in `properties`. The offsets of all groups stay. Raises CommitUnknown and
        FilesGone.
        """
        try:
            self._commit(table, change, properties or {}, None)
        except _NotCommitted:
            return False
        return True

    def prune(self, keep: int) -> list[int]:
        raise ConfigError("an Iceberg table keeps the newest snapshots: set keep_snapshots (--keep-snapshots)")

    def close(self) -> None:
        self._place.close()

    def _commit(self, table: Table, change: Change, properties: Mapping[str, str], record: LoadRecord | None) -> None:
        """One try against this state of the table. Raises _NotCommitted when the table has another by now."""
        metadata = table.metadata
        summary = {LOAD_SUMMARY: _compact(record.without_files().to_json())} if record else {}
        expiring = expired_snapshots(metadata, self._keep_snapshots)
        written = write_snapshot(table, change, summary)
        snapshot = written.snapshot
        updates: list[TableUpdate] = [
            SetPropertiesUpdate(updates=dict(properties)),
            AddSnapshotUpdate(snapshot=snapshot),
            SetSnapshotRefUpdate(**_main_branch(metadata, snapshot)),
        ]
        expired: dict[str, Any] = {"snapshot-ids": expiring}
        if expiring:
            updates.append(RemoveSnapshotsUpdate(**expired))
        head = metadata.snapshot_by_name(MAIN_BRANCH)
        read_in: dict[str, Any] = {"snapshot-id": head.snapshot_id if head else None}
        required: list[Any] = [
            AssertTableUUID(uuid=metadata.table_uuid),
            AssertRefSnapshotId(ref=MAIN_BRANCH, **read_in),
        ]
        if expiring:
            required += requirements_of_expiry(metadata)
        try:
            done = self._place.catalog.commit_table(
                table, tuple(required), tuple(updates if properties else updates[1:])
            )
        except Exception as error:
            # Also the answer that the table has changed may be given to the second try of a client's request, after
            # the first one has committed. ValueError: a snapshot to expire is gone; its subclasses tell of an answer
            # that cannot be read, behind which there may be a commit.
            has_failed = isinstance(error, CommitFailedException) or type(error) is ValueError
            if not self._has(snapshot, record, error):
                if not has_failed:
                    raise self._unknown(record, error) from error
                written.remove(table.io)
                raise _NotCommitted(first_line(error)) from error
        else:
            clean_up(table, done.metadata, expiring)

    def _has(self, snapshot: Snapshot, record: LoadRecord | None, failed: Exception) -> bool:
        """Whether the table has this snapshot, or the group this very load. Raises CommitUnknown if nobody can tell."""
        try:
            table = self._place.table()
        except PykafkaError:
            raise self._unknown(record, failed) from failed
        if table is None:
            return False
        if table.metadata.snapshot_by_id(snapshot.snapshot_id) is not None:
            return True
        return record is not None and any(one.load_id == record.load_id for one in self._records(table))

    def _unknown(self, record: LoadRecord | None, error: Exception) -> CommitUnknown:
        what = f"load {record.load_id}" if record else "the change"
        why = text_without_secrets(f"{type(error).__name__}: {first_line(error)}")
        return CommitUnknown(
            f"nobody knows whether {what} is committed to {self._place.shown}: the catalog failed ({why}). Nothing is "
            "deleted; the next load of the group finds out"
        )

    def _noted(self, record: LoadRecord, state: GroupState) -> dict[str, str]:
        """The group's property after the commit of `record`."""
        offsets: dict[str, dict[str, int]] = {}
        for tp, offset in sorted({**state.offsets, **record.committed}.items()):
            offsets.setdefault(tp.topic, {})[str(tp.partition)] = offset
        document = {"record": record.without_files().to_json(), "offsets": offsets}
        return {_PROPERTY + self._group: _compact(document)}

    def _is_taken(self, table: Table, state: GroupState, record: LoadRecord) -> bool:
        """Whether the record is committed. Raises OffsetConflict when another load has its number or a later one."""
        number = record.id.sequence
        if state.number == number - 1:
            return False
        winner = self._record(table, number)
        if winner is not None and winner.load_id == record.load_id:
            return True
        raise OffsetConflict(
            f"group '{self._group}': another load has committed number {state.number} to {self._place.shown}; "
            f"{record.load_id} is not committed"
        )

    def _record(self, table: Table | None, sequence: int) -> LoadRecord | None:
        return next((one for one in self._records(table) if one.id.sequence == sequence), None)

    def _records(self, table: Table | None) -> list[LoadRecord]:
        """The group's records: the newest from the property, the others from the snapshots."""
        if table is None:
            return []
        newest = self.state(table).record
        found = [newest, *(self._record_of(snapshot) for snapshot in reversed(table.metadata.snapshots))]
        return [record for record in found if record is not None and record.id.group == self._group]

    def _record_of(self, snapshot: Snapshot) -> LoadRecord | None:
        return record_of(snapshot, self._place.shown)


def record_of(snapshot: Snapshot, shown: str) -> LoadRecord | None:
    """The load that made a snapshot of the table `shown`; None for a snapshot of another writer. Raises LoadError."""
    text = snapshot.summary.additional_properties.get(LOAD_SUMMARY) if snapshot.summary else None
    if text is None:
        return None
    where = f"snapshot {snapshot.snapshot_id} of {shown}"
    try:
        return LoadRecord.from_json(parsed(text), where)
    except ValueError as error:
        raise LoadError(f"{where} does not hold the record of a load: {error!r}") from error


def _refuse_lost_property(metadata: TableMetadata, group: str, shown: str) -> None:
    """Without the property the next load would load everything again, beside the rows that are there."""
    for snapshot in reversed(metadata.snapshots):
        record = record_of(snapshot, shown)
        if record is not None and record.id.group == group:
            raise LoadError(
                f"{shown} has lost the property {_PROPERTY}{group}, which says how far the loads of group '{group}' "
                f"are, but its snapshots name {record.load_id}: set the property again as an older metadata file has it"
            )


def _main_branch(metadata: TableMetadata, snapshot: Snapshot) -> dict[str, Any]:
    """The reference that makes a snapshot the newest. How long the branch keeps snapshots must not change by that."""
    before = metadata.refs.get(MAIN_BRANCH)
    kept = before.model_dump(by_alias=True, exclude={"snapshot_id", "snapshot_ref_type"}) if before else {}
    return {"ref-name": MAIN_BRANCH, "type": SnapshotRefType.BRANCH, "snapshot-id": snapshot.snapshot_id, **kept}


def _compact(document: Any) -> str:
    return json.dumps(document, separators=(",", ":"))

"""Compaction of an Iceberg table: small files of one partition become large ones, in one snapshot that replaces them.

The commit sets the property `pykafka.compaction.<group>` to the number and the id of the compaction. The properties of
loads stay as they are. Replaced files stay until the snapshots that name them expire.

`vacuum` removes what loads and compactions of the group have left that can no longer be committed: the files below
their directories that no snapshot names.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile, FileFormat, ManifestContent, ManifestEntry, ManifestFile
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation

from broker.errors import ConfigError
from broker.storage.storage import Storage
from spark_connector.loads.compaction import COMPACTED, Compaction, NewFile, TableFile
from spark_connector.loads.history import is_of
from spark_connector.loads.iceberg.iceberg_expiry import may_delete_files
from spark_connector.loads.iceberg.iceberg_files import DATA, data_file
from spark_connector.loads.iceberg.iceberg_log import IcebergCommitLog
from spark_connector.loads.iceberg.iceberg_rows import read_files
from spark_connector.loads.iceberg.iceberg_schema import keys_of
from spark_connector.loads.iceberg.iceberg_snapshot import Change, FilesGone
from spark_connector.loads.record import LoadError, LoadId
from spark_connector.loads.sorted_rows import SortKey
from spark_connector.loads.tasks.required import fitted
from spark_connector.loads.tasks.task_output import TaskOutput
from spark_connector.stored_json import mapping, parsed

_PROPERTY = "pykafka.compaction."


class IcebergCompaction(Compaction[Table]):
    """The compactions of one group in an Iceberg table."""

    place = f"{DATA}/{COMPACTED}"

    def __init__(
        self, log: IcebergCommitLog, group: str, shown: str, storage: Storage, output: Callable[[str], TaskOutput]
    ) -> None:
        super().__init__(group, shown, storage, output)
        self._log = log
        self._data_files: dict[str, DataFile] = {}
        self._order_id: int | None = None

    def table(self) -> Table:
        table = self._log.table()
        if table is None:
            raise ConfigError(f"there is no Iceberg table {self._shown}")
        return table

    def number(self, table: Table) -> int:
        attempt = self._newest(table)
        return attempt.sequence if attempt else 0

    def files(self, table: Table) -> list[TableFile]:
        """Those of the table's partition spec. The time of a file whose snapshot has expired is not known (-1)."""
        times = {snapshot.snapshot_id: snapshot.timestamp_ms for snapshot in table.metadata.snapshots}
        found = []
        for entry in self._entries(table):
            file = entry.data_file
            if file.spec_id != table.metadata.default_spec_id or file.file_format != FileFormat.PARQUET:
                continue
            self._data_files[file.file_path] = file
            values = tuple(file.partition[at] for at in range(len(table.spec().fields)))
            added_ms = times.get(entry.snapshot_id or -1, -1)
            found.append(TableFile(file.file_path, file.file_size_in_bytes, file.record_count, values, added_ms))
        return found

    def dated(self, table: Table, files: Sequence[TableFile]) -> list[TableFile]:
        """By when the storage has got the file, a moment before its commit."""
        location = _location(table) + "/"
        return [
            file
            if file.added_ms >= 0 or not file.path.startswith(location)
            else replace(file, added_ms=self._staging.modified_ms(file.path.removeprefix(location)))
            for file in files
        ]

    def rows_of(self, table: Table, files: Sequence[TableFile]) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        def batches() -> Iterator[pa.RecordBatch]:
            for file in files:
                for part in read_files(table, [FileScanTask(self._data_files[file.path])]):
                    yield from fitted(part, schema).to_batches()

        schema = schema_to_pyarrow(table.schema())
        return schema, batches()

    def order(self, table: Table) -> tuple[SortKey, ...]:
        """The table's sort order; none if it has a transform that is not known here, or a field of a struct."""
        keys, order = keys_of(table.metadata), table.sort_order()
        self._order_id = order.order_id if keys else None
        return keys

    def commit(self, table: Table, attempt: LoadId, removed: Sequence[TableFile], added: Sequence[NewFile]) -> bool:
        metadata, directory = table.metadata, f"{_location(table)}/{self.place_of(attempt)}"
        names = [field.name for field in metadata.spec().fields]
        self._staging.sync(self.place_of(attempt))
        new = []
        for file in added:
            values: Any = file.values
            written, by_name = file.written, dict(zip(names, values, strict=True))
            made = (f"{directory}/{written.name}", written.size, written.metadata(), by_name, metadata.default_spec_id)
            new.append(data_file(metadata, *made, unsaid=written.unsaid, sort_order_id=self._order_id))
        change = Change(new, {file.path for file in removed}, Operation.REPLACE)
        note = json.dumps({"number": attempt.sequence, "id": str(attempt)})
        try:
            return self._log.replace_files(table, change, {_PROPERTY + self._group: note})
        except FilesGone:
            return False

    def is_winner(self, table: Table, attempt: LoadId) -> bool:
        """By the property for the newest, by the files that snapshots name for older ones."""
        newest = self._newest(table)
        if newest is not None and newest.sequence == attempt.sequence:
            return newest == attempt
        return any(f"/{self.place_of(attempt)}/" in path for path in named_files(table))

    def vacuum(self, table: Table) -> int:
        """A number that is taken cannot be committed any more, so nothing of it is still under way.

        Files are told by their names, each of which is given once: the table's location may be spelled anew (s3, s3a).
        """
        if not may_delete_files(table.metadata):
            raise ConfigError(
                f"{self._shown} has gc.enabled = false: other tables may have its files, so vacuum deletes none"
            )
        taken = {DATA: self._log.state(table).number, self.place: self.number(table)}
        left = [
            f"{directory}/{name}"
            for directory, number in taken.items()
            for name in self._names(directory)
            if LoadId.of(name).sequence <= number
        ]
        if not left:
            return 0
        named, deleted = {posixpath.basename(path) for path in named_files(table)}, 0
        for directory in left:
            for name in self._staging.tree_sizes(directory):
                path = f"{directory}/{name}"
                if posixpath.basename(name) not in named:
                    self._staging.remove(path)
                    deleted += 1
        return deleted

    def _names(self, directory: str) -> list[str]:
        return [name for name in self._staging.names(directory) if is_of(self._group, name)]

    def _newest(self, table: Table) -> LoadId | None:
        text = table.metadata.properties.get(_PROPERTY + self._group)
        if text is None:
            return None
        try:
            newest = LoadId.of(str(mapping(parsed(text), "the property")["id"]))
            if newest.group != self._group:
                raise ValueError(f"{newest} is of another group")
            return newest
        except (ValueError, KeyError) as error:
            raise LoadError(
                f"property {_PROPERTY}{self._group} of {self._shown} is not what a compaction has written: {error!r}"
            ) from error

    def _entries(self, table: Table) -> Iterator[ManifestEntry]:
        snapshot = table.metadata.snapshot_by_name(MAIN_BRANCH)
        for manifest in snapshot.manifests(table.io) if snapshot else ():
            if manifest.content == ManifestContent.DATA:
                yield from manifest.fetch_manifest_entry(table.io, discard_deleted=True)
            elif manifest.has_added_files() or manifest.has_existing_files():
                raise ConfigError(
                    f"{self._shown} has delete files of another program: let that program compact it "
                    "(rewrite_data_files in Spark)"
                )


def named_files(table: Table) -> set[str]:
    """The data files of every snapshot of the table, on whatever branch."""
    manifests: dict[str, ManifestFile] = {}
    for snapshot in table.metadata.snapshots:
        manifests.update({one.manifest_path: one for one in snapshot.manifests(table.io)})
    return {
        entry.data_file.file_path
        for manifest in manifests.values()
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False)
    }


def _location(table: Table) -> str:
    return table.location().rstrip("/")

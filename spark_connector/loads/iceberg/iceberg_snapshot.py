"""One new snapshot of an Iceberg table: its manifests and its manifest list.

Written here and not by pyiceberg's transactions: those take the newest state of a table again when a commit fails, and
commit to it, behind the back of a caller who has to decide that. What is written here belongs to the state of the
table that it was made from, and to no other; whoever commits it (iceberg_log.py) asserts that state.

Nothing is visible before that commit. `remove` takes back what was written.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DataFile,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import (
    CHANGED_PARTITION_COUNT_PROP,
    Operation,
    Snapshot,
    Summary,
    UpdateMetrics,
    update_snapshot_summaries,
)

from spark_connector.loads.record import LoadError

LOAD_SUMMARY = "pykafka.load"
"""In the summary of a snapshot: the record of the load that made it."""

_MERGED = 50  # small manifests of one partition spec
_SMALL = 4 << 20  # bytes of a manifest


class FilesGone(LoadError):
    """Data files that a commit would remove are no longer in the table."""


@dataclass(frozen=True)
class Change:
    """What one commit does to the files of a table. `removed` are paths of data files, as the table names them.

    Without any file it is a snapshot with the same rows.
    """

    added: Sequence[DataFile] = ()
    removed: Collection[str] = frozenset()
    operation: Operation = Operation.APPEND


@dataclass
class WrittenSnapshot:
    """A snapshot that is written and not committed."""

    snapshot: Snapshot
    _written: list[str] = field(default_factory=list)

    def remove(self, io: FileIO) -> None:
        """Remove its files, after a commit that has certainly failed."""
        delete_files(io, self._written)


def write_snapshot(table: Table, change: Change, properties: Mapping[str, str]) -> WrittenSnapshot:
    """Write the snapshot that follows the table's newest one. `properties` go into its summary. Raises FilesGone."""
    metadata, written = table.metadata, list[str]()
    writer = _ManifestWriter(table, written)
    parent = metadata.snapshot_by_name(MAIN_BRANCH)
    try:
        manifests, removed = writer.existing(parent, set(change.removed))
        manifests = [*writer.added(change.added), *writer.merged(manifests)]
        summary = _summary(parent, change, removed, properties)
        name = f"snap-{writer.snapshot_id}-0-{uuid.uuid4()}.avro"
        location = table.location_provider().new_metadata_location(name)
        written.append(location)
        sequence_number = metadata.next_sequence_number()
        with write_manifest_list(
            format_version=metadata.format_version,
            output_file=table.io.new_output(location),
            snapshot_id=writer.snapshot_id,
            parent_snapshot_id=parent.snapshot_id if parent else None,
            sequence_number=sequence_number,
            avro_compression="deflate",
        ) as manifest_list:
            manifest_list.add_manifests(manifests)
    except BaseException:
        delete_files(table.io, written)
        raise
    fields: dict[str, Any] = {
        "snapshot-id": writer.snapshot_id,
        "parent-snapshot-id": parent.snapshot_id if parent else None,
        "manifest-list": location,
        "sequence-number": sequence_number,
        "summary": summary,
        "schema-id": metadata.current_schema_id,
    }
    return WrittenSnapshot(Snapshot(**fields), written)


class _ManifestWriter:
    """Writes the manifests of one snapshot."""

    def __init__(self, table: Table, written: list[str]) -> None:
        self._table = table
        self._metadata = table.metadata
        self._written = written
        self._token = uuid.uuid4()
        self.snapshot_id = table.metadata.new_snapshot_id()

    def added(self, files: Sequence[DataFile]) -> Iterator[ManifestFile]:
        """One manifest per partition spec."""
        for spec_id in sorted({file.spec_id for file in files}):
            entries = (self._entry(ManifestEntryStatus.ADDED, file) for file in files if file.spec_id == spec_id)
            yield self._write(spec_id, entries)

    def existing(self, parent: Snapshot | None, removed: set[str]) -> tuple[list[ManifestFile], list[DataFile]]:
        """The manifests of the snapshot before, rewritten where they name a removed file; and the removed files."""
        manifests, gone = [], list[DataFile]()
        for manifest in parent.manifests(self._table.io) if parent else ():
            if not (manifest.has_added_files() or manifest.has_existing_files()):
                continue
            if not removed or manifest.content != ManifestContent.DATA:
                manifests.append(manifest)
                continue
            entries = manifest.fetch_manifest_entry(self._table.io, discard_deleted=True)
            here = [entry.data_file for entry in entries if entry.data_file.file_path in removed]
            gone += here
            manifests.append(self._rewritten(manifest.partition_spec_id, entries, removed) if here else manifest)
        if missing := removed - {file.file_path for file in gone}:
            raise FilesGone(f"{len(missing)} files are no longer in the table, such as {min(missing)}")
        return manifests, gone

    def merged(self, manifests: Sequence[ManifestFile]) -> list[ManifestFile]:
        """Many small manifests of one partition spec become one, so that readers and commits open few."""
        small: dict[int, list[ManifestFile]] = {}
        for manifest in manifests:
            if (
                manifest.content == ManifestContent.DATA
                and manifest.manifest_length < _SMALL
                and manifest.added_snapshot_id != self.snapshot_id
            ):
                small.setdefault(manifest.partition_spec_id, []).append(manifest)
        merged = {spec_id: found for spec_id, found in small.items() if len(found) >= _MERGED}
        names = {manifest.manifest_path for found in merged.values() for manifest in found}
        kept = [manifest for manifest in manifests if manifest.manifest_path not in names]
        for spec_id, found in merged.items():
            entries = (entry for one in found for entry in one.fetch_manifest_entry(self._table.io))
            kept.append(self._rewritten(spec_id, entries, frozenset()))
        return kept

    def _rewritten(self, spec_id: int, entries: Iterable[ManifestEntry], removed: Collection[str]) -> ManifestFile:
        def status(entry: ManifestEntry) -> ManifestEntryStatus:
            gone = entry.data_file.file_path in removed
            return ManifestEntryStatus.DELETED if gone else ManifestEntryStatus.EXISTING

        return self._write(spec_id, (self._entry(status(entry), entry.data_file, entry) for entry in entries))

    def _entry(self, status: ManifestEntryStatus, file: DataFile, before: ManifestEntry | None = None) -> ManifestEntry:
        is_old = before is not None and status == ManifestEntryStatus.EXISTING
        return ManifestEntry.from_args(
            status=status,
            snapshot_id=before.snapshot_id if before is not None and is_old else self.snapshot_id,
            sequence_number=before.sequence_number if before else None,
            file_sequence_number=before.file_sequence_number if before else None,
            data_file=file,
        )

    def _write(self, spec_id: int, entries: Iterable[ManifestEntry]) -> ManifestFile:
        name = f"{self._token}-m{len(self._written)}.avro"
        location = self._table.location_provider().new_metadata_location(name)
        self._written.append(location)
        with write_manifest(
            format_version=self._metadata.format_version,
            spec=self._metadata.specs()[spec_id],
            schema=self._metadata.schema(),
            output_file=self._table.io.new_output(location),
            snapshot_id=self.snapshot_id,
            avro_compression="deflate",
        ) as writer:
            for entry in entries:
                writer.add_entry(entry)
        return writer.to_manifest_file()


def _summary(
    parent: Snapshot | None,
    change: Change,
    removed: Iterable[DataFile],
    properties: Mapping[str, str],
) -> Summary:
    collected, partitions = UpdateMetrics(), set[object]()  # pyiceberg's own collector names them by Python's dates
    for files, count in ((change.added, collected.add_file), (removed, collected.remove_file)):
        for file in files:
            count(file)
            if len(file.partition):
                partitions.add((file.spec_id, *map(file.partition.__getitem__, range(len(file.partition)))))
    changed = {CHANGED_PARTITION_COUNT_PROP: str(len(partitions))} if partitions else {}
    # pyiceberg adds up the totals of any operation but REPLACE, which it does not write itself.
    summary = update_snapshot_summaries(
        Summary(Operation.OVERWRITE, **collected.to_dict(), **changed, **properties),
        parent.summary.additional_properties if parent and parent.summary else None,
    )
    return Summary(change.operation, **summary.additional_properties)


def delete_files(io: FileIO, locations: Iterable[str]) -> None:
    """Delete files that nothing names any more; one that cannot be deleted is left."""
    for location in locations:
        with contextlib.suppress(OSError):
            io.delete(location)

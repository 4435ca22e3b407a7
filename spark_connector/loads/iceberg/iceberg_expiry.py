"""Old snapshots of an Iceberg table: which expire with a commit, what the commit requires for it, and whose files go.

A catalog removes the branches and tags of a snapshot that expires, without a word. So a commit that lets snapshots
expire requires that the table has the branches and tags by which it was decided, and no others: somebody else may set
one in the very moment. Catalogs that pyiceberg changes itself (sql, glue, hive) check all of that with the commit. A
REST catalog knows no requirement for "no others", also not for Iceberg's own expiry: there `clean_up` finds what the
commit has removed, in the metadata that it replaced, deletes no file and says what to do.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import time
from collections.abc import Collection, Sequence
from typing import Any

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestContent, ManifestEntryStatus
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot, ancestors_of
from pyiceberg.table.update import AssertRefSnapshotId, AssertTableUUID

from broker.errors import ConfigError
from broker.stored_names import number_named
from spark_connector.loads.iceberg.iceberg_snapshot import LOAD_SUMMARY, delete_files

logger = logging.getLogger("pykafka.spark")

_DELETES_METADATA = "write.metadata.delete-after-commit.enabled"
_COLLECTS = "gc.enabled"
_LEAST_KEPT = "history.expire.min-snapshots-to-keep"
_LEAST_AGE = "history.expire.max-snapshot-age-ms"
_MOST_EXPIRED = 2
_MOST_EXPIRED_OF_MANY = 20
_MANY = 500  # snapshots


def expired_snapshots(metadata: TableMetadata, keep: int | None) -> list[int]:
    """The oldest snapshots of the main branch beyond `keep`, few at a time: pyiceberg copies the metadata for each.
    None lets none expire.

    One that a branch or tag needs stays, and so does the newest of now, beside the new one. None expires when other
    tables may have the same files, which `gc.enabled` = false says. What the table or its main branch says about how
    many snapshots stay, and how long, holds beside `keep`. Raises ConfigError for a property that says nothing.
    """
    count = len(metadata.snapshots)
    if keep is None or not may_delete_files(metadata):
        return []
    least, age_ms = _kept_by_table(metadata)
    needed = {ref.snapshot_id for ref in metadata.refs.values()}
    for name, ref in metadata.refs.items():
        if name != MAIN_BRANCH:
            needed.update(one.snapshot_id for one in ancestors_of(metadata.snapshot_by_id(ref.snapshot_id), metadata))
    chain = list(ancestors_of(metadata.current_snapshot(), metadata))  # newest first
    since_ms = time.time_ns() // 1_000_000 - age_ms
    old = [one.snapshot_id for one in chain[max(0, least - 1) :] if age_ms < 0 or one.timestamp_ms < since_ms]
    oldest = [snapshot_id for snapshot_id in reversed(old) if snapshot_id not in needed]
    at_once = _MOST_EXPIRED_OF_MANY if count > _MANY else _MOST_EXPIRED
    return oldest[: max(0, min(at_once, count + 1 - keep))]


def _kept_by_table(metadata: TableMetadata) -> tuple[int, int]:
    """(least number of snapshots of the main branch, milliseconds that each stays, -1 for no such time)."""
    main = metadata.refs.get(MAIN_BRANCH)
    least = main.min_snapshots_to_keep if main else None
    age_ms = main.max_snapshot_age_ms if main else None
    return (
        _number(metadata, _LEAST_KEPT, 1) if least is None else least,
        _number(metadata, _LEAST_AGE, -1) if age_ms is None else age_ms,
    )


def _number(metadata: TableMetadata, name: str, default: int) -> int:
    text = metadata.properties.get(name)
    if text is None:
        return default
    number = number_named(text.strip())
    if number is None:
        raise ConfigError(f"the property {name} of the table must be a number, not '{text}'")
    return number


def may_delete_files(metadata: TableMetadata) -> bool:
    """Whether the files of the table are its own: a table that was made of another one's files says no."""
    return metadata.properties.get(_COLLECTS, "true").lower() != "false"


class _AssertNoOtherRefs(AssertTableUUID):
    """No branches and tags but these. To a REST catalog, which does not know it, it only asserts the table's UUID."""

    _names: frozenset[str] = frozenset()  # the underscore keeps it out of what a REST catalog is sent

    @classmethod
    def of(cls, metadata: TableMetadata) -> _AssertNoOtherRefs:
        made = cls(uuid=metadata.table_uuid)
        made._names = frozenset(metadata.refs)
        return made

    def validate(self, base_metadata: TableMetadata | None) -> None:  # type: ignore[override]
        super().validate(base_metadata)
        if base_metadata is not None and (new := base_metadata.refs.keys() - self._names):
            raise CommitFailedException(f"Requirement failed: {min(new)} was created concurrently")


def requirements_of_expiry(metadata: TableMetadata) -> list[Any]:
    """That the table has the branches and tags of `metadata` beside main, and no others."""
    found: list[Any] = [_AssertNoOtherRefs.of(metadata)]
    for name, ref in metadata.refs.items():
        if name != MAIN_BRANCH:
            here: dict[str, Any] = {"snapshot-id": ref.snapshot_id}
            found.append(AssertRefSnapshotId(ref=name, **here))
    return found


def clean_up(table: Table, after: TableMetadata, expired: Collection[int]) -> None:
    """Delete the files that only expired snapshots name, and old metadata files if the table says so.

    `table` and `after` are the table before and after the commit that removed the snapshots. A manifest list belongs to
    one snapshot. Manifests and data files go only when every snapshot that remains follows the expired ones: a tag, a
    branch, or an older snapshot may name them, too. What is not deleted is left to the table's own care
    (remove_orphan_files).
    """
    io, before = table.io, table.metadata
    if expired and _has_lost_refs(table, after, expired):
        return
    if after.properties.get(_DELETES_METADATA, "").lower() == "true":
        kept = {entry.metadata_file for entry in after.metadata_log}
        delete_files(io, [one.metadata_file for one in before.metadata_log if one.metadata_file not in kept])
    chain = list(reversed(list(ancestors_of(before.current_snapshot(), before))))
    remaining = {snapshot.snapshot_id: snapshot for snapshot in after.snapshots}
    for at, snapshot in enumerate(chain[:-1]):  # the newest of then is never expired
        if snapshot.snapshot_id not in expired or snapshot.snapshot_id in remaining:
            continue
        garbage = [snapshot.manifest_list]
        following = _line_from(after, chain[at + 1].snapshot_id, chain[at + 1 :])
        if remaining.keys() <= {one.snapshot_id for one in following}:
            with contextlib.suppress(OSError):
                garbage += _only_before(io, snapshot, following)
        delete_files(io, garbage)


def _has_lost_refs(table: Table, after: TableMetadata, expired: Collection[int]) -> bool:
    """Whether the commit has removed branches or tags that were set since `table` was read. Says which."""
    replaced = after.metadata_log[-1].metadata_file if after.metadata_log else table.metadata_location
    if replaced == table.metadata_location:
        return False
    try:
        refs = FromInputFile.table_metadata(table.io.new_input(replaced)).refs
    except Exception as error:  # of any library behind the table's files
        logger.warning("%s cannot be read, so no file of the snapshots that expire is deleted: %r", replaced, error)
        return True
    lost = [name for name, ref in refs.items() if ref.snapshot_id in expired]
    for name in lost:
        logger.warning(
            "%s: '%s' was set on snapshot %s while a load let that snapshot expire, and the catalog has removed both. "
            "Its files stay until later commits remove them: copy its rows from the table that CALL "
            "system.register_table in Spark makes of the metadata file %s",
            *(".".join(table.name()), name, refs[name].snapshot_id, replaced),
        )
    return bool(lost)


def _line_from(after: TableMetadata, first: int, known: Sequence[Snapshot]) -> list[Snapshot]:
    """The snapshots of the main branch from this one on, oldest first. `known`: those of before, also expired ones."""
    names = {one.snapshot_id for one in known}
    newer = [one for one in ancestors_of(after.current_snapshot(), after) if one.snapshot_id not in names]
    found = [*known, *reversed(newer)]
    is_line = all(child.parent_snapshot_id == parent.snapshot_id for parent, child in itertools.pairwise(found))
    return found if is_line and found[0].snapshot_id == first else []


def _only_before(io: FileIO, snapshot: Snapshot, following: Sequence[Snapshot]) -> list[str]:
    """The manifests and data files that the snapshot's child no longer has, and no snapshot after it has again.

    `following`: the child and all after it. A load never brings a file back; another writer may.
    """
    child = following[0]
    kept = {manifest.manifest_path: manifest for manifest in child.manifests(io)}
    garbage = {one.manifest_path for one in snapshot.manifests(io)} - kept.keys()
    if not garbage:
        return []
    for manifest in kept.values():
        if manifest.added_snapshot_id == child.snapshot_id and manifest.content == ManifestContent.DATA:
            for entry in manifest.fetch_manifest_entry(io, discard_deleted=False):
                if entry.status == ManifestEntryStatus.DELETED and entry.snapshot_id == child.snapshot_id:
                    garbage.add(entry.data_file.file_path)
    for parent, later in itertools.pairwise((snapshot, *following)):
        if later.summary is None or LOAD_SUMMARY not in later.summary.additional_properties:
            garbage -= _brought_by(io, parent, later)
    return sorted(garbage)


def _brought_by(io: FileIO, parent: Snapshot, snapshot: Snapshot) -> set[str]:
    """The manifests that a snapshot has and its parent has not, and the files that these say the table has."""
    before = {one.manifest_path for one in parent.manifests(io)}
    new = [one for one in snapshot.manifests(io) if one.manifest_path not in before]
    files = {entry.data_file.file_path for one in new for entry in one.fetch_manifest_entry(io)}
    return files | {one.manifest_path for one in new}

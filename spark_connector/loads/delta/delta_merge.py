"""What an upsert or a rewind makes of the files of a Delta table: copy on write, of the files that have a changed row.

Files are skipped by the bounds of the key, and by partitions. Of the others the key is read, and those that have one of
the load's keys are written anew, together with the rows of the load: many small loads do not make many files.
deltalake has a MERGE and a DELETE, but the statistics that it writes hide rows with infinity, NaN or long decimals, and
a date after the year 9999 makes the table unreadable.

A rewind of an upsert goes back by the table's own versions.

Memory: the changes of the load after deduplication, and what waits for a row group; of a table with a change feed also
the rows that are replaced.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import DeltaError

from broker.errors import ConfigError
from broker.storage.storage import Storage
from spark_connector.loads.change_files import UPSERT_PROPERTY, marker_of
from spark_connector.loads.changes import DELETED, OFFSET, PLACE
from spark_connector.loads.compaction import TableFile
from spark_connector.loads.delta.delta_feed import CHANGE, feed_directory, has_feed
from spark_connector.loads.delta.delta_files import DeltaFiles
from spark_connector.loads.last_changes import rows_of_keys, touched, without_rows
from spark_connector.loads.record import LoadRecord
from spark_connector.loads.request import LOAD_COLUMN
from spark_connector.loads.tasks.required import refuse_nulls
from spark_connector.loads.tasks.written_file import WrittenFile

COMPACTION = "pykafka.compaction"
"""In the metadata of a commit that moves rows and changes none (delta_compaction.py)."""
_HARMLESS = ("OPTIMIZE", "VACUUM START", "VACUUM END", "ADD COLUMN", "SET TBLPROPERTIES")
"""Operations that do not change the rows."""


@dataclass(frozen=True)
class Replacement:
    """Files that leave a table, and those that come, below the directory of the load. `feed`: those of its change feed,
    None for a table without one."""

    files: DeltaFiles
    removed: Sequence[TableFile]
    added: Sequence[WrittenFile]
    feed: Sequence[WrittenFile] | None = None


def merged(table: DeltaTable, storage: Storage, changes: pa.Table, record: LoadRecord) -> Replacement | None:
    """What the changes make of the files of this state of the table; None when no row changes.

    Raises LoadError for a change that cannot be ordered and for a null in a column that the table requires, ConfigError
    for files that cannot be written anew, OSError and ArrowException.
    """
    assert record.upsert is not None
    key, files = record.upsert.key, DeltaFiles(table, storage)
    found, wanted = touched(changes, record.upsert, files.of_keys(changes, key), files.read)
    new = wanted.filter(pc.invert(wanted.column(DELETED)))
    if not found and not new.num_rows:
        return None
    refuse_nulls(new, files.schema, PLACE)
    new, told = _in_columns(new, files.relaxed), list[pa.Table]()
    tells = has_feed(table)

    def parts() -> Iterator[pa.Table]:
        for file in found:
            for part in files.read(file):
                rows, matches = rows_of_keys(wanted, part, key)
                if tells and len(rows):
                    is_deleted = wanted.column(DELETED).take(matches)
                    told.append(_told(part.take(rows), pc.if_else(is_deleted, "delete", "update_preimage")))
                yield without_rows(part, rows)
        yield new

    added = files.write(parts(), record.load_id)
    if not tells:
        return Replacement(files, found, added)
    if told:
        replaced, _ = rows_of_keys(pa.concat_tables(told), new, key)
        told.append(_told(new.take(replaced), "update_postimage"))
        new = without_rows(new, replaced)
    return Replacement(files, found, added, _feed(files, [*told, _told(new, "insert")], record))


def without_loads(table: DeltaTable, storage: Storage, record: LoadRecord) -> Replacement | None:
    """The files without the rows of the loads that a rewind takes back; None when none has rows of others, too, so that
    whole files leave the table.

    Raises ConfigError for files that cannot be written anew, LoadError, OSError and ArrowException.
    """
    assert record.rewind is not None
    undone = pa.array([load.load_id for load in record.rewind.undone], pa.string())
    files, told = DeltaFiles(table, storage), list[pa.Table]()
    whole, mixed = files.of_loads(undone)
    if not mixed:
        return None

    def kept(file: TableFile, *, tells: bool) -> Iterator[pa.Table]:
        for part in files.read(file):
            is_undone = pc.is_in(part.column(LOAD_COLUMN), value_set=undone)
            if tells:
                told.append(_told(part.filter(is_undone), "delete"))
            yield part.filter(pc.invert(is_undone))

    tells = has_feed(table)
    added = files.write((part for file in mixed for part in kept(file, tells=tells)), record.load_id)
    if not tells:
        return Replacement(files, [*whole, *mixed], added)
    for file in whole:
        told += [_told(part, "delete") for part in files.read(file)]
    return Replacement(files, [*whole, *mixed], added, _feed(files, told, record))


def _in_columns(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows with all columns of the table: those that records no longer have are null."""
    columns = [
        rows.column(field.name).cast(field.type)
        if field.name in rows.schema.names
        else pa.chunked_array([pa.nulls(rows.num_rows, field.type)])
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def _told(rows: pa.Table, how: pa.ChunkedArray | str) -> pa.Table:
    """The rows as the change feed has them."""
    column = pa.repeat(pa.scalar(how), rows.num_rows) if isinstance(how, str) else how
    return rows.append_column(CHANGE, column)


def _feed(files: DeltaFiles, told: Sequence[pa.Table], record: LoadRecord) -> list[WrittenFile]:
    return files.write(told, feed_directory(record.load_id), [CHANGE])


def restore_version(
    table: DeltaTable, rewind: LoadRecord, of_load: dict[int, str], properties: CommitProperties
) -> None:
    """Bring back the rows of the load that the rewind names. `of_load`: version → id of the load that made it.

    Raises ConfigError when the version is gone, or another writer has changed the table since.
    """
    version = version_to_restore(table, rewind, of_load)
    try:
        table.restore(version, commit_properties=properties)
    except DeltaError as error:
        if "not found" in str(error).lower() or "missing" in str(error).lower():
            raise ConfigError(
                f"version {version} of the Delta table, to which {rewind.load_id} would go back, has lost files to "
                "VACUUM: load the topic into a new table"
            ) from error
        raise


def version_to_restore(table: DeltaTable, rewind: LoadRecord, of_load: Mapping[int, str]) -> int:
    """The version of the table after the load to go back to. Raises ConfigError, see `restore_version`."""
    assert rewind.rewind is not None
    back = [version for version, load_id in of_load.items() if load_id == rewind.rewind.to_load]
    if not back:
        raise ConfigError(
            f"the log of the Delta table no longer has load {rewind.rewind.to_load}: a table with one row per key goes "
            "back by its versions only. Load the topic into a new table"
        )
    for commit in table.history():
        version, operation = int(commit["version"]), str(commit.get("operation"))
        if version <= back[0]:
            break
        if version not in of_load and operation not in _HARMLESS and COMPACTION not in str(commit.get("userMetadata")):
            raise ConfigError(
                f"version {version} of the Delta table ({operation}) is of another writer, whose rows would be lost: a "
                "table with one row per key goes back by its versions only"
            )
    return back[0]


def upsert_marker(table: DeltaTable) -> str | None:
    """What the table keeps in UPSERT_PROPERTY: in the metadata of the column `_offset`."""
    fields = json.loads(table.schema().to_json())["fields"]
    found = (field["metadata"].get(UPSERT_PROPERTY) for field in fields if field["name"] == OFFSET)
    return next(found, None)


def marked(schema: pa.Schema, record: LoadRecord) -> pa.Schema:
    """The columns of a new table, with the marker of an upsert."""
    if record.upsert is None:
        return schema
    at = schema.get_field_index(OFFSET)
    return schema.set(at, schema.field(at).with_metadata({UPSERT_PROPERTY: marker_of(record)}))

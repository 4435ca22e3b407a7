"""The commit of an upsert into a Delta table: one MERGE, and the way back by the table's own versions.

`deltalake` writes the files that have a changed row anew and keeps the others. Rows and the table's log are read in
the state that the MERGE is made against, and the commit is not tried again behind our back: when another writer was
quicker, delta_log.py reads the new state and merges anew.

Memory: the changes of the load after deduplication, which DataFusion joins with the files that may hold their keys.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError

from broker.errors import ConfigError
from spark_connector.loads.change_files import UPSERT_PROPERTY, marker_of
from spark_connector.loads.changes import DELETED, OFFSET, PLACE
from spark_connector.loads.delta.delta_bounds import refuse_wrong_bounds
from spark_connector.loads.last_changes import StoredRows, stored_columns
from spark_connector.loads.record import LoadRecord
from spark_connector.loads.tasks.required import refuse_nulls
from spark_connector.loads.upsert import Upsert

COMPACTION = "pykafka.compaction"
"""In the metadata of a commit that moves rows and changes none (delta_compaction.py)."""
_HARMLESS = ("OPTIMIZE", "VACUUM START", "VACUUM END", "ADD COLUMN", "SET TBLPROPERTIES")
"""Operations that do not change the rows."""


def merge_changes(table: DeltaTable, changes: pa.Table, upsert: Upsert, properties: CommitProperties) -> bool:
    """Merge into this state of the table, in one commit. False when no row changes, and nothing was committed.

    Raises LoadError for a change that cannot be ordered, for a null in a column that the table requires, for a value
    whose bounds would be wrong (delta_bounds.py), and DeltaError.
    """
    version = table.version()
    stored = StoredRows(changes, upsert)
    for part in _stored(table, changes, upsert):
        stored.take_in(part)
    wanted = stored.wanted
    if wanted.num_rows:
        written = wanted.filter(pc.invert(wanted.column(DELETED)))
        refuse_nulls(written, pa.schema(table.schema().to_arrow()), PLACE)
        refuse_wrong_bounds(written, table, PLACE)
        columns = {_quoted(name): f"s.{_quoted(name)}" for name in wanted.column_names if name != DELETED}
        gone = (field.name for field in table.schema().fields if field.name not in wanted.column_names)
        replaced = {**columns, **{_quoted(name): "NULL" for name in gone}}  # columns that records no longer have
        merger = table.merge(
            wanted,
            " AND ".join(f"t.{_quoted(name)} = s.{_quoted(name)}" for name in upsert.key),
            source_alias="s",
            target_alias="t",
            streamed_exec=False,  # so that files are skipped by the bounds of the keys
            commit_properties=properties,
        )
        merger = merger.when_matched_delete(f"s.{_quoted(DELETED)}")
        merger = merger.when_matched_update(replaced, f"NOT s.{_quoted(DELETED)}")
        merger.when_not_matched_insert(columns, f"NOT s.{_quoted(DELETED)}").execute()
    return table.version() > version


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


def without_views(part: pa.Table) -> pa.Table:
    """Text and bytes as other tables have them: pyarrow cannot take rows of the views that DataFusion gives."""
    plain = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
    return part.cast(pa.schema([field.with_type(plain.get(field.type, field.type)) for field in part.schema]))


def _stored(table: DeltaTable, changes: pa.Table, upsert: Upsert) -> Iterator[pa.Table]:
    select = ", ".join(map(_quoted, stored_columns(upsert)))
    found = QueryBuilder().register("t", table).execute(f"SELECT {select} FROM t WHERE {_bounds(changes, upsert.key)}")
    for part in pa.RecordBatchReader.from_stream(found):
        if part.num_rows:
            yield without_views(pa.Table.from_batches([part]))


def _bounds(changes: pa.Table, key: Sequence[str]) -> str:
    """A condition that all keys of the changes fulfil, by which files are skipped."""
    bounds = []
    for name in key:
        column = changes.column(name)
        if pa.types.is_integer(column.type) and changes.num_rows:
            low, high = pc.min_max(column).as_py().values()
            bounds.append(f"{_quoted(name)} BETWEEN {low} AND {high}")
    return " AND ".join(bounds) or "true"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'

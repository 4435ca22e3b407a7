"""Adds and widens columns of an Iceberg table, before a load writes a row (evolution.py decides).

The commit requires that the table still has the schema with which it was decided. Of two processes that alter it one is
refused, reads the schema of the other, and decides again: pyiceberg's own commits would try again without asking.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.update import AssertTableUUID
from pyiceberg.table.update.schema import UpdateSchema
from pyiceberg.types import IcebergType

from broker.errors import ConfigError
from spark_connector.loads.evolution import AddColumn, Step, evolve
from spark_connector.loads.iceberg.iceberg_catalog import IcebergPlace, first_line
from spark_connector.loads.iceberg.iceberg_schema import check_version, fitted_spec, new_schema
from spark_connector.loads.record import TableGone, failed_load
from spark_connector.loads.tasks.columns import TableColumns
from spark_connector.loads.tasks.file_layout import FileLayout

_TRIES = 20  # beside others that alter the table


def evolve_table(place: IcebergPlace, table: Table, layout: FileLayout) -> Table:
    """The table when it takes the rows of the layout. Raises ConfigError where the policy does not let it."""
    incoming, failed = layout.schema, None
    check_version(table.metadata, place.shown)
    for _ in range(_TRIES):
        steps = evolve(schema_to_pyarrow(table.schema()), incoming, layout.evolution, where=place.shown)
        if not steps:
            return table
        fitted_spec(table.metadata, layout, place.shown)  # nothing is altered for a load that is refused then
        try:
            _alter(place, table, steps)
        except ConfigError:
            raise
        except Exception as error:  # also of a commit whose answer was lost: the table tells
            failed = error
        before, table = table, _reopened(place)
        if failed is not None and table.metadata.current_schema_id == before.metadata.current_schema_id:
            break
    raise failed_load(f"{place.shown} cannot get new columns: {first_line(failed) if failed else steps}", failed or "")


def _alter(place: IcebergPlace, table: Table, steps: Sequence[Step]) -> None:
    update = UpdateSchema(table.transaction())
    try:
        for step in steps:
            if isinstance(step, AddColumn):
                update.add_column(step.path, _iceberg_type(step.type))
            else:
                update.update_column(step.path, _iceberg_type(step.after))
        updates, required = update._commit()
    except (ValueError, TypeError) as error:
        names = ", ".join(".".join(step.path) for step in steps)
        raise ConfigError(f"{place.shown} cannot get the columns {names}: {error}") from error
    place.catalog.commit_table(table, (AssertTableUUID(uuid=table.metadata.table_uuid), *required), updates)


def _iceberg_type(type: pa.DataType) -> IcebergType:
    schema: Schema = new_schema(_single(type))
    return schema.fields[0].field_type


def _single(type: pa.DataType) -> FileLayout:
    schema = pa.schema([("column", type)])
    return FileLayout(schema, TableColumns.of((), schema))


def _reopened(place: IcebergPlace) -> Table:
    table = place.table()
    if table is None:
        raise TableGone(place.shown)
    return table

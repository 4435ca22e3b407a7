"""An Iceberg table that a load has made and none has filled: the next first load gives it its own columns and settings.

A table is made before its first load is committed, because its place and field ids are the catalog's. If that load is
killed, or refused for its records, the table stays without rows and loads. The commit that changes it requires that it
still has no snapshot, so a load that is committed meanwhile keeps the table as it was.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionSpec, assign_fresh_partition_spec_ids
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.sorting import SortOrder, assign_fresh_sort_order_ids
from pyiceberg.table.update import (
    AddPartitionSpecUpdate,
    AddSchemaUpdate,
    AddSortOrderUpdate,
    AssertRefSnapshotId,
    AssertTableUUID,
    RemovePropertiesUpdate,
    SetCurrentSchemaUpdate,
    SetDefaultSortOrderUpdate,
    SetDefaultSpecUpdate,
    SetPropertiesUpdate,
    TableUpdate,
)

from spark_connector.loads.change_files import UPSERT_PROPERTY
from spark_connector.loads.iceberg.iceberg_catalog import IcebergPlace
from spark_connector.loads.iceberg.iceberg_log import groups_of
from spark_connector.loads.iceberg.iceberg_schema import PROPERTIES, new_order, new_schema, new_spec
from spark_connector.loads.record import LoadInterrupted, TableGone
from spark_connector.loads.tasks.file_layout import FileLayout


def is_unused(table: Table) -> bool:
    """Whether a load has made this table, and neither a load nor another program has ever filled it."""
    metadata = table.metadata
    made = PROPERTIES.items() - {("format-version", PROPERTIES["format-version"])} <= metadata.properties.items()
    return made and not metadata.snapshots and not metadata.snapshot_log and not groups_of(metadata)


def made_anew(place: IcebergPlace, table: Table, layout: FileLayout, marker: Mapping[str, str]) -> Table:
    """The unused table with the columns, the partitions and the order of this layout. `marker`: of upserts.

    Raises ConfigError for a layout that Iceberg lacks, and LoadInterrupted when a load has filled the table meanwhile.
    """
    updates = _updates(table.metadata, layout, marker)
    if not updates:
        return table
    unfilled = AssertRefSnapshotId.model_validate({"ref": MAIN_BRANCH, "snapshot-id": None})
    try:
        place.catalog.commit_table(table, (AssertTableUUID(uuid=table.metadata.table_uuid), unfilled), updates)
    except CommitFailedException as error:
        raise LoadInterrupted(
            f"{place.shown}: another load has filled the table, or changed its columns, a moment ago; nothing is lost, "
            "run it again"
        ) from error
    found = place.table()
    if found is None:
        raise TableGone(place.shown)
    return found


def _updates(metadata: TableMetadata, layout: FileLayout, marker: Mapping[str, str]) -> tuple[TableUpdate, ...]:
    """What makes the table such as the layout would make it; none where it is so. No id of the former one is used."""
    updates: list[TableUpdate] = []
    if _described(metadata.schema(), metadata.spec(), metadata.sort_order_by_id(metadata.default_sort_order_id)) != (
        _described(*_wanted(layout, itertools.count(1).__next__))
    ):
        schema, spec, order = _wanted(layout, itertools.count(metadata.last_column_id + 1).__next__)
        first = (metadata.last_partition_id or PARTITION_FIELD_ID_START - 1) + 1
        parts = (one.model_copy(update={"field_id": first + place}) for place, one in enumerate(spec.fields))
        spec = PartitionSpec(*parts, spec_id=max(one.spec_id for one in metadata.partition_specs) + 1)
        schema_id = max(one.schema_id for one in metadata.schemas) + 1
        updates += [
            AddSchemaUpdate(schema=schema.model_copy(update={"schema_id": schema_id})),
            SetCurrentSchemaUpdate(),
            AddPartitionSpecUpdate(spec=spec),
            SetDefaultSpecUpdate(),
        ]
        updates += _order_updates(metadata, order)
    before = metadata.properties.get(UPSERT_PROPERTY)
    if marker and marker.get(UPSERT_PROPERTY) != before:
        updates.append(SetPropertiesUpdate(updates=dict(marker)))
    elif before is not None and not marker:
        updates.append(RemovePropertiesUpdate(removals=[UPSERT_PROPERTY]))
    return tuple(updates)


def _order_updates(metadata: TableMetadata, order: SortOrder) -> list[TableUpdate]:
    """The order without fields has the id 0, and may not be there yet."""
    ids = [one.order_id for one in metadata.sort_orders]
    order_id = max(ids, default=0) + 1 if order.fields else 0
    adds = [] if order_id in ids else [SortOrder(*order.fields, order_id=order_id)]
    added: list[TableUpdate] = [AddSortOrderUpdate.model_validate({"sort-order": one}) for one in adds]
    return [*added, SetDefaultSortOrderUpdate.model_validate({"sort-order-id": order_id})]


def _wanted(layout: FileLayout, next_id: Callable[[], int]) -> tuple[Schema, PartitionSpec, SortOrder]:
    given = new_schema(layout)
    schema = assign_fresh_schema_ids(given, next_id)
    spec = assign_fresh_partition_spec_ids(new_spec(layout, given), given, schema)
    return schema, spec, assign_fresh_sort_order_ids(new_order(layout, given), given, schema)


def _described(schema: Schema, spec: PartitionSpec, order: SortOrder | None) -> tuple[object, ...]:
    """What can be compared: the columns with ids from 1, and names in place of ids."""
    parts = [(schema.find_column_name(one.source_id), str(one.transform), one.name) for one in spec.fields]
    sorts = [(schema.find_column_name(one.source_id), one.direction) for one in (order.fields if order else ())]
    return assign_fresh_schema_ids(schema).as_struct(), parts, sorts

"""From the records of an upsert to the changes of its table: what tasks write, and what the commit reads of it.

Tasks write the records as they are read into files in the staging place of the load, which are never part of the
table. The commit reads them, and merges the last change of each key into the table (last_changes.py). The table has the
row's columns, those that say which record wrote a row, and `load`.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from broker.errors import ConfigError
from spark_connector.loads.changes import DELETED, ChangeDecoder
from spark_connector.loads.grammar import parse_partition_by
from spark_connector.loads.last_changes import last_changes
from spark_connector.loads.reading import placeholder_of
from spark_connector.loads.record import LoadError, LoadRecord
from spark_connector.loads.request import LOAD_COLUMN
from spark_connector.loads.tasks.file_layout import FileLayout
from spark_connector.loads.tasks.required import nulls_where_required
from spark_connector.loads.tasks.transforms import bind, refuse_unfit, unfit_rows
from spark_connector.loads.upsert import Upsert
from spark_connector.stored_json import mapping, parsed, text, texts

UPSERT_PROPERTY = "pykafka.upsert"
"""The property in which a table keeps the key of its rows, and the group whose loads write it."""

OpenInput = Callable[[str], Any]
"""Opens a change file by its name, to read."""

ReadChanges = Callable[[], Any]
"""Gives the changes of a load, a pyarrow Table, or None when it has no records."""


def change_layout(layout: FileLayout) -> FileLayout:
    """The layout in which tasks write the records."""
    return replace(layout, schema=layout.columns.schema, load_id=None, partition_by=(), sort_by=())


def table_layout(record: LoadRecord, records: FileLayout) -> FileLayout:
    """The layout of the table's rows, from that of the records. Raises ConfigError."""
    assert record.upsert is not None
    schema = ChangeDecoder(record.upsert, records.schema).schema
    fields = bind(parse_partition_by(record.partition_by), schema, record.format)
    outside = [field.name for field in fields if field.source not in record.upsert.key]
    if outside:
        raise ConfigError(
            f"partition_by (--partition-by) has {', '.join(outside)}, which is not made of the key's columns "
            f"({', '.join(record.upsert.key)}): a delete knows only its key, and would not find its row in a partition"
        )
    if made := [field.name for field in fields if field.name not in schema.names and record.format != "iceberg"]:
        raise ConfigError(
            f"partition_by (--partition-by) has {made[0]}: with mode=upsert and format={record.format} it takes "
            "columns of the key as they are; transforms of them go with format=iceberg"
        )
    schema = schema.append(pa.field(LOAD_COLUMN, pa.string()))
    return replace(records, schema=schema, load_id=record.load_id, partition_by=fields)


@dataclass(frozen=True)
class UnfitChanges:
    """Finds the records of an upsert whose row its table cannot hold: without a value in a column of the key, or that
    the table requires, or with a partition value that is none of its column's type. Pickled to the executors.

    `records` is the layout of the records, `rows` that of the rows (`table_layout`), `schema` the table's.
    """

    upsert: Upsert
    records: pa.Schema
    rows: FileLayout
    schema: pa.Schema

    def __call__(self, batch: pa.RecordBatch) -> Mapping[int, str]:
        rows, numbers = ChangeDecoder(self.upsert, self.records, placeholder=None).written(batch)
        bad = unfit_rows(rows, self.rows.partition_by) if rows.num_rows else {}
        for found, path in nulls_where_required(rows, self.schema):
            bad |= dict.fromkeys(found.tolist(), f"null in '{path}', which the table requires")
        for name in self.upsert.key:
            missing = pc.indices_nonzero(rows.column(name).combine_chunks().is_null())
            bad |= dict.fromkeys(missing.to_pylist(), f"no value for {name}, a column of the key")
        return {numbers[row].as_py(): why for row, why in bad.items()}


def read_changes(record: LoadRecord, open_input: OpenInput, names: Sequence[str]) -> pa.Table | None:
    """The last change of each key in these files, with the column `load`; None when there are no records.

    Raises LoadError for records that cannot be decided, OSError and ArrowException.
    """
    assert record.upsert is not None
    if not names:
        return None
    with contextlib.closing(open_input(names[0])) as source:
        schema = pyarrow.parquet.read_schema(source)
    decoder = ChangeDecoder(record.upsert, schema, placeholder_of(record.reading or {}))
    changes = last_changes(decoder, record.upsert, _batches(open_input, names, schema))
    kept = changes.filter(pc.invert(changes.column(DELETED)))
    refuse_unfit(kept, bind(parse_partition_by(record.partition_by), decoder.schema, record.format))
    return changes.append_column(LOAD_COLUMN, pa.repeat(pa.scalar(record.load_id), changes.num_rows))


def changes_of(record: LoadRecord, open_input: OpenInput, names: Sequence[str]) -> ReadChanges:
    """`read_changes`, when they are first asked for: a rival that has won may have removed the files by then."""
    return functools.cache(lambda: read_changes(record, open_input, names))


def no_changes() -> None:
    """Those of a load that appends, and of a rewind."""


def marker_of(record: LoadRecord) -> str:
    """What a table keeps in UPSERT_PROPERTY."""
    assert record.upsert is not None
    upsert = record.upsert
    return json.dumps({"key": upsert.key, "order_by": upsert.order_by, "group": record.id.group})


def check_marker(marker: str | None, record: LoadRecord, shown: str) -> None:
    """Raise ConfigError unless a table that exists has the rows of such loads. `marker`: its UPSERT_PROPERTY."""
    if marker is None:
        if record.upsert is not None:
            raise ConfigError(
                f"{shown} was not made by loads with mode=upsert: nothing says which record wrote a row of it. Use a "
                "table of its own"
            )
        return
    try:
        there = mapping(parsed(marker), "the property")
        there = {**there, "key": list(texts(there["key"], "key")), "group": text(there["group"], "group")}
        _ = there["order_by"]
    except (ValueError, KeyError) as error:
        raise LoadError(f"{shown} has a property {UPSERT_PROPERTY} that no load has written: {error!r}") from error
    key = ", ".join(there["key"])
    if record.upsert is None:
        raise ConfigError(
            f"{shown} has one row per {key}, by loads of group '{there['group']}' with mode=upsert: a load that "
            f"appends needs a table of its own, or set mode=upsert and key={','.join(there['key'])}"
        )
    if there["group"] != record.id.group:
        raise ConfigError(
            f"{shown} has one row per {key} by the loads of group '{there['group']}': of two groups nobody could tell "
            "which one's record is the last. Use that group, or a table of its own"
        )
    for name, before, now in (
        ("key", there["key"], list(record.upsert.key)),
        ("order_by", there["order_by"], record.upsert.order_by),
    ):
        if before != now:
            raise ConfigError(f"{shown} was made with {name}={_text(before)}, not {_text(now)}: use a table of its own")


def _text(value: Any) -> str:
    return ",".join(value) if isinstance(value, list) else str(value)


def _batches(open_input: OpenInput, names: Sequence[str], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for name in names:
        with contextlib.closing(open_input(name)) as source:
            for batch in pyarrow.parquet.ParquetFile(source).iter_batches():
                yield batch.cast(schema)

"""The columns that a load reads, and those that it counts, partitions and sorts its rows by. Pure.

`topic` and `partition` are columns of every record; `date` and `hour` are made from its timestamp, always in UTC.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from broker.errors import ConfigError
from spark_connector.loads.grammar import POSITION, ColumnItem, PartitionItem, SortItem, refuse_unknown_column
from spark_connector.options.option_table import did_you_mean
from spark_connector.options.read_options import COLUMNS, SourceOptions

DERIVED = ("date", "hour")
"""Columns that a record does not have."""


def columns_to_read(
    columns: Sequence[ColumnItem], partition_by: Sequence[PartitionItem], options: Mapping[str, str]
) -> list[str]:
    """The reader's columns that the table's columns are made of, and those that rows are counted by."""
    if "columns" in options:
        raise ConfigError("columns (--columns) says what is read, too: leave out the reader's option 'columns'")
    corrupt = options.get("columnnameofcorruptrecord", "_corrupt_record").strip()
    known = {**{name: name for name in COLUMNS}, corrupt: "value", f"{corrupt}_key": "key"}
    needed = {*POSITION}
    for item in columns:
        if item.path[0] not in known:
            similar = did_you_mean(item.path[0], {name.lower(): name for name in known})
            hint = f"{similar} Columns are: {', '.join(COLUMNS)}".lstrip()
            raise ConfigError(f"columns (--columns) {item}: the read has no column '{item.path[0]}'. {hint}")
        needed.add(known[item.path[0]])
    if any(str(item) in DERIVED for item in partition_by):
        needed.add("timestamp")
    return [name for name in COLUMNS if name in needed]


def check_columns(
    source: SourceOptions,
    columns: Sequence[ColumnItem],
    partition_by: Sequence[PartitionItem],
    sort_by: Sequence[SortItem],
) -> None:
    """Raise ConfigError unless the columns are there that a load counts, partitions and sorts its rows by.

    Which fields a value has is known later.
    """
    needed = [*POSITION]
    if any(str(item) in DERIVED for item in partition_by):
        needed.append("timestamp")
    missing = [name for name in needed if name not in source.columns]
    if missing:
        raise ConfigError(
            f"option 'columns' leaves out {', '.join(missing)}, which a load needs to count its rows; the argument "
            "columns (--columns) says which of the columns the table gets"
        )
    if any(item.every for item in columns):
        return
    names = [item.name for item in columns] or [*source.columns, *source.formats.corrupt_columns.values()]
    named: tuple[PartitionItem | SortItem, ...] = (*partition_by, *sort_by)
    for one in named:
        if str(one) not in DERIVED:
            refuse_unknown_column(one, names)

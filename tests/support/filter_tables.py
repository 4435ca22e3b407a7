"""Tables of one column each kind, loaded as a load commits them without Spark and broker, for filters of all engines.

`FilteredTable.load` writes rows by the product's own writer and commits them by its own destination. Every row has an
`id`; what a filter finds is told by ids.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from broker.protocol.topic_partition import TopicPartition
from spark_connector.destinations import open_destination
from spark_connector.loads.record import LoadId, LoadRange, LoadRecord
from spark_connector.loads.request import LOAD_COLUMN, TABLE_FORMATS, Target
from spark_connector.loads.tasks.columns import TableColumns
from spark_connector.loads.tasks.file_layout import FileLayout
from spark_connector.loads.tasks.file_writer import FileWriter

FORMATS = ("delta", "iceberg", "parquet")
_POSITION = [("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())]
_TP = TopicPartition("t", 0)


class FilteredTable:
    """A table in the directory `to`, or in the namespace `lake` of the catalog."""

    def __init__(self, to: Path, format: str, catalog: str | None = None, name: str = "rows") -> None:
        self.to, self.format = to, format
        place = f"iceberg:lake.{name}" if format == "iceberg" else str(to)
        self.target = Target(place, "g", format=format, catalog=catalog).check()
        self._end = 0

    def load(self, columns: pa.Table, **more: Any) -> list[int]:
        """One load of these rows; gives their ids, which are their offsets. `more` is of the FileLayout."""
        start, self._end = self._end, self._end + columns.num_rows
        ids = list(range(start, self._end))
        with open_destination(self.target) as site:
            site.repair()
            stored = site.log.offsets([_TP]).get(_TP)
            load_id = LoadId("g", site.log.newest().sequence + 1, secrets.token_hex(4))
            range_ = LoadRange(_TP.topic, _TP.partition, start, self._end, stored)
            record = LoadRecord(str(load_id), site.url, self.format, site.log.kind, 0, (range_,))
            place = site.stage(record)
            rows = _with_positions(columns, ids)
            schema = rows.schema if self.format not in TABLE_FORMATS else rows.schema.append(_LOAD)
            named = record.load_id if self.format in TABLE_FORMATS else None
            layout = FileLayout(schema, TableColumns.of((), rows.schema), named, **more)
            writer = FileWriter(site.file_layout(record, layout), site.task_output(place))
            for batch in rows.to_batches():
                writer.write(batch)
            files = writer.close()
            site.gather(place, files)
            sealed = record.completed({_TP: len(ids)}, {file.name: file.size for file in files})
            site.seal(sealed)
            site.commit(sealed, files)
        return ids


_LOAD = pa.field(LOAD_COLUMN, pa.string())


def _with_positions(columns: pa.Table, ids: Sequence[int]) -> pa.Table:
    rows = columns.add_column(0, "id", pa.array(ids, pa.int64()))
    places = [["t"] * len(ids), [0] * len(ids), ids]
    for (name, type), values in zip(_POSITION, places, strict=True):
        rows = rows.append_column(name, pa.array(values, type))
    return rows.combine_chunks()

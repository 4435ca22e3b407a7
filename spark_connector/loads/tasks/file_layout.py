"""How the tasks of a load write their files: made by the driver, completed by the destination, pickled to executors."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from spark_connector.formats.write_format import TO_JSON, JsonText
from spark_connector.loads.grammar import NO_CHANGES, Evolution, SortItem
from spark_connector.loads.request import TARGET_FILE_SIZE
from spark_connector.loads.tasks.columns import TableColumns
from spark_connector.loads.tasks.transforms import PartitionField
from spark_connector.loads.write_options import PARQUET


@dataclass(frozen=True)
class FileLayout:
    """`schema` is that of the table's rows, with the column `load` in tables; fields may carry PARQUET:field_id.

    `load_id` fills the column `load`; None for files, whose directory names it. With `directories`, the values of
    `partition_by` are directories, and their columns leave the files; without, files keep all columns of `schema` and
    their directories are names only. `sort_by` sorts the rows of each file. `target_file_size` is in bytes. `evolution`
    is what the driver may change in the table before. `format`: of the files, one of FILES, and its codec. `spec_id`:
    the partition spec of an Iceberg table that `partition_by` is. `int96` writes times in parquet as earlier versions
    did; `text` and `time_zone` say how JSON has them.
    """

    schema: pa.Schema
    columns: TableColumns
    load_id: str | None = None
    partition_by: tuple[PartitionField, ...] = ()
    directories: bool = True
    sort_by: tuple[SortItem, ...] = ()
    format: str = PARQUET
    compression: str = "zstd"
    target_file_size: int = TARGET_FILE_SIZE
    evolution: Evolution = NO_CHANGES
    spec_id: int = 0
    int96: bool = False
    text: JsonText = TO_JSON
    time_zone: str = "UTC"

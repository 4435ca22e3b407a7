"""Rows as parquet: statistics and page index for readers that skip, checksums of pages for the audit."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from spark_connector.loads.column_bounds import Path, RowWatch, with_statistics
from spark_connector.loads.tasks.file_layout import FileLayout
from spark_connector.loads.tasks.rows_file import Ending

_UNIQUE = ("key", "value", "offset", "timestamp")  # columns of Kafka for which a dictionary only costs time
_MAGIC = 4  # bytes with which a file of parquet begins


class ParquetRows:
    """See `RowsFile`."""

    def __init__(self, file: Any, schema: pa.Schema, layout: FileLayout, without_bounds: frozenset[Path]) -> None:
        self._watch = RowWatch(schema)
        self._footers: list[Any] = []
        self._writer = pyarrow.parquet.ParquetWriter(
            file, schema, metadata_collector=self._footers, **_settings(schema, layout, without_bounds)
        )

    def write(self, rows: pa.Table) -> None:
        self._writer.write_table(rows, rows.num_rows)
        self._watch.take_in(rows)

    def close(self) -> Ending:
        self._writer.close()
        (metadata,) = self._footers
        footer = pa.BufferOutputStream()
        metadata.write_metadata_file(footer)
        return Ending(metadata.num_rows, footer.getvalue().to_pybytes()[_MAGIC:], self._watch.unsaid())

    def abort(self) -> None:
        self._writer.is_open = False  # so that it adds no footer


def _settings(schema: pa.Schema, layout: FileLayout, without_bounds: frozenset[Path]) -> dict[str, Any]:
    dictionary = [one.name for one in schema if not _is_unique(one)]
    return {
        "compression": layout.compression,
        "use_dictionary": dictionary or False,
        "write_statistics": with_statistics(schema, without_bounds),
        "write_page_index": True,
        "write_page_checksum": True,
        "store_schema": False,
        **({"use_deprecated_int96_timestamps": True} if layout.int96 else {"coerce_timestamps": "us"}),
        **({"store_decimal_as_integer": True} if _has_decimals(schema) else {}),
    }


def _is_unique(one: pa.Field) -> bool:
    return one.name in _UNIQUE and not pa.types.is_nested(one.type)


def _has_decimals(type: Collection[pa.Field] | pa.Schema) -> bool:
    return any("decimal" in str(one.type) for one in type)

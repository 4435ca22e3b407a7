"""Rows as parquet: statistics and page index for readers that skip, checksums of pages for the audit."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from spark_connector.loads.column_bounds import Path, RowWatch, with_statistics
from spark_connector.loads.footers import is_constant
from spark_connector.loads.request import LOAD_COLUMN
from spark_connector.loads.tasks.file_layout import FileLayout
from spark_connector.loads.tasks.rows_file import Ending

_REPEATED = ("topic", LOAD_COLUMN)  # texts of which a file has few, mostly one
_UNIQUE = ("key", "value", "offset", "timestamp")  # columns of Kafka for which a dictionary only costs time
_MAGIC = 4  # bytes with which a file of parquet begins


class ParquetRows:
    """See `RowsFile`."""

    def __init__(self, file: Any, schema: pa.Schema, layout: FileLayout, without_bounds: frozenset[Path]) -> None:
        self._watch = RowWatch(schema)
        self._footers: list[Any] = []
        self._repeated = [one.name for one in schema if one.name in _REPEATED and pa.types.is_string(one.type)]
        self._schema = schema
        for name in self._repeated:
            number = schema.get_field_index(name)
            self._schema = self._schema.set(
                number, schema.field(number).with_type(pa.dictionary(pa.int32(), pa.string()))
            )
        self._writer = pyarrow.parquet.ParquetWriter(
            file, self._schema, metadata_collector=self._footers, **_settings(schema, layout, without_bounds)
        )

    def write(self, rows: pa.Table) -> None:
        self._writer.write_table(self._with_dictionaries(rows), rows.num_rows)
        self._watch.take_in(rows)

    def _with_dictionaries(self, rows: pa.Table) -> pa.Table:
        """The writer looks at each text to number it, at more than the cost of any other column but the value."""
        for name in self._repeated:
            number = rows.schema.get_field_index(name)
            rows = rows.set_column(number, self._schema.field(number), _numbered(rows.column(number)))
        return rows

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


def _numbered(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    if not len(texts) or texts.null_count or not is_constant(texts):
        return texts.dictionary_encode().unify_dictionaries()
    numbers = pa.py_buffer(bytes(4 * len(texts)))  # all zero
    indices = pa.Array.from_buffers(pa.int32(), len(texts), [None, numbers], null_count=0)
    return pa.chunked_array([pa.DictionaryArray.from_arrays(indices, pa.concat_arrays(texts.slice(0, 1).chunks))])


def _is_unique(one: pa.Field) -> bool:
    return one.name in _UNIQUE and not pa.types.is_nested(one.type)


def _has_decimals(type: Collection[pa.Field] | pa.Schema) -> bool:
    return any("decimal" in str(one.type) for one in type)

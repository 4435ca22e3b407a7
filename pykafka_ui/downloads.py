"""Records as files: JSON lines, and Parquet with the columns of `spark.read.format("pykafka")`."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pyarrow
import pyarrow.parquet

from pykafka_ui.records_query import FoundRecords

MOST_DOWNLOADED = 10_000
_LARGEST_MS = 2**63 // 1000
"""Timestamps are in microseconds in Parquet. Some producers send nanoseconds instead of milliseconds."""
_HEADER = pyarrow.struct([("key", pyarrow.string()), ("value", pyarrow.binary())])
_SCHEMA = pyarrow.schema(
    [
        ("key", pyarrow.binary()),
        ("value", pyarrow.binary()),
        ("topic", pyarrow.string()),
        ("partition", pyarrow.int32()),
        ("offset", pyarrow.int64()),
        ("timestamp", pyarrow.timestamp("us", "UTC")),
        ("headers", pyarrow.list_(_HEADER)),
    ]
)


def _json_lines(found: FoundRecords) -> bytes:
    return "".join(json.dumps(one) + "\n" for one in found.documents()).encode()


def _parquet(found: FoundRecords) -> bytes:
    rows: list[dict[str, Any]] = [
        {
            "key": one.record.key,
            "value": one.record.value,
            "topic": found.asked.topic,
            "partition": one.partition,
            "offset": one.record.offset,
            "timestamp": one.record.timestamp * 1000 if abs(one.record.timestamp) < _LARGEST_MS else None,
            "headers": [{"key": name, "value": content} for name, content in one.record.headers],
        }
        for one in found.page.records
    ]
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, _SCHEMA), file)
    return file.getvalue()


DOWNLOADS: dict[str, tuple[str, Callable[[FoundRecords], bytes]]] = {
    "jsonl": ("application/x-ndjson", _json_lines),
    "parquet": ("application/vnd.apache.parquet", _parquet),
}
"""Ending → media type, and what writes it."""

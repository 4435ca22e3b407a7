"""Rows of a Delta table deleted as Spark does it, by a deletion vector: `deltalake` reads these, but writes none.

The format is Delta's: a `RoaringBitmapArray` of one bitmap with one array container, inline in the log as base85 (Z85).
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_MAGIC = 1681511377
_NO_RUNS = 12346  # a roaring bitmap without run containers


def delete_rows(table: Path, path: str, rows: list[int]) -> None:
    """Commit that these rows, by number, of the table's file `path` are deleted."""
    version = DeltaTable(str(table)).version()
    added = next(add for add in _adds(table) if add["path"] == path)
    bitmap = _bitmap(rows)
    vector = {"storageType": "i", "pathOrInlineDv": _z85(bitmap), "sizeInBytes": len(bitmap), "cardinality": len(rows)}
    features = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
    actions = [
        {"commitInfo": {"timestamp": 1, "operation": "DELETE", "operationParameters": {}}},
        {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}},
        {"remove": {"path": path, "deletionTimestamp": 1, "dataChange": True}},
        {"add": {**added, "deletionVector": vector}},
    ]
    (table / "_delta_log" / f"{version + 1:020d}.json").write_text("\n".join(map(json.dumps, actions)))


def _adds(table: Path) -> list[dict[str, Any]]:
    lines = (line for log in (table / "_delta_log").glob("*.json") for line in log.read_text().splitlines())
    return [action["add"] for action in map(json.loads, lines) if "add" in action]


def _bitmap(rows: list[int]) -> bytes:
    container = struct.pack("<II", _NO_RUNS, 1) + struct.pack("<HHI", 0, len(rows) - 1, 16)
    return struct.pack("<IQI", _MAGIC, 1, 0) + container + struct.pack(f"<{len(rows)}H", *sorted(rows))


def _z85(data: bytes) -> str:
    text = ""
    for (number,) in struct.iter_unpack(">I", data + b"\0" * (-len(data) % 4)):
        digits = []
        for _ in range(5):
            number, digit = divmod(number, 85)
            digits.append(_Z85[digit])
        text += "".join(reversed(digits))
    return text

"""Tables that demand something of their writers, written into the log as another program would: the features of Delta's
protocol of which `deltalake` makes few itself. And a deletion vector, as Spark deletes a row."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

_READERS = (
    *("columnMapping", "deletionVectors", "timestampNtz", "v2Checkpoint", "catalogManaged", "vacuumProtocolCheck"),
    *("typeWidening", "typeWidening-preview", "variantType", "variantType-preview"),
)
"""Features that readers must know, too."""


@dataclass(frozen=True)
class Demand:
    """What a table demands: features, or a writer version below 7; its properties, the metadata of its columns, and
    columns that it has besides."""

    features: Sequence[str] = ()
    version: int = 7
    properties: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    columns: Mapping[str, str] = field(default_factory=dict)

    @property
    def protocol(self) -> dict[str, Any]:
        if self.version < 7:
            return {"minReaderVersion": 2 if self.version > 4 else 1, "minWriterVersion": self.version}
        readers = [name for name in self.features if name in _READERS]
        versions = {"minReaderVersion": 3 if readers else 1, "minWriterVersion": 7}
        return {**versions, **({"readerFeatures": readers} if readers else {}), "writerFeatures": [*self.features]}


def demand(table: Path, wanted: Demand) -> None:
    """Commit what another program commits that alters the table so."""
    metadata = _newest(table, "metaData")
    schema = json.loads(metadata["schemaString"])
    is_mapped = wanted.properties.get("delta.columnMapping.mode", "none") != "none"
    for number, one in enumerate(schema["fields"], 1):
        mapping = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": one["name"]}
        one["metadata"] |= {**(mapping if is_mapped else {}), **wanted.metadata.get(one["name"], {})}
    schema["fields"] += [
        {"name": name, "type": type, "nullable": True, "metadata": {}} for name, type in wanted.columns.items()
    ]
    metadata |= {"schemaString": json.dumps(schema), "configuration": dict(wanted.properties)}
    commit(table, {"protocol": wanted.protocol}, {"metaData": metadata})


def delete_first_row(table: Path) -> str:
    """Delete the first row of the newest file by a deletion vector; gives the file's path."""
    added = _newest(table, "add")
    removed = {"path": added["path"], "dataChange": True, "deletionTimestamp": 1, "partitionValues": {}}
    vector = _vector(0)
    descriptor = {"storageType": "i", "pathOrInlineDv": _z85(vector), "sizeInBytes": len(vector), "cardinality": 1}
    stats = json.loads(added["stats"]) | {"tightBounds": False}
    commit(table, {"remove": removed}, {"add": {**added, "deletionVector": descriptor, "stats": json.dumps(stats)}})
    return str(added["path"])


def commit(table: Path, *actions: dict[str, Any]) -> None:
    version = DeltaTable(str(table)).version() + 1
    lines = [{"commitInfo": {"timestamp": 1, "operation": "TEST"}}, *actions]
    text = "\n".join(map(json.dumps, lines))
    (table / "_delta_log" / f"{version:020d}.json").write_text(text)


def _newest(table: Path, action: str) -> dict[str, Any]:
    commits = sorted((table / "_delta_log").glob("*.json"))
    lines = (json.loads(line) for commit in commits for line in commit.read_text().splitlines())
    return next(reversed([line[action] for line in lines if action in line]))


def _vector(row: int) -> bytes:
    """The row's number as a bitmap of 64 bits, in the format of Delta and RoaringBitmap."""
    container = struct.pack("<iiHHiH", 12346, 1, 0, 0, 16, row)
    return struct.pack("<iqi", 1681511377, 1, 0) + container


def _z85(data: bytes) -> str:
    """ZeroMQ's alphabet for groups of four bytes, which base64.b85encode has as well, in another order."""
    ours = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
    zeromq = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    padded = data + b"\0" * (-len(data) % 4)
    return base64.b85encode(padded).decode().translate(str.maketrans(ours, zeromq))

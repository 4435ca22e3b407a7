"""Reads the first form of a standalone broker's metadata file, which `MetadataDatabase` replaces at a start.

    pykafka metadata 1
    5e1c0f3a {"zxid":…,"nodes":[[path, data, created_zxid, created_ms, ephemeral_owner, version, children_created],…]}
    9b02d1c7 [zxid, now_ms, session, operation,…]

Every line but the first begins with the CRC-32 of its JSON, which has neither a line break nor a NUL. So after a crash
a line that was being written has no end, or NULs where a block never reached the disk. Such a line at the end of the
file was never answered and does not count. Any other line that is wrong was damaged later, and the file is refused.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from broker.errors import ConfigError
from broker.zookeeper.operations import Create, Delete, Operation, SetData

EMPTY_JOURNAL: Sequence[Any] = [{"zxid": 0, "nodes": [["/", "", 0, 0, 0, 0, 0]]}]
_FORMAT = b"pykafka metadata 1\n"


def read_journal(path: Path) -> list[Any]:
    """The snapshot and the transactions after it; nothing for a file of another form.

    Raises ConfigError for a damaged file, OSError.
    """
    with path.open("rb") as file:
        if file.read(len(_FORMAT)) != _FORMAT:
            return []
        lines = file.read().split(b"\n")[:-1]  # without a line that has no end
    values: list[Any] = []
    for number, line in enumerate(lines, start=2):
        checksum, _, text = line.partition(b" ")
        if checksum == b"%08x" % zlib.crc32(text):
            values.append(json.loads(text))
        elif b"\0" not in line or number <= len(lines):
            raise damaged(path, f"in line {number} (its checksum is wrong)")
    if not values:
        raise damaged(path, "in line 2 (its snapshot, which is written at once, is not whole)")
    for number, (zxid, *_) in enumerate(values[1:], start=1):
        if zxid != (expected := values[0]["zxid"] + number):
            raise damaged(path, f"in line {number + 2} (it should be transaction {expected} and is {zxid})")
    return values


def damaged(path: Path, reason: str) -> ConfigError:
    """The error for a metadata file that cannot be trusted."""
    shown = " ".join(reason.split())  # SQLite's reasons have line breaks
    return ConfigError(
        f"{path} is damaged {shown}. It holds the topics, settings and users of this broker. Put back an older copy of "
        "the file, with the -wal file of that copy or with none"
    )


def operation_of(fields: Sequence[Any]) -> Operation:
    match fields:
        case "create", path, text, ephemeral:
            return Create(path, data_of(text), ephemeral)
        case "set", path, text:
            return SetData(path, data_of(text))
        case "delete", path:
            return Delete(path)
    raise ValueError(f"not an operation: {fields}")


def data_of(text: str) -> bytes:
    """Nodes hold JSON in UTF-8. Other bytes come back as they were, too."""
    return text.encode("utf-8", "surrogateescape")

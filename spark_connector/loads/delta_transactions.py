"""The application transactions of a Delta table: how far every group of its loads is, read from the table's log.

`deltalake` looks up one name at a time and gives no list; here the newest complete checkpoint and the commits after it
are read, of a checkpoint the one column only. Used by loads/log_delta.py, which says what the names mean.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Mapping

import pyarrow.parquet

from broker.protocol.topic_partition import TopicPartition
from spark_connector.storage import Storage

__all__ = ["offsets_of", "read_transactions"]

_LOG = "_delta_log"
_COMMIT = re.compile(r"(\d{20})\.json")
# One file, the n-th of m, or one of version 2, whose name holds an id.
_CHECKPOINT = re.compile(
    r"(?P<version>\d{20})\.checkpoint(\.(?P<part>\d{10})\.(?P<parts>\d{10})|\.[0-9a-f-]{36})?\.(parquet|json)"
)
_PARTITION = re.compile(r"(?P<group>[^/]+)/(?P<topic>[^/]+)/(?P<partition>\d+)")


def offsets_of(transactions: Mapping[str, int]) -> dict[str, dict[TopicPartition, int]]:
    """Group → partition → next offset, out of appId → version."""
    offsets: dict[str, dict[TopicPartition, int]] = {}
    for app, offset in transactions.items():
        if match := _PARTITION.fullmatch(app):
            offsets.setdefault(match["group"], {})[TopicPartition(match["topic"], int(match["partition"]))] = offset
    return offsets


def read_transactions(storage: Storage, version: int) -> dict[str, int]:
    """appId → version of every application transaction in the table's state at `version`."""
    names = storage.names(_LOG)
    begin, files = _newest_checkpoint(names, version)
    found: dict[str, int] = {}
    for name in files:
        found.update(_of_checkpoint(storage, name))
    commits = ((int(match[1]), match[0]) for match in map(_COMMIT.fullmatch, names) if match)
    for number, name in sorted(commits):
        if begin < number <= version:
            found.update(_of_actions(storage.read(f"{_LOG}/{name}")))
    return found


def _newest_checkpoint(names: list[str], version: int) -> tuple[int, list[str]]:
    """(its version, its files); (-1, []) when there is none."""
    whole: dict[int, list[str]] = {}
    partial: dict[tuple[int, int], list[str]] = {}
    for match in filter(None, map(_CHECKPOINT.fullmatch, names)):
        number = int(match["version"])
        if number > version:
            continue
        if match["parts"] is None:
            whole.setdefault(number, []).append(match[0])
        else:
            partial.setdefault((number, int(match["parts"])), []).append(match[0])
    for (number, parts), files in partial.items():
        if len(files) == parts:
            whole.setdefault(number, []).extend(files)
    newest = max(whole, default=-1)
    return newest, whole.get(newest, [])


def _of_checkpoint(storage: Storage, name: str) -> Iterator[tuple[str, int]]:
    data = storage.read(f"{_LOG}/{name}")
    if name.endswith(".json"):
        yield from _of_actions(data)
        return
    column = pyarrow.parquet.read_table(io.BytesIO(data), columns=["txn"])
    for row in column.to_pylist():
        if row["txn"] is not None:
            yield row["txn"]["appId"], row["txn"]["version"]


def _of_actions(data: bytes) -> Iterator[tuple[str, int]]:
    for line in data.splitlines():
        if b'"txn"' in line:
            action = json.loads(line).get("txn")
            if action is not None:
                yield action["appId"], action["version"]

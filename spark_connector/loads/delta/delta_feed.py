"""The change feed of a Delta table, for commits that write files anew: which rows they insert, update and delete.

Without files of changes in such a commit, readers of the feed would take every row of a new file for an insert.
deltalake's transactions have no such action, so the commit is written here: as deltalake writes it, and by creating
its file, of which one writer gets one made.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import quote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable
from deltalake.transaction import AddAction, RemoveAction

from broker.storage.storage import Storage
from spark_connector.loads.tasks.written_file import WrittenFile

CHANGE = pa.field("_change_type", pa.string())
_EVERY = 100  # commits, where the table does not say


def has_feed(table: DeltaTable) -> bool:
    return table.metadata().configuration.get("delta.enableChangeDataFeed", "").strip().lower() == "true"


def feed_directory(load_id: str) -> str:
    return f"_change_data/{load_id}"


def commit_with_feed(
    table: DeltaTable,
    storage: Storage,
    actions: Iterable[AddAction | RemoveAction],
    feed: Sequence[WrittenFile],
    load_id: str,
    properties: CommitProperties,
) -> None:
    """Commit right behind this state of the table. Raises FileExistsError when another writer was quicker, OSError."""
    now, version = time.time_ns() // 1_000_000, table.version() + 1
    info = {"timestamp": now, "operation": "MERGE", "isBlindAppend": False, "operationParameters": {}}
    lines: list[dict[str, Any]] = [{"commitInfo": {**info, **(properties.custom_metadata or {})}}]
    lines += [
        {"txn": {"appId": one.app_id, "version": one.version, "lastUpdated": one.last_updated}}
        for one in properties.app_transactions or ()
    ]
    lines += map(_line, actions)
    lines += [
        {
            "cdc": {
                "path": quote(f"{feed_directory(load_id)}/{file.name}", safe="/="),
                "partitionValues": dict(file.texts),
                "size": file.size,
                "dataChange": False,
            }
        }
        for file in feed
    ]
    text = "\n".join(json.dumps(line, separators=(",", ":"), ensure_ascii=False) for line in lines)
    storage.create(f"_delta_log/{version:020d}.json", text.encode())
    if version % int(table.metadata().configuration.get("delta.checkpointInterval", _EVERY)) == 0:
        table.update_incremental()
        table.create_checkpoint()


def _line(action: AddAction | RemoveAction) -> dict[str, Any]:
    shared: dict[str, Any] = {
        "path": quote(action.path, safe="/="),
        "size": action.size,
        "dataChange": action.data_change,
    }
    shared["partitionValues"] = dict(action.partition_values or {})
    if isinstance(action, AddAction):
        return {"add": {**shared, "modificationTime": action.modification_time, "stats": action.stats}}
    return {"remove": {**shared, "deletionTimestamp": action.deletion_timestamp, "extendedFileMetadata": True}}

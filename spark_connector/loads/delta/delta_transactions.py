"""The application transactions of one state of a Delta table, read from the files of its log all at once.

deltalake answers for one appId, and replays the log for each: about the 10,000 partitions of a load that had just
added 10,000 files that took two and a half minutes. Called by delta_log.py.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Collection

import pyarrow as pa
import pyarrow.parquet
from deltalake import DeltaTable

from broker.storage.storage import Storage, TooLarge

_FEW = 16  # appIds for which deltalake is asked
_CHECKPOINT = re.compile(r"[0-9]{20}\.checkpoint\.parquet")
_EXPIRY = "delta.setTransactionRetentionDuration"


def versions_of(table: DeltaTable, storage: Storage, app_ids: Collection[str]) -> dict[str, int]:
    """appId → version, of those that the table has. Raises deltalake's errors, OSError."""
    known = None if len(app_ids) <= _FEW else _all(table, storage)
    if known is None:
        asked = ((app_id, table.transaction_version(app_id)) for app_id in app_ids)
        return {app_id: version for app_id, version in asked if version is not None}
    return {app_id: known[app_id] for app_id in app_ids if app_id in known}


def _all(table: DeltaTable, storage: Storage) -> dict[str, int] | None:
    """None where only deltalake can tell: transactions expire, a checkpoint is not one file of parquet, or the log has
    a gap."""
    if _EXPIRY in table.metadata().configuration:
        return None
    names, last = set(storage.names("_delta_log")), table.version()
    checkpoint = max((name for name in names if _CHECKPOINT.fullmatch(name) and int(name[:20]) <= last), default=None)
    first = 0 if checkpoint is None else int(checkpoint[:20]) + 1
    commits = [f"{version:020d}.json" for version in range(first, last + 1)]
    if not names.issuperset(commits):
        return None
    found: dict[str, int] = {}
    with contextlib.suppress(FileNotFoundError, TooLarge, pa.ArrowException):  # the log was cleaned up meanwhile
        if checkpoint is not None:
            with contextlib.closing(storage.open_input(f"_delta_log/{checkpoint}")) as file:
                rows = pyarrow.parquet.read_table(file, columns=["txn"]).column("txn").drop_null().to_pylist()
            found.update((row["appId"], row["version"]) for row in rows)
        for commit in commits:
            for line in storage.read(f"_delta_log/{commit}").splitlines():
                if b'"txn"' in line and (txn := json.loads(line).get("txn")) is not None:
                    found[txn["appId"]] = txn["version"]
        return found
    return None

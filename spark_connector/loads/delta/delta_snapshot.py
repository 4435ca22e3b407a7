"""A Delta table at one version as a value: the files, and the group's transactions, of one state of the log.

Files are read by name, without Delta's own reader. So a table whose files do not say all is refused: one with column
mapping, with deletion vectors, with a feature that is not known here, or a shallow clone.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from broker.errors import ConfigError
from broker.protocol.topic_partition import TopicPartition
from broker.storage.storage import Storage
from spark_connector.loads.delta.delta_log import DeltaCommitLog
from spark_connector.loads.delta.delta_merge import upsert_marker
from spark_connector.loads.record import failed_load
from spark_connector.loads.request import LOAD_COLUMN
from spark_connector.loads.table_snapshot import ParquetScan, TableFile, TableSnapshot, no_longer_there
from spark_connector.outages import heals_by_waiting

_READ_AS_THEY_ARE = {"timestampNtz", "typeWidening", "typeWidening-preview", "v2Checkpoint", "vacuumProtocolCheck"}
"""Features of a table under which a data file still holds exactly the rows and columns that it says."""
_MAPPING = "delta.columnMapping.mode"


def snapshot_of(
    log: DeltaCommitLog, storage: Storage, partitions: Collection[TopicPartition], version: str | None
) -> TableSnapshot:
    """The table now, or at `version`. Raises ConfigError, LoadError, ConnectorError."""
    table = log.table()
    if table is None:
        raise ConfigError(f"{storage.shown} is no Delta table")
    if version is not None:
        try:
            table.load_as_version(int(version))
        except (DeltaError, OSError) as error:
            if heals_by_waiting(error):
                raise failed_load(f"version {version} of {storage.shown} cannot be opened: {error}", error) from error
            raise no_longer_there(storage.shown, version, error) from error
    _refuse_unreadable(table, storage.shown)
    number, newest, offsets = log.state_of(table, partitions)
    return TableSnapshot(
        shown=storage.shown,
        version=str(table.version()),
        number=number,
        newest=newest,
        offsets=offsets,
        columns=pa.schema(table.schema().to_arrow()),
        files=_files(table, storage),
        scan=ParquetScan(storage.options),
        one_row_per_key=upsert_marker(table) is not None,
    )


def _refuse_unreadable(table: DeltaTable, shown: str) -> None:
    features = set(table.protocol().reader_features or ()) - _READ_AS_THEY_ARE
    mapping = table.metadata().configuration.get(_MAPPING, "none").lower()
    if mapping == "none":
        features.discard("columnMapping")
    else:
        features.add("columnMapping")
    if features:
        raise ConfigError(
            f"option 'history': the Delta table {shown} has {', '.join(sorted(features))}, with which its files cannot "
            "be read as they are. Read it with Spark's Delta reader, and the topic from its offsets (startingOffsets)"
        )
    if LOAD_COLUMN not in pa.schema(table.schema().to_arrow()).names:
        raise ConfigError(
            f"option 'history': the Delta table {shown} has no column '{LOAD_COLUMN}', so the rows of a group cannot "
            "be found"
        )


def _files(table: DeltaTable, storage: Storage) -> tuple[TableFile, ...]:
    partitioned = table.metadata().partition_columns
    found = []
    wanted = ["path", "size_bytes", "num_records", *(["partition"] if partitioned else [])]
    for action in pa.table(table.get_add_actions()).select(wanted).to_pylist():  # bounds may be no dates of Python
        path = unquote(action["path"])
        if "://" in path or path.startswith("/"):
            raise ConfigError(
                f"option 'history': the Delta table {storage.shown} has files of another table (a shallow clone)"
            )
        values = {name: _as_text(action["partition"][name]) for name in partitioned}
        file = TableFile(path, ((storage.url, path),), action["size_bytes"], action["num_records"], values)
        found.append(file)
    return tuple(sorted(found, key=lambda file: file.name))


def _as_text(value: Any) -> str | None:
    return None if value is None else str(value)

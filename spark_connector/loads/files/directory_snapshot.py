"""The loads of a group in directories at one moment, as a value: those that stand at one number of the commit log.

A load that is committed but not yet renamed is part of it: its files are found in the staging area or, if a repair
renames it in the meantime, in `load=<id>`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from broker.errors import ConfigError
from broker.storage.storage import Storage
from spark_connector.loads.commit import CommitLog
from spark_connector.loads.history import History, HistoryEntry, LoadState
from spark_connector.loads.path_values import values_in_path
from spark_connector.loads.record import LoadInterrupted, published_directory
from spark_connector.loads.rewind import REWOUND, aside_of, undone_by
from spark_connector.loads.table_snapshot import ParquetScan, TableFile, TableSnapshot, no_longer_there

_TRIES = 20  # a load commits every few seconds at most; reading its history takes a fraction of that
_COMMITTED = (
    *(LoadState.PUBLISHED, LoadState.HIDDEN, LoadState.ABSENT, LoadState.ELSEWHERE),
    *(LoadState.REWOUND, LoadState.REWIND),
)


def snapshot_of(
    log: CommitLog, output: Storage, read_history: Callable[[], History], version: str | None
) -> TableSnapshot:
    """The loads up to the newest entry of the log, or up to number `version`.

    The history is read between two looks at the newest number. If it is the same, nothing was committed in between,
    and offsets and loads belong together. Raises ConfigError, LoadInterrupted, ConnectorError.
    """
    for _ in range(_TRIES):
        before = log.newest()
        offsets, found = log.offsets(), read_history().entries
        renamed = any(entry.state is LoadState.HIDDEN and entry.manifest is None for entry in found)  # just now
        if log.newest().sequence == before.sequence and not renamed:
            break
    else:
        raise LoadInterrupted(f"{output.shown}: other loads commit faster than this read can follow; try again")
    number = before.sequence if version is None else int(version)
    loads = list(_standing(found, number))
    for entry in loads:
        _refuse_unreadable(entry, output.shown, log.kind)
    files = tuple(file for entry in loads for file in _files(entry, output, log.kind, number))
    # The columns are those of the newest file. Spark's own readers take those of any file.
    shown_by = max(files, key=lambda file: file.name, default=None)
    newest = [entry.record for entry in found if entry.record.id.sequence <= number and entry.state in _COMMITTED]
    return TableSnapshot(
        shown=output.shown,
        version=str(number),
        number=number,
        newest=newest[-1] if newest else None,
        offsets=offsets,
        columns=None if shown_by is None else ParquetScan(output.options).schema_of(shown_by),
        files=tuple(sorted(files, key=lambda file: file.name)),
        scan=ParquetScan(output.options),
        in_paths=() if shown_by is None else tuple(shown_by.values),
        one_group=True,
    )


def _standing(entries: list[HistoryEntry], number: int) -> Iterator[HistoryEntry]:
    """The loads up to the number that no rewind up to the number has taken back."""
    up_to = [entry for entry in entries if entry.record.id.sequence <= number and entry.state in _COMMITTED]
    undone = undone_by(entry.record for entry in up_to)
    for entry in up_to:
        if entry.record.rewind is None and entry.record.load_id not in undone:
            yield entry


def _refuse_unreadable(entry: HistoryEntry, shown: str, kind: str) -> None:
    record = entry.record
    if record.format != "parquet" and record.rows:
        raise ConfigError(
            f"option 'history': {shown} holds loads in {record.format}; only parquet can be "
            "read together with the topic"
        )
    if record.rerun_of is not None and kind == "zookeeper":
        raise ConfigError(
            f"option 'history': load {record.load_id} has loaded again what {record.rerun_of} and later loads have, "
            "under the same group: its rows would be there twice"
        )


def _files(entry: HistoryEntry, output: Storage, kind: str, number: int) -> Iterator[TableFile]:
    record, load_id = entry.record, entry.record.load_id
    if not record.rows:
        return
    if entry.state is LoadState.ELSEWHERE:
        raise ConfigError(
            f"option 'history': load {load_id} went to {record.output}, not to {output.shown}; a table in one place "
            "can be read together with the topic"
        )
    if entry.directory is None or entry.files is None:
        lost = "directory" if entry.directory is None else "manifest"
        raise no_longer_there(output.shown, str(number), f"the {lost} of load {load_id} is gone")
    below = _below(entry, kind)
    root = entry.directory.removesuffix(f"/{below}")
    places = dict.fromkeys((below, published_directory(load_id), _staged(kind, load_id)))
    size = sum(file.size for file in entry.files)
    for file in entry.files:
        yield TableFile(
            name=f"{load_id}/{file.name}",
            places=tuple((root, f"{place}/{file.name}") for place in places),
            size=file.size,
            rows=-(-record.rows * file.size // size) if size else 0,
            values=values_in_path(file.name),
        )


def _below(entry: HistoryEntry, kind: str) -> str:
    """The entry's directory below its output."""
    assert entry.directory is not None
    load_id = entry.record.load_id
    if f"/{REWOUND}/" in entry.directory:
        rewind_id = entry.directory.rpartition(f"/{REWOUND}/")[2].partition("/")[0]
        return aside_of(rewind_id, load_id)
    if entry.state is LoadState.HIDDEN:
        return _staged(kind, load_id)
    return published_directory(load_id)


def _staged(kind: str, load_id: str) -> str:
    return f"_staging/{kind}/{load_id}/data"

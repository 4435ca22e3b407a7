"""What a table of loads holds: its columns, as they are and how the records of loads say that they have changed, its
versions, and a few of its newest rows. Reads, and changes nothing.

A table may be far away, and its rows large. So a few threads look, the page waits for them only for so long, and of a
table the first rows of the newest file are read, a piece of each column at a time. What could not be read in time, or
at all, is unknown, and the page says why.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa

from broker.errors import PykafkaError
from broker.storage.url_secrets import text_without_secrets
from pykafka_ui.records.json_text import json_text, plain
from pykafka_ui.records.values import Decoder
from pykafka_ui.seen.recent import Recent
from spark_connector.loads.evolution import type_name
from spark_connector.loads.history import HistoryEntry
from spark_connector.loads.request import Target
from spark_connector.loads.table_snapshot import TableSnapshot, TableVersion
from spark_connector.maintenance import table_snapshot, table_versions

ROWS, COLUMNS = 50, 40
"""So many are shown at most; a table may have thousands of columns."""
_BATCH, _MOST_BYTES, _LONGEST = 10, 4 << 20, 200
"""Rows that are read at a time, bytes after which no more are, and characters of a value."""
_MOST_FILES = 5
_VERSIONS = 50
_FRESH_S, _PATIENCE_S, _THREADS = 15.0, 10.0, 2

_DATABASE = "a database is not read here: the snippets below do"

T = TypeVar("T")


class Column(NamedTuple):
    name: str
    type: str


class Dot(NamedTuple):
    """A version on the line of time: `at` is 0..100 from the oldest to the newest."""

    at: float
    version: TableVersion


@dataclass(frozen=True)
class Known:
    """A part of what is known of a table, or why it is not."""

    value: Any = None
    why: str = ""


@dataclass(frozen=True)
class TableContent:
    """`columns` are `Column`s, `versions` the newest `Dot`s, the oldest first, and `rows` some of the newest file,
    a text or None (NULL) for each of the first columns. Each of them may be unknown, with the reason."""

    columns: Known = Known()
    versions: Known = Known()
    rows: Known = Known()
    version: str = ""
    files: int | None = None
    bytes: int | None = None


class Tables:
    """Thread-safe. What was read is kept for some seconds."""

    def __init__(self, patience_s: float = _PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._free = threading.BoundedSemaphore(_THREADS)
        self._recent: Recent[TableContent] = Recent(_FRESH_S)

    def content(self, url: str, target: Target) -> TableContent:
        return self._recent.get((url, target.group), lambda: self._content(target))

    def within(self, work: Callable[[], T]) -> T:
        """What `work` gives. Raises TimeoutError where it takes too long; it may go on, and ends with the process."""
        if not self._free.acquire(timeout=self._patience_s):
            raise TimeoutError
        done: Future[T] = Future()

        def run() -> None:
            try:
                done.set_result(work())
            except Exception as error:
                done.set_exception(error)
            finally:
                self._free.release()

        threading.Thread(target=run, name="ui-tables", daemon=True).start()
        return done.result(self._patience_s)

    def _content(self, target: Target) -> TableContent:
        try:
            return self.within(lambda: _look(target))
        except TimeoutError:
            late = Known(why=f"nothing came within {self._patience_s:g} s")
            return TableContent(late, late, late)


def _look(target: Target) -> TableContent:
    versions = _known(lambda: dots(table_versions(target, _VERSIONS)))
    found = _known(lambda: table_snapshot(target)) if target.format != "sql" else Known(why=_DATABASE)
    if found.why:
        return TableContent(found, versions, found)
    snapshot: TableSnapshot = found.value
    size = sum(file.size for file in snapshot.files)
    rows = _known(lambda: list(first_rows(snapshot)))
    return TableContent(Known(columns_of(snapshot)), versions, rows, snapshot.version, len(snapshot.files), size)


def _known(look: Callable[[], Any]) -> Known:
    try:
        return Known(look())
    except Exception as error:  # of whatever library is behind it
        return _told(error)


def _told(error: Exception) -> Known:
    text = str(error) if isinstance(error, PykafkaError) else f"{type(error).__name__}: {error}"
    return Known(why=text_without_secrets(text).removeprefix("option 'history': "))


def columns_of(snapshot: TableSnapshot) -> list[Column]:
    schema = snapshot.columns or pa.schema([])
    found = [Column(one.name, type_name(one.type)) for one in schema]
    return found + [Column(name, "in the path") for name in snapshot.in_paths if name not in schema.names]


def first_rows(snapshot: TableSnapshot) -> Iterator[list[str | None]]:
    """At most `ROWS` rows of the newest files, as text, of the first `COLUMNS` columns."""
    names = [one.name for one in columns_of(snapshot)[:COLUMNS]]
    left, size = ROWS, 0
    for file in [one for one in reversed(snapshot.files) if one.rows != 0][:_MOST_FILES]:
        for batch in snapshot.scan.read(file, names, _BATCH):
            part = batch.slice(0, left)
            there = {name: _texts(part.column(name)) for name in part.schema.names}
            yield from map(list, zip(*(there.get(name, [None] * part.num_rows) for name in names), strict=True))
            left, size = left - part.num_rows, size + part.nbytes
            if left <= 0 or size > _MOST_BYTES:
                return


def _texts(column: pa.Array) -> list[str | None]:
    """A float of 32 bits as such: as one of 64 it has digits that nobody wrote."""
    try:
        values = (column.cast(pa.string()) if pa.types.is_float32(column.type) else column).to_pylist()
    except (ValueError, OverflowError):  # a time that Python has not
        values = column.cast(pa.string()).to_pylist()
    return [None if value is None else _text(value) for value in values]


def _text(value: object) -> str:
    if isinstance(value, bytes):
        text = Decoder().decode(value).first_line
    else:
        text = json_text(value) if isinstance(value, dict | list | bool | float) else str(plain(value))
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def dots(versions: Sequence[TableVersion]) -> list[Dot]:
    """By their times; evenly where those are not known."""
    times = [one.at_ms for one in versions]
    first, last = min(times, default=0), max(times, default=0)
    if first < 0 or first == last:
        return [Dot(100 * (at + 1) / len(versions), one) for at, one in enumerate(versions)]
    return [Dot(round(100 * (one.at_ms - first) / (last - first), 2), one) for one in versions]


@dataclass(frozen=True)
class SchemaChange:
    """What `entry` was the first to load with: columns (or decoded fields) that are `new`, with their types, `gone`,
    or of `other` types: (name, type before, type now). `is_first`: nothing is known of the load before."""

    entry: HistoryEntry
    new: tuple[tuple[str, str], ...]
    gone: tuple[str, ...] = ()
    other: tuple[tuple[str, str, str], ...] = ()
    is_first: bool = False


def schema_history(entries: Iterable[HistoryEntry]) -> list[SchemaChange]:
    """The changes, the oldest first, of loads that stand and whose records say what they loaded; [] if none does."""
    before: Mapping[str, str] | None = None
    found = []
    for entry in entries:
        now = _columns_of(entry) if entry.state.is_committed else None
        if now is None or now == before:
            continue
        was = before or {}
        found.append(
            SchemaChange(
                entry,
                tuple((name, kind) for name, kind in now.items() if name not in was),
                tuple(name for name in was if name not in now),
                tuple((name, was[name], kind) for name, kind in now.items() if was.get(name, kind) != kind),
                is_first=before is None,
            )
        )
        before = now
    return found


def _columns_of(entry: HistoryEntry) -> dict[str, str] | None:
    """Name → type, or what it is made of, of a load that decodes or chooses columns."""
    record = entry.record
    if record.fields is None and not record.columns:
        return None
    return {**dict.fromkeys(record.columns, ""), **(record.fields or {})}

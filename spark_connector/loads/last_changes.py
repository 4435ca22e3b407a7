"""The last change of each key, and which of them a table still needs (L11). Pure; Arrow only.

Within a partition the offset decides which of two changes is the last one. Across partitions nothing does, unless the
user has named a column that orders them: a key in two partitions is refused, because rows in a wrong order are wrong
rows. The same holds for a row in the table, which says in `_topic`, `_partition` and `_offset` which record wrote it.
A row that has been deleted says nothing more.

The number of a load makes its commit happen once; comparing offsets does not, because a replayed insert would bring a
deleted row back. It is a second guard: an offset that is not beyond the row's raises.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from broker.errors import ConfigError
from spark_connector.loads.changes import DELETED, OFFSET, ORDER, PARTITION, PLACE, TOPIC, ChangeDecoder
from spark_connector.loads.record import LoadError
from spark_connector.loads.times import in_words
from spark_connector.loads.upsert import Upsert

_MOST_ROWS = 1 << 20
"""So many changes wait before they are reduced to the last of each key and partition."""
_ROW, _MATCH = "_row", "_match"

F = TypeVar("F")


def last_changes(decoder: ChangeDecoder, upsert: Upsert, records: Iterable[pa.RecordBatch]) -> pa.Table:
    """The last change of each key in the load. Memory: one row per key and partition, and a million more.

    Raises LoadError for a record that cannot be decided (changes.py), and for a key in two partitions that
    `order_by` does not decide.
    """
    return _across_partitions(_last_in_partitions(decoder, upsert, records), upsert)


def last_writers(upsert: Upsert, records: Iterable[pa.RecordBatch]) -> pa.Table | None:
    """Which record is the last of each key, and whether it deletes it: the columns of `stored_columns`, and `_deleted`.
    The records may have been read with several schemas. None without a record.

    Raises as `last_changes`, and ConfigError where the schemas have keys that cannot be compared.
    """
    names, parts = [*stored_columns(upsert), DELETED], []
    for schema, batches in itertools.groupby(records, lambda batch: batch.schema):
        decoder = ChangeDecoder(upsert, schema, placeholder=None)  # values are not compared
        parts.append(_last_in_partitions(decoder, upsert, batches).select(names))
    if not parts:
        return None
    try:
        together = pa.concat_tables(parts, promote_options="permissive")
    except pa.ArrowException as error:
        raise ConfigError(
            f"the loads were read with schemas whose keys cannot be compared together: {error}"
        ) from error
    return _across_partitions(_last(together, _in_partition(upsert)) if len(parts) > 1 else together, upsert)


def _last_in_partitions(decoder: ChangeDecoder, upsert: Upsert, records: Iterable[pa.RecordBatch]) -> pa.Table:
    """The last change of each key in each partition."""
    by = _in_partition(upsert)
    schema = decoder.schema.append(pa.field(DELETED, pa.bool_()))
    kept, waiting, rows = schema.empty_table(), [], 0
    for batch in records:
        waiting.append(decoder.changes(batch))
        rows += batch.num_rows
        if rows >= max(_MOST_ROWS, kept.num_rows):
            kept, waiting, rows = _last(pa.concat_tables([kept, pa.Table.from_batches(waiting)]), by), [], 0
    if waiting:
        kept = _last(pa.concat_tables([kept, pa.Table.from_batches(waiting)]), by)
    return kept


def _in_partition(upsert: Upsert) -> list[str]:
    return [*upsert.key, TOPIC, PARTITION]


def rows_of_keys(changes: pa.Table, part: pa.Table, key: Sequence[str]) -> tuple[pa.Array, pa.Array]:
    """(rows of `part`, rows of `changes`) that have the same key, as two arrays of row numbers.

    A table's types may be wider than those of the changes, never narrower.
    """
    there = part.select(list(key))
    wanted = changes.select(list(key)).cast(there.schema)
    if any(_are_apart(there.column(name), wanted.column(name)) for name in key):
        return pa.array([], pa.int64()), pa.array([], pa.int64())
    left = _numbered(there, _ROW)
    joined = left.join(_numbered(wanted, _MATCH), list(key), join_type="inner")
    return joined.column(_ROW).combine_chunks(), joined.column(_MATCH).combine_chunks()


def _are_apart(one: pa.ChunkedArray, other: pa.ChunkedArray) -> bool:
    """Whether all whole numbers of one column are below those of the other: a look at both is much less than a join."""
    if not pa.types.is_integer(one.type):
        return False
    (low, high), (least, most) = (pc.min_max(column).as_py().values() for column in (one, other))
    return low is None or least is None or bool(high < least or most < low)


class StoredRows:
    """Compares the changes of a load with the rows that a table has of their keys, part by part."""

    def __init__(self, changes: pa.Table, upsert: Upsert) -> None:
        self.changes = changes
        self._upsert = upsert
        self._known = stored_columns(upsert)
        self._outdated = np.zeros(changes.num_rows, bool)
        self._seen = np.zeros(changes.num_rows, bool)

    def take_in(self, part: pa.Table) -> int:
        """Rows of the table, with at least `stored_columns`; gives how many of them have the key of a change.

        Raises LoadError for a key whose row another partition has written and `order_by` does not decide, for a row of
        the same partition with the change's offset or a later one, and for a key that the table has twice.
        """
        part = part.select(self._known)
        rows, matches = rows_of_keys(self.changes, part, self._upsert.key)
        if len(rows):
            old = part.take(rows)
            new = self.changes.select(self._known).take(matches).cast(old.schema)
            numbers = matches.to_numpy(zero_copy_only=False)
            twice = self._seen[numbers] | (np.bincount(numbers, minlength=len(self._seen))[numbers] > 1)
            if twice.any():
                told = _told(new.slice(int(np.argmax(twice)), 1), self._upsert)
                raise LoadError(f"{told} is in the table more than once: another program has changed it. Repair it")
            self._seen[numbers] = True
            self._outdated[numbers[_older(new, old, self._upsert)]] = True
        return len(rows)

    @property
    def wanted(self) -> pa.Table:
        """The changes that come after the rows that were taken in."""
        return self.changes.filter(pa.array(~self._outdated)) if self._outdated.any() else self.changes


def touched(
    changes: pa.Table, upsert: Upsert, files: Iterable[F], read: Callable[[F, list[str]], Iterable[pa.Table]]
) -> tuple[list[F], pa.Table]:
    """(those of a table's files that have rows of the changes' keys, the changes that the table still needs).

    `read` gives the columns of a file, part by part. Raises as `StoredRows.take_in`.
    """
    stored, known = StoredRows(changes, upsert), stored_columns(upsert)
    found = [file for file in files if sum(stored.take_in(part) for part in read(file, known))]
    return found, stored.wanted


def without_rows(part: pa.Table, rows: pa.Array) -> pa.Table:
    """The rows of a table but for those with these numbers."""
    return part.filter(pc.invert(pc.is_in(pa.array(np.arange(part.num_rows)), value_set=rows))) if len(rows) else part


def stored_columns(upsert: Upsert) -> list[str]:
    """The columns of the table that tell whether a change comes after its row."""
    return [*upsert.key, *PLACE, *([ORDER] if upsert.order_by is not None else [])]


def _last(changes: pa.Table, by: Sequence[str]) -> pa.Table:
    """The change with the highest offset of each group. A delete without an `_order` gets that of the delete before."""
    changes = changes.combine_chunks()
    ordered = changes.take(pc.sort_indices(changes, [(OFFSET, "ascending")]))
    last = _take_last(ordered, by)
    if ORDER not in changes.column_names or not last.column(ORDER).null_count:
        return last
    timed = _take_last(ordered.filter(ordered.column(ORDER).is_valid()), by)
    rows, matches = rows_of_keys(timed, last, by)
    return _with_order_of_deletes(last, timed, rows, matches)


def _take_last(ordered: pa.Table, by: Sequence[str]) -> pa.Table:
    numbered = _numbered(ordered.select(list(by)), _ROW)
    rows = numbered.group_by(list(by), use_threads=False).aggregate([(_ROW, "max")]).column(f"{_ROW}_max")
    return ordered.take(rows)


def _with_order_of_deletes(last: pa.Table, timed: pa.Table, rows: pa.Array, matches: pa.Array) -> pa.Table:
    """A delete without a value follows the event of the same delete, and is as late as that."""
    order = last.column(ORDER).combine_chunks()
    both = pc.and_(last.column(DELETED).take(rows), timed.column(DELETED).take(matches)).combine_chunks()
    rows, matches = rows.filter(both), matches.filter(both)
    source = np.full(last.num_rows, -1, np.int64)
    source[rows.to_numpy(zero_copy_only=False)] = matches.to_numpy(zero_copy_only=False)
    given = timed.column(ORDER).combine_chunks().take(pa.array(source, mask=source < 0))
    return last.set_column(last.column_names.index(ORDER), last.schema.field(ORDER), pc.coalesce(order, given))


def _across_partitions(changes: pa.Table, upsert: Upsert) -> pa.Table:
    """One change per key, of those that are the last ones of their partitions."""
    key = list(upsert.key)
    counted = changes.group_by(key, use_threads=False).aggregate([([], "count_all")])
    many = counted.filter(pc.greater(counted.column("count_all"), 1))
    if not many.num_rows:
        return changes
    rows, _ = rows_of_keys(many, changes, key)
    doubtful = np.zeros(changes.num_rows, bool)
    doubtful[rows.to_numpy(zero_copy_only=False)] = True
    two = changes.filter(pa.array(doubtful))
    if upsert.order_by is None:
        first = _group_of(two, key)
        raise LoadError(f"{_told(first, upsert)} is in two partitions, {_places(first)}: {_WAY_OUT}")
    if two.column(ORDER).null_count:
        first = two.filter(two.column(ORDER).is_null())
        raise LoadError(f"{_told(first, upsert)} is in two partitions, and has no {upsert.order_by} {_places(first)}")
    ordered = two.take(pc.sort_indices(two, [(ORDER, "ascending")]))
    last = _take_last(ordered, key)
    same = _take_last(ordered, [*key, ORDER])
    if same.num_rows < two.num_rows:
        _refuse_ties(two, last, upsert)
    return pa.concat_tables([changes.filter(pa.array(~doubtful)), last])


def _refuse_ties(two: pa.Table, last: pa.Table, upsert: Upsert) -> None:
    """Raise when two partitions have the latest `_order` of a key."""
    best = [*upsert.key, ORDER]
    rows, _ = rows_of_keys(last, two, best)
    tied = two.take(rows).group_by(list(upsert.key), use_threads=False).aggregate([([], "count_all")])
    tied = tied.filter(pc.greater(tied.column("count_all"), 1))
    if tied.num_rows:
        rows, _ = rows_of_keys(tied.slice(0, 1), two, upsert.key)
        group = two.take(rows)
        raise LoadError(f"{_told(group, upsert)} has the same {upsert.order_by} in two partitions, {_places(group)}")


def _older(new: pa.Table, old: pa.Table, upsert: Upsert) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which of the changes `new` come before the rows `old` of the same keys."""

    def refuse(wrong: pa.Array, text: str) -> None:
        if pc.any(wrong).as_py():
            row = pc.index(wrong, True).as_py()
            one, there = new.slice(row, 1), old.slice(row, 1)
            raise LoadError(f"{_told(one, upsert)} {text.format(old=_places(there), new=_places(one))}")

    same = pc.and_(*(pc.equal(new.column(name), old.column(name)) for name in (TOPIC, PARTITION)))
    same = pc.fill_null(same, False).combine_chunks()
    behind = pc.less_equal(new.column(OFFSET), old.column(OFFSET)).combine_chunks()
    refuse(pc.and_(same, behind), _NOT_BEHIND)
    elsewhere = pc.invert(same)
    if upsert.order_by is None:
        refuse(elsewhere, "is in two partitions, {old} in the table, {new} now: " + _WAY_OUT)
        return np.zeros(len(same), bool)
    decided = pc.fill_null(pc.not_equal(new.column(ORDER), old.column(ORDER)), False)  # null where one has none
    text = f"is in two partitions, and {upsert.order_by} does not decide: {{old}} in the table, {{new}} now"
    refuse(pc.and_(elsewhere, pc.invert(decided)), text)
    late = pc.fill_null(pc.less(new.column(ORDER), old.column(ORDER)), False)
    found: np.ndarray[tuple[int], np.dtype[np.bool_]] = pc.and_(elsewhere, late).to_numpy()
    return found


_NOT_BEHIND = (
    "has its row of {old} in the table already, at or behind {new}. The topic was created again or truncated, or "
    "another program has changed the table: load into a new table"
)
_WAY_OUT = (
    "their order is not known. Set order_by (--order-by) to a column that orders them, or let the producer send a key "
    "to one partition"
)


def _group_of(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """The rows with the first one's key."""
    found, _ = rows_of_keys(rows.slice(0, 1), rows, key)
    return rows.take(found)


def _told(rows: pa.Table, upsert: Upsert) -> str:
    """The key of the first row, in words."""
    return "the key " + ", ".join(f"{name}={in_words(rows.column(name)[0])}" for name in upsert.key)


def _places(rows: pa.Table) -> str:
    """Where the first rows are from, in words."""
    places = sorted(tuple(row.values()) for row in rows.select(list(PLACE)).slice(0, 2).to_pylist())
    return " and ".join(
        "a row that no load wrote" if topic is None else f"{topic}-{partition} offset {offset}"
        for topic, partition, offset in places
    )


def _numbered(table: pa.Table, name: str) -> pa.Table:
    return table.append_column(name, pa.array(np.arange(table.num_rows, dtype=np.int64)))

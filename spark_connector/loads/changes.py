"""Records as changes of a table with a key: which row an event writes or deletes. Pure; Arrow only.

    records of a topic ──ChangeDecoder──▶ changes ──last_changes.py──▶ the last change of each key ──▶ one commit

A *change* is the row after an event, or the delete of a key. Changes have the columns of the table, of which a delete
fills only the key, then `_topic`, `_partition` and `_offset`, by `order_by` also `_order`, and last `_deleted`.

Without an envelope the value is the row, and a record without a value deletes its key. A Debezium event has the row in
`after`, and the key of a deleted row in `before`; `payload` around it is found (JsonConverter with schemas). The record
after a delete, without a value, deletes the same key again: all that is left of it in a compacted topic.

The key's columns come from the row and, where the row does not have them or there is none, from the record's key: its
columns of these names or, for one key column, the key itself. Where both have them they must agree. What cannot be
decided raises LoadError with topic, partition and offset, what can never be read ConfigError.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from broker.errors import ConfigError
from spark_connector.formats.placeholder import Path, Placeholder
from spark_connector.formats.unavailable import PlaceholderFinder
from spark_connector.loads.record import LoadError
from spark_connector.loads.request import LOAD_COLUMN
from spark_connector.loads.upsert import Upsert

TOPIC, PARTITION, OFFSET, ORDER, DELETED = "_topic", "_partition", "_offset", "_order", "_deleted"
PLACE = (TOPIC, PARTITION, OFFSET)
"""The columns that say which record wrote a row."""

_OF_KAFKA = frozenset(
    {"key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers", LOAD_COLUMN}
)
DEBEZIUMS_PLACEHOLDER = Placeholder()
_WRITES, _DELETES = ("c", "r", "u"), ("d",)


class ChangeDecoder:
    """Decodes the records of a load. `source`: the columns of its records, values and keys decoded."""

    def __init__(
        self, upsert: Upsert, source: pa.Schema, placeholder: Placeholder | None = DEBEZIUMS_PLACEHOLDER
    ) -> None:
        """`placeholder`: what no column of a row may hold. Raises ConfigError when such records cannot be changes of a
        table with this key."""
        self._upsert = upsert
        self._corrupt = [name for name in source.names if name not in _OF_KAFKA]
        missing = [name for name in ("key", "value", "topic", "partition", "offset") if name not in source.names]
        if missing:
            raise ConfigError(f"mode=upsert needs the columns {', '.join(missing)} of a record (option columns)")
        self._value, self._key_type = source.field("value").type, source.field("key").type
        self._base = _base_of(self._value, upsert)
        self._row = self._row_fields()
        types = {field.name: field.type for field in self._row}
        self._finders: dict[str, PlaceholderFinder] = {}
        if placeholder is not None:
            self._finders = {name: PlaceholderFinder(placeholder, kind, name) for name, kind in types.items()}
        self._keys = self._record_keys(types)
        lacking = [name for name in upsert.key if name not in types and name not in self._keys]
        if lacking:
            raise ConfigError(
                f"key (--key) names {', '.join(lacking)}, which neither the values nor the keys of the records have "
                f"as a column: the values have {', '.join(types) or 'none'}. Set keyFormat and keySchema if it is in "
                "the record's key"
            )
        self._key_types = {name: types[name] if name in types else self._keys[name][1] for name in upsert.key}
        self.columns = pa.schema(
            [*(pa.field(name, self._key_types[name]) for name in upsert.key if name not in types), *self._row]
        )
        """The row's columns: those of the value and, before them, those that only the record's key has."""
        self._order = self._order_path(types)
        self._check_names()

    @property
    def schema(self) -> pa.Schema:
        """The table's columns but for `load`: the row, and which record wrote it."""
        fields = [*self.columns, pa.field(TOPIC, pa.string()), pa.field(PARTITION, pa.int32())]
        fields.append(pa.field(OFFSET, pa.int64()))
        if self._order is not None:
            fields.append(pa.field(ORDER, self._order[2]))
        return pa.schema(fields)

    def changes(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """One change per record, in their order. Raises LoadError for a record that cannot be decided."""
        self._refuse_corrupt(batch)
        value = batch.column("value")
        gone = value.is_null()
        base = _at(value, self._base)
        if self._base:
            self._refuse(batch, pc.and_(base.is_null(), pc.invert(gone)), "has a value without payload")
        row, deleted = self._rows(batch, base, gone)
        columns = {field.name: _at(row, (field.name,)) if self._is_nested else row for field in self._row}
        self._refuse_unavailable(batch, columns, deleted)
        keys = self._key_columns(batch, base, columns, deleted)
        columns = {**{name: keys[name] for name in self._upsert.key if name not in columns}, **columns}
        columns.update(keys)
        arrays = [columns[field.name] for field in self.columns]
        arrays += [batch.column("topic").cast(pa.string()), batch.column("partition"), batch.column("offset")]
        if self._order is not None:
            arrays.append(self._order_column(batch, base, columns, deleted))
        return pa.RecordBatch.from_arrays([*arrays, deleted], schema=self.schema.append(pa.field(DELETED, pa.bool_())))

    def written(self, batch: pa.RecordBatch) -> tuple[pa.Table, pa.Array]:
        """(the rows that events write, in `columns`, which records of the batch these are). Nothing is refused: a key
        that cannot be told is null."""
        base = _at(batch.column("value"), self._base)
        row, writes = base, base.is_valid()
        if self._upsert.envelope != "none":
            row, op = pc.struct_field(base, "after"), pc.struct_field(base, "op").cast(pa.string())
            writes = pc.and_(pc.fill_null(pc.is_in(op, pa.array(_WRITES)), False), row.is_valid())
        columns = {field.name: _at(row, (field.name,)) if self._is_nested else row for field in self._row}
        for name in self._upsert.key:
            there = pa.nulls(batch.num_rows, self._key_types[name])
            with contextlib.suppress(LoadError):
                there = self._from_record_key(batch, name, self._key_types[name])
            columns[name] = pc.coalesce(columns[name], there) if name in columns else there
        rows = pa.table([columns[field.name] for field in self.columns], schema=self.columns)
        return rows.filter(writes), pc.indices_nonzero(writes)

    @property
    def row_path(self) -> Path:
        """Where the row is in the value."""
        inner = ("after",) if self._upsert.envelope == "debezium" else ()
        return (*self._base, *inner)

    @property
    def _is_nested(self) -> bool:
        return bool(pa.types.is_struct(self._value))

    def _row_fields(self) -> list[pa.Field]:
        if not self._is_nested:
            return [pa.field("value", self._value)]
        row = _type_at(self._value, self.row_path)
        if not pa.types.is_struct(row):
            raise ConfigError(
                f"the column {'.'.join(('value', *self.row_path))} must have the columns of the row, not be {row}"
            )
        return [row.field(number).with_nullable(True) for number in range(row.num_fields)]

    def _record_keys(self, row: dict[str, Any]) -> dict[str, tuple[Path, Any]]:
        """Key column → where it is in the record's key, and its type there; empty when the key is not decoded."""
        key = self._key_type
        if pa.types.is_struct(key):
            base = ("payload",) if _is_wrapped(key) and "payload" not in self._upsert.key else ()
            inner = _type_at(key, base)
            if pa.types.is_struct(inner):
                names = {inner.field(number).name: inner.field(number).type for number in range(inner.num_fields)}
                return {name: ((*base, name), names[name]) for name in self._upsert.key if name in names}
            key = inner
            return {self._upsert.key[0]: (base, key)} if len(self._upsert.key) == 1 else {}
        if len(self._upsert.key) != 1:
            return {}
        name = self._upsert.key[0]
        is_meant = pa.types.is_binary(row[name]) if name in row else name == "key"
        return {name: ((), key)} if is_meant or not pa.types.is_binary(key) else {}

    def _order_path(self, row: dict[str, Any]) -> tuple[str, Path, Any] | None:
        """Where the value of `order_by` is: (value | row | record, path, type)."""
        wanted = self._upsert.order_by
        if wanted is None:
            return None
        path = tuple(wanted.split("."))
        found: tuple[str, Path, Any] | None = None
        if self._upsert.envelope == "debezium" and path[0] not in ("before", "after"):
            kind = _type_at(self._value, (*self._base, *path))
            found = ("value", (*self._base, *path), kind) if kind is not None else None
        if found is None and wanted in row:
            found = "row", (wanted,), row[wanted]
        if found is None and wanted == "timestamp":
            found = "record", (wanted,), pa.timestamp("us", "UTC")
        if found is None:
            raise ConfigError(
                f"order_by (--order-by) names '{wanted}', which is no column of the row ({', '.join(row)}), no field "
                "of Debezium's envelope (ts_ms, source.lsn), and not timestamp, the record's"
            )
        if not _has_order(found[2]):
            raise ConfigError(f"order_by (--order-by) '{wanted}' is {found[2]}, which has no order")
        return found

    def _check_names(self) -> None:
        names = self.columns.names
        reserved = {*PLACE, ORDER, DELETED, LOAD_COLUMN}
        taken = [name for name in names if name.lower() in reserved]
        if taken:
            raise ConfigError(f"the values have a column '{taken[0]}', which loads write themselves: rename it")
        twice = [name for name in names if [one.lower() for one in names].count(name.lower()) > 1]
        if twice:
            raise ConfigError(f"the values have columns that are one to Spark: {', '.join(twice)}")
        if "__deleted" in names:
            raise ConfigError(
                "the values have the column __deleted, in which Debezium's ExtractNewRecordState marks deletes: they "
                "would stay as rows. Load Debezium's own events (envelope=debezium), or let it send records without a "
                "value (delete.tombstone.handling.mode=tombstone)"
            )
        for name, kind in self._key_types.items():
            if pa.types.is_nested(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind):
                raise ConfigError(f"key (--key) '{name}' is {kind}: a key is a number without a fraction, text or time")

    def _rows(self, batch: pa.RecordBatch, base: pa.Array, gone: pa.Array) -> tuple[pa.Array, pa.Array]:
        """The rows after the events, and the mask of the deletes."""
        if self._upsert.envelope == "none":
            return base, gone
        op = pc.struct_field(base, "op").cast(pa.string())
        self._refuse(batch, pc.and_(op.is_null(), pc.invert(gone)), "is no event of Debezium: it has no op")
        self._refuse(
            batch,
            pc.equal(op, "t"),
            "empties the whole table (op t), which a load does not: let the connector skip it (skipped.operations=t, "
            "its default), or begin with a new table behind it",
        )
        known = pc.is_in(op, pa.array([*_WRITES, *_DELETES]))
        self._refuse(batch, pc.and_(pc.invert(known), op.is_valid()), "has an op that is none of c, r, u, d and t")
        after = pc.struct_field(base, "after")
        deleted = pc.or_(gone, pc.fill_null(pc.is_in(op, pa.array(_DELETES)), False))
        self._refuse(batch, pc.and_(after.is_null(), pc.invert(deleted)), "has no row: after is null")
        return after, deleted

    def _key_columns(
        self, batch: pa.RecordBatch, base: pa.Array, row: dict[str, pa.Array], deleted: pa.Array
    ) -> dict[str, pa.Array]:
        found = {}
        before = pc.struct_field(base, "before") if self._has_before else None
        for name in self._upsert.key:
            kind = self._key_types[name]
            nothing = pa.nulls(len(deleted), kind)
            here = pc.if_else(deleted, pa.scalar(None, kind), row[name]) if name in row else nothing
            if before is not None and before.type.get_field_index(name) >= 0:
                was = pc.struct_field(before, name).cast(kind)
                moved = pc.and_(pc.fill_null(pc.not_equal(was, here), False), pc.invert(deleted))
                self._refuse(
                    batch,
                    moved,
                    f"changes {name}, a column of the key, in an update: the row of the old key would stay. Use the "
                    "columns of the database's primary key, of which Debezium sends a delete and an insert",
                )
                here = pc.if_else(deleted, was, here)
            there = self._from_record_key(batch, name, kind)
            self._refuse(
                batch,
                pc.fill_null(pc.not_equal(here, there), False),
                f"has another {name} in its key than in its value: leave out keyFormat if the record's key is not the "
                "key of the row",
            )
            both = pc.coalesce(here, there)
            hint = "" if name in self._keys else "; set keyFormat and keySchema, so that it can be read from its key"
            self._refuse(batch, pc.and_(both.is_null(), deleted), f"deletes a row, but has no {name}{hint}")
            self._refuse(batch, both.is_null(), f"has no value for {name}, a column of the key")
            found[name] = both
        return found

    @property
    def _has_before(self) -> bool:
        kind = _type_at(self._value, (*self._base, "before")) if self._upsert.envelope == "debezium" else None
        return kind is not None and pa.types.is_struct(kind)

    def _from_record_key(self, batch: pa.RecordBatch, name: str, kind: Any) -> pa.Array:
        if name not in self._keys:
            return pa.nulls(batch.num_rows, kind)
        path, _ = self._keys[name]
        column = _at(batch.column("key"), path)
        try:
            return column.cast(kind)
        except pa.ArrowException:
            bad = next(row for row, one in enumerate(column) if not _casts(one, kind))
            raise _refusal(batch, bad, f"has the key {column[bad]!s:.60}, which is no {kind} for {name}") from None

    def _order_column(
        self, batch: pa.RecordBatch, base: pa.Array, row: dict[str, pa.Array], deleted: pa.Array
    ) -> pa.Array:
        """Null for a delete that does not tell: what the row had before is older than its delete."""
        assert self._order is not None
        where, path, kind = self._order
        if where == "record":
            return batch.column("timestamp").cast(kind)
        if where == "row":
            return pc.if_else(deleted, pa.scalar(None, kind), row[path[0]])
        return _at(batch.column("value"), path)

    def _refuse_corrupt(self, batch: pa.RecordBatch) -> None:
        for name in self._corrupt:
            self._refuse(
                batch,
                batch.column(name).is_valid(),
                "cannot be decoded, and would count as a delete: repair it, keep such records apart (dead_letters, "
                "--dead-letters), or leave them out (option mode=DROPMALFORMED)",
            )

    def _refuse_unavailable(self, batch: pa.RecordBatch, row: dict[str, pa.Array], deleted: pa.Array) -> None:
        """Debezium writes this for large values that an update has not touched, unless the database logs them."""
        for name, finder in self._finders.items():
            for place, path in finder.find(row[name]).items():
                if not deleted[place].as_py():
                    raise _refusal(
                        batch, place, f"does not have the value of {path}: {finder.placeholder.reason(path)}"
                    )

    def _refuse(self, batch: pa.RecordBatch, wrong: pa.Array, why: str) -> None:
        if pc.any(wrong).as_py():
            raise _refusal(batch, pc.index(wrong, True).as_py(), why)


def _refusal(batch: pa.RecordBatch, row: int, why: str) -> LoadError:
    topic, partition, offset = (batch.column(name)[row].as_py() for name in ("topic", "partition", "offset"))
    return LoadError(f"the record at offset {offset} of topic '{topic}', partition {partition}, {why}")


def _base_of(value: Any, upsert: Upsert) -> Path:
    """Where the row or the envelope is in the value."""
    if upsert.envelope == "none":
        return ("payload",) if _is_wrapped(value) else ()
    for base in ((), ("payload",)):
        if _type_at(value, (*base, "op")) is not None and _type_at(value, (*base, "after")) is not None:
            return base
    raise ConfigError(
        "envelope=debezium needs values with the fields before, after and op, in payload or not; these are "
        f"{value!s:.200}. Set valueFormat and valueSchema"
    )


def _is_wrapped(kind: Any) -> bool:
    """Whether a JSON document is one of Kafka Connect's, with its schema beside it."""
    if not pa.types.is_struct(kind):
        return False
    names = {kind.field(number).name for number in range(kind.num_fields)}
    return "payload" in names and names <= {"schema", "payload"}


def _type_at(kind: Any, path: Sequence[str]) -> Any:
    """The type of a nested field; None when there is none."""
    for name in path:
        number = kind.get_field_index(name) if pa.types.is_struct(kind) else -1
        if number < 0:
            return None
        kind = kind.field(number).type
    return kind


def _at(column: pa.Array, path: Sequence[str]) -> pa.Array:
    """A nested field, null where anything above it is."""
    for name in path:
        column = pc.struct_field(column, name)
    return column


def _has_order(kind: Any) -> bool:
    checks: list[Callable[[Any], bool]] = [pa.types.is_integer, pa.types.is_temporal, pa.types.is_string]
    return any(check(kind) for check in (*checks, pa.types.is_decimal, pa.types.is_binary))


def _casts(one: Any, kind: Any) -> bool:
    try:
        pa.array([one], one.type).cast(kind)
    except pa.ArrowException:
        return False
    return True

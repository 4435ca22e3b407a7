"""Debezium's placeholder for a value that an event does not have, in each form that its connectors write. Pure; Arrow.

A database does not send a large value that an update has not touched (PostgreSQL's TOAST, LOBs of Oracle and SQL
Server, MySQL without full row images). The connector then sends the text of `unavailable.value.placeholder`, in the
type of the column. A table that took it for a value would lose the real one. The forms, from the connectors' sources:

    text          the text, its bytes in base64 or hexadecimal, the JSON text of the map below
    bytes         its bytes; those of a BINARY(n) column are filled up with zeros
    array         of texts and bytes: one element; of UUIDs: the UUID of the placeholder's name (version 3);
                  of numbers, decimals: an element for each byte
    map           the text to the text (hstore); where keys are not text, an array of pairs

Structs, also `scale` and `value` of a decimal, are looked into at every depth. A field that the schema reads as text
may hold any of these as JSON.

A PlaceholderFinder is made for the type of a column, once per task. record_decoder.py uses it to make bad records,
loads/changes.py to refuse an update.
"""

from __future__ import annotations

import base64
import hashlib
import json
import uuid
from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_connector.formats.placeholder import Path, Placeholder

Rows = np.ndarray[tuple[int], np.dtype[np.int64]]
Hits = dict[int, str]
"""Row → the path of the first field that holds the placeholder."""


class PlaceholderFinder:
    """Finds the placeholder in columns of one type."""

    def __init__(self, placeholder: Placeholder, kind: pa.DataType, name: str, paths: Collection[Path] = ((),)) -> None:
        """`name` is what paths begin with in reasons, empty for nothing."""
        self.placeholder = placeholder
        self._bytes = placeholder.values
        texts = {text for data in self._bytes for text in _texts(data)}
        self._texts = _Known(pa.array(sorted(texts), pa.string()))
        self._binary = _Known(pa.array(self._bytes, pa.binary()))
        self._name = name
        self._paths = tuple(path for path in paths if path) if () not in paths else ()
        self.is_needed = can_hold(kind)
        """False where no value of the type is a placeholder in any form."""

    def find(self, column: pa.Array) -> Hits:
        """The rows of `column` with a placeholder, in order."""
        hits: Hits = {}
        if self.is_needed and len(column):
            rows = np.arange(len(column), dtype=np.int64)
            for path, found in self._look(column, self._name, rows, ()):
                for row in found[found >= 0].tolist():
                    hits.setdefault(row, path)
        return dict(sorted(hits.items()))

    def _look(self, column: pa.Array, path: str, rows: Rows, names: Path) -> Iterator[tuple[str, Rows]]:
        """(path, rows of the batch that have the placeholder there); `rows` are those of the elements of `column`."""
        kind = column.type
        if pa.types.is_struct(kind):
            for field, child in zip(kind, column.flatten(), strict=True):
                inner = (*names, field.name)
                if self._counts(inner) and can_hold(field.type):
                    yield from self._look(child, f"{path}.{field.name}" if path else field.name, rows, inner)
        elif pa.types.is_map(kind):
            places = _places(column, rows)
            for part in (column.keys, column.items):
                if can_hold(part.type):
                    yield from self._look(_elements(column, part), path, places, names)
        elif _is_list(kind):
            yield path, self._spelled(column, rows)
            if can_hold(kind.value_type):
                yield from self._look(_elements(column, column.values), f"{path}[]", _places(column, rows), names)
        elif _is_text(kind):
            yield path, rows[self._texts.mask(column)]
        elif _is_bytes(kind):
            yield path, rows[self._is_padded(column)]

    def _counts(self, names: Path) -> bool:
        """Whether a field counts, or something in it."""
        return not self._paths or any(all(map(str.__eq__, names, path)) for path in self._paths)

    def _is_padded(self, column: pa.Array) -> np.ndarray[Any, Any]:
        """Whether each value is the placeholder, maybe with zeros behind it."""
        plain = column.cast(pa.binary()) if not pa.types.is_binary(column.type) else column
        mask = self._binary.mask(plain)
        for data in self._bytes:
            begins = pc.starts_with(plain, pattern=data)
            if pc.any(begins).as_py():
                for row in pc.indices_nonzero(pc.fill_null(begins, False)).to_pylist():
                    mask[row] |= plain[row].as_py().rstrip(b"\0") == data.rstrip(b"\0")
        return mask

    def _spelled(self, column: pa.Array, rows: Rows) -> Rows:
        """The rows of the lists that have one element for each byte of the placeholder."""
        ends = column.offsets.to_numpy()
        lengths = np.diff(ends)
        found = np.zeros(len(column), bool)
        there = column.is_valid().to_numpy(zero_copy_only=False)
        for data in self._bytes:
            fits = np.flatnonzero((lengths == len(data)) & there)
            if len(fits):
                index = (ends[fits][:, None] + np.arange(len(data))[None, :]).ravel()
                elements = column.values.take(pa.array(index, pa.int64()))
                found[fits[_spells(elements, data, len(fits))]] = True
        return rows[found]


class _Known:
    """A few values, of which a column rarely has one: lengths are compared first."""

    def __init__(self, values: pa.Array) -> None:
        self._values = values
        lengths = pc.binary_length(values).to_numpy()
        self._has_length = np.zeros(int(lengths.max()) + 2, bool)
        self._has_length[lengths] = True

    def mask(self, column: pa.Array) -> np.ndarray[Any, Any]:
        ends = _ends_of(column)
        mask: np.ndarray[Any, Any] = self._has_length[np.minimum(ends[1:] - ends[:-1], len(self._has_length) - 1)]
        rows = np.flatnonzero(mask)
        if len(rows):
            plain = column.take(pa.array(rows)).cast(self._values.type)
            mask[rows] = pc.is_in(plain, self._values).to_numpy(zero_copy_only=False)
        return mask


def _ends_of(column: pa.Array) -> np.ndarray[Any, Any]:
    """Where the first of the texts begins, then where each ends; what a null has there does not matter."""
    width = np.int64 if _any(column.type, (pa.types.is_large_string, pa.types.is_large_binary)) else np.int32
    ends = column.buffers()[1]
    if ends is None or not ends.size:
        return np.zeros(len(column) + 1, width)
    return np.frombuffer(ends, width)[column.offset :][: len(column) + 1]


def can_hold(kind: pa.DataType) -> bool:
    """Whether a value of this type can be a placeholder, or have one in it."""
    if pa.types.is_struct(kind):
        return any(can_hold(field.type) for field in kind)
    if pa.types.is_map(kind):
        return can_hold(kind.key_type) or can_hold(kind.item_type)
    return _is_list(kind) or _is_text(kind) or _is_bytes(kind)


def name_uuid(data: bytes) -> str:
    """As Java's `UUID.nameUUIDFromBytes`, which unlike RFC 4122 has no namespace."""
    return str(uuid.UUID(bytes=hashlib.md5(data, usedforsecurity=False).digest(), version=3))


def _texts(data: bytes) -> Iterator[str]:
    """The placeholder as a text, and what a text of JSON has for each of its other forms."""
    text = data.decode("utf-8", "replace")  # as Java's String
    encoded = (base64.b64encode(data).decode(), base64.urlsafe_b64encode(data).decode())
    yield from (text, *encoded, data.hex(), data.hex().upper(), name_uuid(data))
    numbers = np.frombuffer(data, np.int8).tolist()
    documents: tuple[Any, ...] = (
        {text: text},
        *([one] for one in (text, *encoded, name_uuid(data))),
        numbers,
        [float(number) for number in numbers],
    )
    for document in documents:
        yield json.dumps(document, ensure_ascii=False, separators=(",", ":"))


def _spells(elements: pa.Array, data: bytes, lists: int) -> np.ndarray[Any, Any]:
    """Which of the `lists`, that lie one behind the other in `elements`, have an element for each byte of `data`."""
    kind, signed = elements.type, np.tile(np.frombuffer(data, np.int8), lists).astype(np.int64)
    if pa.types.is_struct(kind):  # of a decimal: its scale, and its value as bytes
        parts = [_spells(child, data, lists) for child in elements.flatten()]
        return np.logical_or.reduce(parts) if parts else np.zeros(lists, bool)
    single = [data[place : place + 1] for place in range(len(data))]
    if _is_bytes(kind):
        same = [pc.equal(elements.cast(pa.binary()), pa.array(single * lists, pa.binary()))]
    elif _is_text(kind):
        texts = [base64.b64encode(one).decode() for one in single]
        same = [pc.equal(elements.cast(pa.string()), pa.array(texts * lists, pa.string()))]
    else:
        same = [pc.equal(numbers, pa.array(signed)) for numbers in _as_integers(elements)]
    masks = [pc.fill_null(one, False).to_numpy(zero_copy_only=False).reshape(lists, -1).all(axis=1) for one in same]
    return np.logical_or.reduce(masks) if masks else np.zeros(lists, bool)


def _as_integers(elements: pa.Array) -> Iterator[pa.Array]:
    """What numbers and times may have been as integers; nothing for another type."""
    kind = elements.type
    if pa.types.is_integer(kind):
        yield elements.cast(pa.int64(), safe=False)
    elif pa.types.is_floating(kind):
        yield elements.cast(pa.float64())
    elif pa.types.is_decimal(kind):
        plain = elements.cast(pa.float64())
        yield from (plain, pc.round(pc.multiply(plain, pa.scalar(10.0**kind.scale))))
    elif pa.types.is_date(kind):
        yield elements.cast(pa.int32()).cast(pa.int64())
    elif pa.types.is_timestamp(kind):
        micros = elements.cast(pa.int64())
        for unit in (1, 1_000, 1_000_000):
            whole = pc.divide(micros, pa.scalar(unit, pa.int64()))
            yield pc.if_else(pc.equal(pc.multiply(whole, pa.scalar(unit, pa.int64())), micros), whole, None)


def _places(column: pa.Array, rows: Rows) -> Rows:
    """The row of each element of a column of lists or maps; -1 for what a null hides."""
    there = column.is_valid().to_numpy(zero_copy_only=False)
    return np.repeat(np.where(there, rows, -1), np.diff(column.offsets.to_numpy()))


def _elements(column: pa.Array, part: pa.Array) -> pa.Array:
    """Those of `part`, the child of a column of lists or maps, that the column has."""
    ends = column.offsets
    first = ends[0].as_py()
    return part.slice(first, ends[len(ends) - 1].as_py() - first)


def _any(kind: pa.DataType, checks: Collection[Callable[[pa.DataType], bool]]) -> bool:
    return any(check(kind) for check in checks)


def _is_list(kind: pa.DataType) -> bool:
    return _any(kind, (pa.types.is_list, pa.types.is_large_list))


def _is_text(kind: pa.DataType) -> bool:
    return _any(kind, (pa.types.is_string, pa.types.is_large_string))


def _is_bytes(kind: pa.DataType) -> bool:
    return _any(kind, (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary))

"""How the values of a column of one Arrow type become Avro data of one type: a writer for each pair.

avro_encoder.py chooses the writers. A writer appends the bytes of all rows to a `Target`, and marks the rows whose
value the type cannot hold; what it appends for those is not used. No writer looks at one row after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal as Number
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_connector.formats.avro_row_bytes import Bytes, Mask, RowBytes, binary_array
from spark_connector.formats.value_encoder import as_list

_MOST_SHOWN: Final = 60


class Target:
    """Where the values of one column go. `top`: the row of the batch that each belongs to; None if it is the same."""

    def __init__(self, rows: int, top: np.ndarray[Any, Any] | None, bad: dict[int, str]) -> None:
        self.rows = rows
        self.bytes = RowBytes(rows)
        self.bad = bad
        self.top = top

    def inner(self, lengths: np.ndarray[Any, Any]) -> Target:
        """For the items of lists of these lengths."""
        top = np.arange(self.rows) if self.top is None else self.top
        return Target(int(lengths.sum()), np.repeat(top, lengths), self.bad)

    def refuse(self, wrong: Mask, why: Callable[[int], str]) -> None:
        """`why`: gets the place in the column; the first reason of a row counts."""
        for place in np.flatnonzero(wrong).tolist():
            row = place if self.top is None else int(self.top[place])
            if row not in self.bad:
                self.bad[row] = why(place)


class Writer(Protocol):
    """`there`: the rows that have a value here, of which none is null; None for all."""

    def write(self, column: pa.Array, there: Mask | None, to: Target) -> None: ...


def both(one: Mask | None, other: Mask | None) -> Mask | None:
    if one is None or other is None:
        return other if one is None else one
    return one & other


def valid(column: pa.Array) -> Mask | None:
    return column.is_valid().to_numpy(zero_copy_only=False) if column.null_count else None


@dataclass(frozen=True)
class Required:
    """A value that must not be null. `where`: begins the reason."""

    inner: Writer
    where: str
    schema: str

    def write(self, column: pa.Array, there: Mask | None, to: Target) -> None:
        has = valid(column)
        if has is not None:
            missing = ~has if there is None else there & ~has
            to.refuse(missing, lambda _: f"{self.where}null, but the schema has {self.schema} without null")
        self.inner.write(column, both(there, has), to)


@dataclass(frozen=True)
class Nullable:
    """A union of null and another type. `null`, `some`: their branches."""

    inner: Writer
    null: int
    some: int

    def write(self, column: pa.Array, there: Mask | None, to: Target) -> None:
        has = valid(column)
        some, null = 2 * self.some, 2 * self.null
        to.bytes.byte(some if has is None else np.where(has, np.uint8(some), np.uint8(null)), there)
        self.inner.write(column, both(there, has), to)


@dataclass(frozen=True)
class Branch:
    """A union of one type, without null."""

    inner: Writer
    index: int

    def write(self, column: pa.Array, there: Mask | None, to: Target) -> None:
        to.bytes.byte(2 * self.index, there)
        self.inner.write(column, there, to)


class Nothing:
    """Avro's null."""

    def write(self, column: pa.Array, there: Mask | None, to: Target) -> None:
        pass


class Boolean:
    def write(self, column: pa.Array, there: Mask | None, to: Target) -> None:
        to.bytes.byte(column.fill_null(False).to_numpy(zero_copy_only=False).view(np.uint8), there)


@dataclass(frozen=True)
class Integer:
    """`bits`: of the Avro type if it holds less than the column. `unit`: of the column's in one of Avro's; rounded
    down."""

    where: str
    bits: int | None = None
    unit: int = 1

    def write(self, column: pa.Array, there: Mask | None, to: Target) -> None:
        numbers = fixed_width(column).astype(np.int64, copy=False)
        if self.unit != 1:
            numbers = numbers // self.unit
        if self.bits is not None:
            bound = 1 << (self.bits - 1)
            wrong = (numbers < -bound) | (numbers >= bound)
            wrong = wrong if there is None else wrong & there
            to.refuse(wrong, lambda row: f"{self.where}{numbers[row]} does not fit into an int")
        to.bytes.number(numbers, there)


@dataclass(frozen=True)
class Floating:
    """`kind`: of Avro, as numpy names it."""

    kind: str

    def write(self, column: pa.Array, there: Mask | None, to: Target) -> None:
        numbers = np.ascontiguousarray(fixed_width(column).astype(self.kind, copy=False))
        to.bytes.matrix(numbers.view(np.uint8).reshape(len(numbers), -1), there)


class Data:
    """Strings and bytes."""

    def write(self, column: pa.Array, there: Mask | None, to: Target) -> None:
        column = binary(column, there)
        to.bytes.number(lengths_of(column), there)
        to.bytes.data(column)


@dataclass(frozen=True)
class Fixed:
    where: str
    size: int

    def write(self, column: pa.Array, there: Mask | None, to: Target) -> None:
        column = binary(column, there)
        lengths = lengths_of(column)
        wrong = lengths != self.size
        to.refuse(
            wrong if there is None else wrong & there,
            lambda row: f"{self.where}{lengths[row]} bytes do not fit into a fixed of {self.size}",
        )
        to.bytes.data(column)


@dataclass(frozen=True)
class Enum:
    where: str
    name: str
    symbols: tuple[str, ...]

    def write(self, column: pa.Array, there: Mask | None, to: Target) -> None:
        found = pc.index_in(column, value_set=pa.array(self.symbols, column.type))
        unknown = valid(found)
        if unknown is not None:
            wrong = ~unknown if there is None else there & ~unknown
            to.refuse(wrong, lambda row: f"{self.where}'{shown(column[row])}' is not a symbol of {self.name}")
        to.bytes.number(found.fill_null(0).to_numpy().astype(np.int64), there)


@dataclass(frozen=True)
class DecimalBytes:
    """An unscaled number of two's complement. `size`: of a fixed; None for bytes, as few as hold it. `digits`: the
    precision of the Avro type if it is less than the column's. `kind`: the type with the scale of Avro's."""

    where: str
    kind: pa.DataType
    size: int | None
    digits: int | None

    def write(self, column: pa.Array, there: Mask | None, to: Target) -> None:
        if column.type != self.kind:
            column = column.cast(self.kind)
        if self.digits is not None:
            limit = pa.scalar(Number(10) ** (self.digits - self.kind.scale), self.kind)  # which has a digit more
            wrong = pc.greater_equal(pc.abs(column), limit).fill_null(False).to_numpy(zero_copy_only=False)
            why = f"does not fit into a decimal of {self.digits} digits"
            to.refuse(
                wrong if there is None else wrong & there,
                lambda row: f"{self.where}{column[row].as_py()} {why}, {self.kind.scale} of them behind the point",
            )
        raw = np.frombuffer(column.buffers()[1], np.uint8).reshape(-1, 16)
        raw = raw[column.offset : column.offset + len(column), ::-1]
        if self.size is None:
            spare = _spare_bytes(raw)
            to.bytes.number(16 - spare, there)
            to.bytes.matrix(raw, there, spare)
            return
        sign = (raw[:, :1] >> 7) * np.uint8(0xFF)
        filled = np.repeat(sign, max(0, self.size - 16), axis=1)
        to.bytes.matrix(np.hstack([filled, raw[:, max(0, 16 - self.size) :]]), there)


def _spare_bytes(raw: Bytes) -> np.ndarray[Any, Any]:
    """How many first bytes of each row only repeat the sign of the next."""
    sign = (raw[:, :1] >> 7) * np.uint8(0xFF)
    repeats = (raw[:, :-1] == sign) & ((raw[:, 1:] ^ sign) < 0x80)
    spare: np.ndarray[Any, Any] = np.cumprod(repeats, axis=1, dtype=np.int64).sum(axis=1)
    return spare


@dataclass(frozen=True)
class Record:
    """`fields`: in Avro's order the index of the column's field, and its writer; -1 with the writer of an absence."""

    fields: Sequence[tuple[int, Writer]]

    def write(self, column: pa.Array, there: Mask | None, to: Target) -> None:
        children = column.flatten()
        for index, writer in self.fields:
            writer.write(children[index] if index >= 0 else None, there, to)


@dataclass(frozen=True)
class Absent:
    """A nullable field that has no column. `null`: its branch."""

    null: int

    def write(self, column: pa.Array, there: Mask | None, to: Target) -> None:
        to.bytes.number(np.full(to.rows, self.null), there)


@dataclass(frozen=True)
class Items:
    """Arrays, and maps, whose entries are records of two fields: one block of all items."""

    inner: Writer

    def write(self, column: pa.Array, there: Mask | None, to: Target) -> None:
        if isinstance(column, pa.MapArray):
            column = as_list(column)
        lengths = pc.list_value_length(column).fill_null(0).to_numpy().astype(np.int64)
        if there is not None:
            lengths = np.where(there, lengths, 0)
            column = column.filter(pa.array(there))
        has = lengths > 0
        to.bytes.number(lengths, has)
        if has.any():
            inside = to.inner(lengths)
            self.inner.write(column.flatten(), None, inside)
            items = inside.bytes.joined()
            edges = np.frombuffer(items.buffers()[1], np.int32)[items.offset :]
            ends = edges[np.concatenate(([0], np.cumsum(lengths)))].astype(np.int64)
            to.bytes.data(binary_array(ends, items.buffers()[2] or pa.py_buffer(b"")))
        to.bytes.byte(0, there)


@dataclass(frozen=True)
class Members:
    """A union of several types, which is a struct with a field per branch: the first that is not null is written.

    `branches`: the branch of each field and its writer. `null`: the branch null, if there is one.
    """

    where: str
    branches: Sequence[tuple[int, Writer]]
    null: int | None

    def write(self, column: pa.Array, there: Mask | None, to: Target) -> None:
        left = np.ones(to.rows, np.bool_) if there is None else there.copy()
        taken = []
        branch = np.zeros(to.rows, np.int64)
        children = column.flatten()
        for child, (index, writer) in zip(children, self.branches, strict=True):
            has = valid(child)
            mine = left.copy() if has is None else left & has
            branch[mine] = index
            left &= ~mine
            taken.append((child, writer, mine))
        if self.null is None:
            to.refuse(left, lambda _: f"{self.where}all members of a union without null are null")
        else:
            branch[left] = self.null
        to.bytes.number(branch, there)
        for child, writer, mine in taken:
            if mine.any():
                writer.write(child, mine, to)


def fixed_width(column: pa.Array) -> np.ndarray[Any, Any]:
    """The numbers of a column, and anything where it is null."""
    kind = column.type
    width = kind.bit_width // 8
    name = f"f{width}" if pa.types.is_floating(kind) else f"i{width}"
    return np.frombuffer(column.buffers()[1], name)[column.offset : column.offset + len(column)]


def binary(column: pa.Array, there: Mask | None) -> pa.Array:
    """A column as binary, null where it has no value."""
    if column.type != pa.binary():
        # A view of text costs nothing; a cast copies it.
        column = column.view(pa.binary()) if pa.types.is_string(column.type) else column.cast(pa.binary())
    if there is not None and column.null_count != len(column) - np.count_nonzero(there):
        column = pc.if_else(pa.array(there), column, pa.scalar(None, pa.binary()))
    return column


def lengths_of(column: pa.Array) -> np.ndarray[Any, Any]:
    edges = np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column) + 1]
    return np.diff(edges).astype(np.int64)


def shown(value: pa.Scalar) -> str:
    """A text for a message, also if it is not UTF-8."""
    text: str = value.as_buffer().to_pybytes().decode("utf-8", "replace")
    return text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + "…"

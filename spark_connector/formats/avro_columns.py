"""What Spark shows of an Avro schema: the Arrow type of its column, and the Python objects that Arrow takes for it.

The types are those of spark-avro (`SchemaConverters`), except that every field is nullable, as in its PERMISSIVE mode.
A union of several types is a struct with a field per branch, `member0` and so on; a union of one type and null is that
type; int and long are long, float and double are double. A record that contains itself ends after
`recursiveFieldMaxDepth` levels: what lies deeper is left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from decimal import Context
from decimal import Decimal as Number
from typing import Any, Final

import numpy as np
import pyarrow as pa

from broker.errors import ConfigError
from spark_connector.formats.avro_schema import NO_DEFAULT, AvroType, Decimal, Field, takes_no_bytes
from spark_connector.formats.value_decoder import BadValue
from spark_connector.formats.value_format import MOST_LEVELS

_DEEPEST: Final = 64
_MOST_DIGITS: Final = 38
_MOST_FIELDS: Final = 100_000
_PRIMITIVES: Final[dict[str, pa.DataType]] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
    "fixed": pa.binary(),
}
_UTC_US: Final = pa.timestamp("us", "UTC")
_LOGICAL: Final[dict[str, pa.DataType]] = {
    "date": pa.date32(),
    "timestamp-millis": _UTC_US,
    "timestamp-micros": _UTC_US,
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
}
_MOST_MS: Final = (1 << 63) // 1000
_WIDE: Final = Context(prec=100)
_NUMBER: Final = re.compile(r"\s*[+-]?(?:NaN|Infinity|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?[fFdD]?)\s*\Z", re.ASCII)
"""As Java's Double.valueOf reads it, but for hexadecimal digits."""
_WIDENED: Final = {frozenset({"int", "long"}): pa.int64(), frozenset({"float", "double"}): pa.float64()}


def column_of(schema: AvroType, most_levels: int = -1) -> pa.DataType:
    """`most_levels`: recursiveFieldMaxDepth. Raises ConfigError for a schema without a Spark type."""
    made = _Columns(most_levels).of(schema, {}, 0)
    assert made is not None
    return made


class _Columns:
    def __init__(self, most_levels: int) -> None:
        self._most = most_levels
        self._fields = 0
        """So far. Where records are used twice, or lie within themselves, they multiply from level to level."""

    def of(self, one: AvroType, levels: Mapping[str, int], depth: int) -> pa.DataType | None:
        """None where the levels end. `levels`: how often the enclosing records occur."""
        if depth > _DEEPEST * max(1, self._most):
            raise ConfigError(f"Avro schema is nested more than {_DEEPEST} deep")
        if one.kind == "union":
            return self._union(one, levels, depth)
        if one.kind == "record":
            return self._record(one, levels, depth)
        if one.item is not None:
            if one.kind == "array" and takes_no_bytes(one.item):
                raise ConfigError(
                    "Avro schema has an array of items that take no bytes, so its length cannot be trusted"
                )
            item = self.of(one.item, levels, depth + 1)
            if item is None:
                return None
            return pa.list_(item) if one.kind == "array" else pa.map_(pa.string(), item)
        if isinstance(one.logical, Decimal):
            precision, scale = one.logical
            if precision > _MOST_DIGITS:
                raise ConfigError(
                    f"Avro schema has a decimal of {precision} digits: Spark's have {_MOST_DIGITS} at most"
                )
            return pa.decimal128(precision, scale)
        return _PRIMITIVES[one.kind] if one.logical is None else _LOGICAL[one.logical]

    def _record(self, one: AvroType, levels: Mapping[str, int], depth: int) -> pa.DataType | None:
        level = levels.get(one.name, 0)
        if level and self._most <= 0:
            raise ConfigError(
                f"Avro schema is recursive in {one.name}: set the option 'recursiveFieldMaxDepth' to 1 to "
                f"{MOST_LEVELS}, the number of levels to keep"
            )
        if level and level >= self._most:
            return None
        self._fields += len(one.fields)
        if self._fields > _MOST_FIELDS:
            way_out = f" at {self._most} levels: lower the option 'recursiveFieldMaxDepth'" if self._most > 0 else ""
            raise ConfigError(f"Avro schema makes a column of more than {_MOST_FIELDS:,} fields{way_out}")
        inner = {**levels, one.name: level + 1}
        return _struct([(field.name, self.of(field.type, inner, depth + 1)) for field in one.fields])

    def _union(self, one: AvroType, levels: Mapping[str, int], depth: int) -> pa.DataType | None:
        some = [branch for branch in one.branches if branch.kind != "null"]
        if not some:
            return pa.null()
        widened = _widened(some)
        if widened is not None:
            return widened
        columns = [self.of(branch, levels, depth + 1) for branch in some]
        return columns[0] if len(some) == 1 else _struct([(f"member{n}", column) for n, column in enumerate(columns)])


def _struct(fields: list[tuple[str, pa.DataType | None]]) -> pa.DataType:
    return pa.struct([(name, kind) for name, kind in fields if kind is not None])


def _widened(some: list[AvroType]) -> pa.DataType | None:
    return _WIDENED.get(frozenset(one.kind for one in some)) if len(some) == 2 else None


def members(union: AvroType) -> bool:
    """Whether Spark shows the union as a struct of its branches."""
    some = [branch for branch in union.branches if branch.kind != "null"]
    return len(some) > 1 and _widened(some) is None


def member(union: AvroType, index: int) -> str | None:
    """The field of the struct for branch `index`; None if the union is no struct, or the branch is null."""
    if union.branches[index].kind == "null" or not members(union):
        return None
    return f"member{sum(branch.kind != 'null' for branch in union.branches[:index])}"


def conversion(writer: str, reader: AvroType, path: str = "") -> Callable[[Any], Any] | None:
    """From the object of a writer's primitive type to that of the reader's; None if it is the same. String and bytes
    are encoded alike, so they are decoded as the reader's type from the start. The function may raise BadValue, with
    the field `path`."""
    where = f"field {path}: " if path else ""
    if isinstance(reader.logical, Decimal):
        return _decimal(*reader.logical, where)
    if isinstance(reader.logical, str) and reader.logical.endswith("-millis"):
        return _micros(where)
    if reader.kind == "float" and writer in {"int", "long"}:
        return lambda value: float(np.float32(np.int64(value)))  # rounded once, as by Java
    if reader.kind == "double" and writer == "long":
        return float
    return None


def _as_float(number: float) -> float:
    with np.errstate(over="ignore"):  # too large is infinite
        return float(np.float32(number))


def _micros(where: str) -> Callable[[int], int]:
    def convert(millis: int) -> int:
        if -_MOST_MS <= millis <= _MOST_MS:
            return millis * 1000
        raise BadValue(f"{where}{millis} ms is beyond all timestamps, which are microseconds in 64 bits")

    return convert


def _decimal(precision: int, scale: int, where: str) -> Callable[[bytes], Number]:
    limit = 10**precision

    def convert(raw: bytes) -> Number:
        unscaled = int.from_bytes(raw, signed=True)
        if raw and -limit < unscaled < limit:
            return Number(unscaled).scaleb(-scale, _WIDE)
        why = f"the number has more than {precision} digits" if raw else "a decimal of no bytes is no number"
        raise BadValue(where + why)

    return convert


def default_value(one: AvroType, default: Any) -> Any:
    """The object for a default, which is JSON. Raises ValueError if it is not one of the type.

    As Avro's library for Java: bytes are text, a byte per character; a fixed is cut or filled to its size; a union
    takes the first branch that the kind of JSON allows, and a record, array or map allows any: it is empty then; an int
    takes any number, without its fraction; a float or a double outside a union takes text, too, because JSON has no NaN
    and no Infinity. But a number that an int cannot hold is refused, where Java takes another one.
    """
    match one.kind:
        case "union":
            index = next((i for i, branch in enumerate(one.branches) if _allows(branch.kind, default)), None)
            if index is None:
                raise _no_default(one, default)
            value = default_value(one.branches[index], default)
            name = member(one, index)
            return value if name is None else {name: value}
        case "record":
            return {field.name: _of_field(field, default) for field in one.fields}
        case "array":
            assert one.item is not None
            items = default.values() if isinstance(default, dict) else default if isinstance(default, list) else ()
            return [default_value(one.item, item) for item in items]
        case "map" if not (isinstance(default, list) and default):
            assert one.item is not None
            entries = default if isinstance(default, dict) else {}
            return {key: default_value(one.item, item) for key, item in entries.items()}
        case "enum" if default in one.symbols:
            return default
        case "bytes" | "fixed" if isinstance(default, str):
            raw = default.encode("iso-8859-1", "replace")
            raw = raw[: one.size].ljust(one.size, b"\0") if one.kind == "fixed" else raw
            convert = conversion(one.kind, one)
            return raw if convert is None else convert(raw)
        case "int" | "long" if _allows(one.kind, default):
            number, bits = int(default), 31 if one.kind == "int" else 63
            if -(1 << bits) <= number < 1 << bits:
                convert = conversion(one.kind, one)
                return number if convert is None else convert(number)
        case "float" | "double" if _allows(one.kind, default) or (isinstance(default, str) and _NUMBER.match(default)):
            double = float(str(default).strip().rstrip("fFdD"))
            return double if one.kind == "double" else _as_float(double)
        case "null" | "boolean" | "string" if _allows(one.kind, default):
            return default
    raise _no_default(one, default)


def default_of(field: Field, writer: AvroType) -> Any:
    """Raises BadValue for one that Spark's type cannot hold, ConfigError for one that is none of Avro's type."""
    why = f"{writer} was written without field {field.name}, and the default of this is wrong"
    try:
        return default_value(field.type, field.default)
    except BadValue as error:
        raise BadValue(f"{why}: {error}") from None
    except (ValueError, OverflowError, RecursionError) as error:
        raise ConfigError(f"{why}: {error}") from None


def _of_field(field: Field, record: Any) -> Any:
    found = record.get(field.name, field.default) if isinstance(record, dict) else field.default
    if found is NO_DEFAULT:
        raise ValueError(f"it has no field {field.name}, which has no default itself")
    return default_value(field.type, found)


def _allows(kind: str, default: Any) -> bool:
    match kind:
        case "null":
            return default is None
        case "boolean":
            return isinstance(default, bool)
        case "int" | "long" | "float" | "double":
            return isinstance(default, int | float) and not isinstance(default, bool)
        case "bytes" | "string" | "fixed":
            return isinstance(default, str)
    return True


def _no_default(one: AvroType, default: Any) -> ValueError:
    return ValueError(f"{default!r:.60} is not a value of {one}")

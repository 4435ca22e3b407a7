"""Columns to Avro data, as Spark's `to_avro` writes a struct with a given schema.

record_encoder.py calls it in tasks; on the driver it says, by ConfigError, what does not fit. Columns are matched with
fields by name, whatever the case. A column without a field is refused, and so is a field without a column, unless it
can be null. Types that differ are refused, except where every value that fits is written exactly: a smaller or a larger
integer, a float for a double, a decimal of another precision or with fewer digits behind the point. A row with a value
that does not fit, or with null where the schema has no null, is a bad row. avro_writers.py makes the bytes, a column at
a time.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from broker.errors import ConfigError
from spark_connector.formats import avro_writers as writers
from spark_connector.formats.avro_columns import members
from spark_connector.formats.avro_schema import AvroType, Decimal, Field, parse_avro
from spark_connector.formats.avro_writers import Target, Writer
from spark_connector.formats.value_encoder import Encoded
from spark_connector.formats.value_format import AvroSchema

_MOST_DIGITS: Final = 38
_IN_MILLIS: Final = 1000


class AvroEncoder:
    """Encodes rows of the Arrow type `type` as data of `schema`, each behind `prefix`."""

    def __init__(self, schema: AvroSchema, type: pa.StructType, prefix: bytes = b"") -> None:
        """Raises ConfigError for a type that is not written as this schema."""
        self._prefix = prefix
        root = parse_avro(schema)
        self._is_single = type.num_fields == 1 and not _takes_struct(root)
        """Whether the schema is that of the only column, and not of a record."""
        self._writer = _value(root, type.field(0).type, type.field(0).name) if self._is_single else _value(root, type)

    def encode(self, rows: pa.StructArray) -> Encoded:
        """A row that is null is a null value; so is null in the only column, if the schema is of that."""
        column = rows.flatten()[0] if self._is_single else rows
        if not column.null_count:
            return self._encoded(column)
        made = self._encoded(column.drop_null())
        places = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
        indices = np.zeros(len(column), np.int64)
        indices[places] = np.arange(len(places))
        values = made.values.take(pa.array(indices, mask=np.isin(np.arange(len(column)), places, invert=True)))
        return Encoded(values, {int(places[row]): why for row, why in made.bad.items()})

    def _encoded(self, column: pa.Array) -> Encoded:
        if not len(column):
            return Encoded(pa.nulls(0, pa.binary()), {})
        bad: dict[int, str] = {}
        target = Target(len(column), None, bad)
        self._writer.write(column, None, target)
        values = target.bytes.joined(self._prefix)
        if bad:
            kept = np.ones(len(column), np.bool_)
            kept[list(bad)] = False
            values = pc.if_else(pa.array(kept), values, pa.scalar(None, pa.binary()))
        return Encoded(values, dict(sorted(bad.items())))


def _takes_struct(schema: AvroType) -> bool:
    return schema.kind == "record" or any(one.kind == "record" for one in schema.branches) or members(schema)


def _value(schema: AvroType, kind: pa.DataType, path: str = "") -> Writer:
    """`path`: the names of the columns that lead here, joined by dots."""
    if schema.kind == "union":
        return _union(schema, kind, path)
    if schema.kind == "null" and pa.types.is_null(kind):
        return writers.Nothing()
    return writers.Required(_plain(schema, kind, path), _where(path), str(schema))


def _union(schema: AvroType, kind: pa.DataType, path: str) -> Writer:
    null = next((index for index, one in enumerate(schema.branches) if one.kind == "null"), None)
    some = [(index, one) for index, one in enumerate(schema.branches) if one.kind != "null"]
    if members(schema):
        writer = _members(schema, some, null, kind, path)
        # A struct that is null has members that are.
        return writer if null is not None else writers.Required(writer, _where(path), str(schema))
    if pa.types.is_null(kind) and null is not None:
        return writers.Absent(null)
    if not some:
        raise _misfit(schema, kind, path)
    # Of an int and a long, or a float and a double, the larger one.
    index, branch = next((one for one in some if one[1].kind in {"long", "double"}), some[0])
    inner = _plain(branch, kind, path)
    if null is None:
        return writers.Branch(writers.Required(inner, _where(path), str(schema)), index)
    return writers.Nullable(inner, null, index)


def _members(
    schema: AvroType, some: list[tuple[int, AvroType]], null: int | None, kind: pa.DataType, path: str
) -> Writer:
    names = [f"member{number}" for number in range(len(some))]
    if not pa.types.is_struct(kind) or [one.name for one in kind] != names:
        raise ConfigError(
            f"{_column(path)} of type {kind} cannot be written as Avro's {schema}: this takes a struct of the fields "
            f"{', '.join(names)}, of which one is not null"
        )
    branches = [
        (index, _plain(one, kind.field(number).type, f"{path}.{names[number]}"))
        for number, (index, one) in enumerate(some)
    ]
    return writers.Members(_where(path), branches, null)


def _plain(schema: AvroType, kind: pa.DataType, path: str) -> Writer:
    """For values that are not null, of a type that is no union. Raises ConfigError."""
    made = _nested(schema, kind, path) if pa.types.is_nested(kind) else _atom(schema, kind, _where(path))
    if made is None:
        raise _misfit(schema, kind, path)
    return made


def _nested(schema: AvroType, kind: pa.DataType, path: str) -> Writer | None:
    if schema.kind == "record" and pa.types.is_struct(kind):
        return _record(schema, kind, path)
    if schema.kind == "array" and (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        assert schema.item is not None
        return writers.Items(_value(schema.item, kind.value_type, f"{path}[]"))
    if schema.kind == "map" and pa.types.is_map(kind) and _is_text(kind.key_type):
        assert schema.item is not None
        value = _value(schema.item, kind.item_type, f"{path}[]")
        return writers.Items(writers.Record([(0, writers.Data()), (1, value)]))
    return None


def _atom(schema: AvroType, kind: pa.DataType, where: str) -> Writer | None:
    is_long = schema.kind == "long"
    if pa.types.is_signed_integer(kind) and schema.kind in {"int", "long"}:
        return writers.Integer(where, bits=32 if kind == pa.int64() and not is_long else None)
    if pa.types.is_date32(kind) and schema.kind == "int":
        return writers.Integer(where)
    if pa.types.is_timestamp(kind) and kind.unit == "us" and is_long and not schema.other_logical:
        family = "local-timestamp" if kind.tz is None else "timestamp"
        if schema.logical == f"{family}-micros":
            return writers.Integer(where)
        return writers.Integer(where, unit=_IN_MILLIS) if schema.logical in {None, f"{family}-millis"} else None
    if pa.types.is_boolean(kind) and schema.kind == "boolean":
        return writers.Boolean()
    if (pa.types.is_float32(kind) and schema.kind in {"float", "double"}) or (
        pa.types.is_float64(kind) and schema.kind == "double"
    ):
        return writers.Floating("<f4" if schema.kind == "float" else "<f8")
    if pa.types.is_decimal128(kind) and isinstance(schema.logical, Decimal):
        return _decimal(schema, schema.logical, kind, where)
    if _is_text(kind):
        if schema.kind == "enum":
            return writers.Enum(where, str(schema), schema.symbols)
        return writers.Data() if schema.kind == "string" else None
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        if schema.kind == "fixed":
            return writers.Fixed(where, schema.size)
        return writers.Data() if schema.kind == "bytes" else None
    return None


def _decimal(schema: AvroType, wanted: Decimal, kind: pa.DataType, where: str) -> Writer | None:
    precision = kind.precision + wanted.scale - kind.scale
    if wanted.scale < kind.scale or precision > _MOST_DIGITS:
        return None
    return writers.DecimalBytes(
        where,
        pa.decimal128(precision, wanted.scale),
        schema.size if schema.kind == "fixed" else None,
        wanted.precision if wanted.precision < precision else None,
    )


def _record(schema: AvroType, kind: pa.StructType, path: str) -> Writer:
    found: dict[str, int] = {}
    for index, one in enumerate(kind):
        field = _field(schema, one.name, path)
        if field.name in found:
            names = f"{kind.field(found[field.name]).name} and {one.name}"
            raise ConfigError(f"Columns {names} are both of field {field.name} of Avro's {schema}: drop one")
        found[field.name] = index
    made = []
    for field in schema.fields:
        index = found.get(field.name, -1)
        if index >= 0:
            one = kind.field(index)
            made.append((index, _value(field.type, one.type, f"{path}.{one.name}" if path else one.name)))
            continue
        null = next((index for index, one in enumerate(field.type.branches) if one.kind == "null"), None)
        if null is None:
            raise ConfigError(f"Field {field.name} of Avro's {schema} has no column, and it cannot be null")
        made.append((-1, writers.Absent(null)))
    return writers.Record(tuple(made))


def _field(schema: AvroType, name: str, path: str) -> Field:
    alike = [one for one in schema.fields if one.name.lower() == name.lower()]
    exact = [one for one in alike if one.name == name] or alike
    if len(exact) == 1:
        return exact[0]
    place = f"{path}.{name}" if path else name
    if exact:
        names = " or ".join(one.name for one in exact)
        raise ConfigError(f"Column {place} may be {names} of Avro's {schema}: rename it")
    raise ConfigError(f"Column {place} has no field in Avro's {schema}: leave it out of the columns to write")


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _misfit(schema: AvroType, kind: pa.DataType, path: str) -> ConfigError:
    logical = f" ({schema.logical or schema.other_logical})" if schema.logical or schema.other_logical else ""
    return ConfigError(f"{_column(path)} of type {kind} cannot be written as Avro's {schema}{logical}: cast it")


def _column(path: str) -> str:
    return f"Column {path}" if path else "A row"


def _where(path: str) -> str:
    return f"column {path}: " if path else ""

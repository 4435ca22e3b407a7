"""Whether rows that are written as JSON are what their JSON Schema asks for, by columns.

record_encoder.py uses it for writes with the id of a JSON Schema. What the columns decide is checked once, when it is
made, on the driver: their names and their types. Of the rows are checked, at the cost of one pass over their nulls:
fields and keys that the schema requires, nulls where it admits none, the values of an enumeration of texts, numbers
that JSON has not. What else a schema may ask for (`minimum`, `pattern`, `format`, `maxItems`, …) is not checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from broker.errors import ConfigError
from spark_connector.formats.json_encoder import JsonEncoder
from spark_connector.formats.json_schema import Shape, parse_json_schema
from spark_connector.formats.nested_values import Rows, elements, present
from spark_connector.formats.value_encoder import Encoded
from spark_connector.formats.value_format import JsonSchema
from spark_connector.formats.write_format import TO_JSON, JsonText

_Found = Iterator[tuple[Rows, str]]
"""(rows that are bad, why)"""
_Check = Callable[[pa.Array, Rows], _Found]

_TEXT: Final = (pa.types.is_string, pa.types.is_binary, pa.types.is_temporal)
_NUMBER: Final = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)


class CheckedJson:
    """JSON of one type of rows, each checked against a JSON Schema; a ValueEncoder."""

    def __init__(self, schema: JsonSchema, kind: pa.StructType, text: JsonText = TO_JSON, prefix: bytes = b"") -> None:
        """Raises ConfigError for columns that the schema refuses in every row."""
        self._json = JsonEncoder(kind, text, prefix)
        self._omits_nulls = text.ignore_null_fields
        self._check = self._of(parse_json_schema(schema), kind, "")

    def encode(self, rows: pa.StructArray) -> Encoded:
        made = self._json.encode(rows)
        bad: dict[int, str] = {}
        if self._check is not None:
            for places, why in self._check(rows, np.arange(len(rows))):
                for row in places.tolist():
                    bad.setdefault(row, why)
        if not bad:
            return made
        mask = np.zeros(len(rows), bool)
        mask[list(bad)] = True
        values = pc.if_else(pa.array(mask), pa.scalar(None, made.values.type), made.values)
        return Encoded(values, {**made.bad, **dict(sorted(bad.items()))})

    def _of(self, shape: Shape, kind: pa.DataType, path: str) -> _Check | None:
        """The check of a column, whose nulls are the business of what it is in; None if there is nothing to check."""
        is_any = shape.kind == "any"
        if (is_any and not shape.required) or pa.types.is_null(kind):
            return None
        if pa.types.is_struct(kind) and (is_any or shape.kind in {"struct", "map"}):
            return self._of_object(shape, kind, path)
        if pa.types.is_map(kind) and (is_any or shape.kind in {"struct", "map"}):
            return self._of_map(shape, kind, path)
        if is_any:
            return None
        if pa.types.is_list(kind) and shape.item is not None and shape.kind == "list":
            return self._of_elements(shape.item, kind.value_type, f"{path}[]")
        if not _is_written_as(kind, shape):
            raise ConfigError(f"{_field(path)} is {kind}, where the JSON Schema asks for {shape}")
        if pa.types.is_floating(kind):
            return _finite(path)
        return None if shape.values is None else _one_of(shape.values, path)

    def _of_object(self, shape: Shape, kind: pa.StructType, path: str) -> _Check:
        names = [one.name for one in kind]
        known = shape.fields or {}
        if missing := [name for name in sorted(shape.required) if name not in names]:
            raise ConfigError(f"the JSON Schema requires the field {_named(path, missing[0])}, which no column has")
        if not shape.admits_others and (unknown := [name for name in names if name not in known]):
            raise ConfigError(
                f"the JSON Schema has no field {_named(path, unknown[0])} and admits no others: leave the column out"
            )
        checks: list[tuple[int, bool, str, _Check | None]] = []
        for index, one in enumerate(kind):
            inner = known.get(one.name, shape.item)
            where = _named(path, one.name)
            check = None if inner is None else self._of(inner, one.type, where)
            why = self._null_is_bad(inner, where, required=one.name in shape.required)
            if check is not None or why:
                checks.append((index, bool(why), why, check))

        def run(column: pa.Array, rows: Rows) -> _Found:
            there, rows = present(column, rows)
            children = there.flatten()
            for index, refuses_null, why, check in checks:
                child = children[index]
                if refuses_null and child.null_count:
                    yield rows[child.is_null().to_numpy(zero_copy_only=False)], why
                if check is not None:
                    yield from check(child, rows)

        return run

    def _of_map(self, shape: Shape, kind: pa.MapType, path: str) -> _Check | None:
        """A map is an object of which each row has its own fields."""
        known = shape.fields or {}
        if not known and not shape.required and shape.admits_others:
            return None if shape.item is None else self._of_elements(shape.item, kind.item_type, f"{path}[]")
        if not pa.types.is_string(kind.key_type):
            raise ConfigError(
                f"{_field(path)} has keys of type {kind.key_type}, of which the JSON Schema says more: cast them"
            )
        named = {name: self._of_value(one, kind.item_type, _named(path, name)) for name, one in known.items()}
        others = None if shape.item is None else self._of_value(shape.item, kind.item_type, f"{path}[]")

        def run(column: pa.Array, rows: Rows) -> _Found:
            there, rows = present(column, rows)
            keys, items, places = elements(there)
            rest: np.ndarray = np.ones(len(keys), np.bool_)
            for name in sorted({*named, *shape.required}):
                mask = pc.equal(keys, _text(name)).to_numpy(zero_copy_only=False)
                if name in shape.required and len(lacking := np.setdiff1d(np.arange(len(there)), places[mask])):
                    yield rows[lacking], f"{_field(path)} has no key '{name}', but the JSON Schema requires it"
                if name in named:
                    rest = rest & ~mask
                    yield from named[name](items.filter(pa.array(mask)), rows[places[mask]])
            if not shape.admits_others and rest.any():
                yield rows[places[rest]], f"{_field(path)} has a key that the JSON Schema does not admit"
            elif others is not None:
                yield from others(items.filter(pa.array(rest)), rows[places[rest]])

        return run

    def _of_value(self, shape: Shape, kind: pa.DataType, path: str) -> _Check:
        """Of the values of some keys of a map, which no row need have."""
        why = f"{_field(path)} is null, where the JSON Schema asks for {shape}"
        check, misfit = None, ""
        try:
            check = self._of(shape, kind, path)
        except ConfigError as error:
            misfit = str(error)

        def run(values: pa.Array, rows: Rows) -> _Found:
            if misfit:
                yield rows, misfit
            if values.null_count and not shape.nullable:
                yield rows[values.is_null().to_numpy(zero_copy_only=False)], why
            if check is not None:
                yield from check(values, rows)

        return run

    def _of_elements(self, shape: Shape, kind: pa.DataType, path: str) -> _Check | None:
        """Of the elements of a list, or the values of a map: a null among them is always written."""
        check = self._of(shape, kind, path)
        if check is None and shape.nullable:
            return None
        why = f"{_field(path)} is null, where the JSON Schema asks for {shape}"

        def run(column: pa.Array, rows: Rows) -> _Found:
            there, rows = present(column, rows)
            _, inner, places = elements(there)
            places = rows[places]
            if inner.null_count and not shape.nullable:
                yield places[inner.is_null().to_numpy(zero_copy_only=False)], why
            if check is not None:
                yield from check(inner, places)

        return run

    def _null_is_bad(self, shape: Shape | None, path: str, *, required: bool) -> str:
        """Why a field may not be null; empty if it may."""
        if required and self._omits_nulls:
            more = " (to write null set option 'ignoreNullFields' to false)" if shape and shape.nullable else ""
            return f"field {path} is null, but the JSON Schema requires it{more}"
        if shape is None or shape.nullable or (self._omits_nulls and not required):
            return ""
        return f"field {path} is null, where the JSON Schema asks for {shape}"


def _finite(path: str) -> _Check:
    def run(column: pa.Array, rows: Rows) -> _Found:
        odd = pc.fill_null(pc.invert(pc.is_finite(column)), False).to_numpy(zero_copy_only=False)
        if odd.any():
            yield rows[odd], f"{_field(path)} is NaN or infinite, which is no number in JSON"

    return run


def _one_of(values: frozenset[str], path: str) -> _Check:
    known = pa.array(sorted(values), pa.string())

    def run(column: pa.Array, rows: Rows) -> _Found:
        odd = pc.and_(pc.invert(pc.is_in(column, known)), column.is_valid()).to_numpy(zero_copy_only=False)
        if odd.any():
            yield rows[odd], f"{_field(path)} is none of the values that the JSON Schema lists"

    return run


def _is_written_as(kind: pa.DataType, shape: Shape) -> bool:
    """Whether to_json writes the type as the JSON type that the schema asks for."""
    wanted = shape.kind
    if isinstance(wanted, str):
        return False
    if pa.types.is_integer(wanted):
        return bool(pa.types.is_integer(kind) or (pa.types.is_decimal(kind) and kind.scale == 0))
    return any(
        any(test(wanted) for test in tests) and any(test(kind) for test in tests)
        for tests in (_TEXT, _NUMBER, (pa.types.is_boolean,))
    )


def _text(name: str) -> pa.Scalar:
    return pa.scalar(name, pa.string())


def _named(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _field(path: str) -> str:
    return f"field {path}" if path else "the value"

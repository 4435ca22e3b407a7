"""Reads what a commit would add to a Delta table as its readers do: each value by the type of its column.

One partition value or statistic in the log that is none of its type, and no program opens the table again. Tasks refuse
such records (partition_values.py); this is the second line, for what nobody has thought of. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import date
from decimal import Decimal
from typing import Any, Final

from deltalake import Schema
from deltalake.transaction import AddAction, RemoveAction

from spark_connector.loads.record import LoadError
from spark_connector.loads.tasks.written_file import WrittenFile

_BITS: Final = {"byte": 8, "short": 16, "integer": 32, "long": 64}
_INTEGER = re.compile(r"-?\d+")
_DECIMAL = re.compile(r"-?\d+(\.\d+)?")
_TIME = re.compile(r"[+-]?\d{4,6}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:?\d\d)?")
_COUNT = "numRecords"


def refuse_unreadable(
    schema: Schema,
    partition_by: Iterable[str],
    actions: Iterable[AddAction | RemoveAction],
    files: Iterable[WrittenFile] = (),
) -> None:
    """Raise LoadError for an added file of which readers could not take partition values or statistics.

    `schema` is the table's; `files` are the written ones of the actions, in their order, by which the error names the
    records.
    """
    types = {field["name"]: field["type"] for field in json.loads(schema.to_json())["fields"]}
    added = [action for action in actions if isinstance(action, AddAction)]
    for action, file in zip(added, [*files, *([None] * len(added))], strict=False):
        try:
            _check_partition(types, list(partition_by), action.partition_values)
            _check_statistics(types, json.loads(action.stats, parse_float=Decimal))
        except (ValueError, ArithmeticError, TypeError, KeyError, AttributeError) as error:
            records = f", with {file.where}," if file is not None else ""
            raise LoadError(
                f"{action.path}{records} would make the Delta table unreadable: {error}. Nothing was committed"
            ) from error


def _check_partition(types: Mapping[str, Any], partition_by: list[str], values: Mapping[str, str | None]) -> None:
    if sorted(values) != sorted(partition_by):
        raise ValueError(f"it has values of the partition columns {sorted(values)}, not of {sorted(partition_by)}")
    for name, text in values.items():
        if text == "":
            raise ValueError(f"the empty text of the partition column '{name}' would be read as null")
        if text is not None:
            _reader_of(types[name])(name, text)


def _check_statistics(types: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    rows = found[_COUNT]
    if not isinstance(rows, int) or rows < 0:
        raise ValueError(f"it has {rows} rows")
    _check_bounds(types, found.get("minValues", {}), found.get("maxValues", {}))


def _check_bounds(types: Mapping[str, Any], low: Mapping[str, Any], high: Mapping[str, Any]) -> None:
    for name in {**low, **high}:
        kind = types[name]
        bounds = [side[name] for side in (low, high) if side.get(name) is not None]
        if isinstance(kind, dict):
            inner = {field["name"]: field["type"] for field in kind["fields"]}
            _check_bounds(inner, low.get(name) or {}, high.get(name) or {})
            continue
        values = [_reader_of(kind)(name, one if isinstance(one, str) else str(one)) for one in bounds]
        if len(values) == 2 and None not in values and values[0] > values[1]:
            raise ValueError(f"the lowest value of column '{name}', {bounds[0]}, is above the highest, {bounds[1]}")


def _reader_of(kind: Any) -> Callable[[str, str], Any]:
    """Reads a text as a value of Delta's type `kind`; gives None for one that has no order here. Raises ValueError."""

    def read(name: str, text: str) -> Any:
        value = _read(str(kind), text)
        if value is _WRONG:
            raise ValueError(f"'{text}' is no value of column '{name}', which is {kind}")
        return value

    return read


_WRONG: Final = object()


def _read(kind: str, text: str) -> Any:
    if kind in _BITS:
        most = 1 << (_BITS[kind] - 1)
        return int(text) if _INTEGER.fullmatch(text) and -most <= int(text) < most else _WRONG
    if kind.startswith("decimal("):
        precision, scale = map(int, kind.removeprefix("decimal(").rstrip(")").split(","))
        value = Decimal(text)
        return (
            value
            if _DECIMAL.fullmatch(format(value, "f")) and value.copy_abs() < Decimal(10) ** (precision - scale)
            else _WRONG
        )
    if kind in ("float", "double"):
        return Decimal(text)
    if kind == "date":
        return date.fromisoformat(text) if re.fullmatch(r"\d{4}-\d\d-\d\d", text) else _WRONG
    if kind in ("timestamp", "timestamp_ntz"):
        return None if _TIME.fullmatch(text) else _WRONG
    if kind == "boolean":
        return None if text.lower() in ("true", "false") else _WRONG
    return None

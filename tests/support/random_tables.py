"""Random tables, each loaded in a few loads, and each row looked for by a filter of each of its values, in all engines.

`python -m tests.support.random_tables FORMAT FIRST_SEED COUNT` says what it looked for, and what was not found, with
the seed that brings it back.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa

from spark_connector.loads.iceberg.iceberg_catalog import open_catalog
from tests.support.filter_cases import CASES, array
from tests.support.filter_engines import (
    UnsayableError,
    delta_engines,
    iceberg_engines,
    is_known,
    oracles,
    parquet_engines,
)
from tests.support.filter_tables import FilteredTable
from tests.support.history_loads import CATALOG, use_catalog
from tests.support.memory_directory import memory_directory

_NAMES = ("c", "größe", "two words", "select", "a-b", "Ünder_score", "x1")
_TEXTS = ("a", "é", "\ud7ff", "\U0010ffff", "0", "'", "\\", " ", "x" * 130)


def look(to: Path, format: str, seed: int) -> tuple[int, list[str]]:
    """(filters that were tried, what they did not find) in one random table below `to`."""
    draw = random.Random(seed)
    fields = {name: draw.choice(list(CASES.values())).type for name in draw.sample(_NAMES, draw.randint(1, 4))}
    if format == "iceberg":
        use_catalog(to)
    table = FilteredTable(to / "table", format, CATALOG if format == "iceberg" else None)
    parts = []
    for _ in range(draw.randint(1, 3)):
        rows = draw.randint(1, 3)
        columns = {name: array(type, [_value(draw, type) for _ in range(rows)]) for name, type in fields.items()}
        part = pa.table(columns)
        parts.append(part.append_column("id", pa.array(table.load(part))))
    if format == "iceberg":
        engines = iceberg_engines(open_catalog(CATALOG).load_table("lake.rows"))
    else:
        engines = (delta_engines if format == "delta" else parquet_engines)(str(table.to))
    return _look(pa.concat_tables(parts), fields, engines, f"{format}, seed {seed}")


def _look(rows: pa.Table, fields: dict[str, Any], engines: dict[str, Any], where: str) -> tuple[int, list[str]]:
    tried, wrong = 0, []
    for name in fields:
        for value in rows.column(name).combine_chunks():
            op = "=" if value.is_valid else "is null"
            expected = oracles(rows, name, op, value)
            for engine, find in engines.items():
                if value.is_valid and is_known(engine, op, value):
                    continue
                try:
                    found = find(name, op, value)
                except UnsayableError:
                    continue
                tried += 1
                if found not in expected:
                    wrong.append(f"{where}, {engine}: {name} {op} {value}: {found}, not {expected[0]}")
    return tried, wrong


def _value(draw: random.Random, type: pa.DataType) -> Any:
    """One of those that writers of statistics get wrong, one of all that there are, or null."""
    if draw.random() < 0.15:
        return None
    known = [one for case in CASES.values() if case.type == type for file in case.files for one in file]
    if draw.random() < 0.5:
        return draw.choice(known)
    if pa.types.is_string(type):
        return "".join(draw.choices(_TEXTS, k=draw.randint(0, 20)))
    if pa.types.is_binary(type):
        return draw.randbytes(draw.randint(0, 40))
    if pa.types.is_integer(type) or pa.types.is_temporal(type):
        width = 32 if pa.types.is_date(type) else type.bit_width
        return draw.getrandbits(draw.randint(1, width - 1)) * draw.choice((1, -1))
    return draw.gauss(0, 10.0 ** draw.randint(-5, 30)) if pa.types.is_floating(type) else draw.choice(known)


def main() -> None:
    format, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    os.environ["POLARS_ICEBERG_PLANNER"] = "pyiceberg"
    tried, tables, wrong = 0, 0, list[str]()
    for seed in range(first, first + count):
        with memory_directory() as to, TemporaryDirectory() as home:
            os.environ["PYICEBERG_HOME"] = home
            more, missed = look(Path(to), format, seed)
        tried, tables, wrong = tried + more, tables + 1, wrong + missed
        print(f"{format}: {tables} tables, {tried} filters, {len(wrong)} wrong", *missed, sep="\n  ", flush=True)


if __name__ == "__main__":
    main()

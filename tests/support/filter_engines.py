"""Filters as several engines have them, over tables that a load has written; and what memory says that they find.

A value is an Arrow scalar, so that dates and times need not be ones that Python has. Engines that take only Python's
values say so by `Unsayable`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset
from deltalake import DeltaTable, QueryBuilder
from pyiceberg import expressions
from pyiceberg.table import Table

OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "!=": operator.ne,
}
OPS = (*OPERATORS, "is null", "in")
Ids = list[int]
Find = Callable[[str, str, pa.Scalar], Ids]
"""(column, operator, value) → ids of the rows. `in` is of the value and of one that is nowhere."""


class UnsayableError(Exception):
    """The engine has no such value."""


def is_known(engine: str, op: str, value: pa.Scalar) -> bool:
    """Wrong in the engine itself, on tables of other writers, too: test_filters.py holds each."""
    is_float = pa.types.is_floating(value.type)
    is_nan = is_float and math.isnan(value.as_py())
    is_zero = is_float and value.as_py() == 0
    if engine in ("deltalake dataset", "deltalake to_pandas"):
        return (is_nan and op in ("<", "<=")) or (is_zero and op == "in")
    if engine == "pyarrow":
        return is_zero and op == "in"
    if engine == "Spark":
        return is_zero
    return engine == "pyiceberg" and value.type == pa.float32() and math.isinf(value.as_py())


def oracles(rows: pa.Table, column: str, op: str, value: pa.Scalar) -> list[Ids]:
    """What a filter finds in memory. Of floats two answers are right: NaN is no number, or above all others."""
    values = rows.column(column)
    found = [pc.is_null(values) if op == "is null" else pc.call_function(_KERNELS[op], [values, value])]
    if pa.types.is_floating(value.type) and op != "is null":
        found.append(_in_total_order(values, op, value.as_py()))
    return [sorted(rows.filter(one).column("id").to_pylist()) for one in found]


_KERNELS = {
    "=": "equal",
    "in": "equal",
    "<": "less",
    "<=": "less_equal",
    ">": "greater",
    ">=": "greater_equal",
    "!=": "not_equal",
}


def _in_total_order(values: pa.ChunkedArray, op: str, bound: float) -> pa.Array:
    numbers = values.to_numpy().astype(np.float64)
    is_nan, of_bound = np.isnan(numbers), np.isnan(bound)
    order = np.where(is_nan, 1, 0).astype(np.int8) - int(of_bound)
    below = (order < 0) | ((order == 0) & (numbers < bound))
    equal = (order == 0) & (is_nan | (numbers == bound))
    found = {
        "=": equal,
        "in": equal,
        "<": below,
        "<=": below | equal,
        ">": ~(below | equal),
        ">=": ~below,
        "!=": ~equal,
    }[op]
    return pa.array(found, mask=values.is_null().to_numpy())


def delta_engines(path: str) -> dict[str, Find]:
    table = DeltaTable(path)
    dataset = table.to_pyarrow_dataset()
    lazy = pl.scan_delta(path)
    builder = QueryBuilder().register("t", table)

    def by_sql(column: str, op: str, value: pa.Scalar) -> Ids:
        found = builder.execute(f'SELECT id FROM t WHERE "{column}" {_sql(op, value, _datafusion)}')
        return sorted(pa.table(found).column("id").to_pylist())

    def by_filters(column: str, op: str, value: pa.Scalar) -> Ids:
        if op == "is null":
            raise UnsayableError(op)
        python = _python(value)
        wanted: Any = [python] if op == "in" else python
        return sorted(table.to_pandas(columns=["id"], filters=[(column, op, wanted)])["id"].tolist())

    return {
        "deltalake dataset": _of_dataset(dataset),
        "deltalake to_pandas": by_filters,
        "deltalake QueryBuilder": by_sql,
        "polars": _of_polars(lazy),
        "duckdb": _of_duckdb(dataset),
    }


def parquet_engines(path: str) -> dict[str, Find]:
    dataset = pyarrow.dataset.dataset(path, format="parquet", exclude_invalid_files=False, partitioning="hive")
    files = f"{path}/load=*/*.parquet"
    return {
        "pyarrow": _of_dataset(dataset),
        "polars": _of_polars(pl.scan_parquet(files)),
        "duckdb": _of_duckdb(None, f"read_parquet('{files}')"),
    }


def spark_finds(spark: Any, path: str, conditions: Iterable[str]) -> list[Ids]:
    """The ids that Spark's own reader finds in a directory by each condition, by one job."""
    spark.read.parquet(path).createOrReplaceTempView("filtered")
    asked = [f"SELECT {number} AS n, id FROM filtered WHERE {one}" for number, one in enumerate(conditions)]
    found: list[Ids] = [[] for _ in asked]
    for row in spark.sql(" UNION ALL ".join(asked)).collect():
        found[row.n].append(row.id)
    return [sorted(ids) for ids in found]


def spark_condition(column: str, op: str, value: pa.Scalar) -> str:
    return f"`{column}` {_sql(op, value, _spark)}"


def iceberg_engines(table: Table) -> dict[str, Find]:
    def by_scan(column: str, op: str, value: pa.Scalar) -> Ids:
        names: Any = expressions
        kinds = ("EqualTo", "LessThan", "LessThanOrEqual", "GreaterThan", "GreaterThanOrEqual", "NotEqualTo")
        if op == "is null":
            found = names.IsNull(column)
        elif op == "in":
            found = names.In(column, {_python(value, nan=False)})
        else:
            found = getattr(names, kinds[list(OPERATORS).index(op)])(column, _python(value, nan=False))
        return sorted(table.scan(row_filter=found, selected_fields=("id",)).to_arrow().column("id").to_pylist())

    files = [task.file.file_path.removeprefix("file://") for task in table.scan().plan_files()]
    return {
        "pyiceberg": by_scan,
        "polars": _of_polars(pl.scan_iceberg(table)),
        "duckdb": _of_duckdb(None, f"read_parquet({files})"),
    }


def _of_dataset(dataset: Any) -> Find:
    def find(column: str, op: str, value: pa.Scalar) -> Ids:
        field = pc.field(column)
        if op == "is null":
            condition = field.is_null()
        else:
            condition = field.isin([value]) if op == "in" else OPERATORS[op](field, value)
        return sorted(dataset.to_table(columns=["id"], filter=condition).column("id").to_pylist())

    return find


def _of_polars(lazy: pl.LazyFrame) -> Find:
    def find(column: str, op: str, value: pa.Scalar) -> Ids:
        field: Any = pl.col(column)
        if op == "is null":
            condition = field.is_null()
        else:
            series = pl.Series("", pa.array([value.as_py()], value.type) if _is_python(value) else _one(value))
            condition = field.is_in(series) if op == "in" else OPERATORS[op](field, pl.lit(series))
            if op != "in" and _is_python(value):
                condition = OPERATORS[op](field, pl.lit(series[0], dtype=series.dtype))
        return sorted(lazy.filter(condition).select("id").collect()["id"].to_list())

    return find


def _of_duckdb(dataset: Any, source: str = "t") -> Find:
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    if dataset is not None:
        connection.register("t", dataset)

    def find(column: str, op: str, value: pa.Scalar) -> Ids:
        try:
            found = connection.execute(f'SELECT id FROM {source} WHERE "{column}" {_sql(op, value, _duck)}').fetchall()
        except (duckdb.OutOfRangeException, duckdb.ConversionException) as error:
            raise UnsayableError(str(error)) from error
        return sorted(row[0] for row in found)

    return find


def _sql(op: str, value: pa.Scalar, literal: Callable[[pa.Scalar], str]) -> str:
    if op == "is null":
        return "IS NULL"
    return f"IN ({literal(value)})" if op == "in" else f"{op} {literal(value)}"


def _common(value: pa.Scalar) -> str | None:
    kind, types = value.type, pa.types
    if types.is_boolean(kind) or types.is_integer(kind):
        return str(value.as_py()).lower()
    if types.is_floating(kind):
        return f"CAST('{value.as_py()}' AS {'FLOAT' if kind == pa.float32() else 'DOUBLE'})"
    if types.is_decimal(kind):
        return f"CAST('{value.as_py():f}' AS DECIMAL({kind.precision}, {kind.scale}))"
    if types.is_string(kind):
        return "'" + value.as_py().replace("'", "''") + "'"
    return None


def _datafusion(value: pa.Scalar) -> str:
    if (text := _common(value)) is not None:
        return text
    if pa.types.is_binary(value.type):
        return f"X'{value.as_py().hex()}'"
    if pa.types.is_date(value.type):
        return f"arrow_cast(arrow_cast({raw(value)}, 'Int32'), 'Date32')"
    zone = 'Some("UTC")' if value.type.tz else "None"
    return f"arrow_cast({raw(value)}, 'Timestamp(Microsecond, {zone})')"


def _duck(value: pa.Scalar) -> str:
    if (text := _common(value)) is not None:
        return text
    if pa.types.is_binary(value.type):
        return "'" + "".join(f"\\x{byte:02X}" for byte in value.as_py()) + "'::BLOB"
    if pa.types.is_date(value.type):
        return f"(DATE '1970-01-01' + ({raw(value)})::INTEGER)"
    return f"make_timestamp{'tz' if value.type.tz else ''}({raw(value)}::BIGINT)"


def _spark(value: pa.Scalar) -> str:
    if pa.types.is_integer(value.type):
        return f"CAST('{value.as_py()}' AS {_SPARK_INTS[value.type.bit_width]})"  # there is no literal of the least one
    if pa.types.is_string(value.type):
        return f"CAST(X'{value.as_py().encode().hex()}' AS STRING)"  # a backslash would be an escape
    if (text := _common(value)) is not None:
        return text
    if pa.types.is_binary(value.type):
        return f"X'{value.as_py().hex()}'"
    if pa.types.is_date(value.type):
        if raw(value) < -(2**31) + 100_000:
            raise UnsayableError("Spark ends such a query by 'integer overflow'")
        return f"date_from_unix_date({raw(value)})"
    if value.type.tz is None:
        return f"CAST(timestamp_micros({raw(value)}) AS TIMESTAMP_NTZ)"
    if raw(value) < -(2**63) + 1_000_000:
        raise UnsayableError("Spark ends such a query by 'long overflow'")
    return f"timestamp_micros({raw(value)})"


_SPARK_INTS = {8: "TINYINT", 16: "SMALLINT", 32: "INT", 64: "BIGINT"}


def raw(value: pa.Scalar) -> int:
    """The number behind a date or time."""
    number: int = _one(value).cast(pa.int32() if pa.types.is_date(value.type) else pa.int64())[0].as_py()
    return number


def _one(value: pa.Scalar) -> pa.Array:
    return pa.array([value], value.type)


def _is_python(value: pa.Scalar) -> bool:
    try:
        value.as_py()
    except (ValueError, OverflowError):
        return False
    return True


def _python(value: pa.Scalar, *, nan: bool = True) -> Any:
    if not _is_python(value):
        raise UnsayableError(str(value.type))
    python = value.as_py()
    if not nan and python != python:
        raise UnsayableError("NaN")
    return python

"""Iceberg's transforms of whole columns, with pyiceberg's own of single values as the judge, and the split by them."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.transforms import parse_transform
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
)

from broker.errors import ConfigError
from spark_connector.loads.grammar import parse_partition_by
from spark_connector.loads.record import LoadError
from spark_connector.loads.tasks.transforms import (
    PartitionField,
    bind,
    directory_of,
    hidden,
    split,
    with_partition_columns,
)

MICROS = st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999)  # years 1 to 9999, which Python knows
DAYS = st.integers(-719_162, 2_932_896)
WIDE_DECIMAL = pa.decimal128(38, 4)

COLUMNS: dict[str, tuple[pa.DataType, Any, Any, tuple[str, ...]]] = {
    "utc": (pa.timestamp("us", "UTC"), TimestamptzType(), MICROS, ("year", "month", "day", "hour", "bucket")),
    "ntz": (pa.timestamp("us"), TimestampType(), MICROS, ("year", "month", "day", "hour", "bucket")),
    "date": (pa.date32(), DateType(), DAYS, ("year", "month", "day", "bucket")),
    "int": (pa.int32(), IntegerType(), st.integers(-(2**30), 2**31 - 1), ("bucket", "truncate")),
    "long": (pa.int64(), LongType(), st.integers(-(2**62), 2**63 - 1), ("bucket", "truncate")),
    "text": (pa.string(), StringType(), st.text(st.characters(exclude_categories=["Cs"])), ("bucket", "truncate")),
    "bytes": (pa.binary(), BinaryType(), st.binary(max_size=600), ("bucket", "truncate")),
    "decimal": (
        WIDE_DECIMAL,
        DecimalType(38, 4),
        st.decimals(-(10**30), 10**30, places=4),
        ("bucket", "truncate"),
    ),
}


def field_of(text: str, type: pa.DataType, format: str = "iceberg") -> PartitionField:
    (field,) = bind(parse_partition_by(text), pa.schema([("c", type), ("x", pa.string())]), format)
    return field


@pytest.mark.parametrize(
    ("column", "transform"),
    [(column, transform) for column, (_, _, _, transforms) in COLUMNS.items() for transform in transforms],
)
@given(data=st.data(), number=st.integers(1, 1000))
def test_a_transform_of_a_column_is_pyicebergs_of_each_value(
    column: str, transform: str, data: st.DataObject, number: int
) -> None:
    type, iceberg, strategy, _ = COLUMNS[column]
    values = data.draw(st.lists(st.none() | strategy, max_size=20))
    numbered = transform in ("bucket", "truncate")
    field = field_of(f"{transform}({number}, c)" if numbered else f"{transform}(c)", type)
    judge = parse_transform(field.transform).transform(iceberg)
    array = pa.concat_arrays([pa.array(values[:1], type), pa.array(values, type)])[1:]  # with an offset, as slices have
    if not values:
        array = pa.array([], type)
    assert field.values(array).to_pylist() == [judge(value) for value in values]


@pytest.mark.parametrize(
    ("transform", "type", "value", "text"),
    [
        ("year(c)", "utc", 56, "2026"),
        ("year(c)", "utc", -1971, "-1"),
        ("year(c)", "utc", 8031, "10001"),
        ("month(c)", "utc", -1, "1969-12-01"),
        ("month(c)", "utc", 96_360, "+10000-01-01"),
        ("day(c)", "utc", 20_783, "2026-11-26"),
        ("day(c)", "utc", 2_932_897, "+10000-01-01"),
        ("day(c)", "utc", -719_528, "0000-01-01"),
        ("day(c)", "utc", -719_529, "-0001-12-31"),
        ("hour(c)", "utc", 20_783 * 24 + 5, "2026-11-26-05"),
        ("bucket(4, c)", "text", 3, "3"),
        ("c", "date", 0, "1970-01-01"),
        ("c", "text", "Köln/50%", "Köln/50%"),
        ("c", "long", -7, "-7"),
        ("c", "decimal", Decimal("1E+3"), "1000"),
    ],
)
def test_values_are_texts_that_readers_know(transform: str, type: str, value: Any, text: str) -> None:
    assert field_of(transform, COLUMNS[type][0], "delta").text(value) == text


def test_directories_are_escaped_as_spark_does() -> None:
    (field,) = bind(parse_partition_by("`a=b`"), pa.schema([("a=b", pa.string()), ("x", pa.string())]), "parquet")
    assert directory_of([field], {"a=b": "x/y z:%\u00fc"}) == "a%3Db=x%2Fy z%3A%25\u00fc"
    assert directory_of([field], {"a=b": None}) == "a%3Db=__HIVE_DEFAULT_PARTITION__"


@pytest.mark.parametrize(
    ("format", "value", "message"),
    [
        ("parquet", "", "read back as null"),
        ("delta", "", "read back as null"),
        ("delta", "__HIVE_DEFAULT_PARTITION__", "read back as null"),
        ("parquet", "007", "read back as a number, a date or a time"),
        ("parquet", "2024-01-31", "read back as a number, a date or a time"),
        ("parquet", "2024-01-31 10:00:00", "read back as a number, a date or a time"),
        ("parquet", " 7.5 ", "read back as a number, a date or a time"),
        ("parquet", "10:00:00.10", "read back as a number, a date or a time"),
        ("parquet", "x._COPYING_", "read back as nothing at all"),
        ("delta", "x" * 300, "too long for a directory's name"),
        ("delta", "\u00fc" * 150, "too long for a directory's name"),
    ],
)
def test_a_text_that_would_not_be_read_back_is_refused(format: str, value: str, message: str) -> None:
    field = field_of("c", pa.string(), format)
    with pytest.raises(LoadError, match=message):
        directory_of([field], {"c": value})
    iceberg = field_of("c", pa.string())
    assert directory_of([iceberg], {"c": value}), "nobody reads these"


@pytest.mark.parametrize(
    ("text", "type", "format", "message"),
    [
        ("d", pa.string(), "parquet", "has no column 'd'"),
        ("day(c)", pa.string(), "delta", "of type string, which does not go with it"),
        ("hour(c)", pa.date32(), "iceberg", "does not go with it"),
        ("bucket(4,c)", pa.float64(), "iceberg", "does not go with it"),
        ("bucket(4,c)", pa.bool_(), "iceberg", "does not go with it"),
        ("truncate(4,c)", pa.date32(), "iceberg", "does not go with it"),
        ("c", pa.float32(), "iceberg", "does not go with it"),
        ("c", pa.list_(pa.string()), "iceberg", "does not go with it"),
        ("c", pa.timestamp("us", "UTC"), "parquet", "use day or hour of it"),
        ("c", pa.binary(), "delta", r"use bucket\(16, …\) of it"),
        ("c", pa.decimal128(9, 2), "parquet", r"use bucket\(16, …\) of it"),
        ("truncate(4,c)", pa.binary(), "delta", r"use bucket\(16, …\) of it"),
    ],
)
def test_a_partition_that_a_table_cannot_have_is_refused(text: str, type: Any, format: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        field_of(text, type, format)


def test_names_that_readers_pass_over_or_that_are_there_are_refused() -> None:
    schema = pa.schema([("_x", pa.string()), ("at", pa.date32()), ("At_Day", pa.date32())])
    with pytest.raises(ConfigError, match="readers pass over directories whose name begins with '_'"):
        bind(parse_partition_by("_x"), schema, "parquet")
    with pytest.raises(ConfigError, match="makes the column 'at_day', which the table has already"):
        bind(parse_partition_by("day(at)"), schema, "delta")


def test_files_keep_a_column() -> None:
    schema = pa.schema([("code", pa.string())])
    with pytest.raises(ConfigError, match="names all columns of the table"):
        bind(parse_partition_by("code"), schema, "parquet")
    assert bind(parse_partition_by("truncate(2, code)"), schema, "parquet")
    assert bind(parse_partition_by("code"), schema, "delta")  # has the column load


def test_only_iceberg_hides_what_transforms_make() -> None:
    schema = pa.schema([("c", pa.int16()), ("at", pa.timestamp("us"))])
    items = parse_partition_by("truncate(10,c),hour(at),c")
    shown = with_partition_columns(schema, bind(items, schema, "delta"))
    assert shown == pa.schema([*schema, ("c_trunc", pa.int32()), ("at_hour", pa.string())])
    assert with_partition_columns(schema, bind(items, schema, "iceberg")) == schema


def test_a_day_of_iceberg_may_be_that_of_the_record() -> None:
    schema = pa.schema([("timestamp", pa.timestamp("us", "UTC"))])
    (field,) = bind(parse_partition_by("date"), schema, "iceberg")
    assert (field.name, field.source, field.transform) == ("date", "timestamp", "day")
    with pytest.raises(ConfigError, match=r"use hour\(timestamp\)"):
        bind(parse_partition_by("hour"), schema, "iceberg")


def test_a_year_that_delta_does_not_know_is_told_with_its_record() -> None:
    columns = {"at": [0, 2_932_897], **{hidden(name): value for name, value in POSITIONS.items()}}
    table = pa.table(columns).set_column(0, "at", pa.array(columns["at"], pa.int32()).cast(pa.date32()))
    for transform in ("at", "day(at)", "month(at)"):
        fields = bind(parse_partition_by(transform), pa.schema([("at", pa.date32())]), "delta")
        with pytest.raises(
            LoadError,
            match="offset 5 of topic 't', partition 1: .* the value lies in a year",
        ):
            split(table, fields)
        assert len(split(table.slice(0, 1), fields)) == 1


POSITIONS: dict[str, list[Any]] = {"topic": ["t", "t"], "partition": [1, 1], "offset": [4, 5]}


@given(
    st.lists(st.tuples(st.none() | MICROS, st.none() | st.sampled_from("abcdefgh"), st.none() | st.booleans())),
    st.integers(1, 8),
    st.integers(1, 3),
)
def test_a_split_has_every_row_once_in_its_order_beside_its_like(
    rows: list[tuple[Any, ...]], buckets: int, chunks: int
) -> None:
    arrays = [pa.array(list(column), type) for column, type in zip(zip(*rows, strict=True), TYPES, strict=False)]
    table = pa.Table.from_arrays(arrays or [pa.array([], type) for type in TYPES], ["at", "c", "flag"])
    table = table.append_column("n", pa.array(range(len(rows)), pa.int64()))
    table = pa.concat_tables(
        [table.slice(at, len(rows) // chunks + 1) for at in range(0, len(rows) + 1, len(rows) // chunks + 1)]
    )
    fields = bind(parse_partition_by(f"day(at),bucket({buckets},c),flag"), table.schema, "iceberg")
    groups = split(table, fields)
    values = {field.name: field.values(table[field.source].combine_chunks()).to_pylist() for field in fields}
    assert sorted(n for _, part in groups for n in part["n"].to_pylist()) == list(range(len(rows)))
    assert len({tuple(found.values()) for found, _ in groups}) == len(groups)
    for found, part in groups:
        numbers = part["n"].to_pylist()
        assert numbers == sorted(numbers) != []
        assert all(values[name][n] == value for name, value in found.items() for n in numbers)


TYPES = [pa.timestamp("us", "UTC"), pa.string(), pa.bool_()]


def test_many_values_of_many_fields_are_split_too() -> None:
    """More combinations than numbers of 16 bits."""
    table = pa.table({"a": [str(n) for n in range(600)], "b": list(range(600)), "c": [None] * 300 + [1] * 300})
    groups = split(table, bind(parse_partition_by("a,b,c"), table.schema, "iceberg"))
    assert [(found["a"], found["b"]) for found, _ in groups] == [(str(n), n) for n in range(600)]

"""Iceberg's transforms of whole columns, with pyiceberg's own of single values as the judge, and the split by them."""

from __future__ import annotations

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

from spark_connector.loads.grammar import parse_partition_by
from spark_connector.loads.tasks.transforms import (
    PartitionField,
    bind,
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
    (field,) = bind(parse_partition_by(text), pa.schema([("c", type)]), format)
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

"""The grammar of columns, partitions and sort orders: what is taken, how it is spelled, what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import ConfigError
from spark_connector.loads.grammar import (
    ColumnItem,
    PartitionItem,
    SortItem,
    identify_rows,
    parse_columns,
    parse_partition_by,
    parse_sort_by,
    partition_columns,
)

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=8)


def test_columns_are_paths_stars_and_other_names() -> None:
    assert parse_columns("value.*, value.address.city,key AS order_key,`a b`.`c.d` as `e``f`") == (
        ColumnItem(("value",), every=True),
        ColumnItem(("value", "address", "city")),
        ColumnItem(("key",), alias="order_key"),
        ColumnItem(("a b", "c.d"), alias="e`f"),
    )


def test_partitions_are_columns_and_transforms_in_both_of_their_spellings() -> None:
    items = parse_partition_by("date, days(at), Bucket( 16 ,customer),truncate(4,`a b`),hours(at),month(m),years(y)")
    assert [str(item) for item in items] == [
        *("date", "day(at)", "bucket(16,customer)", "truncate(4,`a b`)", "hour(at)", "month(m)", "year(y)")
    ]
    assert [item.name for item in items] == [
        *("date", "at_day", "customer_bucket", "a b_trunc", "at_hour", "m_month", "y_year")
    ]
    assert partition_columns(["topic", "day(at)"]) == ["topic", "at_day"]


def test_sort_orders() -> None:
    assert parse_sort_by("customer, at DESC, n asc") == (SortItem("customer"), SortItem("at", True), SortItem("n"))


def test_a_list_and_a_text_are_the_same() -> None:
    assert parse_partition_by("date, topic") == parse_partition_by(["date", "topic"])
    assert parse_partition_by(None) == parse_partition_by([]) == ()
    assert parse_columns(None) == ()


@given(st.lists(NAMES, min_size=1, max_size=3), NAMES, st.booleans(), st.integers(1, 2**31 - 1))
def test_every_name_has_a_spelling_that_is_read_back(path: list[str], name: str, every: bool, number: int) -> None:
    column = ColumnItem(tuple(path), every, None if every else name)
    partition, order = PartitionItem(name, "bucket", number), SortItem(name, every)
    assert parse_columns(str(column)) == parse_columns([str(column)]) == (column,)
    assert parse_partition_by([str(partition)]) == (partition,)
    assert parse_sort_by(str(order)) == (order,)


@pytest.mark.parametrize(
    ("parse", "text", "message"),
    [
        (parse_columns, "", "a name is missing"),
        (parse_columns, "a,,b", "a name is missing before ','"),
        (parse_columns, "a,", "a name is missing at the end"),
        (parse_columns, "a b", "',' is missing"),
        (parse_columns, "*", "a name is missing before '\\*'"),
        (parse_columns, "value.* as x", "cannot get one name"),
        (parse_columns, "value.", "a name is missing"),
        (parse_columns, "a,a", "names 'a' twice"),
        (parse_columns, "`a", "a name is missing before '`'"),
        (parse_partition_by, "week(at)", "'week' is no transform, which are year, month, day, hour, bucket, truncate"),
        (parse_partition_by, "bucket(customer)", "bucket needs a positive number first"),
        (parse_partition_by, "bucket(0,customer)", "bucket needs a positive number first"),
        (parse_partition_by, "truncate(2147483648,x)", "truncate needs a positive number first"),
        (parse_partition_by, "bucket(4 customer)", "',' is missing"),
        (parse_partition_by, "day(at", "'\\)' is missing"),
        (parse_partition_by, "day(value.at)", "make the field a column by columns"),
        (parse_partition_by, "date,date", "names 'date' twice"),
        (parse_partition_by, "day(at),days(at)", "names 'at_day' twice"),
        (parse_partition_by, ["value", ""], "a name is missing"),
        (parse_sort_by, "at down", "',' is missing"),
        (parse_sort_by, "at,at desc", "names 'at' twice"),
    ],
)
def test_anything_else_is_refused(parse: object, text: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(text)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("columns", "identified"),
    [
        ((), True),
        (("value.*", "topic", "partition", "offset"), True),
        (("value.*",), False),
        (("topic", "partition", "value.offset"), False),
        (("topic", "partition", "offset as position"), False),
    ],
)
def test_rows_are_told_apart_by_the_columns_of_the_record_only(columns: tuple[str, ...], identified: bool) -> None:
    assert identify_rows(columns) is identified

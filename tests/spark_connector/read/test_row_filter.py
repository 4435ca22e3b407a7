"""Masks over columns let the same rows pass as a plain loop over the records does."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.protocol.topic_partition import TopicPartition
from broker.records.columns import decode_columns
from spark_connector.options.selection import HeaderFilter, ReadFilters
from spark_connector.read.arrow_batches import BatchMaker, RowFilter
from tests.support.record_batches import Row, build

keys = st.none() | st.sampled_from([b"", b"a", b"ab", b"abc", b"b", b"\xff\x00", b"\xff"])
headers = st.lists(st.tuples(st.sampled_from(["a", "b", "ä"]), keys), max_size=3).map(tuple)
rows = st.lists(st.builds(Row, st.integers(-1, 20), keys, keys, headers), min_size=1, max_size=30)
bounds = st.none() | st.integers(0, 20)
prefixes = st.none() | st.sampled_from([b"a", b"ab", b"\xff"])
header_filters = st.none() | st.builds(HeaderFilter, st.sampled_from(["a", "ä", "z"]), st.sampled_from([b"", b"ab"]))


def passes(row: Row, filters: ReadFilters) -> bool:
    wanted, start, end = filters.header, filters.timestamp_from, filters.timestamp_until
    return (
        (start is None or row.timestamp >= start)
        and (end is None or row.timestamp < end)
        and (filters.key_prefix is None or (row.key is not None and row.key.startswith(filters.key_prefix)))
        and (
            wanted is None
            or any(
                name == wanted.name and (not wanted.prefix or (value is not None and value.startswith(wanted.prefix)))
                for name, value in row.headers
            )
        )
    )


@settings(deadline=None)
@given(rows, bounds, bounds, prefixes, header_filters, st.integers(0, 29))
def test_the_same_rows_pass_as_one_by_one(
    rows: list[Row],
    start: int | None,
    end: int | None,
    prefix: bytes | None,
    header: HeaderFilter | None,
    low: int,
) -> None:
    filters = ReadFilters(None, start, end, prefix, header)
    maker = BatchMaker(("offset", "key"), RowFilter(filters))
    decoded = decode_columns(build(rows), fields=maker.fields, low=low)
    got = [row for batch in maker.batches(decoded, TopicPartition("t", 0)) for row in batch.to_pylist()]
    assert got == [
        {"offset": offset, "key": row.key} for offset, row in enumerate(rows) if offset >= low and passes(row, filters)
    ]


def test_only_what_a_filter_looks_at_is_decoded_for_it() -> None:
    assert RowFilter(ReadFilters()).fields == set()
    assert RowFilter(ReadFilters(timestamp_until=5)).fields == {"timestamp"}
    assert RowFilter(ReadFilters(key_prefix=b"k", header=HeaderFilter("h", b""))).fields == {"key", "headers"}
    assert BatchMaker(("value",), RowFilter(ReadFilters(timestamp_from=1))).fields == {"value", "timestamp"}


def test_nothing_is_copied_when_all_rows_pass() -> None:
    columns = decode_columns(build([Row(5, b"k", b"v")] * 9))
    assert RowFilter(ReadFilters()).apply(columns) is columns
    assert RowFilter(ReadFilters(timestamp_from=5)).apply(columns) is columns

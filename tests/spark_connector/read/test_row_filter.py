"""Masks over columns let the same rows pass as a plain loop over the records does."""

from __future__ import annotations

import subprocess
import sys

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.protocol.topic_partition import TopicPartition
from broker.records.columns import decode_columns
from spark_connector.options.read_filters import HeaderFilter, ReadFilters
from spark_connector.options.value_sets import LOWEST, NO_END, Intervals, KeySet
from spark_connector.read.arrow_batches import BatchMaker
from spark_connector.read.row_filter import RowFilter
from tests.support import source_tree
from tests.support.record_batches import Row, build

keys = st.none() | st.sampled_from([b"", b"a", b"ab", b"abc", b"b", b"\xff\x00", b"\xff"])
headers = st.lists(st.tuples(st.sampled_from(["a", "b", "ä"]), keys), max_size=3).map(tuple)
rows = st.lists(st.builds(Row, st.integers(-1, 20), keys, keys, headers), min_size=1, max_size=30)
ends = st.integers(-2, 22) | st.sampled_from([LOWEST, NO_END])
times = st.none() | st.builds(Intervals.of, st.lists(st.tuples(ends, ends), max_size=3))
few = st.frozensets(st.sampled_from([b"", b"a", b"ab", b"abc", b"b", b"\xff"]), max_size=5)
key_sets = st.none() | st.builds(KeySet, st.none() | few, st.sampled_from([b"", b"a", b"ab", b"\xff"]), few).map(
    lambda made: made & KeySet()
)
header_filters = st.none() | st.builds(HeaderFilter, st.sampled_from(["a", "ä", "z"]), st.sampled_from([b"", b"ab"]))


def passes(row: Row, filters: ReadFilters) -> bool:
    wanted = filters.header
    return (
        (filters.timestamps is None or row.timestamp in filters.timestamps)
        and (filters.keys is None or row.key in filters.keys)
        and (
            wanted is None
            or any(
                name == wanted.name and (not wanted.prefix or (value is not None and value.startswith(wanted.prefix)))
                for name, value in row.headers
            )
        )
    )


@settings(deadline=None)
@given(rows, times, key_sets, header_filters, st.integers(0, 29))
def test_the_same_rows_pass_as_one_by_one(
    rows: list[Row],
    times: Intervals | None,
    keys: KeySet | None,
    header: HeaderFilter | None,
    low: int,
) -> None:
    filters = ReadFilters(None, times, keys, header)
    maker = BatchMaker(("offset", "key"), RowFilter(filters))
    decoded = decode_columns(build(rows), fields=maker.fields, low=low)
    got = [row for batch in maker.batches(decoded, TopicPartition("t", 0)) for row in batch.to_pylist()]
    assert got == [
        {"offset": offset, "key": row.key} for offset, row in enumerate(rows) if offset >= low and passes(row, filters)
    ]


def test_only_what_a_filter_looks_at_is_decoded_for_it() -> None:
    early, late = Intervals(((LOWEST, 5),)), Intervals(((1, NO_END),))
    assert RowFilter(ReadFilters()).fields == set()
    assert RowFilter(ReadFilters(timestamps=early)).fields == {"timestamp"}
    assert RowFilter(ReadFilters(keys=KeySet(), header=HeaderFilter("h", b""))).fields == {"key", "headers"}
    assert BatchMaker(("value",), RowFilter(ReadFilters(timestamps=late))).fields == {"value", "timestamp"}


def test_nothing_is_copied_when_all_rows_pass() -> None:
    columns = decode_columns(build([Row(5, b"k", b"v")] * 9))
    assert RowFilter(ReadFilters()).apply(columns) is columns
    assert RowFilter(ReadFilters(timestamps=Intervals(((5, NO_END),)))).apply(columns) is columns


def test_a_filter_does_not_import_pandas() -> None:
    """A third of a second of each new worker."""
    code = """if True:
        import sys
        import pyarrow
        from broker.records.columns import decode_columns
        from spark_connector.options.read_filters import HeaderFilter, ReadFilters
        from spark_connector.options.value_sets import Intervals, KeySet
        from spark_connector.read.row_filter import RowFilter

        columns = decode_columns(sys.stdin.buffer.read(), headers=True)
        keys = KeySet(frozenset([b"a", b"k", b"l", b"m"]), without=frozenset([b"z"]))
        header = HeaderFilter("h", b"x")
        for filters in (ReadFilters(None, Intervals(((5, 6), (8, 9))), keys, header), ReadFilters(keys=KeySet())):
            assert RowFilter(filters).apply(columns).num_rows == 1
        sys.exit("pandas" in sys.modules)
    """
    batch = build([Row(5, b"k", b"v", (("h", b"x"),)), Row(9, None, b"v")])
    ended = subprocess.run([sys.executable, "-c", code], input=batch, cwd=source_tree.ROOT, check=False)
    assert ended.returncode == 0

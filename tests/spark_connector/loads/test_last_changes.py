"""The last change of each key, compared with a dict that obeys one record after the other."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.errors import ConfigError
from spark_connector.loads import last_changes as module
from spark_connector.loads.changes import ChangeDecoder
from spark_connector.loads.last_changes import StoredRows, last_changes, last_writers
from spark_connector.loads.record import LoadError
from spark_connector.loads.upsert import Upsert

ROW = pa.struct([("id", pa.int64()), ("name", pa.string()), ("at", pa.int64())])
SOURCE = pa.schema(
    [
        ("key", pa.int64()),
        ("value", ROW),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
    ]
)
BY_OFFSET = Upsert(("id",))
BY_AT = Upsert(("id",), order_by="at")

Event = tuple[int, int, int, int | None]
"""(partition, offset, id, at); at None deletes."""


def batch(events: list[Event]) -> pa.RecordBatch:
    rows = [
        {
            "key": id_,
            "value": None if at is None else {"id": id_, "name": f"{partition}/{offset}", "at": at},
            "topic": "t",
            "partition": partition,
            "offset": offset,
            "timestamp": offset,
        }
        for partition, offset, id_, at in events
    ]
    return pa.RecordBatch.from_pylist(rows, SOURCE)


def last(events: list[Event], upsert: Upsert = BY_OFFSET, step: int = 100) -> pa.Table:
    parts = [batch(events[begin : begin + step]) for begin in range(0, len(events), step)]
    return last_changes(ChangeDecoder(upsert, SOURCE), upsert, parts)


def shown(changes: pa.Table) -> list[tuple[int, int, int, bool]]:
    rows = changes.to_pylist()
    return sorted((row["id"], row["_partition"], row["_offset"], row["_deleted"]) for row in rows)


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=60), st.integers(1, 30), st.randoms())
@settings(max_examples=60, deadline=None)
def test_the_last_event_of_each_key_is_left(given_events: list[tuple[int, bool]], step: int, random: Any) -> None:
    """In whatever order and in whatever parts the records come; a key keeps to its partition."""
    events: list[Event] = [
        (id_ % 3, offset, id_, None if deleted else offset) for offset, (id_, deleted) in enumerate(given_events)
    ]
    model = {id_: (id_, partition, offset, at is None) for partition, offset, id_, at in events}
    random.shuffle(events)
    assert shown(last(events, step=step)) == sorted(model.values())


def test_parts_are_reduced_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_ROWS", 4)
    events: list[Event] = [(0, offset, offset % 2, offset) for offset in range(20)]
    assert shown(last(events, step=3)) == [(0, 0, 18, False), (1, 0, 19, False)]


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=30), st.lists(st.booleans(), min_size=30))
@settings(max_examples=40, deadline=None)
def test_the_last_writers_are_told_over_several_schemas(events: list[tuple[int, bool]], narrow: list[bool]) -> None:
    """Of records that were read with a narrower key, and without a column that came later."""
    small = SOURCE.set(1, pa.field("value", pa.struct([("id", pa.int32()), ("at", pa.int64())])))
    parts, model = [], {}
    for offset, (id_, deleted) in enumerate(events):
        one = batch([(id_ % 2, offset, id_, None if deleted else offset)])
        value = one["value"].cast(ROW)
        if narrow[offset]:
            fields = [value.field("id").cast(pa.int32()), value.field("at")]
            value = pa.StructArray.from_arrays(fields, fields=list(small.field("value").type), mask=value.is_null())
            one = one.set_column(1, "value", value)
        parts.append(one)
        model[id_] = (id_, id_ % 2, offset, deleted)
    found = last_writers(BY_OFFSET, parts)
    assert (shown(found) if found is not None else []) == sorted(model.values())


def test_a_key_that_becomes_text_cannot_be_compared() -> None:
    text = pa.schema(
        [pa.field("key", pa.string()), pa.field("value", pa.struct([("id", pa.string())])), *list(SOURCE)[2:]]
    )
    row = {"key": "1", "value": {"id": "1"}, "topic": "t", "partition": 0, "offset": 1, "timestamp": 1}
    with pytest.raises(ConfigError, match="keys cannot be compared"):
        last_writers(BY_OFFSET, [batch([(0, 0, 1, 1)]), pa.RecordBatch.from_pylist([row], text)])


def test_a_key_in_two_partitions_is_refused_with_both_places() -> None:
    with pytest.raises(
        LoadError, match=r"the key id=5 is in two partitions, t-0 offset 3 and t-1 offset 2: .*order_by"
    ):
        last([(0, 3, 5, 1), (1, 2, 5, 9), (0, 4, 6, 1)])


def test_a_column_orders_the_partitions() -> None:
    assert shown(last([(0, 3, 5, 1), (1, 2, 5, 9), (0, 4, 6, 1)], BY_AT)) == [(5, 1, 2, False), (6, 0, 4, False)]


def test_within_a_partition_the_offset_goes_before_the_column() -> None:
    assert shown(last([(0, 3, 5, 9), (0, 4, 5, 1)], BY_AT)) == [(5, 0, 4, False)]


def test_a_delete_in_another_partition_that_no_column_orders_is_refused() -> None:
    with pytest.raises(LoadError, match="id=5 is in two partitions, and has no at t-1 offset 4"):
        last([(0, 3, 5, 1), (1, 4, 5, None)], BY_AT)


def test_equal_values_of_the_column_do_not_order_partitions() -> None:
    with pytest.raises(LoadError, match="id=5 has the same at in two partitions"):
        last([(0, 3, 5, 7), (1, 4, 5, 7), (2, 1, 5, 2)], BY_AT)
    assert shown(last([(0, 3, 5, 7), (1, 4, 5, 7), (2, 1, 5, 8)], BY_AT)) == [(5, 2, 1, False)]


def test_the_record_behind_a_delete_is_as_late_as_that() -> None:
    """Debezium's delete has a time, the record without a value behind it has none."""
    envelope = pa.struct([("before", ROW), ("after", ROW), ("op", pa.string()), ("ts_ms", pa.int64())])
    source = SOURCE.set(1, pa.field("value", envelope))
    upsert = Upsert(("id",), "debezium", "ts_ms")
    row = {"id": 1, "name": "a", "at": 0}
    values = [
        {"before": row, "after": None, "op": "d", "ts_ms": 9},
        None,
        {"before": None, "after": row, "op": "c", "ts_ms": 5},
    ]
    records = [
        {"key": 1, "value": value, "topic": "t", "partition": partition, "offset": offset, "timestamp": 0}
        for value, (partition, offset) in zip(values, [(0, 1), (0, 2), (1, 1)], strict=True)
    ]
    found = last_changes(ChangeDecoder(upsert, source), upsert, [pa.RecordBatch.from_pylist(records, source)])
    assert [(row["_partition"], row["_offset"], row["_order"], row["_deleted"]) for row in found.to_pylist()] == [
        (0, 2, 9, True)
    ]


def stored(events: list[Event], upsert: Upsert) -> list[pa.Table]:
    return [last(events, upsert).drop_columns(["_deleted"]), last([], upsert).drop_columns(["_deleted"])]


def without_outdated(changes: pa.Table, upsert: Upsert, parts: list[pa.Table]) -> pa.Table:
    compared = StoredRows(changes, upsert)
    for part in parts:
        compared.take_in(part)
    return compared.wanted


def test_a_key_that_the_table_has_twice_is_refused() -> None:
    parts = stored([(0, 1, 1, 1)], BY_OFFSET)
    for twice in ([*parts, *parts], [pa.concat_tables([*parts, *parts])]):
        with pytest.raises(LoadError, match="id=1 is in the table more than once"):
            without_outdated(last([(0, 5, 1, 5)]), BY_OFFSET, twice)


def test_what_the_table_has_from_before_is_replaced() -> None:
    new = last([(0, 5, 1, 5), (0, 6, 2, None), (1, 3, 3, 1)])
    assert without_outdated(new, BY_OFFSET, stored([(0, 1, 1, 1), (0, 2, 2, 1)], BY_OFFSET)) == new


@pytest.mark.parametrize("offset", [5, 4])
def test_an_offset_that_is_not_behind_that_of_the_row_is_refused(offset: int) -> None:
    with pytest.raises(LoadError, match=rf"id=1 has its row of t-0 offset 5 in the table already.*t-0 offset {offset}"):
        without_outdated(last([(0, offset, 1, 1)]), BY_OFFSET, stored([(0, 5, 1, 1)], BY_OFFSET))


def test_a_row_that_another_partition_has_written_is_refused() -> None:
    with pytest.raises(LoadError, match=r"id=1 is in two partitions, t-0 offset 5 in the table, t-1 offset 9 now"):
        without_outdated(last([(1, 9, 1, 1)]), BY_OFFSET, stored([(0, 5, 1, 1)], BY_OFFSET))


def test_a_row_that_another_partition_has_written_is_kept_if_it_is_later() -> None:
    new = last([(1, 9, 1, 1), (1, 10, 2, 8), (1, 11, 3, 1)], BY_AT)
    kept = without_outdated(new, BY_AT, stored([(0, 5, 1, 4), (0, 6, 2, 4)], BY_AT))
    assert shown(kept) == [(2, 1, 10, False), (3, 1, 11, False)]


@pytest.mark.parametrize("at", [4, None])
def test_a_row_that_another_partition_has_written_and_no_column_decides_is_refused(at: int | None) -> None:
    with pytest.raises(LoadError, match="id=1 is in two partitions, and at does not decide"):
        without_outdated(last([(1, 9, 1, at)], BY_AT), BY_AT, stored([(0, 5, 1, 4)], BY_AT))


def test_keys_of_several_columns() -> None:
    upsert = Upsert(("id", "name"))
    rows = last([(0, 1, 1, 1), (0, 2, 1, 1)], BY_OFFSET).column_names
    assert rows[:3] == ["id", "name", "at"]
    found = last_changes(ChangeDecoder(upsert, SOURCE), upsert, [batch([(0, 1, 1, 1), (0, 2, 1, 2), (1, 3, 1, 1)])])
    assert len(found) == 3

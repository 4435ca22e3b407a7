"""Schema evolution of Delta tables: the driver adds columns before a row is written, beside other loads."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType

from broker.errors import ConfigError
from broker.storage.storage import Storage, open_storage
from spark_connector.loads.delta.delta_log import DeltaCommitLog
from spark_connector.loads.delta.delta_table import DeltaDestination
from spark_connector.loads.grammar import Evolution
from spark_connector.loads.record import LoadError, LoadId, LoadRange, LoadRecord
from spark_connector.loads.tasks.columns import TableColumns
from spark_connector.loads.tasks.file_layout import FileLayout
from spark_connector.loads.tasks.file_writer import FileWriter

ADD = Evolution.parse("add")
Row = dict[str, Any]


@pytest.fixture
def output(tmp_path: Path) -> Storage:
    return open_storage(str(tmp_path / "table"))


def opened(output: Storage, group: str) -> DeltaDestination:
    return DeltaDestination(output, DeltaCommitLog(output, group), group)


def load(
    output: Storage,
    *columns: tuple[str, pa.DataType, Any],
    group: str = "g",
    policy: Evolution = ADD,
    meanwhile: Callable[[], Any] = lambda: None,
) -> str:
    """Load one row with these columns (name, type, value); `meanwhile` happens before it is written."""
    site = opened(output, group)
    number = site.log.newest().sequence
    range = LoadRange("t", 0, number, number + 1, number or None)
    load_id = str(LoadId(group, number + 1, secrets.token_hex(4)))
    record = LoadRecord(load_id, site.url, "delta", "table", 0, (range,))
    given = [*columns, ("topic", pa.string(), "t"), ("partition", pa.int32(), 0), ("offset", pa.int64(), number)]
    row = pa.RecordBatch.from_pylist([{name: value for name, _, value in given}], pa.schema([one[:2] for one in given]))
    schema = row.schema.append(pa.field("load", pa.string()))
    place = site.stage(record)
    layout = site.file_layout(record, FileLayout(schema, TableColumns.of((), row.schema), load_id, evolution=policy))
    meanwhile()
    writer = FileWriter(layout, site.task_output(place))
    writer.write(row)
    files = writer.close()
    site.commit(record.completed({range.tp: 1}, {file.name: file.size for file in files}), files)
    return load_id


def table(output: Storage) -> pa.Table:
    return DeltaTable(output.url).to_pyarrow_table()


def column(output: Storage, name: str) -> list[Any]:
    found: list[Any] = table(output).sort_by([("load", "ascending")]).column(name).to_pylist()
    return found


A, B = ("a", pa.int64(), 1), ("b", pa.string(), "x")


def test_a_new_column_is_null_in_older_rows_and_a_missing_one_in_newer(output: Storage) -> None:
    load(output, A)
    load(output, A, B)
    load(output, B)
    assert column(output, "a") == [1, 1, None]
    assert column(output, "b") == [None, "x", "x"]


def test_a_field_is_added_to_a_struct_a_list_and_a_map(output: Storage) -> None:
    def nested(value: Row) -> tuple[tuple[str, pa.DataType, Any], ...]:
        struct = pa.struct([(name, pa.int64()) for name in value])
        lists, maps = pa.list_(struct), pa.map_(pa.string(), struct)
        return ("s", struct, value), ("l", lists, [value]), ("m", maps, {"k": value})

    load(output, *nested({"x": 1}))
    load(output, *nested({"y": 2, "x": 3}))
    load(output, *nested({"y": 4}))
    expected = [{"x": 1, "y": None}, {"x": 3, "y": 2}, {"x": None, "y": 4}]
    assert column(output, "s") == expected
    assert column(output, "l") == [[one] for one in expected]
    assert [dict(one)["k"] for one in column(output, "m")] == expected


def test_by_default_nothing_is_altered(output: Storage) -> None:
    load(output, A)
    version = DeltaTable(output.url).version()
    with pytest.raises(ConfigError, match=r"no column 'b': add it \(schema_evolution=add does\)"):
        load(output, A, B, policy=Evolution())
    assert DeltaTable(output.url).version() == version


def test_a_type_cannot_grow(output: Storage) -> None:
    load(output, ("a", pa.int32(), 1))
    with pytest.raises(ConfigError, match="'a' as integer, not long, and the type of a column cannot change there"):
        load(output, A, policy=Evolution.parse("add,widen"))


def test_a_narrower_value_is_written_in_the_type_of_the_table(output: Storage) -> None:
    load(output, A)
    load(output, ("a", pa.int16(), 7), policy=Evolution())
    assert column(output, "a") == [1, 7]


def test_a_load_that_ends_after_the_alteration_leaves_an_empty_column_only(output: Storage) -> None:
    load(output, A)
    with pytest.raises(ZeroDivisionError):
        load(output, A, B, meanwhile=lambda: 1 // 0)
    assert column(output, "b") == [None]
    load(output, A, B)
    assert column(output, "b") == [None, "x"]


def test_two_groups_that_add_a_column_have_one(output: Storage) -> None:
    load(output, A)
    load(output, A, B, meanwhile=lambda: load(output, A, B, ("c", pa.date32(), None), group="other"))
    assert table(output).schema.names.count("b") == 1
    assert sorted(column(output, "b"), key=str) == [None, "x", "x"]


def test_a_rival_that_alters_first_is_seen(output: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the decision and the alteration."""
    load(output, A)
    stale = DeltaTable(output.url)
    DeltaTable(output.url).alter.add_columns(Field("b", PrimitiveType("string"), nullable=True))
    tables = [stale]
    fresh = DeltaCommitLog.table
    monkeypatch.setattr(DeltaCommitLog, "table", lambda log: tables.pop() if tables else fresh(log))
    site = opened(output, "g")
    site.log.newest = lambda: None  # type: ignore[assignment,method-assign,return-value]
    rows = pa.schema([("a", pa.int64()), ("b", pa.string())])
    schema = rows.append(pa.field("load", pa.string()))
    record = LoadRecord("g-000002-aaaaaaaa", site.url, "delta", "table", 0, ())
    layout = site.file_layout(record, FileLayout(schema, TableColumns.of((), rows), evolution=ADD))
    assert layout.schema.names == ["a", "b", "load"]
    assert table(output).schema.names.count("b") == 1


def test_a_rival_that_alters_during_the_commit_makes_it_try_again(
    output: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(output, A)
    commit, rivals = DeltaCommitLog._commit, [ADD]

    def slow(log: DeltaCommitLog, seen: DeltaTable, *rest: Any) -> None:
        while rivals:
            load(output, A, B, group="other", policy=rivals.pop())
        commit(log, seen, *rest)

    monkeypatch.setattr(DeltaCommitLog, "_commit", slow)
    load(output, A)
    assert sorted(column(output, "b"), key=str) == [None, None, "x"]


def test_a_table_that_another_program_has_changed_during_the_commit_is_left_alone(
    output: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(output, A)
    commit = DeltaCommitLog._commit

    def slow(log: DeltaCommitLog, seen: DeltaTable, *rest: Any) -> None:
        DeltaTable(output.url).alter.add_constraint({"few": "a < 1000"})
        commit(log, seen, *rest)

    monkeypatch.setattr(DeltaCommitLog, "_commit", slow)
    with pytest.raises(LoadError, match="Delta's commit failed"):
        load(output, A)
    assert column(output, "a") == [1]

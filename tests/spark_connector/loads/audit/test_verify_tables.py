"""Recounting loads into tables: what is sound is called so, every damage is found, others' rows are nobody's fault."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
import sqlalchemy
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from broker.protocol.topic_partition import TopicPartition
from spark_connector.loads.addresses import DatabaseAddress
from spark_connector.loads.audit.verify import LoadCheck, Verification
from spark_connector.loads.database.sql import open_engine
from spark_connector.loads.destination import Destination
from spark_connector.loads.record import LoadRange, LoadRecord
from spark_connector.maintenance import prune, rewind, verify
from tests.support.table_harness import (
    DatabaseWorld,
    DeltaWorld,
    TableWorld,
    delta_world,
    rows_of,
    sqlite_world,
    with_load,
)
from tests.support.topic_data import TopicData

# --- Rows of a Delta table deleted as Spark does it, by a deletion vector: `deltalake` reads these, but writes none.
# The format is Delta's: a `RoaringBitmapArray` of one bitmap with one array container, inline in the log as base85
# (Z85).

_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_MAGIC = 1681511377
_NO_RUNS = 12346  # a roaring bitmap without run containers


def delete_rows(table: Path, path: str, rows: list[int]) -> None:
    """Commit that these rows, by number, of the table's file `path` are deleted."""
    version = DeltaTable(str(table)).version()
    added = next(add for add in _adds(table) if add["path"] == path)
    bitmap = _bitmap(rows)
    vector = {"storageType": "i", "pathOrInlineDv": _z85(bitmap), "sizeInBytes": len(bitmap), "cardinality": len(rows)}
    features = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
    actions = [
        {"commitInfo": {"timestamp": 1, "operation": "DELETE", "operationParameters": {}}},
        {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}},
        {"remove": {"path": path, "deletionTimestamp": 1, "dataChange": True}},
        {"add": {**added, "deletionVector": vector}},
    ]
    (table / "_delta_log" / f"{version + 1:020d}.json").write_text("\n".join(map(json.dumps, actions)))


def _adds(table: Path) -> list[dict[str, Any]]:
    lines = (line for log in (table / "_delta_log").glob("*.json") for line in log.read_text().splitlines())
    return [action["add"] for action in map(json.loads, lines) if "add" in action]


def _bitmap(rows: list[int]) -> bytes:
    container = struct.pack("<II", _NO_RUNS, 1) + struct.pack("<HHI", 0, len(rows) - 1, 16)
    return struct.pack("<IQI", _MAGIC, 1, 0) + container + struct.pack(f"<{len(rows)}H", *sorted(rows))


def _z85(data: bytes) -> str:
    text = ""
    for (number,) in struct.iter_unpack(">I", data + b"\0" * (-len(data) % 4)):
        digits = []
        for _ in range(5):
            number, digit = divmod(number, 85)
            digits.append(_Z85[digit])
        text += "".join(reversed(digits))
    return text


# --- the tests


def loaded(world: TableWorld, data: TopicData) -> TableWorld:
    """Two loads: offsets 0 to 5 and 6 to 9 of two partitions."""
    world.topic, world.ends = data.topic, {}
    world.group = f"group-of-{data.topic}"
    for count in (6, 4):
        world.grow(count=count)
        assert world.load() is not None
    return world


@pytest.fixture
def delta(tmp_path: Path, data: TopicData) -> DeltaWorld:
    world = loaded(delta_world(tmp_path, begin=False), data)
    assert isinstance(world, DeltaWorld)
    return world


@pytest.fixture
def sqlite(tmp_path: Path, data: TopicData) -> DatabaseWorld:
    world = loaded(sqlite_world(tmp_path, begin=False), data)
    assert isinstance(world, DatabaseWorld)
    return world


@pytest.fixture(params=["delta", "sqlite"])
def world(request: pytest.FixtureRequest) -> TableWorld:
    made: TableWorld = request.getfixturevalue(request.param)
    return made


@pytest.fixture
def verified(data: TopicData) -> Callable[[TableWorld], Verification]:
    return lambda world: verify(world.target, data.bootstrap)


class PartitionedWorld(DeltaWorld):
    """Its table is partitioned by topic and partition."""

    def plan(self, site: Destination) -> LoadRecord | None:
        record = super().plan(site)
        return None if record is None else replace(record, partition_by=("topic", "partition"))


Verified = Callable[[TableWorld], Verification]


def only_mismatch(found: Verification, number: int) -> LoadCheck:
    """The check of the load with this number, the only one that does not add up."""
    assert not found.ok
    (wrong,) = (load for load in found.loads if load.verdict == "mismatch")
    assert f"-{number:06d}-" in wrong.load_id
    return wrong


def execute(world: DatabaseWorld, statement: str) -> None:
    with open_engine(world.address.url).begin() as connection:
        connection.execute(sqlalchemy.text(statement))


def other_group(world: TableWorld, data: TopicData) -> TableWorld:
    """One that loads the same topic into the same table."""
    if isinstance(world, DeltaWorld):
        other: TableWorld = DeltaWorld(world.output, f"other-{data.topic}")
    else:
        assert isinstance(world, DatabaseWorld)
        other = DatabaseWorld(world.address, f"other-{data.topic}")
    other.topic = data.topic
    other.grow(count=10)
    assert other.load() is not None
    return other


def test_sound_loads_are_counted_partition_by_partition(world: TableWorld, verified: Verified) -> None:
    found = verified(world)
    assert found.ok, found
    assert [load.verdict for load in found.loads] == ["ok", "ok"]
    counts = [(c.start, c.end, c.rows, c.file_rows, c.log_rows, c.low, c.high) for c in found.loads[1].partitions]
    assert counts == [(6, 10, 4, 4, 4, 6, 9)] * 2
    assert found.loads[0].notes == found.notes == ()


def test_groups_in_one_table_are_told_apart(world: TableWorld, verified: Verified, data: TopicData) -> None:
    other = other_group(world, data)
    for one in (world, other):
        found = verified(one)
        assert found.ok, found
        assert {load.verdict for load in found.loads} == {"ok"}


def test_rows_of_other_people_are_nobodys_fault(delta: DeltaWorld, sqlite: DatabaseWorld, verified: Verified) -> None:
    execute(sqlite, "INSERT INTO rows (topic, partition, \"offset\") VALUES ('elsewhere', 0, 1), (NULL, NULL, NULL)")
    strange = with_load(rows_of(LoadRange(delta.topic, 0, 0, 3, None)), None)
    nothing = pa.table([pa.nulls(1, field.type) for field in strange.schema], schema=strange.schema)
    write_deltalake(delta.output.url, pa.concat_tables([strange, nothing]), mode="append")
    for world in (delta, sqlite):
        assert verified(world).ok


def test_rows_that_are_missing_or_doubled_in_a_database_are_named(sqlite: DatabaseWorld, verified: Verified) -> None:
    execute(sqlite, 'DELETE FROM rows WHERE partition = 1 AND "offset" IN (7, 8)')
    wrong = only_mismatch(verified(sqlite), 2)
    assert any("4 rows were committed, 2 are in the table" in problem for problem in wrong.problems)
    assert any("2 records of the log are not in the table, such as offset 7, 8" in p for p in wrong.problems)
    execute(sqlite, 'INSERT INTO rows SELECT * FROM rows WHERE partition = 0 AND "offset" = 6')
    wrong = only_mismatch(verified(sqlite), 2)
    assert any("1 rows are there more than once, such as offset 6" in problem for problem in wrong.problems)


def test_a_row_of_one_of_two_groups_is_missed_by_that_group_only(
    sqlite: DatabaseWorld, verified: Verified, data: TopicData
) -> None:
    other = other_group(sqlite, data)
    execute(sqlite, f"DELETE FROM rows WHERE \"offset\" = 7 AND partition = 0 AND load LIKE '{sqlite.group}-%'")
    wrong = only_mismatch(verified(sqlite), 2)
    assert any("1 records of the log are not in the table, such as offset 7" in problem for problem in wrong.problems)
    assert verified(other).ok


def test_rows_of_a_load_that_does_not_stand_are_named(world: TableWorld, verified: Verified) -> None:
    """A row that somebody put back after a rewind, and one with the id of a load that never was."""
    first, second = (load.load_id for load in verified(world).loads)
    assert rewind(world.target, first, delete=isinstance(world, DatabaseWorld)) is not None
    invented = f"{world.group}-000002-00000000"
    if isinstance(world, DatabaseWorld):
        for load_id in (second, invented):
            execute(world, f"INSERT INTO rows (topic, partition, \"offset\", load) VALUES ('t', 0, 6, '{load_id}')")
    else:
        assert isinstance(world, DeltaWorld)
        rows = rows_of(LoadRange(world.topic, 0, 6, 7, None))
        for load_id in (second, invented):
            write_deltalake(world.output.url, with_load(rows, load_id), mode="append")
    found = verified(world)
    assert [load.verdict for load in found.loads] == ["ok"]
    assert sorted(found.problems) == sorted(
        [
            f"the table has 1 rows of load {second}, which was taken back by a rewind",
            f"the table has 1 rows of load {invented}, which is not in the commit log",
        ]
    )


def test_rows_without_a_position_are_unreadable(sqlite: DatabaseWorld, verified: Verified) -> None:
    execute(sqlite, 'UPDATE rows SET "offset" = NULL WHERE partition = 1 AND "offset" = 7')
    wrong = only_mismatch(verified(sqlite), 2)
    assert wrong.problems == ("its rows cannot be read: a row has no topic, partition or offset",)


def test_a_database_without_the_columns_is_unknown(sqlite: DatabaseWorld, verified: Verified) -> None:
    execute(sqlite, 'ALTER TABLE rows DROP COLUMN "offset"')
    found = verified(sqlite)
    assert (found.verdict, [load.verdict for load in found.loads]) == ("unknown", ["unknown"] * 2)
    assert found.loads[0].unread == ("table rows has no column offset: its rows cannot be told apart",)
    execute(sqlite, "DROP TABLE rows")
    found = verified(sqlite)
    assert "table rows no longer exists" in found.loads[0].unread[0]
    assert found.unread == ("table rows no longer exists",)


def test_a_schema_and_names_to_be_quoted(postgres: str, data: TopicData, verified: Verified) -> None:
    with open_engine(postgres).begin() as connection:
        connection.execute(sqlalchemy.text("CREATE SCHEMA IF NOT EXISTS weird"))
    world = loaded(DatabaseWorld(DatabaseAddress.parse(postgres, f"weird.T %(x)s {data.topic}"), "g"), data)
    found = verified(world)
    assert found.ok, found
    assert [load.verdict for load in found.loads] == ["ok", "ok"]
    assert rewind(world.target, found.loads[0].load_id, delete=True) is not None
    assert [load.verdict for load in verified(world).loads] == ["ok"]


def test_pruned_loads_are_said_to_be_forgotten(sqlite: DatabaseWorld, verified: Verified) -> None:
    assert prune(sqlite.target, 1) == [1]
    found = verified(sqlite)
    assert found.verdict == "unknown"
    assert [load.verdict for load in found.loads] == ["ok"]
    assert found.unread == ("The commit log has forgotten what load number 1 was.",)


def test_files_that_are_missing_or_damaged_in_a_delta_table_are_named(delta: DeltaWorld, verified: Verified) -> None:
    first, second = (load.load_id for load in verified(delta).loads)
    delta.output.remove(f"{first}/part-0.parquet")
    wrong = only_mismatch(verified(delta), 1)
    assert re.match(rf"its rows cannot be read: .*{first}/part-0\.parquet not found", wrong.problems[0])
    delta.output.remove(f"{second}/part-1.parquet")
    delta.output.create(f"{second}/part-1.parquet", b"garbage")
    assert [load.verdict for load in verified(delta).loads] == ["mismatch"] * 2


def test_a_compacted_delta_table_is_recounted_by_its_rows(
    delta: DeltaWorld, verified: Verified, data: TopicData
) -> None:
    DeltaTable(delta.output.url).optimize.compact()
    found = verified(delta)
    assert found.ok, found
    assert [load.verdict for load in found.loads] == ["ok", "ok"]
    assert found.loads[0].notes == ()
    other = other_group(delta, data)
    DeltaTable(delta.output.url).optimize.compact()
    assert verified(delta).ok
    assert verified(other).ok
    DeltaTable(delta.output.url).delete(f"\"offset\" = 7 AND partition = 1 AND load LIKE '{delta.group}-%'")
    wrong = only_mismatch(verified(delta), 2)
    assert any("1 records of the log are not in the table, such as offset 7" in problem for problem in wrong.problems)
    assert verified(other).ok


def test_rows_deleted_by_a_deletion_vector_are_missed(delta: DeltaWorld, verified: Verified, tmp_path: Path) -> None:
    first, second = (load.load_id for load in verified(delta).loads)
    delete_rows(Path(delta.output.url.removeprefix("file://")), f"{second}/part-1.parquet", [1, 2])
    wrong = only_mismatch(verified(delta), 2)
    assert any("2 records of the log are not in the table, such as offset 7, 8" in p for p in wrong.problems)
    assert rewind(delta.target, first) is not None
    rows = QueryBuilder().register("t", DeltaTable(delta.output.url)).execute('SELECT "offset", load FROM t').read_all()
    assert sorted(rows["offset"].to_pylist()) == sorted([*range(6)] * 2)
    assert set(rows["load"].to_pylist()) == {first}


def test_a_partitioned_delta_table(tmp_path: Path, data: TopicData, verified: Verified) -> None:
    """Whose files do not hold the columns that their directories are named after; written anew or not."""
    made = delta_world(tmp_path, begin=False)
    world = loaded(PartitionedWorld(made.output, "g"), data)
    assert verified(world).ok
    table = DeltaTable(made.output.url)
    table.optimize.compact()
    found = verified(world)
    assert found.ok, found
    assert [load.verdict for load in found.loads] == ["ok"] * 2
    data.produce(4)
    world.grow(count=2)
    world.load()
    assert rewind(world.target, found.loads[1].load_id) is not None
    assert world.visible() == [(data.topic, partition, offset) for partition in (0, 1) for offset in range(10)]
    assert verified(world).ok


def test_a_log_without_statistics_is_no_reason_to_look_elsewhere(delta: DeltaWorld, verified: Verified) -> None:
    """As Spark's checkpoints may be, with delta.checkpoint.writeStatsAsJson=false."""
    for log in Path(delta.output.url.removeprefix("file://")).glob("_delta_log/*.json"):
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        for action in lines:
            action.get("add", {}).pop("stats", None)
        log.write_text("\n".join(map(json.dumps, lines)))
    found = verified(delta)
    assert [(load.verdict, load.notes) for load in found.loads] == [("ok", ())] * 2


def test_rows_copied_within_a_delta_table_are_doubled(delta: DeltaWorld, verified: Verified) -> None:
    second = verified(delta).loads[1].load_id
    copied = with_load(rows_of(LoadRange(delta.topic, 1, 6, 8, None)), second)
    write_deltalake(delta.output.url, copied, mode="append")
    wrong = only_mismatch(verified(delta), 2)
    assert any("2 rows are there more than once, such as offset 6, 7" in problem for problem in wrong.problems)


def test_a_delta_table_that_was_restored_lacks_rows(delta: DeltaWorld, verified: Verified) -> None:
    DeltaTable(delta.output.url).restore(DeltaTable(delta.output.url).version() - 1)
    wrong = only_mismatch(verified(delta), 2)
    assert any("4 rows were committed, 0 are in the table" in problem for problem in wrong.problems)


def test_what_a_rewind_took_back_is_not_counted(world: TableWorld, verified: Verified) -> None:
    first, second = (load.load_id for load in verified(world).loads)
    assert rewind(world.target, first, delete=isinstance(world, DatabaseWorld)) is not None
    assert [load.load_id for load in verified(world).loads] == [first]
    world.load()
    found = verified(world)
    assert found.ok, found
    assert second not in {load.load_id for load in found.loads}
    assert world.visible() == world.produced()


def test_a_topic_that_was_created_anew_shares_its_offsets_with_the_old(
    sqlite: DatabaseWorld, verified: Verified
) -> None:
    """Its rows look like those of the topic before; they are not doubled."""
    with open_engine(sqlite.address.url).begin() as connection:
        connection.execute(sqlalchemy.text("UPDATE pykafka_offsets SET next_offset = 0"))
    again = DatabaseWorld(sqlite.address, sqlite.group, {TopicPartition(sqlite.topic, p): 4 for p in (0, 1)})
    again.topic = sqlite.topic
    again.load()
    found = verified(again)
    assert [load.verdict for load in found.loads] == ["ok"] * 3


def test_a_group_that_went_on_in_another_table(sqlite: DatabaseWorld, verified: Verified, data: TopicData) -> None:
    second = DatabaseWorld(replace(sqlite.address, table="rows2"), sqlite.group, sqlite.ends, data.topic)
    data.produce(4)
    second.grow(count=2)
    second.load()
    for world in (sqlite, second):
        found = verified(world)
        assert found.ok, found
        assert [load.verdict for load in found.loads] == ["ok"] * 3
    assert rewind(second.target, found.loads[0].load_id, delete=True) is not None
    assert (len(sqlite.visible()), second.visible()) == (12, [])

"""What a Delta table demands of its writers × what loads do to it: kept or refused, before anything is written.

The features are those of Delta's protocol. `deltalake` is the judge of what it commits, and reads what was written.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, QueryBuilder
from deltalake.exceptions import CommitFailedError, DeltaError

from broker.errors import ConfigError
from broker.storage.storage import open_storage
from spark_connector.loads.compaction import CompactionOptions
from spark_connector.loads.delta.delta_features import FEATURES
from spark_connector.maintenance import rewind
from spark_connector.outages import heals_by_waiting
from tests.support.crashing import CrashPoint
from tests.support.delta_demands import Demand, commit, delete_first_row, demand
from tests.support.table_harness import DeltaWorld, TableWorld
from tests.support.upsert_harness import UpsertIntoDelta, UpsertTopic, send_all

PROTOCOL = (
    *("appendOnly", "invariants", "checkConstraints", "generatedColumns", "allowColumnDefaults", "changeDataFeed"),
    *("columnMapping", "identityColumns", "deletionVectors", "rowTracking", "timestampNtz", "domainMetadata"),
    *("v2Checkpoint", "catalogManaged", "icebergCompatV1", "icebergCompatV2", "clustering", "vacuumProtocolCheck"),
    *("inCommitTimestamp", "variantType", "typeWidening"),
)
"""The valid names of features in Delta's protocol, and the two of its chapters that its table of names lacks."""

MAPPED = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "99"}
GENERATED = {"delta.generationExpression": "offset + 1"}
INVARIANT = {"delta.invariants": json.dumps({"expression": {"expression": "offset >= 0"}})}
IDENTITY = {"delta.identity.start": 1, "delta.identity.step": 1, "delta.identity.allowExplicitInsert": False}

WORK = ("append", "upsert", "rewind", "compaction")
CASES: dict[str, tuple[Demand, str]] = {
    # k: kept, r: refused; in the order of WORK
    "appendOnly": (Demand(["appendOnly"], properties={"delta.appendOnly": "true"}), "krrk"),
    "appendOnly, not used": (Demand(["appendOnly"]), "kkkk"),
    "appendOnly, version 2": (Demand(version=2, properties={"delta.appendOnly": "TRUE"}), "krrk"),
    "invariants": (Demand(["invariants"], metadata={"load": INVARIANT}), "rrkk"),
    "invariants, version 2": (Demand(version=2, metadata={"load": INVARIANT}), "rrkk"),
    "checkConstraints": (Demand(["checkConstraints"], properties={"delta.constraints.c": "load > ''"}), "rrkk"),
    "checkConstraints, version 3": (Demand(version=3, properties={"delta.constraints.c": "load > ''"}), "rrkk"),
    "generatedColumns": (Demand(["generatedColumns"], metadata={"load": GENERATED}), "rrkk"),
    "generatedColumns, version 4": (Demand(version=4, metadata={"load": GENERATED}), "rrkk"),
    "version 4, nothing used": (Demand(version=4), "kkkk"),
    "changeDataFeed": (Demand(["changeDataFeed"], properties={"delta.enableChangeDataFeed": "true"}), "kkkk"),
    "changeDataFeed, version 4": (Demand(version=4, properties={"delta.enableChangeDataFeed": "true"}), "kkkk"),
    "columnMapping": (Demand(["columnMapping"], properties=MAPPED), "rrrr"),
    "columnMapping, version 5": (Demand(version=5, properties=MAPPED), "rrrr"),
    "version 5, mode none": (Demand(version=5, properties={"delta.columnMapping.mode": "none"}), "kkkk"),
    "identityColumns": (Demand(["identityColumns"], metadata={"load": IDENTITY}), "rrrr"),
    "identityColumns, version 6": (Demand(version=6), "rrrr"),
    "deletionVectors": (Demand(["deletionVectors"], properties={"delta.enableDeletionVectors": "true"}), "kkkr"),
    "timestampNtz": (Demand(["timestampNtz"], columns={"at": "timestamp_ntz"}), "kkkk"),
    "v2Checkpoint": (Demand(["v2Checkpoint"]), "kkkr"),
    "variantType": (Demand(["variantType"], columns={"anything": "variant"}), "rrrr"),
    "variantType, not used": (Demand(["variantType"]), "kkkk"),
    **{
        name: (Demand([name, "domainMetadata"] if name in ("rowTracking", "clustering") else [name]), "rrrr")
        for name in (
            *("rowTracking", "clustering", "domainMetadata", "inCommitTimestamp", "checkpointProtection"),
            *("typeWidening", "typeWidening-preview", "vacuumProtocolCheck", "allowColumnDefaults"),
            *("icebergCompatV1", "icebergCompatV2", "icebergCompatV3", "materializePartitionColumns"),
            *("coordinatedCommits-preview", "aFeatureOfTomorrow"),
        )
    },
}
CELLS = [(name, work, fate) for name, (_, fates) in CASES.items() for work, fate in zip(WORK, fates, strict=True)]
REFUSED = [(name, work) for name, work, fate in CELLS if fate == "r"]
KEPT = [(name, work) for name, work, fate in CELLS if fate == "k"]


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of appends and one of upserts, with two loads each."""
    root = tmp_path_factory.mktemp("tables")
    appends = DeltaWorld(open_storage(str(root / "appends")), "g")
    upserts = UpsertIntoDelta(root, UpsertTopic(), "upserts")
    for number in range(2):
        appends.grow()
        assert appends.load() is not None
        send_all(upserts.source, [(1, f"a{number}"), (2 + number, "b")])
        assert upserts.load() is not None
    return root


def world_of(tables: Path, to: Path, work: str, wanted: Demand) -> TableWorld:
    """A copy of the table that the work is done to, which another program has altered, and a topic that has grown."""
    name = "upserts" if work == "upsert" else "appends"
    shutil.copytree(tables / name, to / name)
    demand(to / name, wanted)
    if work == "upsert":
        source = UpsertTopic()
        send_all(source, [(1, "a0"), (2, "b"), (1, "a1"), (3, "b"), (1, "new"), (2, None), (4, "new")])
        return UpsertIntoDelta(to, source, name)
    world = DeltaWorld(open_storage(str(to / name)), "g")
    world.grow(count=6)
    if work == "append":
        world.grow()
    return world


def do(work: str, world: TableWorld, *, is_refused: bool = False) -> None:
    with world.opened(CrashPoint()) as site:
        if work == "compaction":
            assert site.compaction().run(CompactionOptions(rewindable_s=0)).files_after == 1
        elif work == "rewind":
            rewind(world.target, site.log.record(1).load_id)
        else:
            record = world.plan(site)
            assert record is not None
            place = "nowhere" if is_refused else site.stage(record)  # columns are checked before a load is staged
            sealed, files = world.write(site, record, place)
            site.seal(sealed)
            site.commit(sealed, files)


def rows_of(path: Path, *columns: str) -> list[dict[str, Any]]:
    found = QueryBuilder().register("t", DeltaTable(str(path))).execute(f"SELECT {', '.join(columns)} FROM t")
    return sorted(pa.table(found).to_pylist(), key=str)


def everything(path: Path) -> dict[str, bytes]:
    return {str(one): one.read_bytes() for one in path.rglob("*") if one.is_file()}


@pytest.mark.parametrize(("name", "work"), REFUSED)
def test_what_cannot_be_kept_is_refused_before_anything_is_written(
    tables: Path, tmp_path: Path, name: str, work: str
) -> None:
    world = world_of(tables, tmp_path, work, CASES[name][0])
    before = everything(tmp_path)
    feature = name.partition(",")[0]
    with pytest.raises(ConfigError, match=f"has (.*, )?{feature}.*(use|load into|Load into|compact with) ") as caught:
        do(work, world, is_refused=True)
    assert not caught.value.retriable
    assert everything(tmp_path) == before


@pytest.mark.parametrize(("name", "work"), KEPT)
def test_what_is_kept_leaves_the_right_rows(tables: Path, tmp_path: Path, name: str, work: str) -> None:
    world = world_of(tables, tmp_path, work, CASES[name][0])
    do(work, world)
    if work == "upsert":
        rows = rows_of(tmp_path / "upserts", "id", "name")
        assert rows == [{"id": 1, "name": "new"}, {"id": 3, "name": "b"}, {"id": 4, "name": "new"}]
        return
    ends = {"append": 9, "rewind": 3, "compaction": 6}[work]
    assert rows_of(tmp_path / "appends", '"partition"', '"offset"') == [
        {"partition": partition, "offset": offset} for partition in range(2) for offset in range(ends)
    ]


@pytest.mark.parametrize("work", ["append", "rewind"])
def test_rows_that_a_deletion_vector_has_deleted_stay_deleted(tables: Path, tmp_path: Path, work: str) -> None:
    world = world_of(tables, tmp_path, work, CASES["deletionVectors"][0])
    path, column = tmp_path / "appends", '"partition", "offset"'
    before = rows_of(path, column)
    delete_first_row(path)
    (gone,) = [row for row in before if row not in rows_of(path, column)]
    do(work, world)
    after = rows_of(path, column)
    assert gone not in after
    assert len(after) == {"append": 17, "rewind": 6}[work]


@pytest.mark.parametrize("work", ["upsert", "rewind"])
def test_a_file_with_a_deletion_vector_is_not_written_anew(tables: Path, tmp_path: Path, work: str) -> None:
    world = world_of(tables, tmp_path, work, CASES["deletionVectors"][0])
    path = tmp_path / ("upserts" if work == "upsert" else "appends")
    if work == "rewind":
        mix_loads(path)
        demand(path, CASES["deletionVectors"][0])
    delete_first_row(path)
    before = rows_of(path, "*")
    with pytest.raises(ConfigError, match="deletion vector has deleted, .* purge it with Spark"):
        do(work, world)
    assert rows_of(path, "*") == before
    assert world.leftovers() == []


def mix_loads(path: Path) -> None:
    """As a compaction of another program does."""
    DeltaTable(str(path)).optimize.compact()


def test_the_change_feed_tells_what_an_upsert_has_changed(tables: Path, tmp_path: Path) -> None:
    do("upsert", world_of(tables, tmp_path, "upsert", CASES["changeDataFeed"][0]))
    table = DeltaTable(str(tmp_path / "upserts"))
    feed = pa.table(table.load_cdf(starting_version=table.version())).to_pylist()
    assert sorted((row["_change_type"], row["id"], row["name"]) for row in feed) == [
        *(("delete", 2, "b"), ("insert", 4, "new")),
        *(("update_postimage", 1, "new"), ("update_preimage", 1, "a1")),
    ]


def test_the_change_feed_tells_what_a_rewind_has_deleted(tables: Path, tmp_path: Path) -> None:
    world = world_of(tables, tmp_path, "rewind", Demand(version=4))
    path = tmp_path / "appends"
    mix_loads(path)
    demand(path, CASES["changeDataFeed"][0])
    before = rows_of(path, '"partition", "offset", load')
    do("rewind", world)
    table = DeltaTable(str(path))
    feed = pa.table(table.load_cdf(starting_version=table.version())).to_pylist()
    assert {row["_change_type"] for row in feed} == {"delete"}
    told = [{name: row[name] for name in ("partition", "offset", "load")} for row in feed]
    assert sorted(told, key=str) == [row for row in before if row not in rows_of(path, '"partition", "offset", load')]


@pytest.mark.parametrize("name", sorted({name for name, *_ in CELLS}))
def test_deltalake_commits_what_is_kept_and_refuses_what_is_said_not_to_be_committed(
    tables: Path, tmp_path: Path, name: str
) -> None:
    wanted, fates = CASES[name]
    shutil.copytree(tables / "appends", tmp_path / "t")
    demand(tmp_path / "t", wanted)
    table = DeltaTable(str(tmp_path / "t"))
    ours = FEATURES.get(name.partition(",")[0])

    def write() -> None:
        table.create_write_transaction([], "append", table.schema(), commit_properties=CommitProperties({}, 0))

    if fates == "rrrr" and (ours is None or ours.use is None):
        with pytest.raises(CommitFailedError, match="Unsupported table features") as caught:
            write()
        assert not heals_by_waiting(caught.value)
    else:
        write()


def test_each_feature_of_the_protocol_is_decided() -> None:
    assert set(PROTOCOL) <= FEATURES.keys()
    assert {name.partition(",")[0] for name in CASES} >= FEATURES.keys() - {"catalogManaged", "variantType-preview"}


def test_a_feature_that_comes_between_the_check_and_the_commit_is_obeyed(tables: Path, tmp_path: Path) -> None:
    """The number of columns and the properties stay, so that the commit would be tried again."""
    world = world_of(tables, tmp_path, "append", Demand(version=4))
    path = tmp_path / "appends"
    with world.opened(CrashPoint()) as site:
        record = world.plan(site)
        assert record is not None
        sealed, files = world.write(site, record, site.stage(record))
        demand(path, CASES["generatedColumns"][0])
        with pytest.raises(ConfigError, match="has generatedColumns"):
            site.commit(sealed, files)
    assert len(rows_of(path, '"offset"')) == 12
    assert world.leftovers() == []


def test_a_nested_field_is_looked_at(tables: Path, tmp_path: Path) -> None:
    world = world_of(tables, tmp_path, "append", Demand(["timestampNtz"]))
    inner = {"name": "b", "type": "long", "nullable": True, "metadata": GENERATED}
    kind: Any = {"type": "array", "elementType": {"type": "struct", "fields": [inner]}, "containsNull": True}
    demand(tmp_path / "appends", Demand(["generatedColumns"], columns={"a": kind}))
    with pytest.raises(ConfigError, match=r"column 'a\.element\.b' has delta\.generationExpression offset \+ 1"):
        do("append", world)


@pytest.mark.parametrize(
    ("protocol", "message"),
    [
        ({"minReaderVersion": 1, "minWriterVersion": 8}, "demands writer version 8; loads know the versions up to 7"),
        ({"minReaderVersion": 4, "minWriterVersion": 8}, "cannot be opened: Unsupported minimum reader version 4"),
        (
            {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["x"], "writerFeatures": ["x"]},
            "cannot be opened: Feature 'x' is not supported",
        ),
        (Demand(["catalogManaged"]).protocol, "cannot be opened: .*catalog-managed table.* load into another one"),
    ],
)
def test_a_table_of_tomorrow_is_refused(tables: Path, tmp_path: Path, protocol: dict[str, Any], message: str) -> None:
    shutil.copytree(tables / "appends", tmp_path / "appends")
    commit(tmp_path / "appends", {"protocol": protocol})
    world = DeltaWorld(open_storage(str(tmp_path / "appends")), "g")
    world.grow(count=9)
    with pytest.raises(ConfigError, match=message):
        do("append", world)


def test_dead_letters_need_a_table_from_which_they_can_be_taken_back(tables: Path, tmp_path: Path) -> None:
    from dataclasses import replace

    world = world_of(tables, tmp_path, "append", CASES["appendOnly"][0])
    with world.opened(CrashPoint()) as site:
        record = world.plan(site)
        assert record is not None
        with pytest.raises(ConfigError, match="has appendOnly .* with which a rewind cannot change or delete a row"):
            world.write(site, replace(record, about="g-000001-00000000"), record.load_id)


def test_errors_of_a_feature_are_not_waited_for() -> None:
    for text in ("Unsupported table features required: [RowTracking]", "… but Delta table is append-only"):
        assert not heals_by_waiting(CommitFailedError(text))
    assert heals_by_waiting(CommitFailedError("Transaction failed: version 3 already exists"))
    assert not heals_by_waiting(DeltaError("x"))

"""A first load that is refused leaves nothing: no table, no offsets, no settings. The right call works afterwards.

Refusals × destinations, with a real broker and without Spark. An Iceberg table is the exception: it is made before the
records are read, because its place is the catalog's. One without loads takes the settings of the next first load.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy
from deltalake import DeltaTable, Schema, write_deltalake

from broker.errors import ConfigError, PykafkaError
from broker.storage.storage import open_storage
from spark_connector.load import run_load
from spark_connector.loads.database.sql import open_engine
from spark_connector.loads.delta.delta_creation import plan_table
from spark_connector.loads.iceberg.iceberg_catalog import IcebergPlace, open_catalog
from spark_connector.loads.iceberg.iceberg_creation import is_unused, made_anew
from spark_connector.loads.record import LoadInterrupted, LoadRange
from spark_connector.loads.request import LoadRequest, Target
from spark_connector.loads.tasks.columns import TableColumns
from spark_connector.loads.tasks.file_layout import FileLayout
from spark_connector.loads.upsert import Upsert
from spark_connector.maintenance import history
from tests.support.crashing import CrashPoint
from tests.support.kafka import Kafka
from tests.support.table_harness import (
    DatabaseWorld,
    DeltaWorld,
    IcebergWorld,
    add_catalog,
    rows_of,
    sqlite_world,
    with_load,
)
from tests.support.topics import Topic
from tests.support.upsert_harness import UpsertIntoDelta, UpsertIntoIceberg, UpsertTopic, send_all

JSON = {"valueFormat": "json", "valueSchema": "id BIGINT, at BIGINT, s STRUCT<a: INT>", "mode": "DROPMALFORMED"}
KEYED = {"mode": "upsert", "key": "id"}
RIGHT: Mapping[str, Any] = {**KEYED, "order_by": "at"}
BAD_OF_DATA = "of the records"
FOREIGN = "delta:{root}/foreign"

REFUSALS: dict[str, tuple[str, dict[str, Any], str]] = {
    # formats, arguments, message; with BAD_OF_DATA in the name where only the records tell
    "a key that no record has": ("delta iceberg", {**KEYED, "key": "nobody"}, "nobody"),
    "an order that no record has": ("delta iceberg", {**RIGHT, "order_by": "nothing"}, "nothing"),
    "an envelope that the values lack": ("delta iceberg", {**RIGHT, "envelope": "debezium"}, "envelope=debezium needs"),
    "a partition that is not of the key": ("delta iceberg", {**RIGHT, "partition_by": "at"}, "not made of the key"),
    f"no order {BAD_OF_DATA}": ("delta iceberg", KEYED, r"Set order_by \(--order-by\)"),
    "a field that no value has": ("delta iceberg parquet", {"columns": "value.nothing"}, "nothing"),
    "a partition by a struct": ("delta iceberg parquet", {"columns": "value.*,offset", "partition_by": "s"}, "'?s'?"),
    "a transform of another type": ("delta iceberg parquet", {"columns": "value.*", "partition_by": "day(id)"}, "day"),
    "an order by a struct": ("delta iceberg parquet", {"columns": "value.*", "sort_by": "s"}, "sort_by"),
    "a table of dead letters that cannot take them": (
        "delta iceberg parquet",
        {"dead_letters": FOREIGN},
        "foreign has no column",
    ),
    f"dead letters, but no order {BAD_OF_DATA}": (
        "delta",
        {**KEYED, "dead_letters": "delta:{root}/bad"},
        r"Set order_by \(--order-by\)",
    ),
    f"too many bad ones {BAD_OF_DATA}": ("delta iceberg parquet", {"max_bad": 0}, "1 of 4 records cannot be decoded"),
}
CELLS = [(name, format) for name, (formats, *_) in REFUSALS.items() for format in formats.split()]


class FirstLoads:
    """Loads of one group into `root`, of a topic in which a key is in two partitions, and a record is malformed."""

    def __init__(self, topic: Topic, root: Path, format: str) -> None:
        self.topic, self.root, self.format = topic, root, format
        self.catalog = add_catalog(root / "lake") if format == "iceberg" else None
        to = "iceberg:lake.loads" if self.catalog else str(root / "loads")
        self.target = Target(to, f"g-{topic.name}", format=format, catalog=self.catalog).check()

    def load(self, **arguments: Any) -> int:
        letters = arguments.get("dead_letters")
        given = {"options": JSON, "publish_offsets": False, **arguments}
        given |= {"dead_letters": letters.format(root=self.root)} if letters else {}
        servers = self.topic.bootstrap
        request = LoadRequest.build(self.target, bootstrap_servers=servers, topic=self.topic.name, **given)
        return run_load(request, _no_spark, lambda phase, record: None).rows

    def left(self) -> list[str]:
        """Files of loads and of tables, without those of the catalog and of tables that others have made."""
        files = (path.relative_to(self.root) for path in self.root.rglob("*") if path.is_file())
        return sorted(str(path) for path in files if path.parts[0] not in ("foreign", "lake"))

    def tables(self) -> list[str]:
        return [] if self.catalog is None else [".".join(one) for one in open_catalog(self.catalog).list_tables("lake")]


def _no_spark() -> Any:
    raise AssertionError("a load as small as this needs no Spark")


@pytest.fixture
def first(broker: Kafka, topic: str, tmp_path: Path, request: pytest.FixtureRequest) -> FirstLoads:
    made = Topic(broker.bootstrap, topic, 2)
    values = [{"id": 1, "at": 1, "s": {"a": 1}}, {"id": 1, "at": 2}, {"id": 2, "at": 1}]
    for number, value in enumerate(values):
        made.produce([json.dumps(value).encode()], partition=number % 2)
    made.produce([b"{"], partition=0)
    DeltaTable.create(str(tmp_path / "foreign"), Schema.from_arrow(pa.schema([("x", pa.int64())])))
    return FirstLoads(made, tmp_path, request.node.callspec.params["format"])


@pytest.mark.parametrize(("name", "format"), CELLS)
def test_a_refused_first_load_leaves_nothing(first: FirstLoads, name: str, format: str) -> None:
    _, arguments, message = REFUSALS[name]
    with pytest.raises(PykafkaError, match=message) as caught:
        first.load(**arguments)
    assert not caught.value.retriable
    assert first.left() == []
    assert first.tables() == (["lake.loads"] if BAD_OF_DATA in name and format == "iceberg" else [])
    with pytest.raises(ConfigError, match="holds no loads, of group .* or any other|no Delta table"):
        history(first.target)
    if format == "parquet":
        assert first.load(columns="value.*,offset", partition_by="id", sort_by="at") == 3
    else:
        assert first.load(**RIGHT, partition_by="id") == 3


@pytest.mark.parametrize("before", ["nothing in its commit", "its load"])
def test_a_delta_table_that_an_upsert_has_made_and_not_filled_takes_another_order(tmp_path: Path, before: str) -> None:
    """As a load leaves it that died between its two commits, and as earlier versions left it that refused a load."""
    world = UpsertIntoDelta(tmp_path, UpsertTopic(), "t")
    send_all(world.source, [(1, "a"), (2, "b")])
    world.upsert = Upsert(("id",), order_by="name")
    with world.opened(CrashPoint()) as site:
        record = world.plan(site)
        assert record is not None
        sealed, files = world.write(site, record, site.stage(record))
        site.decide(sealed, files)
    path = Path(world.output.url.removeprefix("file://"))
    if before == "nothing in its commit":
        commit = path / "_delta_log" / f"{0:020d}.json"
        commit.write_text(commit.read_text().replace("pykafka.table", "other"))
    assert DeltaTable(str(path)).version() == 0
    world.upsert = Upsert(("id",))
    assert world.load() is not None
    assert world.names() == {1: "a", 2: "b"}
    assert world.leftovers() == []
    world.upsert = Upsert(("id",), order_by="name")
    world.source.send(1, "c")
    with pytest.raises(ConfigError, match="was made with order_by=None, not name"):
        world.load()


def test_a_delta_table_without_loads_takes_other_columns_and_partitions(tmp_path: Path) -> None:
    storage, schema = open_storage(str(tmp_path / "t")), with_load(rows_of(LoadRange("t", 0, 0, 1, None)), None).schema
    world = DeltaWorld(storage, "g")
    world.grow()
    with world.opened(CrashPoint()) as site:
        record = world.plan(site)
    assert record is not None
    odd = pa.schema([("odd", pa.int64()), *schema])
    assert plan_table(record, odd, ["topic"], "t").make(storage)
    assert world.load() is not None
    assert world.visible() == world.produced()
    assert [DeltaTable(storage.url).version(), DeltaTable(storage.url).metadata().partition_columns] == [2, []]
    assert DeltaTable(storage.url).schema().to_arrow().names == schema.names


@pytest.mark.parametrize("change", ["a property", "rows", "made by the user"])
def test_a_delta_table_that_another_program_has_touched_keeps_its_settings(tmp_path: Path, change: str) -> None:
    storage, schema = open_storage(str(tmp_path / "t")), with_load(rows_of(LoadRange("t", 0, 0, 1, None)), None).schema
    world = DeltaWorld(storage, "g")
    world.grow()
    with world.opened(CrashPoint()) as site:
        record = world.plan(site)
    assert record is not None
    if change == "made by the user":
        DeltaTable.create(storage.url, Schema.from_arrow(schema), partition_by=["topic"])
    else:
        assert plan_table(record, schema, ["topic"], "t").make(storage)
    if change == "a property":
        DeltaTable(storage.url).alter.set_table_properties({"delta.logRetentionDuration": "interval 1 day"})
    elif change == "rows":
        write_deltalake(storage.url, with_load(rows_of(LoadRange("t", 7, 0, 1, None)), None), mode="append")
    version = DeltaTable(storage.url).version()
    with pytest.raises(ConfigError, match="is partitioned by .'topic'.: set partition_by so"):
        world.load()
    assert DeltaTable(storage.url).version() == version


def test_of_two_first_loads_with_other_columns_one_begins_again(tmp_path: Path) -> None:
    """The other one's table came between the check and the commit."""
    storage, schema = open_storage(str(tmp_path / "t")), with_load(rows_of(LoadRange("t", 0, 0, 1, None)), None).schema
    world = DeltaWorld(storage, "g")
    world.grow()
    with world.opened(CrashPoint()) as site:
        record = world.plan(site)
        assert record is not None
        sealed, files = world.write(site, record, site.stage(record))
        wide = schema.set(schema.get_field_index("partition"), pa.field("partition", pa.int64()))
        assert plan_table(record, wide, [], "t").make(storage)
        with pytest.raises(LoadInterrupted, match="nothing is lost: run it again"):
            site.commit(sealed, files)
    assert world.visible() == []


def tables_of(world: DatabaseWorld) -> list[str]:
    engine = open_engine(world.address.url)
    names = sqlalchemy.inspect(engine).get_table_names()
    engine.dispose()
    return names


def test_the_table_of_a_database_is_made_with_the_first_load(tmp_path: Path) -> None:
    world = sqlite_world(tmp_path, begin=False)
    world.grow()
    with world.opened(CrashPoint()) as site:
        record = world.plan(site)
        assert record is not None
        world.write(site, record, site.stage(record))
        assert set(tables_of(world)) == set(site.staged())
        site.discard(record.load_id)
        assert tables_of(world) == []
    assert world.load() is not None
    assert world.visible() == world.produced()


@pytest.mark.parametrize("later", ["another key", "appends", "partitions"])
def test_an_iceberg_table_without_loads_takes_the_settings_of_the_next_first_load(tmp_path: Path, later: str) -> None:
    world = UpsertIntoIceberg(add_catalog(tmp_path), UpsertTopic())
    send_all(world.source, [(1, "a"), (2, "b")])
    world.upsert, world.partition_by = Upsert(("name",)), ("name",)
    with world.opened(CrashPoint()) as site:
        record = world.plan(site)
        assert record is not None
        world.write(site, record, site.stage(record))
        site.discard(record.load_id)
    if later == "appends":
        other = IcebergWorld(world.catalog, world.group, name=world.name)
        other.grow()
        assert other.load() is not None
        assert other.visible() == other.produced()
    else:
        world.upsert, world.partition_by = Upsert(("id",)), ("bucket(4,id)",) if later == "partitions" else ()
        assert world.load() is not None
        assert world.names() == {1: "a", 2: "b"}
    metadata = world.table().metadata
    parts = {"partitions": ["bucket[4]"]}.get(later, [])
    assert [str(field.transform) for field in metadata.spec().fields] == parts
    assert ("pykafka.upsert" in metadata.properties) == (later != "appends")
    ids = [field.field_id for field in metadata.schema().fields]
    assert min(ids) > max(field.field_id for field in metadata.schemas[0].fields), "no id has two meanings"


def test_an_iceberg_table_that_a_rival_fills_meanwhile_keeps_its_settings(tmp_path: Path) -> None:
    catalog = add_catalog(tmp_path)
    one, other = (IcebergWorld(catalog, group, name="iceberg:lake.t") for group in ("one", "other"))
    one.grow()
    other.grow()
    with one.opened(CrashPoint()) as site:
        record = one.plan(site)
        assert record is not None
        one.write(site, record, site.stage(record))
        site.discard(record.load_id)
    stale = one.table()
    assert other.load() is not None
    layout = FileLayout(pa.schema([("x", pa.int64())]), TableColumns.of((), pa.schema([("x", pa.int64())])))
    assert is_unused(stale)
    assert not is_unused(one.table())
    with pytest.raises(LoadInterrupted, match="nothing is lost, run it again"):
        made_anew(IcebergPlace(open_catalog(catalog), one.target.iceberg_name), stale, layout, {})
    assert other.visible() == other.produced()

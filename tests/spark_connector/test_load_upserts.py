"""`load` with mode=upsert, with real Spark and broker: Debezium's documents into tables that have one row per key."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable
from pyiceberg.table import Table

from broker.errors import ConfigError
from spark_connector.load import LoadResult, load
from spark_connector.loads.iceberg.iceberg_catalog import open_catalog
from spark_connector.loads.record import LoadError
from spark_connector.loads.request import Target
from spark_connector.maintenance import history, rewind, verify
from tests.support.kafka import Kafka
from tests.support.table_harness import add_catalog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROW = "id bigint, name string, balance decimal(9,2), tags array<string>"
FORMATS = {
    "keyFormat": "json",
    "keySchema": "payload struct<id bigint>",
    "valueFormat": "json",
    "valueSchema": f"payload struct<before struct<{ROW}>, after struct<{ROW}>, op string, ts_ms bigint>",
}


def document(payload: Any) -> bytes:
    """As JsonConverter writes it with schemas.enable."""
    return json.dumps({"schema": {"type": "struct", "optional": False}, "payload": payload}).encode()


class Database:
    """What Debezium sends of a table in a database."""

    def __init__(self, servers: str, topic: str) -> None:
        self.producer = Producer({"bootstrap.servers": servers})
        self.topic = topic
        self.rows: dict[int, dict[str, Any]] = {}
        self.time = 0

    def write(self, id_: int, name: str, balance: str = "1.50", op: str | None = None) -> None:
        before = self.rows.get(id_)
        self.rows[id_] = {"id": id_, "name": name, "balance": balance, "tags": [name]}
        self._send(id_, before, self.rows[id_], op or ("u" if before else "c"))

    def delete(self, id_: int) -> None:
        self._send(id_, self.rows.pop(id_), None, "d")
        self.producer.produce(self.topic, None, document({"id": id_}))

    def _send(self, id_: int, before: Any, after: Any, op: str) -> None:
        self.time += 1
        event = {"before": before, "after": after, "source": {"lsn": self.time}, "op": op, "ts_ms": self.time}
        self.producer.produce(self.topic, document(event), document({"id": id_}))

    def check(self, rows: list[dict[str, Any]]) -> None:
        self.producer.flush()
        found = {row["id"]: {name: row[name] for name in ("id", "name", "tags")} for row in rows}
        assert len(found) == len(rows)
        assert found == {id_: {name: row[name] for name in ("id", "name", "tags")} for id_, row in self.rows.items()}


@pytest.fixture
def database(broker: Kafka, topic: str) -> Database:
    made = Database(broker.bootstrap, topic)
    for id_ in range(100):
        made.write(id_, f"first {id_}", op="r")
    return made


@dataclass
class Place:
    """A table of one kind, by the arguments of `load`, and as other programs read and change it."""

    arguments: dict[str, Any]
    rows: Callable[[], list[dict[str, Any]]]
    delete: Callable[[int], Any]

    def target(self, group: str) -> Target:
        return Target(group=group, **self.arguments)


@pytest.fixture(params=["delta", "iceberg"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "delta":
        path = str(tmp_path / "table")
        return Place(
            {"to": path, "format": "delta"},
            lambda: DeltaTable(path).to_pyarrow_table().to_pylist(),
            lambda id_: DeltaTable(path).delete(f"id = {id_}"),
        )
    catalog = add_catalog(tmp_path)

    def table() -> Table:
        return open_catalog(catalog).load_table("lake.customers")

    return Place(
        {"to": "iceberg:lake.customers", "catalog": catalog},
        lambda: table().scan().to_arrow().to_pylist(),
        lambda id_: table().delete(f"id = {id_}"),
    )


def test_a_table_follows_a_table_of_a_database(
    spark: SparkSession, broker: Kafka, database: Database, place: Place
) -> None:
    group = f"g-{database.topic}"

    def follow(**arguments: Any) -> LoadResult:
        database.producer.flush()
        common = {"bootstrap_servers": broker.bootstrap, "topic": database.topic, "group": group}
        upsert = {"mode": "upsert", "key": "id", "envelope": "debezium", "options": FORMATS}
        return load(spark, **{**common, **place.arguments, **upsert, **arguments})

    assert follow().rows == 100
    database.check(place.rows())
    database.write(3, "second 3")
    database.delete(4)
    database.write(200, "new")
    database.delete(5)
    database.write(5, "back")
    second = follow()
    assert second.rows == 7
    database.check(place.rows())
    assert follow().rows == 0
    for other in ({"mode": "append", "key": None, "envelope": None}, {"key": "name"}, {"envelope": "none"}):
        with pytest.raises(ConfigError, match="was made with mode=upsert, key=id, envelope=debezium"):
            follow(**other)
    verified = verify(place.target(group), broker.bootstrap)
    assert verified.ok, verified
    assert verified.notes == ("100 keys have the row that their last record in the log wrote.",)
    database.producer.produce(database.topic, b"{", document({"id": 6}))
    with pytest.raises(LoadError, match="cannot be decoded, and would count as a delete"):
        follow()
    database.check(place.rows())
    first = history(place.target(group)).committed[0].record.load_id
    assert rewind(place.target(group), first) is not None
    assert len(place.rows()) == 100
    assert verify(place.target(group), broker.bootstrap).ok
    place.delete(7)
    (problem,) = verify(place.target(group), broker.bootstrap).problems
    assert problem == "1 keys of the log have no row in the table, such as id=7"


def test_upserts_over_tasks_of_spark(
    spark: SparkSession, broker: Kafka, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More records than the driver loads itself."""
    monkeypatch.setattr("spark_connector.loads.tasks.task_job._FEW", 0)
    database.producer.flush()
    table = tmp_path / "table"
    result = load(
        spark,
        bootstrap_servers=broker.bootstrap,
        topic=database.topic,
        group=f"g-{database.topic}",
        to=str(table),
        format="delta",
        mode="upsert",
        key=["id"],
        envelope="debezium",
        options=FORMATS,
    )
    assert result.rows == 100
    database.check(DeltaTable(str(table)).to_pyarrow_table().to_pylist())
    assert [row.name for row in spark.read.parquet(*DeltaTable(str(table)).file_uris()).where("id = 7").collect()] == [
        "first 7"
    ]


def test_dead_letters_beside_upserts_and_a_schema_that_grows(
    spark: SparkSession, broker: Kafka, topic: str, tmp_path: Path
) -> None:
    """Bad records are dead letters once, never deletes; both are verified, also over two schemas of the values."""
    group, table, bad = f"g-{topic}", tmp_path / "table", tmp_path / "bad"
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    target = Target(str(table), group, format="delta")

    def follow(values: dict[str, bytes | None], fields: str = "id bigint, name string") -> LoadResult:
        for key, value in values.items():
            producer.produce(topic, value, key.encode())
        producer.flush()
        return load(
            spark,
            bootstrap_servers=broker.bootstrap,
            topic=topic,
            group=group,
            to=str(table),
            format="delta",
            mode="upsert",
            key="id",
            options={"keyFormat": "string", "valueFormat": "json", "valueSchema": fields},
            dead_letters=f"delta:{bad}",
            schema_evolution="add",
            allow_changed_options=True,
        )

    result = follow({"1": b'{"id": 1, "name": "a"}', "2": b'{"id": 2, "name": "b"}', "3": b"{", "4": b"[]"})
    assert (result.rows, result.bad_rows) == (2, 2)
    grown = "id bigint, name string, city string"
    more = {"1": b'{"id": 1, "name": "a", "city": "Bonn"}', "2": None, "5": b"?"}
    result = follow(more, grown)
    assert (result.rows, result.bad_rows) == (2, 1)
    assert [(row["id"], row["city"]) for row in DeltaTable(str(table)).to_pyarrow_table().to_pylist()] == [(1, "Bonn")]
    letters = DeltaTable(str(bad)).to_pyarrow_table().to_pylist()
    assert sorted(row["key"] for row in letters) == [b"3", b"4", b"5"]
    verified = verify(target, broker.bootstrap)
    assert verified.ok, verified
    assert verified.notes == (
        "1 keys have the row that their last record in the log wrote.",
        "3 dead letters are in their tables.",
    )
    DeltaTable(str(bad)).delete("value = X'3f'")
    problems = verify(target, broker.bootstrap).problems
    assert any("1 dead letters were committed, 0 are in their table" in problem for problem in problems)
    assert any("1 records of the log are not in rows and dead letters" in problem for problem in problems)
    first = history(target).committed[0].record.load_id
    assert rewind(target, first) is not None
    assert sorted(row["id"] for row in DeltaTable(str(table)).to_pyarrow_table().to_pylist()) == [1, 2]
    assert verify(target, broker.bootstrap).ok

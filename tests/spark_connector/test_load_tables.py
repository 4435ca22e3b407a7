"""`load` into Delta, Iceberg and databases, laid out by date, from many topics, with real Spark and broker."""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import fastavro
import pyarrow.dataset
import pytest
import sqlalchemy
from deltalake import DeltaTable

from broker.errors import ConfigError
from spark_connector.load import LoadResult, load, recover
from spark_connector.loads.iceberg.iceberg_catalog import open_catalog
from spark_connector.loads.record import LoadError
from spark_connector.loads.request import Target
from spark_connector.loads.tasks import task_job
from spark_connector.maintenance import compact, history, rewind, verify
from tests.spark_connector.loads.test_target import NAMES_OF_NUMBERS, NAMES_OF_TEXT
from tests.support.kafka import Kafka
from tests.support.table_harness import add_catalog
from tests.support.topic_data import TopicData

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POSITION = ["topic", "partition", "offset"]


class Loads:
    def __init__(self, spark: SparkSession, data: TopicData) -> None:
        self.spark, self.data = spark, data
        self.group = f"g-{data.topic}"

    def __call__(self, to: object, **arguments: Any) -> LoadResult:
        common = {"bootstrap_servers": self.data.bootstrap, "topic": self.data.topic, "group": self.group}
        return load(self.spark, to=str(to), **{**common, **arguments})

    def check_verified(self, target: Target, rows: list[int]) -> None:
        """The loads that stand have so many rows, and every one of them is in the log."""
        found = verify(target, self.data.bootstrap)
        assert found.ok, found
        assert [(load.verdict, sum(count.file_rows for count in load.partitions)) for load in found.loads] == [
            ("ok", count) for count in rows
        ]


@pytest.fixture
def loads(spark: SparkSession, broker: Kafka, topic: str) -> Loads:
    data = TopicData(broker.bootstrap, topic, partitions=2)
    data.produce(20, headers=[("h", b"\x01")])
    return Loads(spark, data)


def positions(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted(tuple(row[name] for name in POSITION) for row in rows)


def test_a_delta_table_takes_load_after_load(loads: Loads, tmp_path: Path) -> None:
    table = tmp_path / "table"
    arguments = {"format": "delta", "partition_by": ["date", "hour"], "options": {"includeHeaders": "true"}}
    first = loads(table, **arguments)
    loads.data.produce(6)
    assert (first.rows, loads(table, **arguments).rows, loads(table, **arguments).rows) == (20, 6, 0)
    assert first.path == f"file://{table}"
    rows = DeltaTable(str(table)).to_pyarrow_table().to_pylist()
    assert positions(rows) == loads.data.positions()
    for row in rows:
        assert (row["key"], row["value"]) == loads.data.record(row["partition"], row["offset"])
        assert (row["date"], row["hour"]) == (row["timestamp"].date(), row["timestamp"].hour)
    assert rows[0]["headers"] in ([{"key": "h", "value": b"\x01"}], None)
    loads.data.produce(1)
    with pytest.raises(ConfigError, match=r"partitioned by \['date', 'hour'\]"):
        loads(table, format="delta")
    target = Target(str(table), loads.group, format="delta")
    assert recover(target) == []
    loads.check_verified(target, [20, 6])
    assert rewind(target, str(first.load_id)) is not None
    loads.check_verified(target, [20])
    assert loads(table, **arguments).rows == 7
    assert positions(DeltaTable(str(table)).to_pyarrow_table().to_pylist()) == loads.data.positions()
    with pytest.raises(ConfigError, match="is a Delta table"):
        loads(table)


def test_an_iceberg_table_takes_load_after_load(loads: Loads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also through Spark's tasks: the driver loads a few records itself."""
    catalog = add_catalog(tmp_path)
    arguments: dict[str, Any] = {
        "catalog": catalog,
        "partition_by": "date",
        "options": {"includeHeaders": "true"},
    }
    with monkeypatch.context() as patch:
        patch.setattr(task_job, "_FEW", -1)
        first = loads("iceberg:lake.records", **arguments)
    loads.data.produce(6)
    assert (first.rows, loads("iceberg:lake.records", **arguments).rows) == (20, 6)
    assert loads("iceberg:lake.records", **arguments).rows == 0
    assert (first.path, first.format) == ("iceberg:lake.records", "iceberg")
    table = open_catalog(catalog).load_table("lake.records")
    assert [(field.name, str(field.transform)) for field in table.spec().fields] == [("date", "day")]
    rows = table.scan().to_arrow().to_pylist()
    assert positions(rows) == loads.data.positions()
    for row in rows:
        assert (row["key"], row["value"]) == loads.data.record(row["partition"], row["offset"])
    files = [file.file.file_path.removeprefix("file://") for file in table.scan().plan_files()]
    headers = pyarrow.dataset.dataset(files).to_table().column("headers").to_pylist()
    assert None in headers  # pyiceberg reads [] instead
    assert [{"key": "h", "value": b"\x01"}] in headers
    target = Target("iceberg:lake.records", loads.group, catalog=catalog)
    assert recover(target) == []
    loads.check_verified(target, [20, 6])
    assert rewind(target, str(first.load_id)) is not None
    loads.check_verified(target, [20])
    assert loads("iceberg:lake.records", **arguments).rows == 6
    assert positions(table.refresh().scan().to_arrow().to_pylist()) == loads.data.positions()


@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_a_new_column_is_added_before_the_rows_and_small_files_become_large(
    loads: Loads, tmp_path: Path, format: str
) -> None:
    catalog = add_catalog(tmp_path / "c") if format == "iceberg" else None
    to = "iceberg:lake.records" if catalog else str(tmp_path / "table")
    arguments: dict[str, Any] = {"format": format, "catalog": catalog}
    loads(to, **arguments)
    loads.data.produce(6, headers=[("h", b"\x01")])
    with pytest.raises(ConfigError, match="no column 'headers': add it .schema_evolution=add does."):
        loads(to, **arguments, options={"includeHeaders": "true"})
    assert loads(to, **arguments, options={"includeHeaders": "true"}, schema_evolution="add").rows == 6
    loads.data.produce(4)
    assert loads(to, **arguments, schema_evolution="add").rows == 4
    target = Target(to, loads.group, format=format, catalog=catalog)
    done = compact(target, rewindable="0")
    assert done.files_before > done.files_after == 1
    assert done.rows == 30
    loads.check_verified(target, [20, 6, 4])
    table = open_catalog(catalog).load_table("lake.records").scan().to_arrow() if catalog else None
    rows = table or DeltaTable(to).to_pyarrow_table()
    assert sum(bool(headers) for headers in rows.column("headers").to_pylist()) == 6


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_database_takes_load_after_load(
    loads: Loads, kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = f"sqlite:///{tmp_path}/x.db" if kind == "sqlite" else request.getfixturevalue("postgres")
    name = f"rows_{loads.data.topic.replace('-', '_')}"[-60:]
    arguments = {"options": {"includeHeaders": "true"}, "write_options": {"text": "key"}}
    assert loads(f"{url}#{name}", **arguments).rows == 20
    loads.data.produce(6)
    assert loads(url, table=name, **arguments).rows == 6
    engine = sqlalchemy.create_engine(url)
    table = sqlalchemy.Table(name, sqlalchemy.MetaData(), autoload_with=engine)
    with engine.connect() as connection:
        rows = [dict(row._mapping) for row in connection.execute(sqlalchemy.select(table))]
    engine.dispose()
    assert positions(rows) == loads.data.positions()
    for row in rows:
        key, value = loads.data.record(row["partition"], row["offset"])
        assert (row["key"], bytes(row["value"])) == (key.decode(), value)
        assert row["timestamp"].year > 2020
    header = {"key": "h", "value": base64.b64encode(b"\x01").decode()}
    assert [row["headers"] for row in rows].count([header]) == 20
    assert [row["headers"] for row in rows].count(None) == 6
    target = Target(url, loads.group, table=name)
    loads.check_verified(target, [20, 6])
    assert rewind(target, history(target).entries[0].record.load_id, delete=True) is not None
    loads.check_verified(target, [20])
    assert loads(url, table=name, **arguments).rows == 6


def test_bytes_that_are_no_text_fail_the_load_and_leave_nothing(loads: Loads, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/x.db"
    loads.data._producer.produce(loads.data.topic, b"\xff\xfe", b"k", 0)
    loads.data._producer.flush(30)
    with pytest.raises(LoadError, match="UTF") as caught:
        loads(url, table="rows", write_options={"text": "value"})
    assert not caught.value.retriable, caught.value  # a service (--watch) ends: the record stays what it is
    with sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool).connect() as connection:
        names = sqlalchemy.inspect(connection).get_table_names()
    assert [name for name in names if name == "rows" or "staged" in name] == []
    assert loads(url, table="rows2").rows == 21


@pytest.mark.parametrize("format", ["parquet", "orc", "json", "avro"])
def test_partitioned_files(loads: Loads, format: str, tmp_path: Path) -> None:
    to = tmp_path / "out"
    by = ["date", "topic"]
    assert loads(to, format=format, partition_by=by).rows == 20
    loads.data.produce(6)
    assert loads(to, format=format, partition_by="date,topic").rows == 6
    if format == "avro":
        rows = []
        for path in to.glob("load=*/date=*/topic=*/*.avro"):
            with path.open("rb") as file:
                records = cast("list[dict[str, Any]]", list(fastavro.reader(file)))
            rows += [{"topic": path.parent.name.removeprefix("topic="), **record} for record in records]
    else:
        read = loads.spark.read.format(format).load(str(to)).select(*POSITION, "date", "timestamp")
        rows = [row.asDict() for row in read.collect()]
        if format != "json":
            assert all(row["date"] == row["timestamp"].date() for row in rows)
    assert positions(rows) == loads.data.positions()
    if format == "parquet":
        hive = pyarrow.dataset.dataset(to, format="parquet", partitioning="hive")
        assert hive.count_rows() == 26
        loads.data.produce(1)
        with pytest.raises(ConfigError, match="is partitioned by date, topic so far, not by nothing"):
            loads(to, format=format)


@pytest.mark.parametrize("format", ["parquet", "avro", "delta"])
def test_many_topics_at_once(spark: SparkSession, broker: Kafka, topic: str, format: str, tmp_path: Path) -> None:
    topics = [TopicData(broker.bootstrap, f"{topic}-{number}", partitions=number + 1) for number in range(4)]
    for number, data in enumerate(topics):
        data.produce(5 * number)
    result = load(
        spark,
        bootstrap_servers=broker.bootstrap,
        topic=[data.topic for data in topics],
        to=str(tmp_path / "out"),
        group="g",
        format=format,
        partition_by=["topic", "partition"],
    )
    assert result.rows == 30
    names = {path.parent.parent.name for path in (tmp_path / "out").rglob("part-*")}
    assert names == {f"topic={data.topic}" for data in topics[1:]}


def test_a_topic_whose_name_is_a_number_stays_text(loads: Loads, spark: SparkSession, tmp_path: Path) -> None:
    number = TopicData(loads.data.bootstrap, f"00{time.time_ns()}", partitions=1)
    number.produce(1)
    arguments = {"topic": [loads.data.topic, number.topic], "partition_by": "topic"}
    with pytest.raises(ConfigError, match=f"topic '{number.topic}' cannot be a directory of files"):
        loads(tmp_path / "files", **arguments)
    assert not list((tmp_path / "files").glob("load=*"))
    loads(tmp_path / "table", format="delta", **arguments)
    rows = DeltaTable(tmp_path / "table").to_pyarrow_table(columns=["topic"]).column("topic").unique().to_pylist()
    assert sorted(rows) == sorted(arguments["topic"])


def test_what_spark_reads_from_the_names_of_directories(spark: SparkSession, tmp_path: Path) -> None:
    """The oracle for which topics can be directories."""
    for name in (*NAMES_OF_NUMBERS, *NAMES_OF_TEXT):
        path = tmp_path / f"of {name}" / f"topic={name}" / "x.txt"
        path.parent.mkdir(parents=True)
        path.write_text("x")
    read = {name: spark.read.text(str(tmp_path / f"of {name}")).first() for name in NAMES_OF_TEXT}
    assert {name: row.topic for name, row in read.items() if row} == {name: name for name in NAMES_OF_TEXT}
    types = {name: spark.read.text(str(tmp_path / f"of {name}")).schema["topic"].dataType for name in NAMES_OF_NUMBERS}
    assert "string" not in {kind.simpleString() for kind in types.values()}, types


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"format": "delta", "offsets": "files"}, "keeps its offsets in the table itself"),
        ({"format": "delta", "offsets": "zookeeper", "zookeeper_connect": "x:1"}, "keeps its offsets in the table"),
        ({"offsets": "table"}, "offsets=table goes with format=delta, iceberg or sql"),
        ({"format": "sql"}, "needs 'to' to be a database URL"),
        ({"to": "sqlite:///x.db"}, "needs a table"),
        ({"to": "sqlite:///x.db#a", "table": "b"}, "leave one of them out"),
        ({"to": "sqlite://", "table": "b"}, "needs a file"),
        ({"to": "sqlite:///x.db#a", "format": "parquet"}, "format must be sql, not parquet"),
        ({"to": "sqlite:///x.db#pykafka_loads"}, "begin with pykafka_"),
        ({"to": "sqlite:///x.db#a", "partition_by": "date"}, "not for those of a database"),
        ({"to": "sqlite:///x.db#a", "write_options": {"batch": "1"}}, "takes the write option 'text' only"),
        ({"to": "sqlite:///x.db#a", "write_options": {"text": "offset"}}, "no column of bytes"),
        ({"to": "sqlite:///x.db#a", "from_load": "x"}, r"from_load \(--from\) is for files"),
        ({"partition_by": "day"}, "the table has no column 'day'"),
        ({"partition_by": ["date", "date"]}, "names 'date' twice"),
        ({"options": {"columns": "value,topic"}}, "leaves out partition, offset"),
        ({"options": {"columns": "topic,partition,offset"}, "partition_by": "hour"}, "leaves out timestamp"),
        ({"format": "delta", "to": "memory://x/y"}, "must lie in a local directory, on hdfs"),
    ],
)
def test_a_wrong_argument_is_one_clear_error(
    loads: Loads, arguments: Mapping[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=message):
        loads(**{"to": str(tmp_path / "out"), **arguments})

"""Typed loads end to end: columns of values, partition transforms, and what others read of it."""

from __future__ import annotations

import contextlib
import gzip
import json
import sqlite3
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import duckdb
import fastavro
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from broker.client.producer import Producer
from broker.errors import ConfigError
from spark_connector.load import LoadResult, load
from spark_connector.loads.audit.verify import Verification
from spark_connector.loads.grammar import parse_partition_by
from spark_connector.loads.iceberg.iceberg_catalog import open_catalog
from spark_connector.loads.record import LoadError
from spark_connector.loads.request import Target
from spark_connector.loads.tasks.columns import TableColumns
from spark_connector.loads.tasks.file_layout import FileLayout
from spark_connector.loads.tasks.file_writer import FileWriter
from spark_connector.loads.tasks.task_output import StorageOutput
from spark_connector.loads.tasks.transforms import bind, with_partition_columns
from spark_connector.maintenance import rewind, verify
from tests.support.kafka import Kafka
from tests.support.table_harness import add_catalog
from tests.support.topic_data import TopicData

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = "id BIGINT, at TIMESTAMP, customer STRING, address STRUCT<city: STRING, zip: STRING>, tags ARRAY<STRING>"
OPTIONS = {"valueFormat": "json", "valueSchema": SCHEMA}
COLUMNS = "value.*, offset as position"
LAYOUT = "day(at),bucket(4,customer)"


def order(number: int) -> dict[str, Any]:
    at = datetime(2026, 11, 20 + number % 3, 23, 59, number % 60, tzinfo=UTC)
    return {
        "id": number,
        "at": at.isoformat(),
        "customer": f"c{number % 10}",
        "address": {"city": "Köln", "zip": "007"} if number % 4 else None,
        "tags": ["a", None],
    }


class TypedLoads:
    """Loads of one topic of orders."""

    def __init__(self, spark: SparkSession, broker: Kafka, topic: str) -> None:
        self.spark, self.bootstrap, self.topic = spark, broker.bootstrap, topic
        self.produced = 0
        TopicData(broker.bootstrap, topic, partitions=1)

    def produce(self, count: int) -> None:
        with Producer(self.bootstrap) as producer:
            for number in range(self.produced, self.produced + count):
                producer.send(self.topic, json.dumps(order(number)).encode())
        self.produced += count

    def __call__(self, to: Path | str, **arguments: Any) -> LoadResult:
        given: Mapping[str, Any] = {"options": OPTIONS, "columns": COLUMNS, **arguments}
        return load(self.spark, bootstrap_servers=self.bootstrap, topic=self.topic, to=str(to), group="g", **given)


@pytest.fixture
def loads(spark: SparkSession, broker: Kafka, topic: str) -> TypedLoads:
    loads = TypedLoads(spark, broker, topic)
    loads.produce(40)
    return loads


def expected(count: int) -> list[tuple[Any, ...]]:
    orders = map(order, range(count))
    return [(one["id"], datetime.fromisoformat(one["at"]), one["customer"], one["id"]) for one in orders]


@pytest.mark.parametrize("format", ["parquet", "orc", "delta"])
def test_a_topic_of_json_is_a_table_with_its_columns_for_every_reader(
    loads: TypedLoads, tmp_path: Path, format: str
) -> None:
    to = tmp_path / "orders"
    assert loads(to, format=format, partition_by=LAYOUT).rows == 40
    loads.produce(5)
    order_of_rows = {} if format == "orc" else {"sort_by": "customer desc, id"}
    assert loads(to, format=format, partition_by=LAYOUT, **order_of_rows).rows == 5
    days = {path.name for path in to.rglob("at_day=*")}
    assert days == {"at_day=2026-11-20", "at_day=2026-11-21", "at_day=2026-11-22"}
    assert {path.name for path in to.rglob("customer_bucket=*")} <= {f"customer_bucket={n}" for n in range(4)}
    names = ["id", "at", "customer", "address", "tags", "position", "at_day", "customer_bucket", "load"]
    if format == "delta":
        table = DeltaTable(str(to))
        assert [field.name for field in table.schema().fields] == names
        rows = table.to_pyarrow_table().sort_by("id").to_pylist()
        assert [(row["id"], row["at"], row["customer"], row["position"]) for row in rows] == expected(45)
        assert {row["at_day"] == row["at"].date() for row in rows} == {True}
        assert rows[1]["address"] == {"city": "Köln", "zip": "007"}
        assert rows[0]["address"] is None
        found = duckdb.from_arrow(table.to_pyarrow_table())
    else:
        frame = loads.spark.read.format(format).load(str(to))
        types = dict(frame.dtypes)
        assert types == {
            "id": "bigint",
            "at": "timestamp",
            "customer": "string",
            "address": "struct<city:string,zip:string>",
            "tags": "array<string>",
            "position": "bigint",
            "load": "string",
            "at_day": "date",
            "customer_bucket": "int",
        }
        spark_rows = frame.selectExpr("id", "unix_micros(at)", "customer", "position", "at_day").orderBy("id").collect()
        micros = [(id, int(at.timestamp() * 1_000_000), customer, n) for id, at, customer, n in expected(45)]
        assert [tuple(row)[:4] for row in spark_rows] == micros
        assert spark_rows[1][4] == date(2026, 11, 21)
        found = duckdb.from_arrow(frame.toArrow())
        if format == "parquet":
            found = duckdb.read_parquet(f"{to}/load=*/**/*.parquet", hive_partitioning=True)
    assert found.aggregate("count(*), sum(id), count(address.city)").fetchall() == [(45, sum(range(45)), 45 - 12)]


def test_an_iceberg_table_hides_the_partition_values_and_its_readers_skip_by_them(
    loads: TypedLoads, tmp_path: Path
) -> None:
    catalog = add_catalog(tmp_path)
    layout = "day(at),bucket(4,customer),truncate(2,city)"
    arguments: dict[str, Any] = {"columns": f"{COLUMNS},value.address.city", "partition_by": layout, "catalog": catalog}
    assert loads("iceberg:lake.orders", **arguments).rows == 40
    loads.produce(5)
    assert loads("iceberg:lake.orders", **arguments, sort_by="customer").rows == 5
    table = open_catalog(catalog).load_table("lake.orders")
    names = [field.name for field in table.spec().fields]
    assert names == ["at_day", "customer_bucket", "city_trunc"]
    assert [field.name for field in table.schema().fields][:5] == ["id", "at", "customer", "address", "tags"]
    found = table.scan().to_arrow().sort_by("id").to_pylist()
    assert [(row["id"], row["at"], row["customer"], row["position"]) for row in found] == expected(45)
    some = table.scan(row_filter="at < '2026-11-21T00:00:00+00:00' and customer = 'c3'")
    assert len(list(some.plan_files())) < len(list(table.scan().plan_files()))
    wanted = [row for row in found if row["at"].day == 20 and row["customer"] == "c3"]
    assert some.to_arrow().sort_by("id").to_pylist() == wanted != []
    loads.produce(1)
    with pytest.raises(ConfigError, match=r"partitioned by day\(at\), bucket\(4, customer\)"):
        loads("iceberg:lake.orders", **{**arguments, "partition_by": "day(at),bucket(8,customer)"})
    assert has_equal_numbers(verify(Target("iceberg:lake.orders", "g", catalog=catalog), loads.bootstrap), 40, 5)


def test_a_group_that_changes_its_columns_is_told(loads: TypedLoads, tmp_path: Path) -> None:
    loads(tmp_path / "orders")
    loads.produce(1)
    with pytest.raises(ConfigError, match=r"columns=value.id \(before: value\.\*, offset as position\)"):
        loads(tmp_path / "orders", columns="value.id")
    with pytest.raises(ConfigError, match="columns=not set"):
        loads(tmp_path / "orders", columns=None)
    assert loads(tmp_path / "orders", columns="value.id", allow_changed_options=True).rows == 1


@pytest.mark.parametrize("format", ["parquet", "delta", "json", "orc", "avro", "sql"])
def test_a_table_without_topic_partition_and_offset_is_verified_by_its_loads(
    loads: TypedLoads, tmp_path: Path, format: str
) -> None:
    to = f"sqlite:///{tmp_path}/x.db#orders" if format == "sql" else tmp_path / "orders"
    first = loads(to, format=format, columns="value.*")
    loads.produce(3)
    loads(to, format=format, columns="value.*")
    target = Target(str(to), "g", format=format).check()
    session = (lambda: loads.spark) if format == "orc" else None
    found = verify(target, loads.bootstrap, session=session)
    assert has_equal_numbers(found, 40, 3), found
    totals = [(load.totals.committed, load.totals.found, load.totals.logged) for load in found.loads]
    assert totals == [(40, 40, 40), (3, 3, 3)]
    assert rewind(target, str(first.load_id), delete=format == "sql") is not None
    assert loads(to, format=format, columns="value.*").rows == 3
    assert has_equal_numbers(verify(target, loads.bootstrap, session=session), 40, 3)


def has_equal_numbers(found: Verification, *numbers: int) -> bool:
    """Whether the numbers of rows are all that was compared, load by load, and are equal."""
    told = [text.partition(": ")[2] for load in found.loads for text in load.unread]
    wanted = [f"only their number was compared, {n} with {n} records in the log" for n in numbers]
    return (found.verdict, found.problems, found.unread, told) == ("unknown", (), (), wanted)


@pytest.mark.parametrize("format", ["json", "avro"])
def test_files_of_rows_have_what_parquet_has(loads: TypedLoads, tmp_path: Path, format: str) -> None:
    """Columns without the position, transforms, sorted runs and dead letters; without the JVM."""
    with Producer(loads.bootstrap) as producer:
        producer.send(loads.topic, b'{"id": "none"}')
    to, bad = tmp_path / "orders", tmp_path / "bad"
    sorting = {"partition_by": LAYOUT, "sort_by": "customer desc, id", "columns": "value.id,value.customer,value.at"}
    result = loads(to, format=format, **sorting, dead_letters=f"delta:{bad}", write_options=COMPRESSED[format])
    assert (result.rows, result.read, result.malformed) == (40, 41, 1)
    assert DeltaTable(str(bad)).to_pyarrow_table()["offset"].to_pylist() == [40]
    rows_found = []
    for path in to.glob(f"load=*/at_day=*/customer_bucket=*/part-*.{format}*"):
        rows = read_rows(path)
        assert rows == sorted(rows, key=lambda row: (row["customer"], -row["id"]), reverse=True)
        day = path.parent.parent.name.removeprefix("at_day=")
        assert {order(row["id"])["at"][:10] for row in rows} == {day}
        rows_found += [row["id"] for row in rows]
    assert sorted(rows_found) == list(range(40))
    found = verify(Target(str(to), "g", format=format), loads.bootstrap, session=lambda: loads.spark)
    assert has_equal_numbers(found, 41), "rows and dead letters together"


COMPRESSED = {"json": {"compression": "gzip"}, "avro": {"compression": "deflate"}}


def read_rows(path: Path) -> list[dict[str, Any]]:
    """By a reader that knows nothing of us."""
    if path.suffix == ".avro":
        with path.open("rb") as file:
            return cast("list[dict[str, Any]]", list(fastavro.reader(file)))
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("format", ["json", "orc", "avro"])
def test_other_formats_get_the_columns_too(loads: TypedLoads, tmp_path: Path, format: str) -> None:
    to = tmp_path / "orders"
    loads(to, format=format, columns="topic,partition,offset,value.address.city,value.id as `order id`")
    if format != "avro":
        frame = loads.spark.read.format(format).load(str(to))
        assert {"city", "order id"} <= set(frame.columns)
        assert frame.selectExpr("sum(`order id`)", "count(city)").collect() == [(sum(range(40)), 30)]
    assert verify(Target(str(to), "g", format=format), loads.bootstrap, session=lambda: loads.spark).ok


def test_a_database_gets_the_columns_too(loads: TypedLoads, tmp_path: Path) -> None:
    to = f"sqlite:///{tmp_path}/x.db#orders"
    loads(to, columns="topic,partition,offset,value.address.city,value.id,value.at")
    with sqlite3.connect(tmp_path / "x.db") as database:
        assert database.execute("SELECT sum(id), count(city), count(at) FROM orders").fetchall() == [(780, 30, 40)]
    assert verify(Target(to, "g"), loads.bootstrap).ok


@pytest.mark.parametrize("format", ["orc", "sql"])
def test_records_that_cannot_be_decoded_are_kept_beside_every_format(
    loads: TypedLoads, tmp_path: Path, format: str
) -> None:
    with Producer(loads.bootstrap) as producer:
        producer.send(loads.topic, b'{"id": "none"}')
    to = f"sqlite:///{tmp_path}/x.db#orders" if format == "sql" else str(tmp_path / "orders")
    result = loads(to, format=format, columns="value.id", dead_letters=f"delta:{tmp_path}/bad")
    assert (result.rows, result.read, result.malformed, result.bad_rows) == (40, 41, 1, 1)
    assert DeltaTable(str(tmp_path / "bad")).to_pyarrow_table()["offset"].to_pylist() == [40]
    found = verify(Target(to, "g", format=format).check(), loads.bootstrap, session=lambda: loads.spark)
    assert has_equal_numbers(found, 41), "rows and dead letters together"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"format": "orc", "sort_by": "offset"}, "sort_by .* goes with format=parquet, json, avro, delta.*, not with"),
        ({"columns": "valu.*"}, r"the read has no column 'valu'. Did you mean 'value'\?"),
        ({"columns": "value.ids"}, r"'value' has no field 'ids'. Did you mean 'id'\?"),
        ({"columns": "value,key.id"}, "'key' is of type binary, which has no fields: set keyFormat"),
        ({"columns": "value.id", "partition_by": "day(at)"}, "the table has no column 'at'"),
        ({"partition_by": "day(customer)"}, "of type string, which does not go with it"),
        ({"partition_by": "at"}, "use day or hour of it"),
        ({"sort_by": "tags"}, "which has no order"),
        ({"columns": "value.*,value.at as at_day", "partition_by": "day(at)"}, "makes the column 'at_day'"),
        ({"options": {**OPTIONS, "columns": "value,topic"}}, "leave out the reader's option 'columns'"),
        ({"columns": "key", "options": OPTIONS}, "'valueFormat' has no effect"),
    ],
)
def test_what_does_not_go_is_refused_and_leaves_nothing(
    loads: TypedLoads, tmp_path: Path, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        loads(tmp_path / "orders", **arguments)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_value_that_no_directory_can_hold_fails_the_load_and_leaves_nothing(
    loads: TypedLoads, tmp_path: Path
) -> None:
    columns = "value.id,value.address.zip"
    with pytest.raises(LoadError, match="zip: the value is '007', which cannot be a directory") as caught:
        loads(tmp_path / "orders", columns=columns, partition_by="zip")
    assert not caught.value.retriable
    assert [path for path in tmp_path.rglob("*.parquet") if path.is_file()] == []
    assert loads(tmp_path / "table", format="delta", columns=columns, partition_by="zip").rows == 40
    assert set(DeltaTable(str(tmp_path / "table")).to_pyarrow_table()["zip"].to_pylist()) == {"007", None}


EVERY_TYPE = """
    flag BOOLEAN, tiny TINYINT, small SMALLINT, number INT, big BIGINT, single FLOAT, double DOUBLE, text STRING,
    raw BINARY, day DATE, at TIMESTAMP, local TIMESTAMP_NTZ, cents DECIMAL(9, 2), wide DECIMAL(18, 4),
    widest DECIMAL(38, 18), tags ARRAY<STRING>, days ARRAY<DATE>, lines ARRAY<STRUCT<sku: STRING, n: INT>>,
    prices MAP<STRING, DECIMAL(12, 3)>, deep STRUCT<a: STRUCT<b: ARRAY<MAP<STRING, TIMESTAMP>>, c: BIGINT>, d: STRING>
"""
EVERY_VALUE: dict[str, Any] = {
    "flag": True,
    "tiny": -128,
    "small": -32768,
    "number": -(2**31),
    "big": 2**63 - 1,
    "single": 0.1,
    "double": -1.5e300,
    "text": "Zürich \U0001f600",
    "raw": "AAEC",
    "day": "1582-10-15",
    "at": "1883-11-18T12:03:58.123456Z",
    "local": "9999-12-31T23:59:59.999999",
    "cents": -1.25,
    "wide": "12345678901234.5678",
    "widest": "-12345678901234567890.123456789012345678",
    "tags": ["a", None, ""],
    "days": ["1970-01-01", None],
    "lines": [{"sku": "x", "n": 1}, None, {"sku": None}],
    "prices": {"a": "1.125", "b": None},
    "deep": {"a": {"b": [{"k": "2026-11-26T00:00:00Z"}, None, {}], "c": 7}, "d": None},
}


@pytest.mark.parametrize("format", ["parquet", "delta"])
def test_every_type_is_read_as_spark_reads_it_from_the_topic(loads: TypedLoads, tmp_path: Path, format: str) -> None:
    with Producer(loads.bootstrap) as producer:
        producer.send(loads.topic, json.dumps(EVERY_VALUE).encode(), headers=[("h", b"\x01"), ("h", None)])
        producer.send(loads.topic, json.dumps(dict.fromkeys(EVERY_VALUE)).encode())
        producer.send(loads.topic, b"{}", key=b"k")
        producer.send(loads.topic, None)
        producer.send(loads.topic, b"broken")
    options = {"valueFormat": "json", "valueSchema": EVERY_TYPE, "filterOffsets": "40-"}
    to, columns = tmp_path / "out", "value.*,value,key,headers,timestamp,offset,_corrupt_record"
    assert loads(to, format=format, options=options, columns=columns).rows == 5
    read = {"kafka.bootstrap.servers": loads.bootstrap, "subscribe": loads.topic, "includeHeaders": "true"}
    topic = loads.spark.read.format("pykafka").options(**read, **options).load()
    wanted = topic.selectExpr("value.*", "value", "key", "headers", "timestamp", "offset", "_corrupt_record")
    files = [str(path) for path in to.rglob("*.parquet")]
    found = loads.spark.read.parquet(*files).select(*wanted.columns)
    assert found.schema == wanted.schema
    assert found.orderBy("offset").toArrow() == wanted.orderBy("offset").toArrow()
    if format == "delta":
        table = DeltaTable(str(to)).to_pyarrow_table().select(wanted.columns).sort_by("offset")
        assert table.to_pylist() == wanted.orderBy("offset").toArrow().to_pylist()
    raw = duckdb.read_parquet(files).order('"offset"').limit(1).to_arrow_table().to_pylist()[0]
    assert (raw["local"], raw["cents"]) == (datetime.fromisoformat("9999-12-31T23:59:59.999999"), Decimal("-1.25"))
    assert raw["widest"] == Decimal("-12345678901234567890.123456789012345678")
    assert raw["at"] == datetime(1883, 11, 18, 12, 3, 58, 123456, UTC)


def test_spark_reads_back_what_transforms_made_of_its_columns(spark: SparkSession, tmp_path: Path) -> None:
    times = [-(2**50), -1, 0, 1_764_115_199_999_999, 1_764_115_200_000_000, 253_402_300_799_999_999, None]
    texts = ["Köln", "a b", "%50", "x=y/z", "q:?*'\"#\\{[]^", "true", None]
    source = pa.table(
        [pa.array(times, pa.timestamp("us", "UTC")), pa.array(texts), pa.array(range(7), pa.int64())],
        names=["at", "text", "n"],
    )
    positions = pa.table({"topic": ["t"] * 7, "partition": pa.array([0] * 7, pa.int32()), "offset": range(7)})
    for name in positions.column_names:
        source = source.append_column(name, positions[name])
    items = parse_partition_by("year(at),month(at),day(at),hour(at),truncate(1,text),truncate(4,n),text")
    fields = bind(items, source.schema, "parquet")
    layout = FileLayout(
        with_partition_columns(source.schema, fields), TableColumns.of((), source.schema), partition_by=fields
    )
    writer = FileWriter(layout, StorageOutput(f"file://{tmp_path}", {}, "out"))
    for batch in source.to_batches():
        writer.write(batch)
    assert len(writer.close()) == 7
    frame = spark.read.parquet(str(tmp_path / "out"))
    assert dict(frame.dtypes)["at_hour"] == "string"
    judged = frame.selectExpr(
        "n",
        "at_year <=> year(at)",
        "at_month <=> trunc(at, 'MM')",
        "at_day <=> to_date(at)",
        "at_hour <=> date_format(at, 'yyyy-MM-dd-HH')",
        "text_trunc <=> substring(text, 1, 1)",
        "n_trunc = n - pmod(n, 4)",
    )
    with in_utc(spark):
        assert {tuple(row)[1:] for row in judged.collect()} == {(True,) * 6}
    assert {row.n: row.text for row in frame.collect()} == dict(enumerate(texts))


@contextlib.contextmanager
def in_utc(spark: SparkSession) -> Iterator[None]:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    yield
    spark.conf.set("spark.sql.session.timeZone", str(before))

"""Partition transforms × extreme values × destinations: what a table cannot hold is a dead letter, all else is read.

One table is partitioned by every transform of every type. Each record has an extreme value in one column, so that one
value alone decides about it. What is right is worked out here, in Python's integers, as Iceberg's specification says.
The judges are deltalake (three engines), polars, pyiceberg, pyarrow, duckdb and Spark's partition discovery.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping
from datetime import date
from decimal import Context, Decimal
from pathlib import Path
from typing import Any

import duckdb
import fastavro
import polars
import pyarrow as pa
import pyarrow.dataset
import pytest
from deltalake import DeltaTable, QueryBuilder
from pyiceberg.table import Table
from pyspark.sql import SparkSession

from spark_connector.load import run_load
from spark_connector.loads.iceberg.iceberg_catalog import open_catalog
from spark_connector.loads.record import LoadError, LoadResult
from spark_connector.loads.request import LoadRequest, Target
from spark_connector.maintenance import compact, verify
from tests.support.history_loads import no_session
from tests.support.kafka import Kafka
from tests.support.randomness import seeded
from tests.support.table_harness import add_catalog
from tests.support.topics import Topic

LEAST, MOST = -(2**63), 2**63 - 1
LEAST_INT, MOST_INT = -(2**31), 2**31 - 1
DAY = 86_400_000_000
LAST_YEAR = 253_402_300_799_999_999  # the last microsecond of the year 9999
FIRST_YEAR = -62_135_596_800_000_000
DIGITS = Context(prec=80)

COLUMNS: Mapping[str, tuple[Any, list[Any]]] = {
    "i": ("int", [LEAST_INT, LEAST_INT + 8, LEAST_INT + 9, MOST_INT, -1, 0]),
    "l": ("long", [LEAST, LEAST + 7, LEAST + 8, MOST, -1, 0]),
    "d": (
        {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        [-999_999_999, 999_999_999, -1, 0, 1, -5_000, -99, 100],
    ),
    "w": (
        {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 0},
        [-(10**38) + 1, 10**38 - 1, -(10**38) + 50, -1, 0],
    ),
    "s": (
        "string",
        ["", "a/b=c%", "\x00", "é\U0001f600x", "\ud7ff", "x" * 200, "007", "2026-11-21", " ", "null", "b\n"],
    ),
    "b": ("bytes", [b"", b"\x00", b"\xff\xfe", b"=" * 200]),
    "at": (
        {"type": "long", "logicalType": "timestamp-micros"},
        [LEAST, LEAST + 1, MOST, FIRST_YEAR - 1, FIRST_YEAR, LAST_YEAR, LAST_YEAR + 1, -1, 0, 1],
    ),
    "ntz": ({"type": "long", "logicalType": "local-timestamp-micros"}, [LEAST, MOST, -1, LAST_YEAR + 1]),
    "dt": ({"type": "int", "logicalType": "date"}, [LEAST_INT, MOST_INT, -719_163, -719_162, 2_932_896, 2_932_897, -1]),
}
SCHEMA = {
    "type": "record",
    "name": "r",
    "fields": [{"name": name, "type": ["null", kind]} for name, (kind, _) in COLUMNS.items()],
}
TIMES = ("year", "month", "day", "hour")

Transform = tuple[str, str, int]
"""(transform or identity, column, number)"""

EVERYWHERE: list[Transform] = [
    *[("truncate", column, 10) for column in "il"],
    *[("bucket", column, 3) for column in ("i", "l", "d", "w", "s", "b", "at", "ntz", "dt")],
    *[(time, "at", 0) for time in TIMES],
    *[(time, "dt", 0) for time in TIMES[:3]],
    ("year", "ntz", 0),
    ("hour", "ntz", 0),
    ("truncate", "s", 3),
]
BY_FORMAT: dict[str, list[Transform]] = {
    "parquet": [*EVERYWHERE, ("identity", "s", 0)],
    "delta": [*EVERYWHERE, ("truncate", "d", 50), ("truncate", "w", 50), ("identity", "d", 0), ("identity", "dt", 0)],
    "iceberg": [
        *EVERYWHERE,
        ("truncate", "d", 50),
        ("truncate", "w", 50),
        ("truncate", "b", 3),
        *[("identity", column, 0) for column in ("d", "w", "at", "dt")],
    ],
}


@pytest.fixture(autouse=True)
def planned_by_pyiceberg(monkeypatch: pytest.MonkeyPatch) -> None:
    """polars has a planner of its own, which is another package."""
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")


def expected(transform: Transform, value: Any) -> Any:
    """Iceberg's value, as integers, text or bytes; exact."""
    kind, column, number = transform
    if kind == "truncate" and isinstance(value, int):
        return value - value % number
    if kind == "truncate":
        return value[:number]
    if kind in TIMES:
        hours = value // (DAY // 24) if column in ("at", "ntz") else value * 24
        return {"hour": hours, "day": hours // 24}.get(kind, _civil(hours // 24)[0 if kind == "year" else 1])
    return value if kind == "identity" else None


def _civil(days: int) -> tuple[int, int]:
    """Years and months from 1970 of a day: every 400 years have as many days."""
    ages, rest = divmod(days + 719_162, 146_097)
    found = date.fromordinal(rest + 1)
    year = found.year + 400 * ages - 1970
    return year, year * 12 + found.month - 1


def is_held(transform: Transform, format: str, value: Any) -> bool:
    """Whether a table of this format has a value for it that its readers read back."""
    kind, column, _ = transform
    made = expected(transform, value)
    if kind == "bucket":
        return True
    if column in "il" and kind == "truncate":
        return bool(made >= (LEAST_INT if column == "i" else LEAST))
    if column in "dw":
        fits = abs(made) < 10 ** (9 if column == "d" else 38)
        return fits and not (format == "delta" and column == "d" and made < 0 and made % 100)
    if format == "iceberg":
        return kind not in TIMES or LEAST_INT <= made <= MOST_INT
    if column == "s":
        return made != "" and not (format == "parquet" and made in ("007", "202", "2026-11-21"))
    if format == "delta" and (kind in ("month", "day") or column == "dt") and kind != "year":
        days = value // DAY if column in ("at", "ntz") else value
        return -719_162 <= days <= 2_932_896
    return True


def records() -> Iterator[dict[str, Any]]:
    for name, (_, values) in COLUMNS.items():
        for value in values:
            yield {**dict.fromkeys(COLUMNS), name: value}
    yield dict.fromkeys(COLUMNS)


def encoded(record: Mapping[str, Any]) -> bytes:
    """As Avro; a decimal is its unscaled number."""
    fields = [
        {"name": name, "type": ["null", kind["type"] if isinstance(kind, dict) else kind]}
        for name, (kind, _) in COLUMNS.items()
    ]
    numbers = {name: _bytes_of(record[name]) for name in ("d", "w")}
    out = io.BytesIO()
    fastavro.schemaless_writer(out, {"type": "record", "name": "r", "fields": fields}, {**record, **numbers})
    return out.getvalue()


def _bytes_of(number: int | None) -> bytes | None:
    return None if number is None else number.to_bytes(17, "big", signed=True)


class Loads:
    """A topic of such records, and loads of it into one place."""

    def __init__(self, broker: Kafka, topic: str, root: Path, format: str, rows: list[dict[str, Any]]) -> None:
        self.root, self.format, self.rows = root, format, rows
        self.topic = Topic(broker.bootstrap, topic)
        self.topic.produce(map(encoded, rows))
        catalog = add_catalog(root / "catalog") if format == "iceberg" else None
        to = "iceberg:lake.extremes" if catalog else str(root / "table")
        self.target = Target(to, f"g-{topic}", format=format, catalog=catalog).check()

    def __call__(self, partition_by: list[Transform], **more: Any) -> LoadResult:
        spelled = [
            column if kind == "identity" else f"{kind}({f'{number},' if number else ''}{column})"
            for kind, column, number in partition_by
        ]
        request = LoadRequest.build(
            self.target,
            bootstrap_servers=self.topic.bootstrap,
            topic=self.topic.name,
            publish_offsets=False,
            options={"valueFormat": "avro", "valueSchema": json.dumps(SCHEMA)},
            partition_by=spelled,
            **{"columns": "value.*,topic,partition,offset", **more},
        )
        return run_load(request, no_session, lambda phase, record: None)

    def table(self) -> Table:
        assert self.target.catalog is not None
        return open_catalog(self.target.catalog).load_table("lake.extremes")

    def readers(self) -> dict[str, Callable[[], pa.Table]]:
        """Programs that read the offsets and, where they are in it, the partition columns."""
        to = self.target.to
        if self.format == "delta":
            return {
                "dataset": lambda: DeltaTable(to).to_pyarrow_table(),
                "pandas": lambda: pa.Table.from_pandas(DeltaTable(to).to_pandas(columns=["offset"])),
                "datafusion": lambda: pa.table(
                    QueryBuilder().register("t", DeltaTable(to)).execute('SELECT "offset" FROM t')
                ),
                "polars": lambda: polars.read_delta(to).select("offset").to_arrow(),
            }
        if self.format == "iceberg":
            return {
                "pyiceberg": lambda: self.table().scan().to_arrow(),
                "polars": lambda: polars.scan_iceberg(self.table()).select("offset").collect().to_arrow(),
            }
        pattern = f"{to}/load=*/**/*.parquet"
        sql = f"SELECT * FROM read_parquet('{pattern}', hive_partitioning=true)"
        return {
            "dataset": lambda: pyarrow.dataset.dataset(to, partitioning="hive").to_table(),
            "duckdb": lambda: duckdb.connect().sql(sql).to_arrow_table(),
            "polars": lambda: (
                polars.scan_parquet(pattern, hive_partitioning=True).select("offset").collect().to_arrow()
            ),
        }


def check(loads: Loads, partition_by: list[Transform]) -> tuple[int, int]:
    """Load, and judge; gives how many rows and how many dead letters there are."""
    format, letters = loads.format, loads.root / "bad"
    fits = {
        offset: all(
            row[transform[1]] is None or is_held(transform, format, row[transform[1]]) for transform in partition_by
        )
        for offset, row in enumerate(loads.rows)
    }
    good = {offset for offset, held in fits.items() if held}
    with_bad = good != fits.keys()
    if with_bad:
        first = min(fits.keys() - good)
        with pytest.raises(
            LoadError, match=f"the record at offset {first} of topic '{loads.topic.name}', partition 0:"
        ):
            loads(partition_by)
    result = loads(partition_by, dead_letters=f"delta:{letters}") if with_bad else loads(partition_by)
    assert result.rows == len(good)
    if with_bad:
        bad = DeltaTable(str(letters)).to_pyarrow_table().to_pylist()
        assert {row["offset"] for row in bad} == fits.keys() - good
        assert {row["offset"]: row["value"] for row in bad} == {
            at: encoded(loads.rows[at]) for at in fits.keys() - good
        }
        assert all(row["reason"].startswith("partition_by (--partition-by) ") for row in bad)
    for name, read in loads.readers().items():
        assert sorted(read().column("offset").to_pylist()) == sorted(good), name
    assert verify(loads.target, loads.topic.bootstrap).ok
    return len(good), len(fits) - len(good)


@pytest.mark.parametrize("format", BY_FORMAT)
def test_every_transform_of_extreme_values(
    broker: Kafka, topic: str, tmp_path: Path, format: str, spark: SparkSession
) -> None:
    loads = Loads(broker, topic, tmp_path, format, list(records()))
    rows, bad = check(loads, BY_FORMAT[format])
    assert rows > 20
    assert bad >= 5
    if format == "iceberg":
        for task in loads.table().scan().plan_files():
            check_iceberg_values(loads, task.file, BY_FORMAT[format])
    if format == "parquet":
        check_spark_values(loads, spark, rows)
    if format != "parquet":
        loads.topic.produce([encoded(dict.fromkeys(COLUMNS))])
        loads(BY_FORMAT[format], dead_letters=f"delta:{tmp_path}/bad")
        assert compact(loads.target, rewindable="0").files_after == 1, "the two without a value"
        for name, read in loads.readers().items():
            assert read().num_rows == rows + 1, name


def check_iceberg_values(loads: Loads, file: Any, partition_by: list[Transform]) -> None:
    """The partition values of a data file are those of each of its rows."""
    offsets = pyarrow.dataset.dataset(file.file_path.removeprefix("file://")).to_table().column("offset").to_pylist()
    for at, transform in enumerate(partition_by):
        kind, column, _ = transform
        for offset in offsets:
            value, there = loads.rows[offset][column], file.partition[at]
            if isinstance(there, Decimal):
                there = int(DIGITS.scaleb(there, 2 if column == "d" else 0))
            if value is None or kind != "bucket":
                assert there == (None if value is None else expected(transform, value)), (transform, value)
            else:
                assert 0 <= there < 3


def check_spark_values(loads: Loads, spark: SparkSession, rows: int) -> None:
    """What Spark takes the directories for are the values of each row."""
    made = {
        f"{column}_{kind.replace('truncate', 'trunc')}" if kind != "identity" else column: (kind, column, number)
        for kind, column, number in BY_FORMAT["parquet"]
    }
    read = spark.read.parquet(str(loads.target.to))
    types = {"year": "int", "month": "date", "day": "date", "hour": "string", "bucket": "int", "identity": "string"}
    types |= {"i_trunc": "int", "l_trunc": "bigint", "s_trunc": "string", "dt_month": "string"}
    schema = {field.name: field.dataType.simpleString() for field in read.schema}
    assert {name: schema[name] for name in made} == {
        name: types.get(name) or types[kind] for name, (kind, _, _) in made.items()
    }, "dt_month is text, because Spark's first date is no first of a month"
    found = read.selectExpr("offset", *(_of_spark(name, kind) for name, (kind, _, _) in made.items())).collect()
    assert len(found) == rows
    for row in found:
        for name, transform in made.items():
            value = loads.rows[row.offset][transform[1]]
            if value is None or transform[0] != "bucket":
                wanted = None if value is None else expected(transform, value)
                assert row[name] == wanted or (name, value) == ("dt_month", LEAST_INT), (name, value, row[name])
            else:
                assert 0 <= row[name] < 3


def _of_spark(name: str, kind: str) -> str:
    """The value as Iceberg has it, by Spark's functions."""
    return {
        "year": f"{name} - 1970 AS {name}",
        "month": f"(year(try_cast({name} AS DATE)) - 1970) * 12 + month(try_cast({name} AS DATE)) - 1 AS {name}",
        "day": f"unix_date({name}) AS {name}",
        "hour": f"24L * unix_date(CAST(left({name}, length({name}) - 3) AS DATE)) + INT(right({name}, 2)) AS {name}",
    }.get(kind, name)


@pytest.mark.slow
@pytest.mark.parametrize("format", BY_FORMAT)
@pytest.mark.parametrize("seed", range(12))
def test_random_values_near_the_edges(broker: Kafka, topic: str, tmp_path: Path, format: str, seed: int) -> None:
    """Each transform alone, and a few together."""
    dice = seeded(seed)
    print("seed", seed)
    rows = []
    for _ in range(60):
        name = dice.choice([name for name in COLUMNS if name not in ("s", "b")])
        value = dice.choice(COLUMNS[name][1]) + dice.randrange(-200, 200)
        if name in ("d", "w"):
            most = 10 ** (9 if name == "d" else 38) - 1
        else:
            most = MOST_INT if name in ("i", "dt") else MOST
        least = -most if name in ("d", "w") else -most - 1
        rows.append({**dict.fromkeys(COLUMNS), name: max(least, min(most, value))})
    rows.append({**dict.fromkeys(COLUMNS, 1), "s": "a", "b": b"a"})  # pyarrow opens no directories of nulls alone
    chosen = dice.sample(BY_FORMAT[format], dice.choice([1, 1, 2, 4]))
    check(Loads(broker, topic, tmp_path, format, rows), chosen)


NAMES = ["a#b", "a'b", 'a"b', "a\\b", "a:b", "a%b", "a?b c", "a{[*^]}", "é.x", "a`b"]


def test_any_name_of_a_partition_column_and_any_type_is_read_and_compacted(
    broker: Kafka, topic: str, tmp_path: Path
) -> None:
    """By each program that reads Delta. A load and a compaction have the same directories."""
    topics = Topic(broker.bootstrap, topic)
    to = str(tmp_path / "table")
    target = Target(to, f"g-{topic}", format="delta").check()
    quoted = [f"`{name.replace('`', '``')}`" for name in NAMES]
    schema = ", ".join([*(f"{name} STRING" for name in quoted), "ok BOOLEAN", "d DECIMAL(9,2)", "n INT"])
    values = [("x y", True, 1.5), ("y#'\"\\:z", False, 0), (None, None, None)]
    rows = [{**dict.fromkeys(NAMES, text), "ok": ok, "d": number} for text, ok, number in values]
    for load in (0, 1):
        topics.produce(json.dumps({**row, "n": load}).encode() for row in rows)
        request = LoadRequest.build(
            target,
            bootstrap_servers=topics.bootstrap,
            topic=topics.name,
            publish_offsets=False,
            options={"valueFormat": "json", "valueSchema": schema},
            columns="value.*,offset",
            partition_by=[*quoted, "ok", "d"],
        )
        assert run_load(request, no_session, lambda phase, record: None).rows == 3
    wanted = [(*[text] * len(NAMES), ok, None if number is None else Decimal(number)) for text, ok, number in values]
    for compacted in (False, True):
        if compacted:
            assert compact(target, rewindable="0").files_after == 3
        readers: dict[str, Callable[[], Any]] = {
            "dataset": lambda: DeltaTable(to).to_pyarrow_table(),
            "datafusion": lambda: pa.table(QueryBuilder().register("t", DeltaTable(to)).execute("SELECT * FROM t")),
            "polars": lambda: polars.read_delta(to).to_arrow(),
        }
        for name, read in readers.items():
            found = read()
            by_offset = {row["offset"]: tuple(row[name] for name in (*NAMES, "ok", "d")) for row in found.to_pylist()}
            assert [by_offset[offset] for offset in range(6)] == wanted * 2, (name, compacted)


@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_the_key_of_an_upsert(broker: Kafka, topic: str, tmp_path: Path, format: str) -> None:
    """A row of which the table cannot hold the partition value is refused before the merge."""
    loads = Loads(broker, topic, tmp_path, format, [])
    transform: Transform = ("identity", "dt", 0) if format == "delta" else ("truncate", "i", 10)
    column, value = ("dt", 2_932_897) if format == "delta" else ("i", LEAST_INT)
    row = dict.fromkeys(COLUMNS)
    loads.topic.produce([encoded({**row, column: 7}), encoded({**row, column: value})])
    with pytest.raises(LoadError, match="the record at offset 1 of topic .*, partition 0: partition_by"):
        loads([transform], columns=(), mode="upsert", key=column)

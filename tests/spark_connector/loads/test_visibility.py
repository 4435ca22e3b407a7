"""Where a load is refused because readers would not see it. Spark's readers say whether they would."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from broker.errors import ConfigError
from broker.storage.storage import open_storage
from spark_connector.loads.history import refuse_unseen, refuse_within_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOAD = "load=g-000001-00112233"
Prepare = Callable[["SparkSession", Path], None]


def write(path: Path, text: str = '{"offset": 1}\n') -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def stream(spark: SparkSession, to: Path) -> None:
    source = to.with_name("source")
    write(source / "a.json")
    reader = spark.readStream.schema("offset long").json(str(source))
    writer = reader.writeStream.format("json").option("checkpointLocation", str(to.with_name("checkpoint")))
    writer.trigger(availableNow=True).start(str(to)).awaitTermination()


UNSEEN: dict[str, tuple[Prepare, str]] = {
    "a stream's output": (stream, "is the output of a Spark stream"),
    "rows beside": (lambda spark, to: write(to / "part-0.json"), "holds part-0.json, which no load wrote"),
    "a column of its own": (lambda spark, to: write(to / "day=1" / "part-0.json"), "holds day=1/part-0.json"),
    "a directory beside": (lambda spark, to: write(to / "sub" / "part-0.json"), "holds sub/part-0.json"),
    "Iceberg": (lambda spark, to: write(to / "metadata" / "v1.metadata.json", "{}"), "holds metadata/v1.metadata.json"),
}
SEEN: dict[str, Callable[[Path], None]] = {
    "nothing": lambda to: None,
    "an empty directory": lambda to: (to / "sub").mkdir(parents=True),
    "an empty file": lambda to: write(to / "x", ""),
    "a hidden file": lambda to: write(to / "_SUCCESS"),
    "a hidden directory": lambda to: write(to / ".sub" / "x"),
    "another load": lambda to: write(to / "load=h-000001-00112233" / "part-0.json"),
    "the load of another program": lambda to: write(to / "load=x" / "part-0.json"),
}


def rows_seen(spark: SparkSession, to: Path) -> int:
    """How many of the one row of a load and the one beside it Spark's reader sees; 0 where it fails."""
    try:
        return spark.read.json(str(to)).select("offset", "load").count()
    except Exception:
        return 0


@pytest.mark.parametrize("name", UNSEEN)
def test_a_load_is_refused_where_readers_would_not_see_it_and_all_else(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    prepare, message = UNSEEN[name]
    to = tmp_path / "out"
    prepare(spark, to)
    with pytest.raises(ConfigError, match=message) as caught:
        refuse_unseen(open_storage(str(to)))
    assert "nother directory" in str(caught.value), "the way out"
    write(to / LOAD / "part-0.json")
    assert rows_seen(spark, to) < 2


@pytest.mark.parametrize("name", SEEN)
def test_a_load_is_taken_where_readers_see_it(spark: SparkSession, tmp_path: Path, name: str) -> None:
    to = tmp_path / "out"
    SEEN[name](to)
    refuse_unseen(open_storage(str(to)))
    write(to / LOAD / "part-0.json")
    assert rows_seen(spark, to) == (2 if "load" in name else 1)
    refuse_unseen(open_storage(str(to)))


@pytest.mark.parametrize(
    ("marker", "message"),
    [
        ("_delta_log", "lies within the Delta table"),
        (".hoodie", "lies within the Hudi table"),
        ("metadata/00000-ab.metadata.json", "lies within the Iceberg table"),
        ("_staging/files/g-000001-00112233", "the output of other loads"),
    ],
)
def test_a_directory_within_a_table_or_the_output_of_loads_is_refused(
    tmp_path: Path, marker: str, message: str
) -> None:
    (tmp_path / "table" / marker).mkdir(parents=True)
    with pytest.raises(ConfigError, match=message):
        refuse_within_table(open_storage(str(tmp_path / "table" / "a" / "out")))
    if marker in {"_delta_log", ".hoodie"}:
        with pytest.raises(ConfigError, match=r"is a (Delta|Hudi) table"):
            refuse_unseen(open_storage(str(tmp_path / "table")))
    refuse_within_table(open_storage(str(tmp_path / "table" / "_archive" / "out")))
    refuse_within_table(open_storage(str(tmp_path / "beside")))


def test_a_directory_beside_the_work_of_other_programs_is_taken(tmp_path: Path) -> None:
    """Which have a directory `_staging`, or partitions by a column `load`, too."""
    write(tmp_path / "lake" / "_staging" / "job-1" / "part-0.parquet")
    write(tmp_path / "lake" / "load=5" / "part-0.parquet")
    refuse_within_table(open_storage(str(tmp_path / "lake" / "orders")))
    write(tmp_path / "lake" / LOAD / "part-0.parquet")
    with pytest.raises(ConfigError, match="the output of other loads"):
        refuse_within_table(open_storage(str(tmp_path / "lake" / "orders")))

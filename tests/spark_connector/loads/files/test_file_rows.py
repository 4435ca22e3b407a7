"""Offsets out of files of every format, whole, empty, compressed, damaged, and in directories that are columns."""

from __future__ import annotations

import gzip
import json
import re
import sys
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet
import pytest

from broker.protocol.topic_partition import TopicPartition
from broker.storage.storage import open_storage
from spark_connector.loads.files.file_rows import read_offsets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS: list[dict[str, Any]] = [
    {"key": None, "value": b"x" * (i % 7), "topic": "ab"[i % 2], "partition": i % 3, "offset": 2**40 + i}
    for i in range(1000)
]
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
    ]
)
EXPECTED = {
    TopicPartition(topic, partition): [
        row["offset"] for row in ROWS if (row["topic"], row["partition"]) == (topic, partition)
    ]
    for topic in "ab"
    for partition in range(3)
}


def write(path: Path, format: str, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    if format == "parquet":
        pyarrow.parquet.write_table(table, path, row_group_size=300)
    elif format == "orc":
        pyarrow.orc.write_table(table, path)
    elif format == "json":
        lines = [json.dumps({**row, "value": row["value"].hex(), "note": {"a": 1}}) + "\n" for row in rows]
        data = "".join(lines).encode()
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    else:
        kinds = {"key": "bytes", "value": "bytes", "topic": "string", "partition": "int", "offset": "long"}
        fields = [{"name": name, "type": ["null", kind]} for name, kind in kinds.items()]
        with path.open("wb") as file:
            fastavro.writer(file, {"type": "record", "name": "KafkaRecord", "fields": fields}, rows, codec="snappy")


def read(
    root: Path, name: str, format: str, spark: SparkSession | None = None
) -> tuple[dict[TopicPartition, list[int]], list[str]]:
    def session() -> SparkSession:
        assert spark is not None
        return spark

    found, faults = read_offsets(open_storage(str(root)), "d", [name], format, session)
    assert faults.unread == ()
    return {tp: offsets.tolist() for tp, offsets in found.items()}, list(faults.problems)


@pytest.mark.parametrize("name", ["part.parquet", "part.avro"], ids=str)
def test_every_row_is_found_without_spark(tmp_path: Path, name: str) -> None:
    format = name.split(".")[1]
    write(tmp_path / "d" / name, format, ROWS)
    assert read(tmp_path, name, format) == (EXPECTED, [])
    write(tmp_path / "d" / name, format, [])
    assert read(tmp_path, name, format) == ({}, [])


@pytest.mark.parametrize("name", ["part.orc", "part.json", "part.json.gz"], ids=str)
def test_spark_reads_orc_and_json(spark: SparkSession, tmp_path: Path, name: str) -> None:
    format = name.split(".")[1]
    path = tmp_path / "d" / name
    write(path, format, ROWS)
    assert read(tmp_path, name, format, spark) == (EXPECTED, [])
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    _, (problem,) = read(tmp_path, name, format, spark)
    assert f"cannot be read as {format}: " in problem


def test_positions_of_a_large_load_fit_into_sparks_driver(spark: SparkSession, tmp_path: Path) -> None:
    """As rows these 100,000 would be 2 MB, and a load of 50 million more than spark.driver.maxResultSize, 1 GB."""
    rows = [{"value": b"", "topic": "a", "partition": 0, "offset": offset} for offset in range(100_000)]
    write(tmp_path / "d" / "part.json", "json", [*rows, rows[7]])
    conf: Any = spark.sparkContext._jsc
    conf = conf.sc().conf()
    conf.set("spark.driver.maxResultSize", "1m")
    try:
        found, problems = read(tmp_path, "part.json", "json", spark)
    finally:
        conf.set("spark.driver.maxResultSize", "1g")
    assert problems == []
    assert found == {TopicPartition("a", 0): sorted([*range(100_000), 7])}


@pytest.mark.parametrize("format", ["parquet", "avro"])
@pytest.mark.parametrize("damage", [b"", b"nonsense", None], ids=["empty", "nonsense", "cut"])
def test_damage_is_told_with_the_name_of_the_file(tmp_path: Path, format: str, damage: bytes | None) -> None:
    path = tmp_path / "d" / "part"
    write(path, format, ROWS)
    path.write_bytes(path.read_bytes()[:-20] if damage is None else damage)
    _, (problem,) = read(tmp_path, "part", format)
    assert problem.startswith(f"part cannot be read as {format}: ")


def test_a_column_that_is_missing_or_null_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "d" / "part"
    write(path, "parquet", ROWS[:1])
    pyarrow.parquet.write_table(pyarrow.parquet.ParquetFile(path).read().drop(["offset"]), path)
    assert "there is no column 'offset'" in read(tmp_path, "part", "parquet")[1][0]
    write(path, "parquet", [{**ROWS[0], "offset": None}])
    assert "a row has no topic, partition or offset" in read(tmp_path, "part", "parquet")[1][0]
    assert read(tmp_path, "nothing", "parquet")[1] == ["nothing is missing"]


def test_columns_that_are_directories_are_read_from_their_names(tmp_path: Path) -> None:
    name = "topic=a%3Db/partition=7/part.parquet"
    path = tmp_path / "d" / name
    write(path, "parquet", ROWS[:3])
    pyarrow.parquet.write_table(pyarrow.parquet.ParquetFile(path).read().drop(["topic", "partition"]), path)
    assert read(tmp_path, name, "parquet")[0] == {TopicPartition("a=b", 7): [2**40, 2**40 + 1, 2**40 + 2]}


def test_spark_reads_columns_that_are_directories(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "d" / "date=2026-11-23" / "topic=0x" / "partition=7" / "part.json"
    path.parent.mkdir(parents=True)
    path.write_text("".join(f'{{"offset": {offset}}}\n' for offset in (5, 3, 4)))
    name = str(path.relative_to(tmp_path / "d"))
    assert read(tmp_path, name, "json", spark) == ({TopicPartition("0x", 7): [3, 4, 5]}, [])


def test_bytes_that_disagree_with_hadoops_checksums_are_damage(tmp_path: Path) -> None:
    path = tmp_path / "d" / "part.parquet"
    write(path, "parquet", ROWS)
    data = path.read_bytes()
    sums = b"".join(zlib.crc32(data[at : at + 512]).to_bytes(4, "big") for at in range(0, len(data), 512))
    path.with_name(".part.parquet.crc").write_bytes(b"crc\0" + (512).to_bytes(4, "big") + sums)
    assert read(tmp_path, "part.parquet", "parquet") == (EXPECTED, [])
    path.write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])
    assert re.match(
        r"part.parquet is damaged: .* \(.part.parquet.crc\)", read(tmp_path, "part.parquet", "parquet")[1][0]
    )


def test_spark_reads_positions_without_pandas(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pandas is no dependency. Offsets that are there twice, before a gap and inside a run, are counted as they are."""
    offsets = [3, 4, 4, 6, 7, 8, 8, 9, 11]
    rows = [{"value": b"", "topic": topic, "partition": 1, "offset": offset} for offset in offsets for topic in "ab"]
    write(tmp_path / "d" / "part.json", "json", rows)
    monkeypatch.setitem(sys.modules, "pandas", None)
    found, problems = read(tmp_path, "part.json", "json", spark)
    assert problems == []
    assert {tp: list(seen) for tp, seen in found.items()} == {TopicPartition(topic, 1): offsets for topic in "ab"}

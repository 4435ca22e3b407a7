"""Loads into tables with columns and fields that must not be null: a field of a null struct is not missing, and a null
that is one is told by its record. Read by deltalake, pyiceberg and duckdb."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema

from spark_connector.load import LoadResult, run_load
from spark_connector.loads.iceberg.iceberg_catalog import open_catalog
from spark_connector.loads.record import LoadError
from spark_connector.loads.request import LoadRequest, Target
from spark_connector.maintenance import compact, verify
from tests.support.kafka import Kafka
from tests.support.table_harness import add_catalog
from tests.support.topics import Topic

KEYED = "STRUCT<pk: BIGINT, t: STRING>"
DDL = f"id INT, k {KEYED}, s STRUCT<k: {KEYED}, q: INT>, l ARRAY<STRUCT<k: {KEYED}>>, m MAP<STRING, STRUCT<k: {KEYED}>>"
NULL, SOME = None, {"pk": 1, "t": None}
GOOD: list[dict[str, Any]] = [
    {"id": 0, "k": NULL, "s": NULL, "l": NULL, "m": NULL},
    {"id": 1, "k": SOME, "s": {"k": NULL, "q": 1}, "l": [{"k": NULL}, {"k": SOME}], "m": {"a": {"k": NULL}}},
    {"id": 2, "k": NULL, "s": {"k": SOME, "q": 2}, "l": [], "m": {"a": {"k": SOME}, "b": {"k": NULL}}},
]
LACKING = {"pk": None, "t": "x"}
BAD: dict[str, dict[str, Any]] = {
    "id": {"id": None},
    "k.pk": {"id": 9, "k": LACKING},
    "s.q": {"id": 9, "s": {"k": SOME, "q": None}},
    "s.k.pk": {"id": 9, "s": {"k": LACKING, "q": 1}},
    "l.element.k.pk": {"id": 9, "l": [{"k": SOME}, {"k": LACKING}]},
    "m.value.k.pk": {"id": 9, "m": {"a": {"k": LACKING}}},
}
"""By the column or field that is null."""


def columns() -> pa.Schema:
    keyed = pa.struct([pa.field("pk", pa.int64(), nullable=False), ("t", pa.string())])
    within = pa.struct([("k", keyed)])
    return pa.schema(
        [
            pa.field("id", pa.int32(), nullable=False),
            ("k", keyed),
            ("s", pa.struct([("k", keyed), pa.field("q", pa.int32(), nullable=False)])),
            ("l", pa.list_(within)),
            ("m", pa.map_(pa.string(), within)),
            pa.field("topic", pa.string(), nullable=False),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("load", pa.string()),
        ]
    )


class Loads:
    """Loads into a table that is there already, without Spark."""

    def __init__(self, topic: Topic, root: Path, format: str) -> None:
        self.topic, self.root, self.format = topic, root, format
        self.catalog = add_catalog(root / "lake")
        if format == "delta":
            self.target = Target(f"{root}/table", "g", format="delta")
            DeltaTable.create(f"{root}/table", Schema.from_arrow(columns()))
        elif format == "iceberg":
            self.target = Target("iceberg:lake.t", "g", format="iceberg", catalog=self.catalog)
            open_catalog(self.catalog).create_table("lake.t", columns())
        else:
            self.target = Target(f"{root}/table", "g", format="parquet")

    def __call__(self, rows: list[dict[str, Any]], **arguments: Any) -> LoadResult:
        self.topic.produce([json.dumps(row).encode() for row in rows])
        request = LoadRequest.build(
            self.target,
            bootstrap_servers=self.topic.bootstrap,
            topic=self.topic.name,
            publish_offsets=False,
            columns="value.*, topic, partition, offset",
            options={"valueFormat": "json", "valueSchema": DDL, "mode": "DROPMALFORMED"},
            **arguments,
        )
        return run_load(request, _no_spark, lambda phase, record: None)

    def check_empty(self) -> None:
        if self.format == "iceberg":
            assert open_catalog(self.catalog).load_table("lake.t").scan().to_arrow().num_rows == 0
        else:
            assert DeltaTable(self.target.to).file_uris() == []

    def rows(self) -> list[dict[str, Any]]:
        """As the table's own library reads them, which duckdb must confirm."""
        if self.format == "iceberg":
            scan = open_catalog(self.catalog).load_table("lake.t").scan()
            files = [task.file.file_path for task in scan.plan_files()]
            found = pa.concat_tables(pa.parquet.ParquetFile(path.removeprefix("file://")).read() for path in files)
            some = ["id", "k", "s"]  # pyiceberg makes [] of a null list of structs
            assert (
                scan.to_arrow().select(some).sort_by("id").to_pylist() == found.select(some).sort_by("id").to_pylist()
            )
        elif self.format == "delta":
            delta = DeltaTable(self.target.to)
            found, files = delta.to_pyarrow_table(), delta.file_uris()
        else:
            files = [str(path) for path in (self.root / "table").glob("load=*/*.parquet")]
            found = pa.concat_tables(pa.parquet.ParquetFile(path).read() for path in files)
        names = ["id", "k", "s", "l", "m"]
        rows = sorted(found.select(names).to_pylist(), key=lambda row: row["id"])
        paths = [path.removeprefix("file://") for path in files]
        confirmed = (
            duckdb.connect().execute(f"SELECT {', '.join(names)} FROM read_parquet({paths}) ORDER BY id").fetchall()
        )
        assert [dict(zip(names, row, strict=True)) for row in confirmed] == [with_maps(row) for row in rows]
        return [with_maps(row) for row in rows]


def with_maps(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "m": None if row["m"] is None else dict(row["m"])}


def _no_spark() -> Any:
    raise AssertionError("a load as small as this needs no Spark")


@pytest.fixture(params=["delta", "iceberg", "parquet"])
def loads(broker: Kafka, topic: str, tmp_path: Path, request: pytest.FixtureRequest) -> Loads:
    return Loads(Topic(broker.bootstrap, topic, 1), tmp_path, request.param)


def test_a_field_of_a_null_struct_is_not_missing(loads: Loads) -> None:
    assert loads(GOOD).rows == 3
    assert loads.rows() == GOOD
    if loads.format == "iceberg":
        metadata = open_catalog(loads.catalog).load_table("lake.t").scan().plan_files()
        (path,) = [task.file.file_path.removeprefix("file://") for task in metadata]
        assert not pa.parquet.read_schema(path).field("id").nullable


@pytest.mark.parametrize("loads", ["delta", "iceberg"], indirect=True)
def test_a_null_that_the_table_refuses_names_its_record(loads: Loads) -> None:
    with pytest.raises(LoadError) as raised:
        loads([*GOOD, BAD["l.element.k.pk"]])
    assert not raised.value.retriable
    assert f"offset 3 of topic '{loads.topic.name}', partition 0, has null in 'l.element.k.pk'" in str(raised.value)
    assert "--dead-letters" in str(raised.value)
    loads.check_empty()


@pytest.mark.parametrize("loads", ["delta", "iceberg"], indirect=True)
def test_such_records_are_dead_letters_where_there_are_some(loads: Loads) -> None:
    rows = [GOOD[0], *BAD.values(), *GOOD[1:]]
    result = loads(rows, dead_letters=f"delta:{loads.root}/bad")
    assert (result.rows, result.bad_rows) == (len(GOOD), len(BAD))
    assert loads.rows() == GOOD
    letters = DeltaTable(f"{loads.root}/bad").to_pyarrow_table().sort_by("offset").to_pylist()
    assert [row["reason"] for row in letters] == [f"null in '{path}', which the table requires" for path in BAD]
    assert [json.loads(row["value"]) for row in letters] == list(BAD.values())
    found = verify(loads.target, loads.topic.bootstrap)
    assert found.ok, found


@pytest.mark.parametrize("loads", ["delta", "iceberg"], indirect=True)
def test_compaction_keeps_them(loads: Loads) -> None:
    for row in GOOD:
        loads([row])
    result = compact(loads.target, rewindable="0s")
    assert (result.files_before, result.rows, result.dropped) == (3, 3, None)
    assert loads.rows() == GOOD

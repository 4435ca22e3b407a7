"""Records of an upsert whose row the table cannot hold are dead letters where the load has some; without Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from spark_connector.load import LoadResult, run_load
from spark_connector.loads.change_files import UnfitChanges, table_layout
from spark_connector.loads.iceberg.iceberg_catalog import open_catalog
from spark_connector.loads.record import LoadError, LoadRecord
from spark_connector.loads.request import LoadRequest, Target
from spark_connector.loads.tasks.columns import TableColumns
from spark_connector.loads.tasks.file_layout import FileLayout
from spark_connector.loads.upsert import Upsert
from spark_connector.maintenance import verify
from tests.support.kafka import Kafka
from tests.support.table_harness import add_catalog
from tests.support.topics import Topic


def _no_spark() -> Any:
    raise AssertionError("a load as small as this needs no Spark")


class Upserts:
    """Upserts of JSON with the key `id`, a text, into a new table, which Delta partitions by it."""

    def __init__(self, topic: Topic, root: Path, format: str) -> None:
        self.topic, self.root = topic, root
        self.catalog = add_catalog(root / "lake")
        place = f"{root}/table" if format == "delta" else "iceberg:lake.t"
        self.target = Target(place, "g", format=format, catalog=None if format == "delta" else self.catalog)
        self.partition_by = "id" if format == "delta" else None

    def __call__(self, rows: list[dict[str, Any]], **arguments: Any) -> LoadResult:
        self.topic.produce([json.dumps(row).encode() for row in rows])
        request = LoadRequest.build(
            self.target,
            bootstrap_servers=self.topic.bootstrap,
            topic=self.topic.name,
            publish_offsets=False,
            options={"valueFormat": "json", "valueSchema": "id STRING, n INT", "mode": "DROPMALFORMED"},
            mode="upsert",
            key="id",
            partition_by=self.partition_by,
            **arguments,
        )
        return run_load(request, _no_spark, lambda phase, record: None)

    def rows(self) -> dict[str, int]:
        if self.target.format == "delta":
            found = DeltaTable(self.target.to).to_pyarrow_table()
        else:
            found = open_catalog(self.catalog).load_table("lake.t").scan().to_arrow()
        return {row["id"]: row["n"] for row in found.to_pylist()}


@pytest.fixture(params=["delta", "iceberg"])
def upserts(broker: Kafka, topic: str, tmp_path: Path, request: pytest.FixtureRequest) -> Upserts:
    return Upserts(Topic(broker.bootstrap, topic, 1), tmp_path, request.param)


def test_they_are_dead_letters_and_later_records_of_the_key_count(upserts: Upserts) -> None:
    is_delta = upserts.target.format == "delta"
    unfit: dict[str, Any] = {"id": "" if is_delta else None, "n": 3}  # an empty text would be null in Delta's log
    rows: list[dict[str, Any]] = [{"id": "a", "n": 1}, {"id": None, "n": 2}, unfit, {"id": "a", "n": 4}]
    result = upserts(rows, dead_letters=f"delta:{upserts.root}/bad")
    assert (result.rows, result.bad_rows) == (2, 2)
    assert upserts.rows() == {"a": 4}
    letters = DeltaTable(f"{upserts.root}/bad").to_pyarrow_table().sort_by("offset").to_pylist()
    assert [row["offset"] for row in letters] == [1, 2]
    assert letters[0]["reason"] == "no value for id, a column of the key"
    assert ("partition_by" in letters[1]["reason"]) == is_delta
    found = verify(upserts.target, upserts.topic.bootstrap)
    assert found.ok, found


def test_without_dead_letters_the_first_fails_the_load(upserts: Upserts) -> None:
    with pytest.raises(LoadError, match="offset 1 of topic .* has no value for id, a column of the key"):
        upserts([{"id": "a", "n": 1}, {"id": None, "n": 2}])


def test_a_null_that_the_table_requires_is_told_of_rows_that_events_write() -> None:
    row = pa.struct([("id", pa.int64()), ("n", pa.int32())])
    event = pa.struct([("before", row), ("after", row), ("op", pa.string())])
    places = [("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())]
    source = pa.schema([("key", pa.binary()), ("value", event), *places])
    upsert = Upsert(("id",), envelope="debezium")
    record = LoadRecord("g-000001-00000000", "", "delta", "table", 0, (), upsert=upsert)
    rows = table_layout(record, FileLayout(source, TableColumns.of((), source)))
    required = pa.schema([pa.field(one.name, one.type, nullable=one.name != "n") for one in rows.schema])
    values = [
        {"before": None, "after": {"id": 1, "n": 1}, "op": "c"},
        {"before": {"id": 1, "n": None}, "after": None, "op": "d"},
        None,
        {"before": None, "after": {"id": 2, "n": None}, "op": "c"},
    ]
    columns = [[None] * 4, values, ["t"] * 4, [0] * 4, range(4)]
    batch = pa.record_batch([pa.array(one, kind.type) for one, kind in zip(columns, source, strict=True)], source)
    assert UnfitChanges(upsert, source, rows, required)(batch) == {3: "null in 'n', which the table requires"}

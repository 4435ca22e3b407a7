"""Partition columns of a directory are columns of its history, with the types and values that the records had."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_connector.loads.record import LoadError
from spark_connector.loads.tasks.partition_values import text_of, value_of
from tests.support.history_loads import HistoryLoads
from tests.support.kafka import Kafka
from tests.support.topics import Topic

SCHEMA = "dt DATE, c STRING, n BIGINT, small SMALLINT, ok BOOLEAN, x INT"
DOCUMENTS: list[dict[str, Any]] = [
    {"dt": "2026-11-21", "c": "plain", "n": 1, "small": 1, "ok": True},
    {"dt": "0001-01-01", "c": "a=b/c %25#é\n'\"\\:?", "n": -(2**63), "small": -(2**15), "ok": False},
    {"dt": "9999-12-31", "c": "true", "n": 2**63 - 1, "small": 2**15 - 1, "ok": None},
    {"dt": None, "c": None, "n": None, "small": None, "ok": None},
    {"dt": None, "c": " ", "n": 0, "small": 0, "ok": True},
]


@pytest.fixture
def loads(broker: Kafka, topic: str, tmp_path: Path) -> HistoryLoads:
    """Two loads of a directory that all of these columns partition, and records behind them."""
    options = {"valueFormat": "json", "valueSchema": SCHEMA}
    made, records = (
        HistoryLoads(broker.bootstrap, topic, str(tmp_path / "table"), "parquet"),
        Topic(broker.bootstrap, topic),
    )
    for part in (DOCUMENTS[:3], DOCUMENTS[3:]):
        records.produce([json.dumps({**one, "x": 7}).encode() for one in part])
        made.load(options=options, columns="value.*,offset", partition_by="dt,c,n,small,ok")
    records.produce([json.dumps({**one, "x": 8}).encode() for one in DOCUMENTS])
    return made


def test_they_come_back_with_their_types_and_values(loads: HistoryLoads) -> None:
    found = loads.read().sort_by("offset")
    assert found.schema.names == ["dt", "c", "n", "small", "ok", "x", "offset"]
    assert [str(one.type) for one in found.schema][:5] == ["date32[day]", "string", "int64", "int16", "bool"]
    rows = found.to_pylist()
    behind = len(DOCUMENTS)
    assert [row.pop("x") for row in rows] == [7] * behind + [8] * behind
    of_table, of_topic = ([{**row, "offset": None} for row in part] for part in (rows[:behind], rows[behind:]))
    assert of_table == of_topic, "a row of the table is what its record is"
    assert [str(row["dt"]) for row in of_table[:3]] == [one["dt"] for one in DOCUMENTS[:3]]
    assert [row["c"] for row in of_table] == [one["c"] for one in DOCUMENTS]


def test_some_of_them_may_be_read_alone(loads: HistoryLoads) -> None:
    found = loads.read(columns="c,n")
    assert found.schema == pa.schema([("c", pa.string()), ("n", pa.int64())])
    wanted = [(one["c"], one["n"]) for one in DOCUMENTS] * 2
    assert sorted(map(repr, zip(*(column.to_pylist() for column in found.columns), strict=True))) == sorted(
        map(repr, wanted)
    )


def test_a_directory_that_somebody_has_renamed_is_no_value(loads: HistoryLoads) -> None:
    (directory,) = Path(loads.to).glob("load=*/dt=2026-11-21")
    directory.rename(directory.with_name("dt=soon"))
    manifest = directory.parent / "_manifest.json"
    manifest.write_text(manifest.read_text().replace("2026-11-21", "soon"))
    with pytest.raises(LoadError, match="dt=soon.* cannot be read"):
        loads.read()


@pytest.mark.parametrize("days", [-(2**31), -719_529, -1, 0, 2_932_896, 2_932_897, 2**31 - 1])
def test_dates_of_any_year_are_read_back(days: int) -> None:
    kind = pa.date32()
    assert value_of(text_of(days, "identity", kind), kind).cast(pa.int32()).as_py() == days

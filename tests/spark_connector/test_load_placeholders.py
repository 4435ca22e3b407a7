"""Debezium's placeholders in loads: no table takes one for a value, whatever the load makes of the records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from broker.errors import ConfigError
from spark_connector.load import LoadResult, run_load
from spark_connector.loads.iceberg.iceberg_catalog import open_catalog
from spark_connector.loads.record import LoadError
from spark_connector.loads.request import LoadRequest, Target
from spark_connector.maintenance import verify
from tests.support.kafka import Kafka
from tests.support.table_harness import add_catalog
from tests.support.topics import Topic

TEXT = "__debezium_unavailable_value"
ROW = "id BIGINT, doc STRING, tags ARRAY<BIGINT>, attrs MAP<STRING,STRING>, place STRUCT<note: STRING>"
EVENT = f"before STRUCT<{ROW}>, after STRUCT<{ROW}>, op STRING"
FORMS: dict[str, dict[str, Any]] = {
    "doc": {"doc": TEXT},
    "tags": {"tags": list(TEXT.encode())},
    "attrs": {"attrs": {TEXT: TEXT}},
    "place.note": {"place": {"note": TEXT}},
}
UPSERT = {"mode": "upsert", "key": "id"}
DEBEZIUM = {**UPSERT, "envelope": "debezium"}


class Loads:
    """Loads of a topic into one table, without Spark."""

    def __init__(self, topic: Topic, root: Path, format: str = "delta", schema: str = ROW) -> None:
        self.topic, self._schema = topic, schema
        self._catalog = add_catalog(root / "catalog") if format == "iceberg" else None
        to = "iceberg:lake.rows" if format == "iceberg" else str(root / "rows")
        self.target = Target(to, topic.name, format=format, catalog=self._catalog)
        self.bad = root / "bad"

    def send(self, *rows: Any, key: int = 1) -> None:
        raw = [None if row is None else json.dumps(row).encode() for row in rows]
        self.topic.produce(raw, key=json.dumps({"id": key}).encode())

    def __call__(self, placeholder: str | None = None, **more: Any) -> LoadResult:
        options = {"valueFormat": "json", "valueSchema": self._schema}
        if more.get("mode") == "upsert":
            options |= {"keyFormat": "json", "keySchema": "id BIGINT"}
        if placeholder is not None:
            options["unavailable.value.placeholder"] = placeholder
        request = LoadRequest.build(
            self.target,
            bootstrap_servers=self.topic.bootstrap,
            topic=self.topic.name,
            publish_offsets=False,
            options=options,
            **more,
        )

        def never() -> Any:
            raise AssertionError("a load as small as this needs no Spark")

        return run_load(request, never, lambda phase, record: None)

    def docs(self) -> dict[int, str]:
        if self._catalog is not None:
            opened = open_catalog(self._catalog)
            rows = opened.load_table("lake.rows").scan().to_arrow().to_pylist()
            opened.close()
        else:
            rows = DeltaTable(self.target.to).to_pyarrow_table().to_pylist()
        return {row["id"]: row["doc"] for row in rows}


def row(**more: Any) -> dict[str, Any]:
    return {"id": 1, "doc": "x", "tags": [1], "attrs": {"a": "b"}, "place": {"note": "n"}, **more}


def event(after: Any, before: Any = None, op: str = "u") -> dict[str, Any]:
    return {"before": before, "after": after, "op": op}


@pytest.mark.parametrize(
    ("kind", "field", "format"),
    [
        ("append", "tags", "delta"),
        ("upsert", "attrs", "delta"),
        ("debezium", "place.note", "delta"),
        ("payload", "doc", "delta"),
        ("debezium", "tags", "iceberg"),
    ],
)
def test_a_placeholder_fails_the_load_and_names_record_and_field(
    broker: Kafka, topic: str, tmp_path: Path, kind: str, format: str, field: str
) -> None:
    schema = {"debezium": EVENT, "payload": f"payload STRUCT<{EVENT}>"}.get(kind, ROW)
    arguments = {"append": {"columns": "value.*,offset"}, "upsert": UPSERT}.get(kind, DEBEZIUM)
    loads = Loads(Topic(broker.bootstrap, topic, 1), tmp_path, format, schema)
    path = {"debezium": "after.", "payload": "payload.after."}.get(kind, "") + field

    def made(**more: Any) -> Any:
        whole = {"debezium": event(row(**more)), "payload": {"payload": event(row(**more))}}
        return whole.get(kind, row(**more))

    loads.send(made())
    loads(**arguments)
    loads.send(made(doc="y"), made(**FORMS[field]))
    with pytest.raises(LoadError) as raised:
        loads(**arguments)
    text = str(raised.value)
    assert f"The first is offset 2 of topic '{topic}', partition 0: value: field {path} does not have its value" in text
    assert "REPLICA IDENTITY FULL" in text
    assert loads.docs() == {1: "x"}


@pytest.mark.parametrize("upsert", [True, False])
def test_dead_letters_keep_the_record_apart(broker: Kafka, topic: str, tmp_path: Path, upsert: bool) -> None:
    loads = Loads(Topic(broker.bootstrap, topic, 1), tmp_path, schema=EVENT if upsert else ROW)
    arguments: dict[str, Any] = {"dead_letters": f"delta:{loads.bad}"}
    arguments |= DEBEZIUM if upsert else {"columns": "value.*,topic,partition,offset"}
    loads.send(*(event(one) if upsert else one for one in (row(), row(**FORMS["tags"]), row(doc="y"))))
    result = loads(**arguments)
    assert (result.bad_rows, result.malformed, result.read) == (1, 1, 3)
    (bad,) = DeltaTable(str(loads.bad)).to_pyarrow_table().to_pylist()
    assert (bad["offset"], json.loads(bad["value"]).get("id", 1)) == (1, 1)
    assert bad["reason"].startswith(f"value: field {'after.' if upsert else ''}tags does not have its value")
    found = verify(loads.target, broker.bootstrap)
    assert found.ok, found


def test_what_the_table_does_not_get_may_be_unavailable(broker: Kafka, topic: str, tmp_path: Path) -> None:
    """Oracle sends large objects in `before` only so, and a delete has no row."""
    loads = Loads(Topic(broker.bootstrap, topic, 1), tmp_path / "upsert", schema=EVENT)
    unavailable = row(**FORMS["doc"])
    loads.send(event(row(), op="c"), event(row(doc="y"), before=unavailable))
    loads(**DEBEZIUM)
    assert loads.docs() == {1: "y"}
    loads.send(event(None, before=unavailable, op="d"), None)
    loads(**DEBEZIUM)
    assert loads.docs() == {}
    picked = Loads(loads.topic, tmp_path / "append", schema=EVENT)
    assert picked(columns="value.after.id as id,value.after.doc as doc,value.op,offset").malformed == 0
    with pytest.raises(LoadError, match="field before.doc does not have its value"):
        Loads(loads.topic, tmp_path / "whole", schema=EVENT)(columns="value.*,offset")


def test_another_placeholder_and_none(broker: Kafka, topic: str, tmp_path: Path) -> None:
    loads = Loads(Topic(broker.bootstrap, topic, 1), tmp_path)
    loads.send(row(**FORMS["doc"]))
    loads("", **UPSERT)
    assert loads.docs() == {1: TEXT}
    loads.send(row(doc="gone"))
    with pytest.raises(ConfigError, match=r"unavailable.value.placeholder=__debezium_unavailable_value \(before: \)"):
        loads(**UPSERT)
    with pytest.raises(LoadError, match=r"field doc does not have its value.*placeholder \(gone\)"):
        loads("gone", **UPSERT, allow_changed_options=True)
    with pytest.raises(ConfigError, match="must be a text, or bytes like hex:DEADBEEF"):
        loads("hex:1", **UPSERT)

"""The options of an upsert: what makes one, and what is refused before anything is opened."""

from __future__ import annotations

from typing import Any

import pytest

from broker.errors import ConfigError
from spark_connector.loads.record import LoadRecord
from spark_connector.loads.request import LoadRequest, Target
from spark_connector.loads.upsert import Upsert


def request(to: str = "/data/t", format: str | None = "delta", **arguments: Any) -> LoadRequest:
    catalog = "prod" if to.startswith("iceberg:") else None
    target = Target(to, "g", format=format, catalog=catalog)
    return LoadRequest.build(target, bootstrap_servers="localhost:1", topic="t", **arguments)


def test_a_load_appends_unless_it_is_told_otherwise() -> None:
    assert request().upsert is None
    assert request(mode="append").upsert is None


@pytest.mark.parametrize("key", ["id, region", ["id", "region"]])
def test_an_upsert_has_a_key_and_may_have_an_envelope_and_an_order(key: Any) -> None:
    made = request(mode="upsert", key=key, envelope="debezium", order_by="ts_ms", partition_by="region")
    assert made.upsert == Upsert(("id", "region"), "debezium", "ts_ms")
    assert request("iceberg:lake.t", None, mode="upsert", key="id").upsert == Upsert(("id",))


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"mode": "merge"}, "mode .* must be one of append, upsert, not 'merge'"),
        ({"key": "id"}, "key .* goes with mode=upsert"),
        ({"envelope": "none"}, "envelope .* goes with mode=upsert"),
        ({"order_by": "x"}, r"order_by \(--order-by\) goes with mode=upsert"),
        ({"mode": "upsert"}, "mode=upsert needs key"),
        ({"mode": "upsert", "key": "id,"}, "mode=upsert needs key"),
        ({"mode": "upsert", "key": "id,id"}, "names 'id' twice"),
        ({"mode": "upsert", "key": "id", "envelope": "maxwell"}, "must be one of none, debezium"),
        ({"mode": "upsert", "key": "id", "format": "parquet"}, "goes with format delta or iceberg, not parquet"),
        ({"mode": "upsert", "key": "id", "columns": "key"}, "leave out columns"),
        ({"mode": "upsert", "key": "id", "sort_by": "offset"}, "leave out columns .* and sort_by"),
    ],
)
def test_what_is_refused(arguments: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        request(**arguments)


def test_a_record_keeps_the_upsert() -> None:
    record = LoadRecord("g-000001-00000000", "/t", "delta", "table", 0, (), upsert=Upsert(("id",), "debezium", "x"))
    assert LoadRecord.from_json(record.to_json(), "here") == record
    old = {name: value for name, value in record.to_json().items() if name != "upsert"}
    assert LoadRecord.from_json(old, "here").upsert is None

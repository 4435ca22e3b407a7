"""Records as changes: what each envelope means, and what is refused."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from broker.errors import ConfigError
from spark_connector.formats.record_decoder import column_decoder
from spark_connector.formats.schema_text import parse_schema_text
from spark_connector.formats.value_format import AvroSchema, ColumnFormat
from spark_connector.loads.changes import ChangeDecoder
from spark_connector.loads.record import LoadError
from spark_connector.loads.upsert import Upsert

ROW = "id bigint, name string, at timestamp"
EVENT = f"before struct<{ROW}>, after struct<{ROW}>, source struct<lsn bigint>, op string, ts_ms bigint"


def decoded(texts: Sequence[Any], ddl: str | None) -> pa.Array:
    """JSON documents as a read with valueFormat=json decodes them; None is a tombstone."""
    raw = [None if one is None else (one if isinstance(one, str) else json.dumps(one)).encode() for one in texts]
    if ddl is None:
        return pa.array(raw, pa.binary())
    if ddl == "string":
        return column_decoder(ColumnFormat("string")).decode(pa.array(raw, pa.binary())).column
    made = column_decoder(ColumnFormat("json", parse_schema_text(ddl, avro=False))).decode(pa.array(raw, pa.binary()))
    assert not made.bad
    return made.column


def records(
    keys: Sequence[Any], values: Sequence[Any], key_ddl: str | None = None, value_ddl: str | None = ROW, first: int = 7
) -> pa.RecordBatch:
    count = len(values)
    return pa.RecordBatch.from_pydict(
        {
            "key": decoded(keys, key_ddl),
            "value": decoded(values, value_ddl),
            "topic": pa.array(["customers"] * count),
            "partition": pa.array([3] * count, pa.int32()),
            "offset": pa.array(range(first, first + count), pa.int64()),
            "timestamp": pa.array(range(count), pa.timestamp("us", "UTC")),
        }
    )


def changes(upsert: Upsert, batch: pa.RecordBatch) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = ChangeDecoder(upsert, batch.schema).changes(batch).to_pylist()
    return rows


def event(op: str, before: Mapping[str, Any] | None, after: Mapping[str, Any] | None, **more: Any) -> dict[str, Any]:
    return {"before": before, "after": after, "op": op, "source": {"lsn": 5}, "ts_ms": 11, **more}


ANN = {"id": 1, "name": "Ann", "at": None}
NONE = Upsert(("id",))
DEBEZIUM = Upsert(("id",), "debezium")


def test_a_value_is_the_row_and_says_which_record_wrote_it() -> None:
    (row,) = changes(NONE, records([None], [ANN]))
    assert row == {**ANN, "_topic": "customers", "_partition": 3, "_offset": 7, "_deleted": False}


@pytest.mark.parametrize(("keys", "ddl"), [(["1"], "string"), ([{"id": 1}], "id bigint"), ([{"id": 1}], "id int")])
def test_a_record_without_a_value_deletes_the_row_of_its_key(keys: list[Any], ddl: str) -> None:
    (row,) = changes(NONE, records(keys, [None], ddl))
    assert (row["id"], row["name"], row["_deleted"]) == (1, None, True)


def test_a_delete_whose_key_is_not_decoded_is_refused_with_its_place() -> None:
    with pytest.raises(LoadError, match=r"offset 8 of topic 'customers', partition 3, deletes a row.*keyFormat"):
        changes(NONE, records(["1", "1"], [ANN, None]))


def test_a_record_without_its_key_is_refused_with_its_place() -> None:
    with pytest.raises(LoadError, match=r"offset 8 of topic 'customers', partition 3, has no value for id"):
        changes(NONE, records([None, None], [ANN, {"name": "nobody"}]))


def test_a_column_that_only_the_records_key_has_is_a_column_of_the_table() -> None:
    batch = records([{"id": 1, "more": 0}, {"id": 2}], [{"name": "Ann"}, None], "id bigint", "name string")
    assert [(row["id"], row["name"], row["_deleted"]) for row in changes(NONE, batch)] == [
        (1, "Ann", False),
        (2, None, True),
    ]
    assert ChangeDecoder(NONE, batch.schema).columns.names == ["id", "name"]


def test_a_value_that_is_not_decoded_is_a_column_beside_the_key() -> None:
    batch = records(["a", "b"], ["x", None], "string", None)
    assert [(row["key"], row["value"], row["_deleted"]) for row in changes(Upsert(("key",)), batch)] == [
        ("a", b"x", False),
        ("b", None, True),
    ]


def test_keys_of_bytes_serve_where_nothing_says_that_they_are_text() -> None:
    (row,) = changes(Upsert(("key",)), records(["a"], ["x"], None, "string"))
    assert (row["key"], row["value"]) == (b"a", "x")


def test_a_key_that_disagrees_with_the_value_is_refused() -> None:
    with pytest.raises(LoadError, match="offset 7 .* has another id in its key than in its value"):
        changes(NONE, records(["2"], [ANN], "string"))


def test_a_key_that_is_no_value_of_the_column_is_refused_with_its_place() -> None:
    with pytest.raises(LoadError, match="offset 8 .* has the key two, which is no int64 for id"):
        changes(NONE, records(["1", "two"], [None, None], "string"))


def test_a_malformed_record_is_no_delete() -> None:
    batch = records(["1", "2"], [ANN, None], None).append_column("_corrupt_record", pa.array([None, b"{"]))
    with pytest.raises(LoadError, match="offset 8 .* cannot be decoded, and would count as a delete"):
        changes(NONE, batch)


@pytest.mark.parametrize("wrapped", [False, True], ids=["plain", "with schema"])
@pytest.mark.parametrize("key_ddl", [None, "id bigint"], ids=["raw key", "decoded key"])
def test_events_of_debezium(wrapped: bool, key_ddl: str | None) -> None:
    """As its connectors send them, by JsonConverter with and without schemas.enable."""
    ben = {"id": 1, "name": "Ben", "at": "2026-11-26T00:00:00Z"}
    events: list[Any] = [
        event("r", None, ANN, transaction=None),
        event("c", None, ANN),
        event("u", ANN, ben),
        event("d", {"id": 1, "name": "", "at": None}, None),
    ]
    keys: list[Any] = [{"id": 1}] * 4
    if wrapped:
        schema = {"type": "struct", "fields": [], "optional": False, "name": "server.public.customers.Envelope"}
        events = [{"schema": schema, "payload": one} for one in events]
        keys = [{"schema": schema, "payload": one} for one in keys]
    value_ddl = f"payload struct<{EVENT}>" if wrapped else EVENT
    key = key_ddl and (f"payload struct<{key_ddl}>" if wrapped else key_ddl)
    found = changes(DEBEZIUM, records(keys, events, key, value_ddl))
    assert [(row["id"], row["name"], row["_deleted"]) for row in found] == [
        (1, "Ann", False),
        (1, "Ann", False),
        (1, "Ben", False),
        (1, None, True),
    ]
    assert all(row["at"] is None for row in found if row["_deleted"])


def test_events_of_debezium_in_avro() -> None:
    """The envelope as its connectors register it: `before` is optional and refers to the type of the row by name."""
    value = {
        "type": "record",
        "name": "Value",
        "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"], "default": None}],
    }
    envelope = {
        "type": "record",
        "name": "Envelope",
        "fields": [
            {"name": "before", "type": ["null", value], "default": None},
            {"name": "after", "type": ["null", "Value"], "default": None},
            {"name": "op", "type": "string"},
            {"name": "ts_ms", "type": ["null", "long"], "default": None},
        ],
    }
    schema = fastavro.parse_schema(envelope)
    row = {"id": 1, "name": "Ann"}
    values = []
    for before, after, op in ((None, row, "c"), (row, None, "d")):
        sink = io.BytesIO()
        fastavro.schemaless_writer(sink, schema, {"before": before, "after": after, "op": op, "ts_ms": 1})
        values.append(sink.getvalue())
    decoder = column_decoder(ColumnFormat("avro", AvroSchema(json.dumps(envelope))))
    batch = records([None, None], [None, None])
    batch = batch.set_column(1, "value", decoder.decode(pa.array(values)).column)
    assert [(one["id"], one["name"], one["_deleted"]) for one in changes(DEBEZIUM, batch)] == [
        (1, "Ann", False),
        (1, None, True),
    ]


def test_the_record_behind_a_delete_of_debezium_deletes_too() -> None:
    (row,) = changes(DEBEZIUM, records([{"id": 1}], [None], "id bigint", EVENT))
    assert (row["id"], row["_deleted"]) == (1, True)


def test_a_change_of_the_key_is_a_delete_and_an_insert() -> None:
    moved = {**ANN, "id": 2}
    batch = records(
        [{"id": 1}, {"id": 1}, {"id": 2}],
        [event("d", ANN, None), None, event("c", None, moved)],
        "id bigint",
        EVENT,
    )
    assert [(row["id"], row["_deleted"]) for row in changes(DEBEZIUM, batch)] == [(1, True), (1, True), (2, False)]


def test_the_key_of_a_delete_without_before_is_that_of_the_record() -> None:
    (row,) = changes(DEBEZIUM, records([{"id": 1}], [event("d", None, None)], "id bigint", EVENT))
    assert (row["id"], row["_deleted"]) == (1, True)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (event("t", None, None), r"offset 7 .* empties the whole table \(op t\)"),
        (event("m", None, None), "offset 7 .* has an op that is none of c, r, u, d and t"),
        (event("u", ANN, None), "offset 7 .* has no row: after is null"),
        (event("u", {**ANN, "id": 0}, ANN), "offset 7 .* changes id, a column of the key, in an update"),
        ({"before": None, "after": ANN}, "offset 7 .* has no op"),
        ({}, "offset 7 .* has no op"),
        (
            event("u", None, {**ANN, "name": "__debezium_unavailable_value"}),
            "offset 7 .* does not have the value of na",
        ),
    ],
)
def test_an_event_that_cannot_be_applied_is_refused(value: Any, why: str) -> None:
    with pytest.raises(LoadError, match=why):
        changes(DEBEZIUM, records([{"id": 1}], [value], "id bigint", EVENT))


def test_a_document_without_its_payload_is_refused() -> None:
    with pytest.raises(LoadError, match="offset 7 .* has a value without payload"):
        changes(NONE, records([{"id": 1}], [{}], "id bigint", f"payload struct<{ROW}>"))


@pytest.mark.parametrize(
    ("order_by", "expected"),
    [("ts_ms", [11, 11]), ("source.lsn", [5, 5]), ("timestamp", [0, 1]), ("name", ["Ann", None])],
)
def test_what_orders_the_events(order_by: str, expected: list[Any]) -> None:
    """A row that is deleted has no column of the time of its delete: what it had before is older."""
    batch = records([{"id": 1}] * 2, [event("u", None, ANN), event("d", ANN, None)], "id bigint", EVENT)
    found = ChangeDecoder(Upsert(("id",), "debezium", order_by), batch.schema).changes(batch).column("_order")
    if order_by == "timestamp":
        found = found.cast(pa.int64())
    assert found.to_pylist() == expected


@pytest.mark.parametrize(
    ("upsert", "value_ddl", "why"),
    [
        (Upsert(("nobody",)), ROW, "names nobody, which neither the values nor the keys"),
        (Upsert(("id",), "debezium"), ROW, "needs values with the fields before, after and op"),
        (Upsert(("id",), "debezium"), "after string, op string", "must have the columns of the row"),
        (Upsert(("id",), order_by="when"), ROW, "names 'when', which is no column"),
        (Upsert(("id",), order_by="tags"), "id bigint, tags array<string>", "has no order"),
        (Upsert(("x",)), "x double", "a key is a number without a fraction"),
        (Upsert(("x",)), "x array<int>", "a key is a number without a fraction"),
        (Upsert(("id",)), "id bigint, _offset bigint", "column '_offset', which loads write themselves"),
        (Upsert(("id",)), "id bigint, load string", "column 'load', which loads write themselves"),
        (Upsert(("id",)), "id bigint, name string, NAME string", "one to Spark: name, NAME"),
        (Upsert(("id",)), "id bigint, __deleted string", "ExtractNewRecordState"),
    ],
)
def test_what_can_never_be_a_table_is_refused_at_once(upsert: Upsert, value_ddl: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        ChangeDecoder(upsert, records([], [], None, value_ddl).schema)


def test_a_read_that_leaves_out_columns_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs the columns key"):
        ChangeDecoder(NONE, records([], []).schema.remove(0))

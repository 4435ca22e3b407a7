"""The schema of a write in the registry: Confluent's serializer, with its settings that mean the same, is the judge."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import (
    SchemaRegistryClient,
    record_subject_name_strategy,
    topic_record_subject_name_strategy,
    topic_subject_name_strategy,
)
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from broker.errors import ConfigError
from spark_connector.errors import ConnectorError
from spark_connector.formats.avro_encoder import AvroEncoder
from spark_connector.formats.registered_schema import SinkColumn, registered_avro
from spark_connector.formats.schema_registry import SchemaRegistry
from spark_connector.formats.value_format import AvroSchema, RegistrySettings, SchemaFile, SchemaSubject
from spark_connector.formats.write_format import ColumnWrite, SubjectStrategy
from tests.support.schema_registry import Registry

ORDER = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "namespace": "shop",
        "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": ["null", "string"], "default": None}],
    }
)
ROWS = [{"id": 1, "note": "é"}, {"id": -(2**40), "note": None}]
COLUMNS = pa.struct([("id", pa.int64()), ("note", pa.string())])
VALUE = SinkColumn("value", "orders")
AVRO = ColumnWrite("avro", ("id", "note"))


def chosen(registry: Registry, one: ColumnWrite, written: SinkColumn = VALUE) -> ColumnWrite:
    return registered_avro(one, SchemaRegistry(RegistrySettings((registry.url,))), written, COLUMNS)


def ours(one: ColumnWrite) -> list[bytes]:
    made = AvroEncoder(one.schema, COLUMNS, one.prefix).encode(pa.array(ROWS, COLUMNS))
    assert not made.bad
    values: list[bytes] = made.values.to_pylist()
    return values


def theirs(registry: Registry, schema: str | None, **conf: Any) -> list[bytes | None]:
    client = SchemaRegistryClient({"url": registry.url})
    serialize = AvroSerializer(client, schema, conf={name.replace("_", "."): value for name, value in conf.items()})
    context = SerializationContext("orders", MessageField.VALUE)
    return [serialize(row, context) for row in ROWS]


@pytest.mark.parametrize(
    ("strategy", "confluents", "subject"),
    [
        (SubjectStrategy.TOPIC, topic_subject_name_strategy, "orders-value"),
        (SubjectStrategy.RECORD, record_subject_name_strategy, "shop.Order"),
        (SubjectStrategy.TOPIC_RECORD, topic_record_subject_name_strategy, "orders-shop.Order"),
    ],
)
def test_a_new_schema_is_registered_as_by_confluents_serializer(
    registry: Registry, strategy: SubjectStrategy, confluents: Any, subject: str
) -> None:
    registry.register("another", '"int"')
    one = replace(AVRO, schema=AvroSchema(ORDER), strategy=strategy, auto_register=True)
    values = ours(chosen(registry, one))
    assert list(registry.subjects) == ["another", subject]
    assert values == theirs(registry, ORDER, subject_name_strategy=confluents)
    assert registry.subjects[subject] == [2], "Confluent's serializer finds it under the same subject"
    registry.asked.clear()
    assert ours(chosen(registry, one)) == values
    assert registry.asked == [f"/subjects/{subject}"], "what is registered is only looked up"


def test_a_schema_that_is_given_is_looked_up_and_not_registered(registry: Registry, tmp_path: Path) -> None:
    one = replace(AVRO, schema=AvroSchema(ORDER))
    with pytest.raises(ConfigError, match="not registered under subject 'orders-value': .* 'autoRegister'"):
        chosen(registry, one)
    assert registry.subjects == {}
    registry.register("orders-value", '"int"')
    registry.register("orders-value", ORDER)
    registry.register("orders-value", '"long"')
    assert ours(chosen(registry, one)) == theirs(registry, ORDER, auto_register_schemas=False)
    (tmp_path / "order.avsc").write_text(ORDER)
    assert chosen(registry, replace(AVRO, schema=SchemaFile(str(tmp_path / "order.avsc")))) == chosen(registry, one)


def test_the_latest_version_of_the_subject_or_the_one_that_is_named(registry: Registry) -> None:
    with pytest.raises(ConfigError, match="Subject 'orders-value' not found"):
        chosen(registry, AVRO)
    registry.register("orders-value", '"int"')
    registry.register("orders-value", ORDER)
    expected = theirs(registry, None, use_latest_version=True, auto_register_schemas=False)
    assert ours(chosen(registry, AVRO)) == expected
    assert ours(chosen(registry, replace(AVRO, schema=SchemaSubject("orders-value", "2")))) == expected
    assert chosen(registry, replace(AVRO, schema=SchemaSubject("orders-value", "1"))).schema == AvroSchema('"int"')
    registry.register("in", json.dumps({"type": "fixed", "name": "In", "size": 1}))
    registry.register(
        "t-key", '{"type":"array","items":"In"}', references=[{"name": "In", "subject": "in", "version": 1}]
    )
    assert len(chosen(registry, AVRO, SinkColumn("key", "t")).schema.references) == 1


def test_the_id_that_is_named(registry: Registry) -> None:
    registry.register("anything", '"int"')
    number = registry.register("orders-value", ORDER)  # Confluent's serializer asks for its version there
    expected = theirs(registry, None, use_schema_id=number, auto_register_schemas=False)
    assert ours(chosen(registry, replace(AVRO, schema_id=str(number)), SinkColumn("value", None))) == expected
    with pytest.raises(ConfigError, match="Schema 9 not found"):
        chosen(registry, replace(AVRO, schema_id="9"))
    with pytest.raises(ConfigError, match="set one of 'valueSchema' and 'valueSchemaId'"):
        chosen(registry, replace(AVRO, schema_id=str(number), schema=AvroSchema(ORDER)))
    protobuf = registry.register("p", "syntax", schemaType="PROTOBUF")
    with pytest.raises(ConfigError, match="of type PROTOBUF, not AVRO"):
        chosen(registry, replace(AVRO, schema_id=str(protobuf)))


def test_the_registry_is_asked_whether_a_new_schema_is_compatible(registry: Registry) -> None:
    old = registry.register("orders-value", '"int"')
    registry.set_level("BACKWARD")
    one = replace(AVRO, schema=AvroSchema(ORDER), auto_register=True)
    with pytest.raises(ConfigError, match=r"says that it is incompatible: version 1: int was written, which cannot"):
        chosen(registry, one)
    assert registry.subjects == {"orders-value": [old]}
    assert registry.asked[-1] == "/compatibility/subjects/orders-value/versions/latest"
    registry.set_level("NONE")
    chosen(registry, one)
    assert registry.asked[-2:] == [
        "/compatibility/subjects/orders-value/versions/latest",
        "/subjects/orders-value/versions",
    ]


def test_without_a_schema_it_is_that_of_the_columns(registry: Registry) -> None:
    made = chosen(registry, replace(AVRO, auto_register=True))
    assert made.schema.text == registry.text(1)
    assert made.prefix == b"\0\0\0\0\1"
    assert ours(made)[1] == b"\0\0\0\0\1\0" + b"\xff" * 5 + b"\x3f\2"


def test_subjects_that_cannot_be_named(registry: Registry) -> None:
    with pytest.raises(ConfigError, match="'valueSubjectStrategy'=topic needs the option 'topic'"):
        chosen(registry, AVRO, SinkColumn("value", None))
    with pytest.raises(ConfigError, match="'keySubjectStrategy'=record needs 'keySchema' to be a record"):
        chosen(registry, replace(AVRO, strategy=SubjectStrategy.RECORD), SinkColumn("key", None))
    with pytest.raises(ConfigError, match="needs 'valueSchema' to be a record"):
        chosen(registry, replace(AVRO, schema=AvroSchema('"int"'), strategy=SubjectStrategy.TOPIC_RECORD))


def test_subjects_of_any_name_are_found(registry: Registry) -> None:
    place = SinkColumn("value", "a/b c?d")
    one = replace(AVRO, schema=AvroSchema(ORDER), auto_register=True)
    chosen(registry, one, place)
    assert list(registry.subjects) == ["a/b c?d-value"]
    assert chosen(registry, AVRO, place) == chosen(registry, replace(one, auto_register=False), place)


@pytest.mark.parametrize(
    ("status", "error"), [(409, ConfigError), (422, ConfigError), (403, ConnectorError), (503, ConnectorError)]
)
def test_the_registrys_words_are_shown(registry: Registry, status: int, error: type[Exception]) -> None:
    registry.failures = [404, 404] + [status] * 3
    with pytest.raises(error, match=f"HTTP {status} Error in the backend data store"):
        chosen(registry, replace(AVRO, schema=AvroSchema(ORDER), auto_register=True))


def test_without_a_registry_there_is_no_prefix() -> None:
    one = replace(AVRO, schema=AvroSchema(ORDER))
    assert registered_avro(one, None, VALUE, COLUMNS) == one

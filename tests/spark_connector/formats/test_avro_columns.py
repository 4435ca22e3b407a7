"""The types of Avro's schemas as Spark has them: its own SchemaConverters, in a JVM without a session, is the judge."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError

from broker.errors import ConfigError
from spark_connector.formats.avro_columns import column_of
from spark_connector.formats.avro_schema import parse_avro
from spark_connector.formats.schema_text import parse_spark_json
from spark_connector.formats.value_format import AvroSchema
from tests.support.avro_cases import Case, cases
from tests.support.example_search import search
from tests.support.java_process import SPARK_JARS, JavaProcess, exceptions_of_py4j
from tests.support.randomness import seed_of
from tests.support.requirements import Unavailable, give_up

SEED = seed_of(31)
EXAMPLES = 150
NODE = {
    "type": "record",
    "name": "Node",
    "fields": [{"name": "id", "type": "int"}, {"name": "n", "type": ["null", "Node"]}],
}
BYTES = {"type": "bytes", "logicalType": "decimal"}


@pytest.fixture(scope="module")
def spark() -> Iterator[JavaProcess]:
    try:
        made = JavaProcess(f"{SPARK_JARS}/*")
    except Unavailable as error:
        give_up(f"Java: {error}")
    with made, exceptions_of_py4j():
        if not _has(made, "org.apache.spark.sql.avro.SchemaConverters"):
            pytest.skip("this Spark has Avro in a jar of its own")
        yield made


def _has(java: JavaProcess, name: str) -> bool:
    try:
        java.jvm.java.lang.Class.forName(name)
    except Py4JJavaError:
        return False
    return True


def theirs(spark: JavaProcess, schema: str, levels: int) -> pa.DataType | str:
    try:
        parsed = spark.jvm.org.apache.avro.Schema.Parser().setValidateDefaults(False).parse(schema)
        converters = spark.jvm.org.apache.spark.sql.avro.SchemaConverters
        text = converters.toSqlType(parsed, False, "", levels).dataType().json()
    except Py4JJavaError as error:
        return str(error.java_exception.toString())
    try:
        return parse_spark_json(json.loads(text.replace('"void"', '"int"')), text)
    except ConfigError as error:
        return str(error)  # a struct without fields


def ours(schema: str, levels: int) -> pa.DataType | str:
    try:
        return _without_nulls(column_of(parse_avro(AvroSchema(schema)), levels))
    except ConfigError as error:
        return str(error)


def _without_nulls(kind: pa.DataType) -> pa.DataType:
    """With int for Spark's void, as in `theirs`."""
    if pa.types.is_struct(kind):
        return pa.struct([(one.name, _without_nulls(one.type)) for one in kind])
    if pa.types.is_list(kind):
        return pa.list_(_without_nulls(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _without_nulls(kind.item_type))
    return pa.int32() if pa.types.is_null(kind) else kind


@pytest.mark.parametrize(
    "schema",
    [
        {**BYTES, "precision": 64, "scale": 127},
        {**BYTES, "precision": 38, "scale": 38},
        {**BYTES, "precision": 4, "scale": 5},
        {**BYTES, "precision": "10", "scale": 2},
        {**BYTES, "precision": 10, "scale": "2"},
        {**BYTES, "precision": 10, "scale": -1},
        BYTES,
        {"type": "fixed", "name": "F", "size": 4, "logicalType": "decimal", "precision": 9},
        {"type": "fixed", "name": "F", "size": 4, "logicalType": "decimal", "precision": 10},
        {"type": "fixed", "name": "F", "size": 0, "logicalType": "decimal", "precision": 1},
        {"type": "fixed", "name": "F", "size": 16, "logicalType": "uuid"},
        {"type": "string", "logicalType": "uuid"},
        {"type": "string", "logicalType": "decimal", "precision": 4},
        {"type": "long", "logicalType": "date"},
        {"type": "int", "logicalType": "timestamp-millis"},
        {"type": "int", "logicalType": "time-millis"},
        {"type": "long", "logicalType": "local-timestamp-micros"},
        [{"type": "int", "logicalType": "date"}, "long"],
        ["null", "float", "double"],
        ["float", "double", "int"],
    ],
    ids=json.dumps,
)
def test_types_are_sparks(spark: JavaProcess, schema: Any) -> None:
    schema = json.dumps({"type": "record", "name": "R", "fields": [{"name": "f", "type": schema}]})
    assert ours(schema, -1) == theirs(spark, schema, -1)


@pytest.mark.parametrize("levels", [-1, 0, 1, 2, 15])
def test_levels_of_a_record_that_contains_itself_are_sparks(spark: JavaProcess, levels: int) -> None:
    found, expected = ours(json.dumps(NODE), levels), theirs(spark, json.dumps(NODE), levels)
    if levels < 1:
        assert "recursiveFieldMaxDepth" in str(expected)
        assert "recursiveFieldMaxDepth" in str(found)
    else:
        assert found == expected


def test_a_decimal_that_spark_has_not_is_refused_by_both(spark: JavaProcess) -> None:
    schema = json.dumps({**BYTES, "precision": 39, "scale": 2})
    assert "38" in str(theirs(spark, schema, -1))
    assert "38 at most" in str(ours(schema, -1))


def test_types_of_any_schema_are_sparks(spark: JavaProcess) -> None:
    def compare(case: Case, counts: Counter[str]) -> None:
        for schema in (case.writer, case.reader):
            found, expected = ours(schema, 2), theirs(spark, schema, 2)
            if isinstance(found, str) or isinstance(expected, str):
                continue  # arrays that we refuse, structs without fields
            counts["compared"] += 1
            assert found == expected, schema

    assert search(SEED, EXAMPLES, cases(), compare)["compared"] > EXAMPLES


def test_levels_that_multiply_the_fields_without_a_bound_are_refused() -> None:
    """Nine kids at 15 levels would be more fields than any memory holds."""
    kids = [{"name": f"kid{n}", "type": ["null", "Tree"]} for n in range(9)]
    tree = parse_avro(AvroSchema(json.dumps({"type": "record", "name": "Tree", "fields": kids})))
    assert column_of(tree, 3).num_fields == 9
    with pytest.raises(ConfigError, match="more than 100,000 fields at 15 levels: lower the option"):
        column_of(tree, 15)
    one: Any = {"type": "record", "name": "T0", "fields": [{"name": "a", "type": "int"}]}
    for level in range(1, 50):
        fields = [{"name": "a", "type": one}, {"name": "b", "type": f"T{level - 1}"}]
        one = {"type": "record", "name": f"T{level}", "fields": fields}
    with pytest.raises(ConfigError, match="more than 100,000 fields$"):
        column_of(parse_avro(AvroSchema(json.dumps(one))))

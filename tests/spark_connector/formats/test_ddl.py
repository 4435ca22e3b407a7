"""Spark's DDL to Arrow types."""

from __future__ import annotations

import json
import re

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from broker.errors import ConfigError
from spark_connector.formats.schema_text import parse_ddl, parse_spark_json

ATOMIC = (
    "boolean tinyint byte smallint short int integer bigint long float real double string binary date timestamp "
    "timestamp_ltz timestamp_ntz decimal(5,2) dec(7) numeric varchar(3) char(2)"
).split()
TYPES = st.recursive(
    st.sampled_from(ATOMIC),
    lambda inner: st.one_of(
        inner.map(lambda one: f"array<{one}>"),
        inner.map(lambda one: f"map<string, {one}>"),
        st.lists(inner, min_size=1, max_size=3).map(
            lambda many: f"struct<{', '.join(f'f{n}: {one}' for n, one in enumerate(many))}>"
        ),
    ),
    max_leaves=6,
)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("a INT", pa.struct([("a", pa.int32())])),
        ("a: INT, b BIGINT NOT NULL", pa.struct([("a", pa.int32()), ("b", pa.int64())])),
        ("`a b``c` string COMMENT 'x, \\'y > z'", pa.struct([("a b`c", pa.string())])),
        ("STRUCT<a: ARRAY<STRUCT<b:INT>>>", pa.struct([("a", pa.list_(pa.struct([("b", pa.int32())])))])),
        ("struct INT", pa.struct([("struct", pa.int32())])),
        ("m map<string,decimal(10,2)>", pa.struct([("m", pa.map_(pa.string(), pa.decimal128(10, 2)))])),
        ("d decimal", pa.struct([("d", pa.decimal128(10, 0))])),
    ],
)
def test_what_ddl_says(text: str, kind: pa.DataType) -> None:
    assert parse_ddl(text) == kind
    assert parse_ddl(f"\n {text}\t") == kind


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "ends too early"),
        ("a", "ends too early"),
        ("a INT,", "ends too early"),
        ("a INT b", "',' is missing before 'b'"),
        ("a NUMBER", "'number' is not a type"),
        ("a INT; drop", "';' is out of place"),
        ("a ARRAY<INT", "'>' is missing"),
        ("a DECIMAL(39)", "needs a precision of 1 to 38"),
        ("a DECIMAL(5,2,1)", "needs a precision of 1 to 38"),
        ("a DECIMAL(", "a number is missing"),
        ("a INT NOT b", "NOT without NULL"),
        ("a INT, a STRING", "names a twice"),
        ("struct<a int> b", "is unexpected"),
        ("a interval", "is not a type"),
        ("a " + "array<" * 100 + "int" + ">" * 100, "nested more than 64 deep"),
    ],
)
def test_what_is_no_ddl(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(why)):
        parse_ddl(text)


@given(st.text(alphabet="ab <>,:()`'\"\\1\n", max_size=40))
def test_any_text_is_a_schema_or_a_clear_error(text: str) -> None:
    try:
        assert pa.types.is_struct(parse_ddl(text))
    except ConfigError:
        pass


@given(st.lists(TYPES, min_size=1, max_size=4))
def test_sparks_json_says_the_same(types: list[str]) -> None:
    kind = parse_ddl(", ".join(f"c{n} {one}" for n, one in enumerate(types)))
    schema = from_arrow_schema(kind, prefer_timestamp_ntz=True)
    assert StructType.fromJson(schema.jsonValue()) == schema
    assert parse_spark_json(schema.jsonValue(), "") == kind


@pytest.mark.parametrize("document", ['{"type":"struct"}', '{"type":"udt"}', '{"type":"struct","fields":[{"name":1}]}'])
def test_json_that_is_no_schema(document: str) -> None:
    with pytest.raises(ConfigError, match="Not a schema as Spark writes it"):
        parse_spark_json(json.loads(document), document)


def test_spark_reads_ddl_the_same(spark: SparkSession) -> None:
    text = (
        ", ".join(f"c{n} {one}" for n, one in enumerate(ATOMIC) if "char" not in one)
        + ", `x ``y` struct<a: array<map<string,int>> NOT NULL COMMENT 'c', b int>, z map<string,struct<q:date>>"
    )
    theirs = StructType.fromDDL(text)
    nullable = json.loads(re.sub(r'"(nullable|containsNull|valueContainsNull)": ?false', r'"\1":true', theirs.json()))
    for one in nullable["fields"]:
        one["metadata"] = {}
    ours = from_arrow_schema(parse_ddl(text), prefer_timestamp_ntz=True)
    assert ours.simpleString() == StructType.fromJson(nullable).simpleString()

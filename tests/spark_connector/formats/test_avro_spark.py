"""Avro as Spark's `to_avro` writes it: drawn columns, schemas and values by both encoders, and the schemas it makes."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError

from broker.errors import ConfigError
from spark_connector.formats.avro_derived import derived_schema
from spark_connector.formats.avro_encoder import AvroEncoder
from spark_connector.formats.value_format import AvroSchema
from tests.support.avro_writes import Refusal, SparkAvro, Write, spark_avro_or_give_up, writes
from tests.support.example_search import search, search_on
from tests.support.java_process import exceptions_of_py4j
from tests.support.randomness import examples, seed_of

SEED = seed_of(33)
EXAMPLES = examples(150)
HOUR_S = 3600


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkAvro]:
    with spark_avro_or_give_up() as running, exceptions_of_py4j():
        yield running


def ours(case: Write) -> list[bytes | Refusal] | Refusal:
    try:
        encoder = AvroEncoder(AvroSchema(case.schema), case.rows.type)
    except ConfigError as error:
        return Refusal(str(error))
    made = encoder.encode(case.rows)
    return [Refusal(made.bad[row]) if row in made.bad else raw for row, raw in enumerate(made.values.to_pylist())]


def compare(spark: SparkAvro, case: Write, counts: Counter[str]) -> None:
    """The bytes of its rows; and the schema that either makes of its type."""
    compare_rows(ours(case), spark.write(case), case, counts)
    kind = case.rows.type
    assert spark.derived(kind).equals(spark.parsed(derived_schema(kind).text)), kind
    counts["equal schemas"] += 1


Written = list[bytes | Refusal] | Refusal


def compare_rows(found: Written, expected: Written, case: Write, counts: Counter[str]) -> None:
    if isinstance(found, Refusal) or isinstance(expected, Refusal):
        counts["schemas that both refuse"] += 1
        assert isinstance(found, Refusal), (expected, found, case)
        assert isinstance(expected, Refusal), (found, case)
        return
    for one, other in zip(found, expected, strict=True):
        if isinstance(one, Refusal) or isinstance(other, Refusal):
            counts["rows that both refuse"] += 1
            assert isinstance(one, Refusal), (other, one, case)
            assert isinstance(other, Refusal), (one, other, case)
        else:
            counts["equal bytes"] += 1
            assert one == other, case


def search_spark(spark: SparkAvro, number: int) -> Counter[str]:
    return search(number, EXAMPLES, writes(), functools.partial(compare, spark))


@pytest.mark.timeout(600)
def test_rows_are_written_as_spark_writes_them(spark: SparkAvro) -> None:
    counts = search_spark(spark, SEED)
    print(f"seed {SEED}, {EXAMPLES} schemas: {dict(counts)}")
    assert counts["equal bytes"] > EXAMPLES / 2
    assert counts["rows that both refuse"] > EXAMPLES / 20


@pytest.mark.parametrize("name", ["_x", "é", "x1", "a-b", "a b", "1a", "a.b", "a²", "ａ", "x\u0660", "😀"])
def test_names_that_avro_does_not_have_are_refused_as_by_spark(spark: SparkAvro, name: str) -> None:
    kind = pa.struct([(name, pa.int32())])
    try:
        expected = spark.derived(kind)
    except Py4JJavaError:
        with pytest.raises(ConfigError, match="a name that Avro does not allow"):
            derived_schema(kind)
    else:
        assert expected.equals(spark.parsed(derived_schema(kind).text))


@pytest.mark.slow
@pytest.mark.timeout(2 * HOUR_S)
def test_an_hour_of_rows_is_written_as_spark_writes_them(spark: SparkAvro) -> None:
    search_on(HOUR_S, SEED, functools.partial(search_spark, spark))

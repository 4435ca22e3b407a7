"""Avro as Java reads it: a writer's schema, a reader's that evolved from it, and values, by both decoders."""

from __future__ import annotations

import collections
import json
import time
from collections.abc import Iterator
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, assume, given, seed, settings

from broker.errors import ConfigError
from spark_connector.formats.avro_decoder import AvroDecoder
from spark_connector.formats.schema_registry import SchemaRegistry
from spark_connector.formats.value_format import AvroSchema
from tests.support.avro_cases import Case, cases, full_named
from tests.support.avro_java import AvroJava, Refused, as_numbers, avro_java_or_give_up, in_numbers, shown
from tests.support.java_process import exceptions_of_py4j

SEED = 30
EXAMPLES = 1500
HOUR_S = 3600
THEIRS = ("is not in the enum symbol set", "default")
"""In the reasons for which Java alone refuses: it looks at defaults of branches that no value reaches."""
WANTED = ("take no bytes", "digits: Spark's", "UTF-8", "recursive in", "is not a value of int")
"""Reasons for which we alone refuse."""


@pytest.fixture(scope="module")
def java() -> Iterator[AvroJava]:
    with avro_java_or_give_up() as running, exceptions_of_py4j():
        yield running


class Schemas:
    """Stands for a registry with one schema."""

    def __init__(self, text: str) -> None:
        self._text = text

    def schema(self, _: int) -> AvroSchema:
        return AvroSchema(self._text)


def ours(case: Case, levels: int = 3) -> tuple[pa.DataType, list[Any]]:
    """(type, what each value is or why it is refused)."""
    try:
        decoder = AvroDecoder(AvroSchema(case.reader), cast(SchemaRegistry, Schemas(case.writer)), levels)
    except ConfigError as error:
        return None, [Refused(str(error))] * len(case.values)
    decoded = decoder.decode(pa.array([b"\0\0\0\0\1" + value for value in case.values], pa.binary()))
    kind = in_numbers(decoder.type)
    assume(kind == decoder.type or "null" not in str(kind))  # pyarrow's cast breaks arrays and maps of nulls
    rows = (decoded.column if kind == decoder.type else decoded.column.cast(kind)).to_pylist()
    found = [Refused(decoded.bad[n]) if n in decoded.bad else as_numbers(row, kind) for n, row in enumerate(rows)]
    return decoder.type, found


def theirs(java: AvroJava, case: Case, kind: pa.DataType) -> list[Any]:
    schema, named = full_named(json.loads(case.reader))
    found = []
    for value in java.read(case.writer, case.reader, list(case.values)):
        try:
            found.append(value if isinstance(value, Refused) else nulls(shown(schema, value, named, kind), kind))
        except Refused as error:
            found.append(error)
    return found


def is_recursive(schema: str) -> bool:
    try:
        AvroDecoder(AvroSchema(schema))
    except ConfigError as error:
        return "recursive in" in str(error)
    return False


def nulls(value: Any, kind: pa.DataType) -> Any:
    """With the other branches of unions, which are null."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {one.name: nulls(value.get(one.name), one.type) for one in kind}
    if pa.types.is_list(kind):
        return [nulls(item, kind.value_type) for item in value]
    if pa.types.is_map(kind):
        return {key: nulls(item, kind.item_type) for key, item in value.items()}
    return value


def compare(java: AvroJava, case: Case, counts: collections.Counter[str]) -> None:
    kind, found = ours(case)
    try:
        expected = [Refused("")] * len(found) if kind is None else theirs(java, case, kind)
    except Refused as error:
        counts["schemas that Java refuses"] += 1
        raise AssertionError(f"{error}: {case}") from None
    for value, one, other in zip(case.values, found, expected, strict=True):
        if "StackOverflowError" in str(other):
            counts["Java dies"] += 1  # of a record that must contain itself
        elif isinstance(other, Refused) and any(reason in str(other) for reason in THEIRS):
            counts["Java refuses a default, needed or not"] += 1
        elif isinstance(other, Refused) and not isinstance(one, Refused) and is_recursive(case.reader):
            counts["left out as too deep"] += 1
        elif isinstance(one, Refused) and any(reason in str(one) for reason in WANTED):
            counts["we alone refuse"] += 1
        elif isinstance(one, Refused) or isinstance(other, Refused):
            counts["both refuse"] += 1
            assert isinstance(one, Refused), (f"Java refuses: {other}", one, value, case)
            assert isinstance(other, Refused), (f"we refuse: {one}", other, value, case)
            assert "member" not in str(one), one
        else:
            counts["equal"] += 1
            assert one == other, (value, case)


def search(java: AvroJava, number: int, examples: int) -> collections.Counter[str]:
    counts: collections.Counter[str] = collections.Counter()

    @seed(number)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        report_multiple_bugs=False,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(cases())
    def each(case: Case) -> None:
        compare(java, case, counts)

    try:
        each()
    except AssertionError as error:
        raise AssertionError(f"seed {number}: {error}") from error
    return counts


@pytest.mark.timeout(600)
def test_values_are_read_as_java_reads_them(java: AvroJava) -> None:
    counts = search(java, SEED, EXAMPLES)
    print(f"seed {SEED}, {EXAMPLES} pairs of schemas, values: {dict(counts)}")
    assert counts["equal"] > EXAMPLES / 2
    assert counts["both refuse"] > EXAMPLES / 20


@pytest.mark.slow
@pytest.mark.timeout(2 * HOUR_S)
def test_an_hour_of_values_is_read_as_java_reads_them(java: AvroJava) -> None:
    """Other seeds one after the other."""
    counts: collections.Counter[str] = collections.Counter()
    begin, number = time.monotonic(), SEED
    while time.monotonic() - begin < HOUR_S:
        number += 1
        counts += search(java, number, EXAMPLES)
    print(f"seeds {SEED + 1} to {number}, {EXAMPLES} pairs of schemas each, values: {dict(counts)}")

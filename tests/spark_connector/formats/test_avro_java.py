"""Avro as Java reads it: a writer's schema, a reader's that evolved from it, and values, by both decoders."""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume
from py4j.protocol import Py4JJavaError

from broker.errors import ConfigError
from spark_connector.formats.avro_decoder import AvroDecoder
from spark_connector.formats.frames import confluents
from spark_connector.formats.value_format import AvroSchema
from tests.support.avro_cases import Case, cases, full_named
from tests.support.example_search import search, search_on
from tests.support.java_process import SPARK_JARS, JavaProcess, exceptions_of_py4j
from tests.support.randomness import examples, seed_of
from tests.support.requirements import Unavailable, give_up

# --- Avro's library for Java, which lies among PySpark's jars, as the judge of how a value is read.
# `AvroJava.read` decodes bytes of a writer's schema as a reader's (GenericDatumReader) and returns Avro's JSON
# encoding of the value; `shown` turns that into what a column holds.

_JARS = ("avro-1*.jar", "jackson-core-2*.jar", "jackson-databind-2*.jar", "jackson-annotations-2*.jar")
_RECORD = '{"type":"record","name":"Outer","fields":[{"name":"v","type":TYPE}]}'
_MORE = ("slf4j-api-*.jar", "commons-compress-*.jar")


class Refused(Exception):
    """Java threw; or a column cannot hold what it read. The text says which."""


class AvroJava(JavaProcess):
    """Schemas are JSON texts. Raises Unavailable when Java cannot be had."""

    def __init__(self) -> None:
        jars = [str(next(SPARK_JARS.glob(pattern))) for pattern in (*_JARS, *_MORE)]
        super().__init__(":".join(jars))
        self._avro = self.jvm.org.apache.avro
        self._decoders = self._avro.io.DecoderFactory.get()
        self._encoders = self._avro.io.EncoderFactory.get()

    def schema(self, text: str) -> Any:
        """As Spark parses it: defaults are not checked. Logical types do not count when schemas are resolved, but
        Java's encoder of JSON takes values of some for another type. Raises Refused."""
        text = text.replace('"logicalType"', '"wasLogicalType"')
        try:
            return self._avro.Schema.Parser().setValidateDefaults(False).parse(text)
        except Py4JJavaError as error:
            raise Refused(f"schema: {_said(error)}") from None

    def read(self, writer: str, reader: str, values: list[bytes]) -> list[Any]:
        """The JSON of each value, or Refused (returned). Raises Refused if a schema cannot be parsed."""
        # In records, because py4j would turn a float or an int alone into a double or a long.
        theirs, ours = (self.schema(_RECORD.replace("TYPE", one)) for one in (writer, reader))
        read = self._avro.generic.GenericDatumReader(theirs, ours)
        write = self._avro.generic.GenericDatumWriter(ours)
        return [self._one(read, write, ours, value) for value in values]

    def _one(self, read: Any, write: Any, ours: Any, value: bytes) -> Any:
        try:
            datum = read.read(None, self._decoders.binaryDecoder(value, None))
            stream = self.jvm.java.io.ByteArrayOutputStream()
            encoder = self._encoders.jsonEncoder(ours, stream)
            write.write(datum, encoder)
            encoder.flush()
            return json.loads(stream.toString("UTF-8") or "{}").get("v", {})  # an empty record is written as nothing
        except Py4JJavaError as error:
            return Refused(_said(error))


def _said(error: Py4JJavaError) -> str:
    return str(error.java_exception.toString())[:300]


def avro_java_or_give_up() -> AvroJava:
    try:
        return AvroJava()
    except (Unavailable, StopIteration) as error:
        give_up(f"Java Avro: {error}")


def shown(schema: Any, value: Any, named: dict[str, Any], kind: pa.DataType) -> Any:
    """What a column of the Arrow type `kind` holds for `value`, JSON of `schema`; fields that the column lacks are left
    out. Times and dates are numbers in the column's unit. `named`: the schema's named types. Raises Refused."""
    node = named.get(schema, schema) if isinstance(schema, str) else schema
    if isinstance(node, list):
        return _of_union(node, value, named, kind)
    name = node if isinstance(node, str) else node["type"]
    match name:
        case "record":
            return {
                one["name"]: shown(one["type"], value.get(one["name"], {}), named, kind.field(one["name"]).type)
                for one in node["fields"]
                if kind.get_field_index(one["name"]) >= 0
            }
        case "array":
            return [shown(node["items"], item, named, kind.value_type) for item in value]
        case "map":
            return {key: shown(node["values"], item, named, kind.item_type) for key, item in value.items()}
        case "bytes" | "fixed":
            return _bytes(value.encode("iso-8859-1"), kind)
        case "float" | "double":
            number = float(value)
            return float(np.float32(number)) if name == "float" else number
        case "int" | "long" if pa.types.is_timestamp(kind) and "millis" in node["logicalType"]:
            if not -(2**63) <= value * 1000 < 2**63:
                raise Refused(f"{value} ms is no timestamp")
            return value * 1000
    return value


def _of_union(branches: list[Any], value: Any, named: dict[str, Any], kind: pa.DataType) -> Any:
    if value is None:
        return None
    ((name, inner),) = value.items()
    some = [one for one in branches if one != "null"]
    index = next(i for i, one in enumerate(some) if _name(one) == name)
    if len(some) == 1 or (len(some) == 2 and {_kind(one) for one in some} in ({"int", "long"}, {"float", "double"})):
        return shown(_plain(some[index]) if len(some) == 2 else some[index], inner, named, kind)
    member = f"member{index}"
    if kind.get_field_index(member) < 0:
        return {}
    return {member: shown(some[index], inner, named, kind.field(member).type)}


def _name(branch: Any) -> str:
    return branch if isinstance(branch, str) else branch.get("name", branch["type"])


def _kind(branch: Any) -> str:
    return branch if isinstance(branch, str) else branch["type"]


def _plain(branch: Any) -> Any:
    return _kind(branch)


def _bytes(raw: bytes, kind: pa.DataType) -> Any:
    if not pa.types.is_decimal(kind):
        return raw
    unscaled = int.from_bytes(raw, signed=True)
    if not raw or abs(unscaled) >= 10**kind.precision:
        raise Refused("not a decimal of the type")
    return Decimal(unscaled).scaleb(-kind.scale)


def as_numbers(value: Any, kind: pa.DataType) -> Any:
    """A value of a column as `shown` has it: times as numbers, maps as dicts, and no fields that are null."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {one.name: as_numbers(value[one.name], one.type) for one in kind}
    if pa.types.is_list(kind):
        return [as_numbers(item, kind.value_type) for item in value]
    if pa.types.is_map(kind):
        return {key: as_numbers(item, kind.item_type) for key, item in value}
    return value


def in_numbers(kind: pa.DataType) -> pa.DataType:
    """The type with int64 for times and int32 for dates, to which Arrow casts without a check."""
    if pa.types.is_struct(kind):
        return pa.struct([(one.name, in_numbers(one.type)) for one in kind])
    if pa.types.is_list(kind):
        return pa.list_(in_numbers(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, in_numbers(kind.item_type))
    return pa.int64() if pa.types.is_timestamp(kind) else pa.int32() if pa.types.is_date(kind) else kind


# --- the tests

SEED = seed_of(30)
EXAMPLES = examples(750)
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

    framing = staticmethod(confluents)

    def schema(self, _: int | str, /) -> AvroSchema:
        return AvroSchema(self._text)


def ours(case: Case, levels: int = 3) -> tuple[pa.DataType, list[Any]]:
    """(type, what each value is or why it is refused)."""
    try:
        decoder = AvroDecoder(AvroSchema(case.reader), Schemas(case.writer), levels)
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


def compare(java: AvroJava, case: Case, counts: Counter[str]) -> None:
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


def search_java(java: AvroJava, number: int) -> Counter[str]:
    return search(number, EXAMPLES, cases(), functools.partial(compare, java))


@pytest.mark.timeout(600)
def test_values_are_read_as_java_reads_them(java: AvroJava) -> None:
    counts = search_java(java, SEED)
    print(f"seed {SEED}, {EXAMPLES} pairs of schemas, values: {dict(counts)}")
    assert counts["equal"] > EXAMPLES / 2
    assert counts["both refuse"] > EXAMPLES / 20


@pytest.mark.slow
@pytest.mark.timeout(2 * HOUR_S)
def test_an_hour_of_values_is_read_as_java_reads_them(java: AvroJava) -> None:
    search_on(HOUR_S, SEED, functools.partial(search_java, java))

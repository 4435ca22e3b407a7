"""Cases for writers of Avro: rows of columns, and a schema for them. Spark's own writer of Avro, which is their judge.

`writes` is a strategy of hypothesis: most schemas fit the columns, in one of the many ways that `to_avro` allows, and
most values fit the schema.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa
from hypothesis import strategies as st
from py4j.protocol import Py4JJavaError

from tests.support.java_process import SPARK_JARS, JavaProcess
from tests.support.requirements import Unavailable, give_up

_DEEPEST = 2
_FEW = st.integers(-70, 70)
_TEXTS = st.sampled_from(["x", "y", "z", "", "é€", "longer than one byte of length can say " * 3])
_OPENS = ("--add-opens=java.base/java.nio=ALL-UNNAMED", "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED")


class Refusal(NamedTuple):
    why: str


class Write(NamedTuple):
    rows: pa.StructArray
    schema: str


class SparkAvro(JavaProcess):
    """What `to_avro` calls, in a JVM without Spark running. Raises Unavailable when it cannot be had."""

    def __init__(self) -> None:
        super().__init__(f"{SPARK_JARS}/*", *_OPENS)
        spark = self.jvm.org.apache.spark.sql
        self._arrow = getattr(getattr(spark.execution.arrow, "ArrowConverters$"), "MODULE$")
        if "fromIPCStream" not in dir(self._arrow):
            raise Unavailable("this Spark reads no Arrow without a task")
        self._spark = spark
        self._avro = self.jvm.org.apache.avro
        self._encoders = self._avro.io.EncoderFactory.get()

    def parsed(self, text: str) -> Any:
        """Raises Py4JJavaError."""
        return self._avro.Schema.Parser().parse(text)

    def derived(self, kind: pa.StructType) -> Any:
        """The schema of columns, as to_avro makes it. Raises Py4JJavaError."""
        _, theirs = self._rows(pa.array([], kind))
        return self._spark.avro.SchemaConverters.toAvroType(theirs, False, "topLevelRecord", "")

    def write(self, case: Write) -> list[bytes | Refusal] | Refusal:
        """The data of each row, or why it is refused; or why all are. A row that is null is left out."""
        rows, kind = self._rows(case.rows)
        try:
            schema = self.parsed(case.schema)
            serializer = self._spark.avro.AvroSerializer(kind, schema, False)
        except Py4JJavaError as error:
            return Refusal(_said(error))
        writer = self._avro.generic.GenericDatumWriter(schema)
        found = []
        while rows.hasNext():
            found.append(self._one(serializer, writer, rows.next()))
        return found

    def _one(self, serializer: Any, writer: Any, row: Any) -> bytes | Refusal:
        stream = self.jvm.java.io.ByteArrayOutputStream()
        encoder = self._encoders.directBinaryEncoder(stream, None)
        try:
            writer.write(serializer.serialize(row), encoder)
        except Py4JJavaError as error:
            return Refusal(_said(error))
        encoder.flush()
        return bytes(stream.toByteArray())

    def _rows(self, rows: pa.StructArray) -> tuple[Any, Any]:
        """(iterator, type) of Spark."""
        batch = pa.RecordBatch.from_struct_array(rows)
        stream = pa.BufferOutputStream()
        with pa.ipc.new_stream(stream, batch.schema) as out:
            out.write_batch(batch)
        both = self._arrow.fromIPCStream(stream.getvalue().to_pybytes())
        return both._1(), both._2()


def _said(error: Py4JJavaError) -> str:
    return str(error.java_exception.toString())[:400]


def spark_avro_or_give_up() -> SparkAvro:
    try:
        return SparkAvro()
    except (Unavailable, StopIteration) as error:
        give_up(f"Spark's Avro: {error}")


class _Column(NamedTuple):
    """A type of Arrow, values of it, and schemas that to_avro takes for it, or rarely does not."""

    kind: pa.DataType
    values: st.SearchStrategy[Any]
    schemas: st.SearchStrategy[Any]


def _logical(kind: str, *names: str) -> st.SearchStrategy[Any]:
    return st.sampled_from([kind, *({"type": kind, "logicalType": name} for name in names)])


def _integer(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(1 << (bits - 1)), (1 << (bits - 1)) - 1) | _FEW


_TIMES = st.integers(-62135596800000000, 253402300799999999) | _integer(64).filter(lambda one: abs(one) < 1 << 62)
_STAMPS = ("timestamp-millis", "timestamp-micros", "timestamp-nanos", "time-micros")
_LOCAL = ("local-timestamp-millis", "local-timestamp-micros", "local-timestamp-nanos")


class _Maker:
    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw
        self._names = 0

    def pick(self, *choices: Any) -> Any:
        return self._draw(st.sampled_from(choices))

    def chance(self, percent: int) -> bool:
        return self._draw(st.integers(0, 99)) < percent

    def name(self, kind: str) -> dict[str, Any]:
        self._names += 1
        return {"type": kind, "name": f"N{self._names}"}

    def column(self, depth: int) -> _Column:
        if depth >= _DEEPEST or self.chance(70):
            return self.atom()
        return self.pick(self.struct, self.list, self.map, self.members)(depth)

    def atom(self) -> _Column:
        made: list[Callable[[], _Column]] = [
            lambda: _Column(pa.bool_(), st.booleans(), st.just("boolean")),
            lambda: _Column(pa.int8(), _integer(8), _logical("int", "date", "time-millis")),
            lambda: _Column(pa.int16(), _integer(16), st.just("int")),
            lambda: _Column(pa.int32(), _integer(32), _logical("int", "date")),
            lambda: _Column(pa.int64(), _integer(64), _logical("long", *_STAMPS) | st.just(["null", "int", "long"])),
            lambda: _Column(pa.float32(), st.floats(width=32, allow_nan=False), st.just("float")),
            lambda: _Column(pa.float64(), st.floats(allow_nan=False), st.just("double") | st.just(["float", "double"])),
            lambda: _Column(pa.date32(), st.dates(), _logical("int", "date")),
            lambda: _Column(pa.timestamp("us", "UTC"), _TIMES, _logical("long", *_STAMPS, *_LOCAL)),
            lambda: _Column(pa.timestamp("us"), _TIMES, _logical("long", *_LOCAL, "timestamp-micros")),
            self.text,
            self.binary,
            self.decimal,
        ]
        one = self.pick(*made)()
        return one if self.chance(97) else one._replace(schemas=st.sampled_from(["string", "bytes", "boolean", "null"]))

    def text(self) -> _Column:
        enum = {**self.name("enum"), "symbols": ["x", "y"]}
        kinds: list[Any] = ["string", {"type": "string", "logicalType": "uuid"}, enum]
        return _Column(pa.string(), _TEXTS, st.sampled_from(kinds))

    def binary(self) -> _Column:
        fixed = {**self.name("fixed"), "size": 2}
        return _Column(pa.binary(), st.sampled_from([b"ab", b"\0\xff", b"abc"]), st.sampled_from(["bytes", fixed]))

    def decimal(self) -> _Column:
        precision = self._draw(st.integers(1, 38))
        scale = self._draw(st.integers(0, precision))
        edge = 10**precision - 1
        numbers = st.integers(-edge, edge) | st.integers(-min(edge, 300), min(edge, 300))
        values = numbers.map(lambda one: Decimal(f"{one}E-{scale}"))
        logical = {"logicalType": "decimal", "precision": precision, "scale": scale}
        fixed = {**self.name("fixed"), "size": self.pick(16, 17, 25), **logical}
        return _Column(pa.decimal128(precision, scale), values, st.sampled_from([{"type": "bytes", **logical}, fixed]))

    def struct(self, depth: int) -> _Column:
        names = self._draw(st.lists(st.sampled_from("abcde"), min_size=1, max_size=3, unique=True))
        columns = {name: self.column(depth + 1) for name in names}
        nullable = {name: self.chance(60) for name in names}
        fields = [pa.field(name, one.kind, nullable[name]) for name, one in columns.items()]
        values = st.fixed_dictionaries(
            {name: one.values | st.none() if nullable[name] else one.values for name, one in columns.items()}
        )
        written = [
            {"name": self.pick(name, name, name.upper()), "type": self.nullable(self._draw(one.schemas))}
            for name, one in columns.items()
        ]
        if self.chance(30):
            written.append({"name": "more", "type": self.pick(["null", "int"], ["int", "null"], ["null"])})
        if self.chance(3):
            written.append({"name": "required", "type": "int", "default": 1})
        if self.chance(3):
            written.pop()
        made = {**self.name("record"), "fields": self._draw(st.permutations(written))}
        return _Column(pa.struct(fields), values, st.just(made))

    def nullable(self, schema: Any) -> Any:
        if isinstance(schema, list) or schema == "null":
            return schema
        return self.pick(schema, ["null", schema], ["null", schema], [schema, "null"], [schema])

    def list(self, depth: int) -> _Column:
        one = self.column(depth + 1)
        nullable = self.chance(50)
        values = st.lists(one.values | st.none() if nullable else one.values, max_size=3)
        schema = {"type": "array", "items": self.nullable(self._draw(one.schemas))}
        return _Column(pa.list_(pa.field("element", one.kind, nullable)), values, st.just(schema))

    def map(self, depth: int) -> _Column:
        """Of one entry at most: Java's order of several is that of a hash."""
        one = self.column(depth + 1)
        nullable = self.chance(50)
        values = st.dictionaries(_TEXTS, one.values | st.none() if nullable else one.values, max_size=1)
        schema = {"type": "map", "values": self.nullable(self._draw(one.schemas))}
        kind = pa.map_(pa.string(), pa.field("value", one.kind, nullable))
        return _Column(kind, values.map(lambda one: list(one.items())), st.just(schema))

    def members(self, depth: int) -> _Column:
        columns = [self.column(depth + 1) for _ in range(self.pick(2, 3, 4))]
        branches = [(one, self._draw(one.schemas)) for one in columns]
        unique = {json.dumps(_branch(schema)): (one, schema) for one, schema in branches if _branch(schema) is not None}
        chosen = list(unique.values())
        fields = [pa.field(f"member{number}", one.kind) for number, (one, _) in enumerate(chosen)]
        if len(chosen) < 2 or {_branch(schema) for _, schema in chosen} in ({"int", "long"}, {"float", "double"}):
            return self.atom()
        union = [schema for _, schema in chosen]
        if self.chance(70):
            union.insert(self._draw(st.integers(0, len(union))), "null")
        values = st.fixed_dictionaries(
            {field.name: st.none() | one.values for field, (one, _) in zip(fields, chosen, strict=True)}
        )
        return _Column(pa.struct(fields), values, st.just(union))


def _branch(schema: Any) -> Any:
    """By what a branch of a union is known; None for what is none."""
    if isinstance(schema, list) or schema == "null":
        return None
    return schema.get("name", schema["type"]) if isinstance(schema, dict) else schema


@st.composite
def writes(draw: st.DrawFn) -> Write:
    column = _Maker(draw).struct(0)
    values = draw(st.lists(column.values, min_size=1, max_size=4))
    return Write(pa.array(values, column.kind), json.dumps(draw(column.schemas)))

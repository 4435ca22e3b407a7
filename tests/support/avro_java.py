"""Avro's library for Java, which lies among PySpark's jars, as the judge of how a value is read.

`AvroJava.read` decodes bytes of a writer's schema as a reader's (GenericDatumReader) and returns Avro's JSON encoding
of the value; `shown` turns that into what a column holds.
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from py4j.protocol import Py4JJavaError

from tests.support.java_process import SPARK_JARS, JavaProcess
from tests.support.requirements import Unavailable, give_up

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

"""Avro values for people, as the console shows them: a decimal with all of its digits, also those beyond its precision;
of a date or time that no calendar has, its number.

fastavro rounds the first, and refuses a whole value for the second. So its logical types are read here.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

import fastavro
import pyarrow as pa
from fastavro.read import LOGICAL_READERS

from broker.errors import ConfigError
from spark_connector.formats.avro_columns import column_of
from spark_connector.formats.avro_program import Program
from spark_connector.formats.avro_resolver import resolve
from spark_connector.formats.avro_schema import AvroType, parse_avro, takes_no_bytes
from spark_connector.formats.value_format import FRAME, MOST_LEVELS, AvroSchema

_OURS: Final = "pykafka-shown-"
"""Before the name of a logical type in a schema that is read here."""
_DAY: Final = {"int-time-millis": 86_400_000, "long-time-micros": 86_400_000_000}
"""The first number that is no time of a day: fastavro does not look."""
Read = Callable[[bytes], Any]


def avro_reader(schema: AvroSchema) -> Read:
    """Of values behind a frame. fastavro must not read all schemas (`_is_flat`), and a logical type that is invalid is
    no reason to show nothing (`Program`)."""
    own = parse_avro(schema)
    if _is_flat(own, {}):
        with contextlib.suppress(Exception):  # it refuses what Avro says to ignore
            _parsed(schema, None)
            ours = _parsed(schema, _renamed)
            return lambda value: fastavro.schemaless_reader(io.BytesIO(value[FRAME:]), ours, None)
    program = Program(resolve(own, own), _deep_column(own))
    return lambda value: program.read(value, FRAME)


def _parsed(schema: AvroSchema, hook: Callable[[dict[str, Any]], Any] | None) -> Any:
    named: dict[str, Any] = {}
    for reference in schema.references:
        fastavro.parse_schema(json.loads(reference, object_hook=hook), named_schemas=named)
    return fastavro.parse_schema(json.loads(schema.text, object_hook=hook), named_schemas=named)


def _renamed(one: dict[str, Any]) -> dict[str, Any]:
    kind = one.get("logicalType")
    return one | {"logicalType": f"{_OURS}{kind}"} if f"{one.get('type')}-{kind}" in LOGICAL_READERS else one


def _decimal(data: Any, schema: Any, _: Any = None) -> Decimal:
    unscaled = int.from_bytes(data, signed=True)
    return Decimal(f"{unscaled}E-{schema.get('scale', 0)}")  # whole, whatever the context's precision


def _shown(key: str, read: Callable[..., Any]) -> Callable[..., Any]:
    def shown(data: Any, schema: Any, other: Any = None) -> Any:
        if key in _DAY and not 0 <= data < _DAY[key]:
            return data
        try:
            return read(data, schema, other)
        except (OverflowError, ValueError):
            return data

    return shown


for _key, _read in list(LOGICAL_READERS.items()):
    _type, _, _kind = _key.partition("-")
    if not _kind.startswith(_OURS):
        LOGICAL_READERS[f"{_type}-{_OURS}{_kind}"] = _decimal if _kind == "decimal" else _shown(_key, _read)


def _is_flat(one: AvroType, known: dict[AvroType, bool]) -> bool:
    """Whether no type is within itself, where a value can be nested so deep that fastavro's C code ends the process,
    and no array has items that take no bytes, of which a few bytes announce any number."""
    if one not in known:
        known[one] = False  # while it is open
        within = [*one.branches, *(field.type for field in one.fields)]
        if one.item is not None:
            within.append(one.item)
        is_endless = one.kind == "array" and takes_no_bytes(within[-1])
        known[one] = not is_endless and all(_is_flat(inner, known) for inner in within)
    return known[one]


def _deep_column(own: AvroType) -> pa.DataType:
    """With as many levels of what is recursive as make no column of too many fields."""
    with contextlib.suppress(ConfigError):
        return column_of(own, MOST_LEVELS)
    found = column_of(own, 1)
    with contextlib.suppress(ConfigError):
        for levels in range(2, MOST_LEVELS):
            found = column_of(own, levels)
    return found

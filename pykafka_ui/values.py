"""Keys, values and headers as text for people: bytes of which nothing is known, perhaps hostile.

`decode` never raises. What it returns is text or JSON data; escaping it is up to the page (Jinja2 does).
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import time
from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final

import fastavro
import pyarrow as pa

from broker.errors import ConfigError
from broker.tools.record_text import as_json_data
from spark_connector.errors import ConnectorError
from spark_connector.formats.avro_columns import column_of
from spark_connector.formats.avro_program import Program
from spark_connector.formats.avro_resolver import resolve
from spark_connector.formats.avro_schema import AvroType, parse_avro, takes_no_bytes
from spark_connector.formats.schema_registry import SchemaRegistry, UnknownSchema
from spark_connector.formats.value_decoder import BadValue
from spark_connector.formats.value_format import MOST_LEVELS, AvroSchema

MOST_SHOWN: Final = 20_000
"""Characters of a value on a page. The download has all of it."""
_LARGEST_PARSED: Final = 256 << 10
"""Bytes of a JSON value. A larger one is shown as text: it would be cut anyway."""
_MOST_NODES: Final = 3_000
_DEEPEST: Final = 40
_HEX_WIDTH: Final = 16
_FRAME: Final = 5
_ASK_AGAIN_S: Final = 30.0
"""After a schema registry did not answer. Each question takes a second or more then."""


class As(StrEnum):
    """How a value is shown; `AUTO` chooses by what it looks like."""

    AUTO = "auto"
    TEXT = "text"
    JSON = "json"
    AVRO = "avro"
    HEX = "hex"


@dataclasses.dataclass(frozen=True)
class ShownValue:
    """`kind`: null, text, json, avro or hex. `data` is the value of json and avro, None if it is too large to fold."""

    kind: str
    text: str
    size: int
    data: Any = None
    note: str = ""
    is_cut: bool = False
    """Whether `text` is only the beginning."""

    @property
    def first_line(self) -> str:
        return " ".join(self.text[:400].split())[:200]


class Decoder:
    """With a schema registry, Avro values in Confluent's wire format are decoded by their writer's schema."""

    def __init__(self, registry: SchemaRegistry | None = None) -> None:
        self._registry = registry
        self._readers: dict[int, Callable[[bytes], Any]] = {}
        self._down_until = 0.0

    def decode(self, value: bytes | None, how: As = As.AUTO) -> ShownValue:
        if value is None:
            return ShownValue("null", "null", 0)
        if how is As.HEX:
            return _hex(value)
        if how is As.TEXT:
            return _text(value)
        if how is As.AVRO or (how is As.AUTO and self._registry is not None and _is_framed(value)):
            data, note = self._avro(value)
            if not note:
                return _json(data, "avro", len(value))
            if how is As.AVRO:
                return dataclasses.replace(_hex(value), note=note)
        if len(value) > _LARGEST_PARSED:
            return _text(value) if _is_text(value) else _hex(value)
        if how is As.JSON or value[:1] in (b"{", b"["):
            data, note = _parsed(value)
            if not note:
                return _json(data, "json", len(value))
            if how is As.JSON:
                return dataclasses.replace(_text(value), note=note)
        return _text(value) if _is_text(value) else _hex(value)

    def data(self, value: bytes | None) -> Any:
        """The value as data, however large: Avro in the wire format of a registry, or JSON; else None."""
        if value is None:
            return None
        if self._registry is not None and _is_framed(value):
            data, note = self._avro(value)
            if not note:
                return data
        return _parsed(value)[0]

    def _avro(self, value: bytes) -> tuple[Any, str]:
        """The data, and why there is none."""
        if self._registry is None:
            return None, "no schema registry was given: --schema-registry"
        if not _is_framed(value):
            return None, "it has not the wire format of a schema registry"
        schema_id = int.from_bytes(value[1:_FRAME], "big")
        if time.monotonic() < self._down_until:
            return None, "the schema registry does not answer"
        try:
            if schema_id not in self._readers:
                self._readers[schema_id] = _reader(self._registry.schema(schema_id))
            return self._readers[schema_id](value), ""
        except (UnknownSchema, ConfigError, BadValue) as error:
            return None, str(error)
        except ConnectorError as error:
            self._down_until = time.monotonic() + _ASK_AGAIN_S
            return None, str(error).partition("\n")[0]
        except Exception as error:  # fastavro raises what it likes for bytes that are not of the schema
            return None, f"not a value of schema {schema_id}: {type(error).__name__}: {str(error)[:200]}"


def _reader(schema: AvroSchema) -> Callable[[bytes], Any]:
    """fastavro shows dates, times and numbers as such. It must not read all schemas (`_is_flat`), and a logical type
    that is invalid is no reason to show nothing (`Program`)."""
    own = parse_avro(schema)
    if _is_flat(own, {}):
        with contextlib.suppress(Exception):  # it refuses what Avro says to ignore
            named: dict[str, Any] = {}
            for reference in schema.references:
                fastavro.parse_schema(json.loads(reference), named_schemas=named)
            parsed = fastavro.parse_schema(json.loads(schema.text), named_schemas=named)
            return lambda value: fastavro.schemaless_reader(io.BytesIO(value[_FRAME:]), parsed, None)
    program = Program(resolve(own, own), _deep_column(own))
    return lambda value: program.read(value, _FRAME)


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


def _is_framed(value: bytes) -> bool:
    return len(value) >= _FRAME and value[0] == 0


def _is_text(value: bytes) -> bool:
    try:
        text = value[: 4 * MOST_SHOWN].decode(errors="strict" if len(value) <= 4 * MOST_SHOWN else "ignore")
    except UnicodeDecodeError:
        return False
    return all(character.isprintable() or character in "\t\r\n" for character in text)


def _text(value: bytes) -> ShownValue:
    shown = value[: 4 * MOST_SHOWN]
    text = shown.decode(errors="replace")
    visible = "".join(one if one.isprintable() or one in "\t\r\n" else f"\\x{ord(one):02x}" for one in text)
    return ShownValue(
        "text", visible[:MOST_SHOWN], len(value), is_cut=len(value) > len(shown) or len(visible) > MOST_SHOWN
    )


def _hex(value: bytes) -> ShownValue:
    lines = []
    for at in range(0, min(len(value), MOST_SHOWN // 5), _HEX_WIDTH):
        row = value[at : at + _HEX_WIDTH]
        readable = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{at:06x}  {row.hex(' '):<{3 * _HEX_WIDTH}} {readable}")
    return ShownValue("hex", "\n".join(lines)[:MOST_SHOWN], len(value), is_cut=len(value) > MOST_SHOWN // 5)


def _parsed(value: bytes) -> tuple[Any, str]:
    try:
        return json.loads(value), ""
    except (ValueError, RecursionError) as error:
        return None, f"not JSON: {str(error)[:200]}"


def _json(data: Any, kind: str, size: int) -> ShownValue:
    try:
        text = json.dumps(data, indent=2, ensure_ascii=False, default=plain)
        nodes = _count(data, 0)
    except (ValueError, RecursionError):
        return ShownValue(kind, "nested too deeply to be shown", size)
    is_cut = len(text) > MOST_SHOWN
    return ShownValue(kind, text[:MOST_SHOWN], size, None if is_cut or nodes > _MOST_NODES else data, is_cut=is_cut)


def plain(value: Any) -> Any:
    """For `json.dumps`: what Avro has and JSON has not."""
    return as_json_data(value) if isinstance(value, bytes) else str(value)


def _count(data: Any, depth: int) -> int:
    """Nodes of a document; very many if it is nested too deeply to be folded."""
    if depth > _DEEPEST:
        return _MOST_NODES + 1
    if isinstance(data, dict):
        return 1 + sum(_count(value, depth + 1) for value in data.values())
    if isinstance(data, list):
        return 1 + sum(_count(value, depth + 1) for value in data)
    return 1

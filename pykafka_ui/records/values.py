"""Keys, values and headers as text for people: bytes of which nothing is known, perhaps hostile.

`decode` never raises. What it returns is text or JSON data; escaping it is up to the page (Jinja2 does).
"""

from __future__ import annotations

import dataclasses
import json
from enum import StrEnum
from typing import Any, Final

from pykafka_ui.records.json_text import json_text, parsed, visible
from pykafka_ui.records.registered_values import Decoded, RegisteredValues, looks_like, schema_id
from spark_connector.formats.schema_registry import SchemaRegistry

MOST_SHOWN: Final = 20_000
"""Characters of a value on a page. The download has all of it."""
_LARGEST_PARSED: Final = 256 << 10
"""Bytes of a JSON value. A larger one is shown as text: it would be cut anyway."""
_TOO_LARGE: Final = f"larger than {_LARGEST_PARSED >> 10} KiB, so it is shown as text"
_MOST_NODES: Final = 3_000
_DEEPEST: Final = 40
_HEX_WIDTH: Final = 16
_FIRST_LINE: Final = 200


class As(StrEnum):
    """How a value is shown; `AUTO` chooses by what it looks like. `AVRO`: by the registry, of whichever kind it is."""

    AUTO = "auto"
    TEXT = "text"
    JSON = "json"
    AVRO = "avro"
    HEX = "hex"


@dataclasses.dataclass(frozen=True)
class ShownValue:
    """`kind`: null, text, json, avro, protobuf or hex. `data`: as JSON has it, None of text and bytes, and if it is too
    large to fold. `looks`: what bytes may be that are shown as such, "" if nobody can tell."""

    kind: str
    text: str
    size: int
    data: Any = None
    note: str = ""
    looks: str = ""
    is_cut: bool = False
    """Whether `text` is only the beginning."""

    @property
    def first_line(self) -> str:
        line = " ".join(self.text[:400].split())
        return line if len(line) <= _FIRST_LINE and len(self.text) <= 400 else f"{line[: _FIRST_LINE - 1]}…"


class Decoder:
    """With a schema registry, values in Confluent's wire format are decoded by their writer's schema."""

    def __init__(self, registry: SchemaRegistry | None = None) -> None:
        self._registered = None if registry is None else RegisteredValues(registry)

    def decode(self, value: bytes | None, how: As = As.AUTO) -> ShownValue:
        if value is None:
            return ShownValue("null", "null", 0)
        if how is As.HEX:
            return _hex(value)
        if how is As.TEXT:
            return _text(value)
        note = ""
        if how is As.AVRO or (how is As.AUTO and self._registered is not None and schema_id(value) is not None):
            found = self._by_registry(value)
            if not found.why:
                return _json(found.data, found.kind, len(value))
            note = found.why
            if how is As.AVRO:
                return dataclasses.replace(_hex(value), note=note)
        if how is As.JSON or (value[:1] in (b"{", b"[") and len(value) <= _LARGEST_PARSED):
            data, problem = _parsed(value) if len(value) <= _LARGEST_PARSED else (None, _TOO_LARGE)
            if not problem:
                return _json(data, "json", len(value))
            if how is As.JSON:
                return dataclasses.replace(_text(value), note=problem)
        return _text(value) if _is_text(value) else self._bytes(value, note)

    def _bytes(self, value: bytes, note: str) -> ShownValue:
        """With a hint of what they may be."""
        looks = looks_like(value)
        if looks and not note:
            note = f"It looks like {looks}."
            if schema_id(value) and self._registered is None:
                note += " Start the console with --schema-registry URL to see the value."
        return dataclasses.replace(_hex(value), note=note, looks=looks.partition(",")[0].partition(":")[0])

    def data(self, value: bytes | None, *, exact: bool = True) -> Any:
        """The value as data, however large: in the wire format of a registry, or JSON; else None. Numbers of JSON that
        need not be `exact` are parsed five times as fast."""
        if value is None:
            return None
        if self._registered is not None and schema_id(value) is not None:
            found = self._registered.decode(value)
            if not found.why:
                return found.data
        try:
            return parsed(value) if exact else json.loads(value)
        except (ValueError, RecursionError):
            return None

    def _by_registry(self, value: bytes) -> Decoded:
        if self._registered is None:
            return Decoded(None, why="no schema registry was given: --schema-registry")
        return self._registered.decode(value)


def _is_text(value: bytes) -> bool:
    try:
        text = value[: 4 * MOST_SHOWN].decode(errors="strict" if len(value) <= 4 * MOST_SHOWN else "ignore")
    except UnicodeDecodeError:
        return False
    return all(character.isprintable() or character in "\t\r\n" for character in text)


def _text(value: bytes) -> ShownValue:
    shown = value[: 4 * MOST_SHOWN]
    text = visible(shown.decode(errors="replace"))
    return ShownValue("text", text[:MOST_SHOWN], len(value), is_cut=len(value) > len(shown) or len(text) > MOST_SHOWN)


def _hex(value: bytes) -> ShownValue:
    lines = []
    for at in range(0, min(len(value), MOST_SHOWN // 5), _HEX_WIDTH):
        row = value[at : at + _HEX_WIDTH]
        readable = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{at:06x}  {row.hex(' '):<{3 * _HEX_WIDTH}} {readable}")
    return ShownValue("hex", "\n".join(lines)[:MOST_SHOWN], len(value), is_cut=len(value) > MOST_SHOWN // 5)


def _parsed(value: bytes) -> tuple[Any, str]:
    try:
        return parsed(value, whole=True), ""
    except (ValueError, RecursionError) as error:
        return None, f"not JSON: {str(error)[:200]}"


def _json(data: Any, kind: str, size: int) -> ShownValue:
    try:
        text = visible(json_text(data, indent=2))
        nodes = _count(data, 0)
    except (ValueError, RecursionError):
        return ShownValue(kind, "nested too deeply to be shown", size)
    is_cut = len(text) > MOST_SHOWN
    if is_cut or nodes > _MOST_NODES:
        return ShownValue(kind, text[:MOST_SHOWN], size, is_cut=is_cut)
    return ShownValue(kind, text, size, data if kind == "json" else parsed(text))


def _count(data: Any, depth: int) -> int:
    """Nodes of a document; very many if it is nested too deeply to be folded."""
    if depth > _DEEPEST:
        return _MOST_NODES + 1
    if isinstance(data, dict):
        return 1 + sum(_count(value, depth + 1) for value in data.values())
    if isinstance(data, list):
        return 1 + sum(_count(value, depth + 1) for value in data)
    return 1

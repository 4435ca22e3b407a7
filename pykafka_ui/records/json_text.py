"""JSON as it was written: a number keeps its digits, of which a float would lose some (1.10, 1e400), and an object with
a name twice is not taken for one that has it once; and text of strangers so that all of it is seen. Pure."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any, Final

from broker.tools.record_text import as_json_data
from spark_connector.formats.json_number import Number

_LONGEST_INT: Final = 4_000
"""Digits of what Python takes for an int."""


def _whole(text: str) -> int | Number:
    return Number(text) if len(text) > _LONGEST_INT or text == "-0" else int(text)


def parsed(value: str | bytes, *, whole: bool = False) -> Any:
    """Raises ValueError and RecursionError as `json.loads`; with `whole` also for an object with a name twice."""
    pairs = _once_each if whole else None
    return json.loads(value, parse_float=Number, parse_int=_whole, parse_constant=Number, object_pairs_hook=pairs)


DECODER: Final = json.JSONDecoder(parse_float=Number, parse_int=_whole, parse_constant=Number)
"""For a text of several values."""


def json_text(data: Any, colon: str = ": ", comma: str = ", ", *, indent: int = 0, level: str = "\n") -> str:
    """As `json.dumps` would write it, but numbers as they were, and what JSON has not as `plain` has it.

    With an `indent` every item has a line. Raises RecursionError, and ValueError for an int of too many digits.
    """
    if isinstance(data, Number):
        return data.text
    if not (isinstance(data, dict | list | tuple) and data):
        return json.dumps(data, ensure_ascii=False, default=plain)
    inner = f"{level}{' ' * indent}" if indent else ""

    def text_of(value: Any) -> str:
        return json_text(value, colon, comma, indent=indent, level=inner)

    if isinstance(data, dict):
        items = [f"{json.dumps(name, ensure_ascii=False)}{colon}{text_of(value)}" for name, value in data.items()]
    else:
        items = [text_of(value) for value in data]
    begin, end = "{}" if isinstance(data, dict) else "[]"
    between = f",{inner}" if indent else comma
    return f"{begin}{inner}{between.join(items)}{level if indent else ''}{end}"


def plain(value: Any) -> Any:
    """What Avro and tables have and JSON has not: bytes, decimals with all of their digits, times."""
    if isinstance(value, bytes):
        return as_json_data(value)
    return format(value, "f") if isinstance(value, Decimal) else str(value)


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in pairs:
        if name in made:
            raise ValueError(f"an object has the name {name[:80]!r} more than once, so it is shown as text")
        made[name] = value
    return made


_LAID_OUT = "\t\r\n"


def visible(text: str) -> str:
    """With JSON's escapes in place of control characters, marks of direction, and what no font has; line ends and tabs
    stay. JSON stays the same JSON."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in _LAID_OUT else json.dumps(one)[1:-1] for one in text)

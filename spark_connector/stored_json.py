"""The values of a JSON document that a stranger may have written: each is checked before anything is done with it.

Who reads what is stored beside data (records of loads, offsets, intents) takes every field through these functions.
They raise ValueError, which names the field, for whatever is there instead. Pure.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any, Final

from broker.control_characters import has_control
from broker.errors import BrokerError
from broker.protocol.topic_names import check_topic_name

_HIGHEST: Final = (1 << 63) - 1
_LONGEST: Final = 64 << 10
_HALF: Final = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")


def parsed(data: bytes | str) -> Any:
    """The document. Raises ValueError for what is not JSON, or is it as no document of ours: nested too deeply, with a
    name twice (readers differ in which one counts), NaN, or half a character, which nobody could write or show."""
    try:
        plain = data if isinstance(data, str) else data.decode()
        found = json.loads(plain, object_pairs_hook=_once_each, parse_constant=_no_number)
        if _HALF.search(plain):
            json.dumps(found, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except (UnicodeDecodeError, UnicodeEncodeError) as error:
        raise ValueError(f"it is no text in UTF-8 ({error.reason})") from None
    return found


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise ValueError(f"it has {twice!r:.60} twice")
    return found


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def mapping(value: object, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _unlike(name, "an object", value)
    return value


def sequence(value: object, name: str) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise _unlike(name, "a list", value)
    return list(value)


def whole(value: object, name: str, lowest: int = 0, highest: int = _HIGHEST) -> int:
    """A whole number within the bounds; true and false are none."""
    if type(value) is not int or not lowest <= value <= highest:
        raise _unlike(name, f"a whole number from {lowest} on", value)
    return value


def flag(value: object, name: str) -> bool:
    if not isinstance(value, bool):
        raise _unlike(name, "true or false", value)
    return value


def text(value: object, name: str) -> str:
    """A text that has no control character, mark of direction or half of a surrogate pair, so that it can be shown, and
    be a part of a name."""
    if not isinstance(value, str) or len(value) > _LONGEST or has_control(value):
        raise _unlike(name, "a text without control characters", value)
    return value


def words(value: object, name: str) -> str:
    """A text of whatever length and lines, such as a schema. It is no part of a name of anything."""
    if not isinstance(value, str):
        raise _unlike(name, "a text", value)
    return value


def texts(value: object, name: str) -> tuple[str, ...]:
    return tuple(words(one, name) for one in sequence(value, name))


def topic(value: object, name: str = "topic") -> str:
    """A name that a topic can have."""
    found = text(value, name)
    try:
        check_topic_name(found)
    except BrokerError as error:
        raise ValueError(f"{name}: {error.message}") from None
    return found


def partition(value: object, name: str = "partition") -> int:
    """A partition, also as the key of an object: its digits as a text."""
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 11:
        value = int(value)
    return whole(value, name, 0, (1 << 31) - 1)


def _unlike(name: str, wanted: str, found: object) -> ValueError:
    return ValueError(f"{name} is {found!r:.60}, not {wanted}")

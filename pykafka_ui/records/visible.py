"""Text of strangers so that all of it is seen: a character that is invisible or turns the line round is spelled out."""

from __future__ import annotations

import json

_LAID_OUT = "\t\r\n"


def visible(text: str) -> str:
    """With JSON's escapes in place of control characters, marks of direction, and what no font has; line ends and tabs
    stay. JSON stays the same JSON."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in _LAID_OUT else json.dumps(one)[1:-1] for one in text)

"""Text that somebody else made up, for a line of a log or of a terminal: what would end or rewrite the line is escaped.

Clients choose their ids, groups, topics and reasons. A line break in one would forge a line of the log; an escape
sequence would move a terminal's cursor, and a mark of direction would turn a name around.
"""

from __future__ import annotations

import re
from typing import Final

# C0 and DEL, C1, line and paragraph separator, marks of direction, halves of surrogate pairs.
_CONTROL: Final = re.compile("[\0-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def has_control(text: str) -> bool:
    """Whether the text has such a character."""
    return _CONTROL.search(text) is not None


def escaped(text: str) -> str:
    r"""The text in one line, with `\n`, `\x1b` and `\u2028` for such characters, as Python writes them."""
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


def escaped_json(document: str) -> str:
    r"""Encoded JSON with `\u001b` for such characters in its strings; line breaks between its parts are kept."""
    return _CONTROL.sub(lambda found: found[0] if found[0] in "\n\t" else f"\\u{ord(found[0]):04x}", document)

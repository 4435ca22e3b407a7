"""The names of files, nodes and tables that are numbers: another program may have put anything beside them. Pure."""

from __future__ import annotations

from typing import Final

_HIGHEST: Final = (1 << 63) - 1
_DIGITS: Final = 20


def number_named(name: str) -> int | None:
    """The number from 0 on that a name is, in ASCII digits and with leading zeros or without; None for any other name.

    `str.isdigit` is true of `²`, of which `int` makes an error, and `int` takes ` 1_0`; both take thousands of digits.
    """
    if len(name) > _DIGITS or not name.isascii() or not name.isdecimal():
        return None
    number = int(name)
    return number if number <= _HIGHEST else None

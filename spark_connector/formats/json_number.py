"""A number of JSON as it was written: a float would lose some of its digits (1.10, 1e400). Pure."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Self


class Number(float):
    """A number of JSON that is not an int of Python: the nearest float, for who calculates, and its `text`."""

    text: str

    def __new__(cls, text: str) -> Self:
        made = super().__new__(cls, text)
        made.text = text
        return made

    def reads_as(self, text: str) -> bool:
        """Whether `text` is the same number, however it is written: 1.1 is 1.10."""
        try:
            return text == self.text or Decimal(text) == Decimal(self.text)
        except InvalidOperation:
            return False

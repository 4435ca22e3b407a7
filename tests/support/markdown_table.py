"""A table in Markdown."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def table(head: list[str], rows: Iterable[list[Any]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |\n" for line in lines)

"""Tables on standard output whose lines are as long as they must be.

Used by `pykafka loads`. rich would break names that are to be copied, and cut numbers off, where a terminal is narrow,
and behind a pipe, which it takes for one of 80 columns; a terminal breaks lines by itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

__all__ = ["print_table"]

_LONGEST = 60  # columns of a text, such as many topics
_WIDE = 1000  # more than any line has


def print_table(texts: Sequence[str], numbers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Headings: of texts, which stand first, the first of them a name, and of numbers."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(texts[0], no_wrap=True)
    for heading in texts[1:]:
        table.add_column(heading, overflow="fold", max_width=_LONGEST)
    for heading in numbers:
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(*row)
    console = Console()
    console.width = max(console.width, _WIDE)
    console.print(table)

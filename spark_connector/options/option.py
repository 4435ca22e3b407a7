"""A row of the tables of options. The tables of reads, of writes and of registries are made of it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

Kind = Literal["boolean", "long", "optional_long", "bytes", "optional_bytes", "duration_ms", "word"]


class Option(NamedTuple):
    """One row: `default` as a user writes it (None: unset); `scope` is batch, stream or both.

    `kind`: the method of OptionValues that parses it; None for text, and for an option that depends on others, whose
    parser is written out. `least`, `most`: the bounds of a `long`. `choices`: the words it may be, in any case.
    """

    name: str
    meaning: str
    default: str | None = None
    scope: str = "both"
    kind: Kind | None = None
    least: int = 0
    most: int | None = None
    choices: tuple[str, ...] = ()
    formats: tuple[str, ...] = ()
    """Has an effect only if keys or values have one of these formats; the column's own, if its name begins with it."""
    needs: tuple[str, ...] = ()
    """Has an effect only if one of these options is set."""
    being: tuple[str, ...] = ()
    """What the option that it needs must be: one of these words."""
    in_stream: str = ""
    """What a stream is told that has this option for batch queries."""
    kept: Literal["", "rows", "values"] = ""
    """Kept by loads, since it decides which records are read (rows) or what they become (values)."""
    into: str = ""
    """The field that it is parsed into, where this has a name of its own."""

    @property
    def field(self) -> str:
        """`minPartitions` → `min_partitions`, `fetchOffset.numRetries` → `num_retries`."""
        snake = re.sub("([A-Z])", r"_\1", self.name.rpartition(".")[2]).lower()
        return self.into or (f"{snake}_ms" if self.kind == "duration_ms" else snake)

    @property
    def ignores_case(self) -> bool:
        return bool(self.choices or self.kind)


def each(rows: Iterable[Option], **shared: Any) -> tuple[Option, ...]:
    """The rows, with what all of them say."""
    return tuple(row._replace(**shared) for row in rows)

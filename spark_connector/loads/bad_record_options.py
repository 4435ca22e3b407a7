"""The options of a load about bad records: where their dead letters go, and how many a load may have. Pure.

A dead letter goes to a topic (`topic:NAME`: the reader's option `badRecordsTopic`, at least once) or to a table
(`delta:URL`, `iceberg:NAMESPACE.TABLE`), exactly once with the load (dead_letters.py). A load into Iceberg means its
own catalog; others have none, and `iceberg:CATALOG/NAMESPACE.TABLE` names it. So do the records of loads.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from broker.errors import ConfigError

TOPIC = "topic"
_TABLES = ("delta", "iceberg")
_FORMS = "topic:NAME, delta:URL or iceberg:NAMESPACE.TABLE"


@dataclass(frozen=True)
class DeadLetterPlace:
    """Where dead letters go. `kind` is topic, or the format of a table; `name` is the topic, URL or name of it.

    `catalog` is that of an Iceberg table; None for the catalog of the load.
    """

    kind: str
    name: str
    catalog: str | None = None

    @classmethod
    def parse(cls, text: str) -> DeadLetterPlace:
        """Raises ConfigError."""
        kind, _, name = text.strip().partition(":")
        if kind not in (TOPIC, *_TABLES) or not name.strip():
            more = ""
            if kind not in (TOPIC, *_TABLES) and ":" not in text.partition("://")[0]:
                more = (
                    ". A plain directory cannot take them: its files could not be taken back in one step with others, "
                    f"when a load is taken back. For a table in this directory: delta:{text.strip()}"
                )
            raise ConfigError(f"dead_letters (--dead-letters) must be {_FORMS}, not '{text}'{more}")
        catalog, slash, table = name.strip().rpartition("/") if kind == "iceberg" else ("", "", name.strip())
        if (slash and not catalog) or not table:
            raise ConfigError(f"dead_letters (--dead-letters) must be {_FORMS}, not '{text}'")
        return cls(kind, table, catalog or None)

    @property
    def is_table(self) -> bool:
        return self.kind in _TABLES

    def __str__(self) -> str:
        return f"{self.kind}:{self.catalog}/{self.name}" if self.catalog else f"{self.kind}:{self.name}"


@dataclass(frozen=True)
class MaxBad:
    """Most bad records of a load: a number of them, or a share of the records that it reads."""

    text: str
    most: Fraction
    is_share: bool

    @classmethod
    def parse(cls, given: str | int) -> MaxBad:
        """`0`, `100` or `0.1%`. Raises ConfigError."""
        text = str(given).strip()
        try:
            share = text.endswith("%")
            most = Fraction(text.removesuffix("%").strip()) / (100 if share else 1)
        except (ValueError, ZeroDivisionError):
            most, share = Fraction(-1), False
        if most < 0 or (most > 1 if share else most.denominator != 1):
            raise ConfigError(
                f"max_bad (--max-bad) must be a number of records (100) or their share in a load (0.1%), not '{text}'"
            )
        return cls(text, most, share)

    def is_exceeded(self, bad: int, read: int) -> bool:
        """Whether `bad` of the `read` records are too many."""
        return bad > (self.most * read if self.is_share else self.most)

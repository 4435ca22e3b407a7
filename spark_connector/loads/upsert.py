"""What makes a load an upsert: the key, the envelope of the events, and what orders them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from broker.errors import ConfigError
from spark_connector.stored_json import mapping, text, texts

MODES = ("append", "upsert")
ENVELOPES = ("none", "debezium")


@dataclass(frozen=True)
class Upsert:
    """Makes a table hold one row per `key` (names of columns), as the last record of the key says; see changes.py.

    `envelope`: `none`, the value is the row, or `debezium`. `order_by`: what orders the records of a key in different
    partitions; None refuses such keys.
    """

    key: tuple[str, ...]
    envelope: str = "none"
    order_by: str | None = None

    def __str__(self) -> str:
        order = f", order_by={self.order_by}" if self.order_by else ""
        return f"mode=upsert, key={','.join(self.key)}, envelope={self.envelope}{order}"

    @classmethod
    def from_json(cls, document: object) -> Upsert:
        """Raises KeyError or ValueError for what is no such document."""
        found = mapping(document, "upsert")
        key, order = texts(found["key"], "key"), found["order_by"]
        if not key or found["envelope"] not in ENVELOPES:
            raise ValueError(f"upsert has the key {key} and the envelope {found['envelope']!r:.60}")
        return cls(key, found["envelope"], None if order is None else text(order, "order_by"))


def parse_upsert(key: str | Sequence[str] | None, envelope: str | None, order_by: str | None) -> Upsert:
    """`key` as a string is a comma-separated list. Raises ConfigError."""
    names = tuple(name.strip() for name in (key.split(",") if isinstance(key, str) else key or ()))
    if not names or not all(names):
        raise ConfigError("mode=upsert needs key (--key): the columns of which the table has one row each")
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"key (--key) names '{twice[0]}' twice")
    return Upsert(names, envelope or "none", order_by or None)

"""The rows of the list of groups: their badges, their states, whether they fall behind, and whose they are."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from functools import cached_property

from pykafka_ui.seen.history import Point
from pykafka_ui.seen.lag_trend import is_growing
from pykafka_ui.seen.snapshot import Group

OK, WARN, BAD, UNKNOWN = "ok", "warn", "bad", "unknown"
Badge = tuple[str, str]
"""A word and what it means."""

_TYPES = {
    "classic": "Its members share out the partitions themselves",
    "consumer": "The coordinator assigns the partitions (KIP-848)",
    "share": "Members read the same partitions, record by record, as from a queue (KIP-932)",
}
_OWN = {
    "load": "Its offsets are written by pykafka load, with what was loaded",
    "stream": "Its offsets are written by a Spark stream with offsetStore=group",
    "exactly-once write": "Its offsets are numbers of batches that a Spark query has written",
    "offsets only": "No member has joined: something writes its offsets by itself",
}
_MOVING = {"PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling", "NotReady"}
_FOLDED = {"load", "exactly-once write"}
_LOAD_TEXT = re.compile(r"pykafka load (.+)-\d+-[0-9a-f]+$")
_PART = re.compile(r"\.(done|\d+)$")


@dataclasses.dataclass(frozen=True)
class GroupRow:
    """A group, with its lag over the last hour. `grows`: whether that falls behind; None if it is not known."""

    group: Group
    lags: Sequence[Point] = ()

    @cached_property
    def grows(self) -> bool | None:
        return is_growing(self.lags) if self.lags else None

    @property
    def points(self) -> list[float | None]:
        return [value for _, value in self.lags]

    @property
    def badges(self) -> list[Badge]:
        """The protocol, and what commits the offsets where that is no member."""
        one = self.group
        kind = one.type.lower() or ("classic" if one.protocol_type else "")
        found = [(kind, _TYPES[kind])] if kind in _TYPES and (one.protocol_type or one.is_share) else []
        if one.kind in _OWN:
            found.append((one.kind, _OWN[one.kind]))
        elif one.kind not in ("consumer", "share"):
            found.append((one.kind, "The protocol of its members"))
        return found

    @property
    def state(self) -> tuple[str, str]:
        """(ok, warn, bad or unknown; the state in words). To be empty is a fault only of who has something to read."""
        return state_of(self.group, self.group.state)

    @property
    def is_folded(self) -> bool:
        """Whether it is a load's or a sink's own, and is shown under what it belongs to."""
        return self.group.kind in _FOLDED

    @property
    def belongs_to(self) -> str:
        """What of ours it is a part of, in words; "" for a group of somebody else."""
        if self.group.kind == "exactly-once write":
            return f"the sink {_PART.sub('', self.group.id)}"
        if self.group.kind == "load":
            texts = (_LOAD_TEXT.match(one.metadata or "") for one in self.group.offsets.values())
            names = {found[1] for found in texts if found}
            return f"the loads of {min(names)}" if names else "loads"
        return ""


def state_of(group: Group, state: str) -> tuple[str, str]:
    if group.beyond:
        return BAD, "beyond the end"
    if not state:
        return UNKNOWN, "not told"
    if state == "Empty":
        if not group.protocol_type and not group.is_share:
            return OK, "no members"  # it never has any
        behind = group.behind.total
        return (UNKNOWN if behind is None else WARN if behind else OK), "Empty"
    return (BAD if state == "Dead" else WARN if state in _MOVING else OK), state


_FILTERS: dict[str, tuple[str, Callable[[GroupRow], bool]]] = {
    "beyond": ("beyond the end", lambda row: bool(row.group.beyond)),
    "growing": ("lag grows", lambda row: bool(row.grows)),
    "behind": ("behind", lambda row: bool(row.group.behind.total) and row.group.has_lag),
    "unknown": ("lag not known", lambda row: row.group.has_lag and row.group.behind.total is None),
    "empty": ("without members", lambda row: row.group.state == "Empty"),
    "share": ("share groups", lambda row: row.group.is_share),
    "own": ("of loads and sinks", lambda row: row.is_folded),
}


def chosen(rows: Sequence[GroupRow], state: str) -> list[GroupRow]:
    """The rows of a filter; of any other word, those in this state of Kafka's; all for ""."""
    if not state:
        return list(rows)
    if state in _FILTERS:
        return [row for row in rows if _FILTERS[state][1](row)]
    return [row for row in rows if row.group.state.lower() == state.lower()]


def choices(rows: Sequence[GroupRow], state: str) -> list[tuple[str, str, int]]:
    """(filter, its words, groups that it finds) of those that find something, and of the one that is chosen."""
    words = {name: text for name, (text, _) in _FILTERS.items()}
    found = [(name, text, len(chosen(rows, name))) for name, text in ({state: state} | words).items() if name]
    return [one for one in found if one[2] or one[0] == state]

"""The rows of groups: badges, states, whether they fall behind, and whose they are; and of one group who is slow, its
partitions and members, with how far each is behind and how fast it reads. Pure."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

from broker.client.admin_types import GroupDescription, MemberDescription
from broker.client.committed_offsets import CommittedOffset
from broker.client.group_descriptions import GroupLag
from broker.protocol.topic_partition import TopicPartition
from pykafka_ui.seen.history import Point, is_growing, per_second
from pykafka_ui.seen.snapshot import Group, Snapshot

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


class _Lagging:
    """What has a lag over the last hour. `grows`: whether that falls behind; None if it is not known."""

    lags: Sequence[Point]

    @cached_property
    def grows(self) -> bool | None:
        return is_growing(self.lags) if self.lags else None

    @property
    def points(self) -> list[float | None]:
        return [value for _, value in self.lags]


@dataclasses.dataclass(frozen=True)
class GroupRow(_Lagging):
    """A group, with its lag over the last hour."""

    group: Group
    lags: Sequence[Point] = ()

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


@dataclasses.dataclass(frozen=True)
class PartitionRow(_Lagging):
    """A partition that a group reads. `read`: records per second, by its commits; None while it is not known."""

    tp: TopicPartition
    at: CommittedOffset | None
    end: int
    """-1 if it is not known."""
    lag: int | None
    unread: int | None
    """What is in the log; None of a partition with a committed offset, or if it is not known."""
    owner: MemberDescription | None
    lags: Sequence[Point]
    read: float | None
    is_beyond: bool = False
    """See `Group.beyond`."""

    @property
    def behind(self) -> int | None:
        return self.unread if self.at is None else self.lag


def partition_rows(
    group: Group,
    about: GroupDescription | None,
    seen: Snapshot,
    series: Callable[[str, str, TopicPartition], list[Point]],
) -> list[PartitionRow]:
    """`series`: the points of the last hour of (`lag` or `read`, the group, a partition)."""
    owners = about.owners if about else {}
    rows = []
    for tp in group.partitions:
        known = seen.partitions.get(tp)
        rows.append(
            PartitionRow(
                tp,
                group.offsets.get(tp),
                known.end if known and group.has_lag else -1,
                group.lags.get(tp),
                group.unread.get(tp),
                owners.get(tp),
                series("lag", group.id, tp),
                per_second(series("read", group.id, tp)),
                tp in group.beyond,
            )
        )
    return rows


@dataclasses.dataclass(frozen=True)
class Reader:
    """A member with its partitions. `read`: records per second in all of them; None if it is not known of one."""

    member: MemberDescription
    behind: GroupLag
    read: float | None
    growing: int
    """Partitions whose lag grows."""
    share: float
    """Its part of all that the group has not read, 0 to 1."""


def readers(about: GroupDescription, rows: Iterable[PartitionRow]) -> list[Reader]:
    """All members, the one that is furthest behind first."""
    by_partition = {row.tp: row for row in rows}
    all_ = sum(row.behind or 0 for row in by_partition.values())
    found = []
    for member in about.members:
        its = [by_partition[tp] for tp in member.partitions if tp in by_partition]
        behind = GroupLag.of((row.at is not None, row.behind) for row in its)
        rates = [row.read for row in its]
        read = None if None in rates or not rates else sum(filter(None, rates))
        growing = sum(bool(row.grows) for row in its)
        found.append(Reader(member, behind, read, growing, (behind.total or 0) / all_ if all_ else 0.0))
    return sorted(found, key=lambda one: (-(one.behind.total or 0), one.member))

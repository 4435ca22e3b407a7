"""Who of a group is slow: its partitions and its members, with how far each is behind and how fast it reads. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence

from broker.client.admin_types import GroupDescription, MemberDescription
from broker.client.committed_offsets import CommittedOffset
from broker.client.group_descriptions import GroupLag
from broker.protocol.topic_partition import TopicPartition
from pykafka_ui.seen.history import Point
from pykafka_ui.seen.lag_trend import is_growing, per_second
from pykafka_ui.seen.snapshot import Group, Snapshot


@dataclasses.dataclass(frozen=True)
class PartitionRow:
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

    @property
    def grows(self) -> bool | None:
        return is_growing(self.lags) if self.lags else None

    @property
    def points(self) -> list[float | None]:
        return [value for _, value in self.lags]


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

"""The rows of the list of brokers: who is there, who leads how much, and how full the disks are. Pure."""

from __future__ import annotations

import dataclasses

from broker.client.admin_types import LogDir
from broker.client.cluster_metadata import Node
from pykafka_ui.snapshot import Snapshot

FULL = 0.9
"""Of a disk."""


@dataclasses.dataclass(frozen=True)
class BrokerRow:
    """`node` is None of a broker that has replicas and is away. `misled`: partitions it should lead and does not."""

    id: int
    node: Node | None
    led: int
    share: float
    replicas: int
    misled: int
    disks: tuple[LogDir, ...]

    @property
    def errors(self) -> list[str]:
        return [f"{one.path}: {one.error}" for one in self.disks if one.error]

    @property
    def total(self) -> int:
        """Bytes of the disks of its data directories; -1 if they are not known. Two directories may share a disk, which
        nothing tells, so only the fullest counts."""
        return self._fullest.total_bytes if self._fullest else -1

    @property
    def free(self) -> int:
        return self._fullest.usable_bytes if self._fullest else -1

    @property
    def used(self) -> float | None:
        """Of the fullest disk, 0 to 1; None if it is not known."""
        return _used(self._fullest) if self._fullest else None

    @property
    def is_full(self) -> bool:
        return self.used is not None and self.used >= FULL

    @property
    def state(self) -> tuple[str, str]:
        """(ok, warn or bad; in words)."""
        if self.node is None:
            return "bad", "away"
        if self.errors:
            return "bad", "a directory failed"
        return ("warn", "disk is nearly full") if self.is_full else ("ok", "up")

    @property
    def _fullest(self) -> LogDir | None:
        known = [one for one in self.disks if one.total_bytes > 0 and one.usable_bytes >= 0]
        return max(known, key=_used, default=None)


def _used(disk: LogDir) -> float:
    return 1 - disk.usable_bytes / disk.total_bytes


def broker_rows(seen: Snapshot) -> list[BrokerRow]:
    """All that are there, and those that are away, by their ids."""
    nodes = {one.id: one for one in seen.brokers}
    total = len(seen.partitions) or 1
    return [
        BrokerRow(
            id_,
            nodes.get(id_),
            seen.led[id_],
            seen.led[id_] / total,
            seen.kept[id_],
            seen.misled[id_],
            tuple(one for one in seen.disks if one.broker_id == id_),
        )
        for id_ in sorted({*nodes, *seen.away})
    ]

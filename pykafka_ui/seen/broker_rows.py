"""The rows of the list of brokers: who is there, who leads how much, and how full the disks are. Pure."""

from __future__ import annotations

import dataclasses

from broker.client.admin_types import LogDir
from broker.client.cluster_metadata import Node
from pykafka_ui.seen.snapshot import Snapshot

FULL = 0.9
"""Of a disk."""


@dataclasses.dataclass(frozen=True)
class BrokerRow:
    """`node` is None of a broker that has replicas and is away. `share`: of all partitions, that it leads.

    `misled`: partitions that it should lead and does not. `total` and `free`: bytes of its fullest disk, for nothing
    tells whether two directories share one; -1 if they are not known. `used`: of that disk, 0 to 1, or None.
    """

    id: int
    node: Node | None
    led: int
    share: float
    replicas: int
    misled: int
    errors: list[str]
    total: int
    free: int

    @property
    def used(self) -> float | None:
        return None if self.total <= 0 else 1 - self.free / self.total

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


def broker_rows(seen: Snapshot) -> list[BrokerRow]:
    """All that are there, and those that are away, by their ids."""
    nodes = {one.id: one for one in seen.brokers}
    return [_row(id_, nodes.get(id_), seen) for id_ in sorted({*nodes, *seen.away})]


def _row(id_: int, node: Node | None, seen: Snapshot) -> BrokerRow:
    disks = [one for one in seen.disks if one.broker_id == id_]
    errors = [f"{one.path}: {one.error}" for one in disks if one.error]
    known = [one for one in disks if one.total_bytes > 0 and one.usable_bytes >= 0]
    fullest = min(known, key=lambda one: one.usable_bytes / one.total_bytes, default=LogDir(id_, "", None, -1, -1, {}))
    led, total = seen.led[id_], len(seen.partitions) or 1
    counts = (led, led / total, seen.kept[id_], seen.misled[id_])
    return BrokerRow(id_, node, *counts, errors, fullest.total_bytes, fullest.usable_bytes)

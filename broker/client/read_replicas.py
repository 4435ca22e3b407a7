"""Which broker to read a partition from: its leader, or the replica that the leader names (KIP-392).

A consumer that names its rack (`client.rack`) in a fetch may be sent to a replica in that rack. It reads there for
`metadata.max.age.ms`, then asks the leader again. If that replica fails, it reads from the leader, and names no rack to
it for a while: the leader may not know yet that the replica is gone. Thread-safe.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

from broker.protocol.topic_partition import TopicPartition

FALL_BACK_S: Final = 10.0
_LEADER: Final = -1


class ReadReplicas:
    """What the leaders of a cluster said to this client."""

    def __init__(self, rack: str, lease_s: float) -> None:
        self._rack = rack
        self._lease_s = lease_s
        self._chosen: dict[TopicPartition, tuple[int, float]] = {}
        """Broker id, or _LEADER after a failure, and until when (monotonic)."""

    def get(self, tp: TopicPartition) -> int | None:
        """The broker to read from, None for the leader."""
        broker_id = self._current(tp)
        return None if broker_id == _LEADER else broker_id

    def rack_for(self, partitions: Iterable[TopicPartition]) -> str:
        """The rack to name in a fetch of these partitions; empty when the leader of one must answer it itself."""
        if not self._rack or any(self._current(tp) == _LEADER for tp in partitions):
            return ""
        return self._rack

    def prefer(self, tp: TopicPartition, broker_id: int) -> None:
        self._chosen[tp] = broker_id, time.monotonic() + self._lease_s

    def fall_back(self, tp: TopicPartition) -> bool:
        """Read from the leader after a failure; False where that failed."""
        if self.get(tp) is None:
            return False
        self._chosen[tp] = _LEADER, time.monotonic() + FALL_BACK_S
        return True

    def _current(self, tp: TopicPartition) -> int | None:
        found = self._chosen.get(tp)
        if found is None:
            return None
        if time.monotonic() > found[1]:
            self._chosen.pop(tp, None)
            return None
        return found[0]

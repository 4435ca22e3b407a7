"""What a leader knows of its followers: their positions, the ISR, and the high watermark that follows. Pure.

`Partition` calls it for every append, every fetch of a follower, and with the answers of ZooKeeper. Positions are log
end offsets; times are monotonic seconds. Rules of Kafka's `Partition` and `Replica` (KIP-497):

- The high watermark is the lowest position of the replicas in the ISR. It never goes back. A change of the ISR that is
  being written counts with whichever ISR is larger: the controller may elect any of either.
- A follower that has caught up lately, but is not in the ISR yet, counts as well. Without this a busy leader whose
  followers have all left would move the watermark on with every append, and none could ever catch up with it.
- A follower leaves the ISR when it has not caught up with the log's end for `replica.lag.time.max.ms`.
- A follower joins the ISR when its position has reached the high watermark and the start of this leader epoch: then it
  has every committed record, and none of an older leader that this log does not have.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping

__all__ = ["UNKNOWN_OFFSET", "FollowerState", "InSyncState"]

UNKNOWN_OFFSET = -1
"""The position of a follower that has not fetched in this leader epoch."""


@dataclasses.dataclass(slots=True)
class FollowerState:
    """One follower, as its fetches in this leader epoch show it."""

    log_end_offset: int = UNKNOWN_OFFSET
    caught_up_at: float = 0.0
    """When it last had all that the leader's log had."""
    fetched_at: float = 0.0
    end_when_fetched: int = 0
    """The end of the leader's log at its last fetch."""


class InSyncState:
    """The followers of one partition during one leader epoch."""

    def __init__(
        self,
        leader: int,
        replicas: Collection[int],
        isr: Collection[int],
        *,
        high_watermark: int,
        log_end_offset: int,
        now: float,
        max_lag_s: float,
    ) -> None:
        """`high_watermark`: what this replica knew as a follower, or from its checkpoint."""
        self._leader = leader
        self._followers = {replica: FollowerState() for replica in replicas if replica != leader}
        self._end = self._epoch_start = log_end_offset
        self._max_lag_s = max_lag_s
        self.isr = frozenset(isr)
        self.pending_isr: frozenset[int] | None = None
        """The ISR that is being written, if any."""
        self.high_watermark = min(high_watermark, log_end_offset)
        for replica in self.isr - {leader}:
            if replica in self._followers:
                self._followers[replica].caught_up_at = now  # it gets the whole lag time to fetch for the first time
        self._advance(now)

    @property
    def followers(self) -> Mapping[int, FollowerState]:
        return self._followers

    @property
    def largest_isr(self) -> frozenset[int]:
        """The replicas that a controller may elect: the ISR, with those that are joining it."""
        return self.isr if self.pending_isr is None else self.isr | self.pending_isr

    def appended(self, log_end_offset: int, now: float) -> bool:
        """The leader's log has grown to `log_end_offset`; whether the high watermark has advanced."""
        self._end = log_end_offset
        return self._advance(now)

    def fetched(self, replica: int, offset: int, now: float) -> bool:
        """A follower asks for `offset`, so it has all before; whether the high watermark has advanced.

        A replica that is not assigned to the partition is ignored.
        """
        follower = self._followers.get(replica)
        if follower is None:
            return False
        if offset >= self._end:
            follower.caught_up_at = now
        elif offset >= follower.end_when_fetched and follower.log_end_offset != UNKNOWN_OFFSET:
            follower.caught_up_at = max(follower.caught_up_at, follower.fetched_at)
        follower.log_end_offset = offset
        follower.fetched_at, follower.end_when_fetched = now, self._end
        return self._advance(now)

    def reassigned(self, replicas: Iterable[int], now: float) -> bool:
        """The partition is assigned to these replicas now; whether the high watermark has advanced."""
        known = self._followers
        self._followers = {r: known.get(r) or FollowerState() for r in replicas if r != self._leader}
        return self._advance(now)

    # --- changes of the ISR

    def wanted_isr(self, now: float) -> frozenset[int] | None:
        """The ISR to write, if it should change; None while a change is being written."""
        if self.pending_isr is not None:
            return None
        slow = {r for r in self.isr if r != self._leader and not self._is_in_sync(r, now)}
        joining = {r for r in self._followers if r not in self.isr and self._may_join(r)}
        wanted = (self.isr - slow) | joining
        return wanted if wanted != self.isr else None

    def writing(self, isr: frozenset[int]) -> None:
        """`isr` is being written from now on."""
        self.pending_isr = isr

    def written(self, isr: Collection[int], now: float, *, by_leader: bool) -> bool:
        """ZooKeeper has `isr`, from this leader or from another broker; whether the high watermark has advanced.

        When another broker has changed it, the positions of the replicas outside of it are forgotten until they fetch
        again: such a replica may have started without the end of its log (KIP-903 prevents the same).
        """
        self.isr, self.pending_isr = frozenset(isr), None
        if not by_leader:
            for replica in self._followers.keys() - self.isr:
                self._followers[replica] = FollowerState()
        return self._advance(now)

    def _is_in_sync(self, replica: int, now: float) -> bool:
        follower = self._followers.get(replica)
        if follower is None:
            return False
        return follower.log_end_offset == self._end or now - follower.caught_up_at <= self._max_lag_s

    def _may_join(self, replica: int) -> bool:
        return self._followers[replica].log_end_offset >= max(self.high_watermark, self._epoch_start)

    def _advance(self, now: float) -> bool:
        isr, lowest = self.largest_isr, self._end
        for replica, follower in self._followers.items():
            position = follower.log_end_offset
            if position < lowest and (replica in isr or self._waits_to_join(follower, now)):
                lowest = position
        missing = isr - self._followers.keys() - {self._leader}
        if missing or lowest <= self.high_watermark:
            return False  # a member of the ISR that is no replica any more: its position is not known
        self.high_watermark = lowest
        return True

    def _waits_to_join(self, follower: FollowerState, now: float) -> bool:
        return follower.log_end_offset != UNKNOWN_OFFSET and now - follower.caught_up_at <= self._max_lag_s

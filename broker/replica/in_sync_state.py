"""What a leader knows of its followers: their positions, the ISR, and the high watermark that follows. Pure.

`Partition` calls it for every append, every fetch of a follower, and with the answers of ZooKeeper. Positions are log
end offsets; times are monotonic seconds. Rules of Kafka's `Partition` and `Replica` (KIP-497, KIP-966):

- The high watermark is the lowest position of the replicas in the ISR. It never goes back. A change of the ISR that is
  being written counts with whichever ISR is larger: the controller may elect any of either (P1, P2).
- It stands still while the ISR is smaller than `min.insync.replicas`: consumers see only what that many replicas have.
- A follower that has caught up lately, but is not in the ISR yet, counts as well. Without this a busy leader whose
  followers have all left would move the watermark on with every append, and none could ever catch up with it.
- A follower leaves the ISR when it has not caught up with the log's end for `replica.lag.time.max.ms`, or at once when
  its broker seems to be dead.
- A follower joins the ISR when it has caught up lately, and its position has reached the high watermark and the start
  of this leader epoch. Then it has every committed record, and none of an older leader that this log does not have.
- With every new state of the partition the positions of the replicas outside the ISR are forgotten until they fetch
  again. Such a replica may have started without the end of its log, and has said so by that state.
- Only a registered broker joins the ISR, and by a fetch of its present registration. A fetch of an earlier one, which
  arrives late, counts for nothing (KIP-903).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Iterable, Mapping

UNKNOWN_EPOCH = -1
UNKNOWN_OFFSET = -1
"""The position of a follower that has not fetched in this leader epoch."""


@dataclasses.dataclass(slots=True)
class FollowerState:
    """One follower, as its fetches in this leader epoch show it."""

    log_end_offset: int = UNKNOWN_OFFSET
    caught_up_at: float = -math.inf
    """When it last had all that the leader's log had."""
    fetched_at: float = -math.inf
    end_when_fetched: int = 0
    """The end of the leader's log at its last fetch."""
    log_start_offset: int = 0
    """Where its log begins, as it said in its last fetch."""
    broker_epoch: int = UNKNOWN_EPOCH
    """Of the registration that the broker had at its last fetch."""
    is_suspected: bool = False
    """Whether its broker seems to be dead, and it has not fetched since."""


class InSyncState:
    def __init__(
        self,
        leader: int,
        replicas: Iterable[int],
        isr: Collection[int],
        *,
        high_watermark: int,
        log_end_offset: int,
        now: float,
        max_lag_s: float,
        min_isr: Callable[[], int] = lambda: 1,
        broker_epochs: Mapping[int, int] | None = None,
    ) -> None:
        """`high_watermark`: what this replica knew as a follower, or from its checkpoint. `min_isr` gives
        min.insync.replicas, which may change. `broker_epochs` are those of the registered brokers, as a live view; None
        if nobody knows."""
        self._broker_epochs = broker_epochs
        self.leader = leader
        self.followers = {replica: FollowerState() for replica in replicas if replica != leader}
        self.log_end_offset = self.epoch_start = log_end_offset
        """The end of the leader's log, as far as `appended` has told, and where this leader epoch begins."""
        self._max_lag_s = max_lag_s
        self._min_isr = min_isr
        self.isr = frozenset(isr)
        self.pending_isr: frozenset[int] | None = None
        """The ISR that is being written, if any. After a failure it may be in ZooKeeper or not: it is written again."""
        self.high_watermark = min(high_watermark, log_end_offset)
        for replica in self.isr & self.followers.keys():
            self.followers[replica].caught_up_at = now  # it gets the whole lag time to fetch for the first time
        self._count(now)

    @property
    def largest_isr(self) -> frozenset[int]:
        """The replicas that a controller may elect: the ISR, with those that are joining it."""
        return self.isr if self.pending_isr is None else self.isr | self.pending_isr

    @property
    def min_isr(self) -> int:
        """How many replicas have to be in sync: min.insync.replicas, but not more than there are."""
        return min(self._min_isr(), len(self.followers) + 1)

    def appended(self, log_end_offset: int, now: float) -> bool:
        """The leader's log has grown to `log_end_offset`; whether the high watermark has advanced.

        A follower that had everything until now may not have fetched lately: its fetch session waits for this append.
        """
        for follower in self.followers.values():
            if follower.log_end_offset == self.log_end_offset:
                follower.caught_up_at = now
        self.log_end_offset = log_end_offset
        return self.advance(now)

    def is_fenced(self, replica: int, broker_epoch: int) -> bool:
        """Whether a broker has registered again since it had this broker epoch."""
        known = UNKNOWN_EPOCH if self._broker_epochs is None else self._broker_epochs.get(replica, UNKNOWN_EPOCH)
        return UNKNOWN_EPOCH < broker_epoch < known

    def is_known(self, replica: int) -> bool:
        """Whether the position of a follower is known, in its present registration."""
        follower = self.followers.get(replica)
        if follower is None or follower.log_end_offset == UNKNOWN_OFFSET:
            return False
        return not self.is_fenced(replica, follower.broker_epoch)

    def fetched(self, replica: int, offset: int, now: float, broker_epoch: int = UNKNOWN_EPOCH) -> bool:
        """A follower asks for `offset`, so it has all before; whether the high watermark has advanced.

        A replica that is not assigned to the partition is ignored.
        """
        follower = self.followers.get(replica)
        if follower is None or self.is_fenced(replica, broker_epoch):
            return False
        follower.broker_epoch = broker_epoch
        if offset >= self.log_end_offset:
            follower.caught_up_at = now
        elif offset >= follower.end_when_fetched and follower.log_end_offset != UNKNOWN_OFFSET:
            follower.caught_up_at = max(follower.caught_up_at, follower.fetched_at)
        follower.log_end_offset, follower.is_suspected = offset, False
        follower.fetched_at, follower.end_when_fetched = now, self.log_end_offset
        return self.advance(now)

    def reassigned(self, replicas: Iterable[int], now: float) -> bool:
        """The partition is assigned to these replicas now; whether the high watermark has advanced."""
        known = self.followers
        self.followers = {r: known.get(r) or FollowerState() for r in replicas if r != self.leader}
        return self._count(now)

    def suspect(self, replica: int, since: float) -> None:
        """The broker of `replica` seems to be dead: forget its position, unless it has fetched after `since`."""
        follower = self.followers.get(replica)
        if follower is not None and follower.fetched_at <= since:
            follower.log_end_offset, follower.caught_up_at = UNKNOWN_OFFSET, -math.inf
            follower.is_suspected = True

    def low_watermark(self, log_start_offset: int) -> int:
        """The lowest log start offset of the leader and of the followers that are registered.

        That of a follower that has not fetched in this leader epoch is not known, and counts as 0.
        """
        registered = self.followers.keys() if self._broker_epochs is None else self._broker_epochs.keys()
        starts = [one.log_start_offset for replica, one in self.followers.items() if replica in registered]
        return min([log_start_offset, *starts])

    def advance(self, now: float) -> bool:
        """Compute the high watermark; whether it has advanced."""
        if self._has_strangers or len(self.isr) < self.min_isr:
            return False
        isr, lowest = self.largest_isr, self.log_end_offset
        for replica, follower in self.followers.items():
            position = follower.log_end_offset
            if position < lowest and (replica in isr or self._waits_to_join(follower, now)):
                lowest = position
        if lowest <= self.high_watermark:
            return False
        self.high_watermark = lowest
        return True

    # --- changes of the ISR

    def without_leader(self) -> frozenset[int] | None:
        """The ISR when the leader leaves it; None if no other member can lead: it is not registered, or seems dead."""
        others = self.isr - {self.leader}
        lives = others if self._broker_epochs is None else others & self._broker_epochs.keys()
        lives -= {replica for replica, follower in self.followers.items() if follower.is_suspected}
        return others if lives else None

    def may_join(self, replica: int, now: float) -> bool:
        """Whether a follower should be in the ISR, and is not."""
        if replica in self.isr or replica not in self.followers or not self._is_registered(replica):
            return False
        reached = self.followers[replica].log_end_offset >= max(self.high_watermark, self.epoch_start)
        return reached and self._is_in_sync(replica, now)

    def _is_registered(self, replica: int) -> bool:
        """Whether a broker has fetched in its present registration. (An epoch of -1 is of a broker without one.)"""
        if self._broker_epochs is None:
            return True
        fetched_in = self.followers[replica].broker_epoch
        return replica in self._broker_epochs and fetched_in in (UNKNOWN_EPOCH, self._broker_epochs[replica])

    def wanted_isr(self, now: float) -> frozenset[int] | None:
        """The ISR to write, if it should change; None while a change is being written."""
        if self.pending_isr is not None:
            return None
        slow = {r for r in self.isr if r != self.leader and not self._is_in_sync(r, now)}
        joining = {r for r in self.followers if self.may_join(r, now)}
        wanted = (self.isr - slow) | joining
        return wanted if wanted != self.isr else None

    def writing(self, isr: frozenset[int]) -> None:
        """`isr` is being written from now on. From here it counts, until ZooKeeper's state is known again."""
        self.pending_isr = isr

    def written(self, isr: Collection[int], now: float) -> bool:
        """ZooKeeper has a new state with `isr`, from whichever broker; whether the high watermark has advanced."""
        self.isr, self.pending_isr = frozenset(isr), None
        for replica in self.followers.keys() - self.isr:
            self.followers[replica] = FollowerState()
        return self._count(now)

    def _count(self, now: float) -> bool:
        # A member of the ISR may be no replica any more, because a topic and its states are read at different times.
        self._has_strangers = bool(self.isr - self.followers.keys() - {self.leader})
        return self.advance(now)

    def _is_in_sync(self, replica: int, now: float) -> bool:
        follower = self.followers.get(replica)
        if follower is None:
            return False
        return follower.log_end_offset == self.log_end_offset or now - follower.caught_up_at <= self._max_lag_s

    def _waits_to_join(self, follower: FollowerState, now: float) -> bool:
        return follower.log_end_offset != UNKNOWN_OFFSET and now - follower.caught_up_at <= self._max_lag_s

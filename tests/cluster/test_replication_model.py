"""A model of one partition on three brokers: `InSyncState` and the controller's rules against any order of events.

Brokers append, fetch, learn states late, are killed, lose the end of their logs with the page cache, and start; the
leader and controllers write states by compare-and-set. Logs are lists of (leader epoch, number of the record).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from broker.cluster.controller_state import next_state, state_at_start, state_without
from broker.replica.in_sync_state import InSyncState
from broker.zookeeper.cluster_metadata import NO_LEADER, PartitionInfo

BROKERS = (1, 2, 3)
MIN_ISR = 2
MAX_LAG_S = 10.0

NUMBERS = st.integers(0, 2)

Record = tuple[int, int]


@dataclasses.dataclass
class Broker:
    """What one broker has and believes. `role` is None unless it leads; the log and the watermark survive a crash."""

    id: int
    alive: bool = True
    dead_for_good: bool = False
    lost: bool = False
    """Its machine went down since it was stopped."""
    log: list[Record] = dataclasses.field(default_factory=list)
    high_watermark: int = 0
    leader: int = NO_LEADER
    epoch: int = -1
    seen_version: int = -1
    role: InSyncState | None = None
    waiting: list[int] = dataclasses.field(default_factory=list)
    """Offsets that producers with acks=all wait for."""


def end_of_epoch(log: list[Record], epoch: int) -> tuple[int, int]:
    """(the largest epoch up to `epoch`, the offset after its last record)."""
    held = [e for e, _ in log if e <= epoch]
    return (held[-1] if held else -1), len(held)


class Replication(RuleBasedStateMachine):
    """Promises P1 to P4 hold after every step."""

    unclean = False

    def __init__(self) -> None:
        super().__init__()
        self.brokers = {i: Broker(i) for i in BROKERS}
        self.view = PartitionInfo(NO_LEADER, 0, BROKERS, ())
        self.now = 0.0
        self.records = 0
        self.acknowledged: list[tuple[int, Record]] = []
        self.read: list[Record] = []
        """What consumers have seen, up to the highest high watermark of any leader."""
        self.leaders: dict[int, int] = {}
        self.losses = 0

    # --- helpers

    def live(self) -> set[int]:
        return {b.id for b in self.brokers.values() if b.alive}

    def write(self, view: PartitionInfo, version: int) -> bool:
        if version != self.view.version:
            return False
        self.view = dataclasses.replace(view, version=version + 1)
        if view.leader != NO_LEADER:
            assert self.leaders.setdefault(view.leader_epoch, view.leader) == view.leader, "two leaders in one epoch"
        return True

    def settle(self, b: Broker) -> None:
        """The leader's watermark may have advanced: acknowledge and show what is below it.

        With too small an ISR, those that wait get NOT_ENOUGH_REPLICAS_AFTER_APPEND.
        """
        assert b.role is not None
        assert b.role.high_watermark >= b.high_watermark, "the watermark went back"
        b.high_watermark = b.role.high_watermark
        self.acknowledged += [(offset, b.log[offset]) for offset in b.waiting if offset < b.high_watermark]
        b.waiting = [offset for offset in b.waiting if offset >= b.high_watermark]
        if len(b.role.largest_isr) < MIN_ISR:
            b.waiting = []
        shown = b.log[: b.high_watermark]
        assert shown[: len(self.read)] == self.read[: len(shown)], "readers saw records that this leader does not have"
        self.read = max(self.read, shown, key=len)

    def pick(self, n: int, may: Callable[[Broker], bool]) -> Broker | None:
        """One of the brokers that may, so that few steps do nothing."""
        found = [b for b in self.brokers.values() if may(b)]
        return found[n % len(found)] if found else None

    def follows(self, b: Broker) -> bool:
        """Whether its fetches are answered: leader and follower are in one epoch."""
        if not b.alive or b.role is not None or b.leader == NO_LEADER:
            return False
        leader = self.brokers[b.leader]
        return leader.alive and leader.role is not None and leader.epoch == b.epoch

    # --- events

    @initialize()
    def create(self) -> None:
        made = next_state(self.view, self.live())
        assert made is not None
        self.write(made.after, self.view.version)
        for _ in BROKERS:
            self.learn(0)

    @rule(n=NUMBERS)
    def learn(self, n: int) -> None:
        """A broker reads the state in ZooKeeper."""
        b = self.pick(n, lambda b: b.alive and b.seen_version != self.view.version)
        if b is None:
            return
        b.seen_version = self.view.version
        if b.role is not None and self.view.leader_epoch == b.epoch:
            b.role.written(self.view.isr, self.now)
            self.settle(b)
            return
        if self.view.leader_epoch <= b.epoch:
            return
        was_leading = b.role is not None
        b.epoch, b.leader, b.role = self.view.leader_epoch, self.view.leader, None
        if not was_leading or b.leader != b.id:
            b.waiting = []
        if b.leader == b.id:
            b.role = InSyncState(
                b.id,
                self.view.replicas,
                self.view.isr,
                high_watermark=b.high_watermark,
                log_end_offset=len(b.log),
                now=self.now,
                max_lag_s=MAX_LAG_S,
                min_isr=lambda: MIN_ISR,
            )
            self.settle(b)

    @rule(n=NUMBERS, count=st.integers(1, 3))
    def produce(self, n: int, count: int) -> None:
        b = self.pick(n, lambda b: b.alive and b.role is not None)
        if b is None or b.role is None:
            return
        wait = len(b.role.isr) >= MIN_ISR
        for _ in range(count):
            self.records += 1
            if wait:
                b.waiting.append(len(b.log))
            b.log.append((b.epoch, self.records))
        b.role.appended(len(b.log), self.now)
        self.settle(b)

    @rule(n=NUMBERS, most=st.integers(1, 4))
    def fetch(self, n: int, most: int) -> None:
        """A follower fetches from the broker that it takes for the leader: truncation first (KIP-595)."""
        b = self.pick(n, self.follows)
        if b is None:
            return
        leader = self.brokers[b.leader]
        assert leader.role is not None
        last_epoch = b.log[-1][0] if b.log else -1
        if last_epoch >= 0:
            epoch, end = end_of_epoch(leader.log, last_epoch)
            if epoch < last_epoch or end < len(b.log):
                mine, my_end = end_of_epoch(b.log, epoch)
                b.log = b.log[: min(end, my_end) if mine == epoch else my_end]
                b.high_watermark = min(b.high_watermark, len(b.log))
                return
        leader.role.fetched(b.id, len(b.log), self.now)
        self.settle(leader)
        b.log += leader.log[len(b.log) : len(b.log) + most]
        b.high_watermark = max(b.high_watermark, min(leader.high_watermark, len(b.log)))

    @rule(n=NUMBERS, answer=st.sampled_from(("received", "lost", "never sent")))
    def change_isr(self, n: int, answer: str) -> None:
        """A leader writes the ISR that it wants, or again the one of which it does not know whether it was written."""

        def wanted(b: Broker) -> frozenset[int] | None:
            return None if b.role is None else b.role.pending_isr or b.role.wanted_isr(self.now)

        b = self.pick(n, lambda b: b.alive and wanted(b) is not None)
        if b is None or b.role is None or (asked := wanted(b)) is None:
            return
        b.role.writing(asked)
        self.settle(b)
        if answer == "never sent":
            return
        isr = tuple(r for r in self.view.replicas if r in asked)
        if self.write(dataclasses.replace(self.view, isr=isr), b.seen_version) and answer == "received":
            b.seen_version = self.view.version
            b.role.written(isr, self.now)
            self.settle(b)

    @rule()
    def control(self) -> None:
        """A controller that knows who lives."""
        election = next_state(self.view, self.live(), unclean_allowed=self.unclean)
        if election is not None:
            assert election.unclean is False or self.unclean
            self.write(election.after, self.view.version)

    @rule(n=NUMBERS)
    def kill(self, n: int) -> None:
        b = self.pick(n, lambda b: b.alive)
        if b is not None:
            self.end(b)

    def end(self, b: Broker) -> None:
        b.alive, b.role, b.waiting = False, None, []

    @rule(n=NUMBERS, kept=st.integers(0, 5))
    @precondition(lambda self: self.losses < MIN_ISR - 1)
    def lose(self, n: int, kept: int) -> None:
        """Power fails: what was not on disk is gone. The machine counts as one of those that die.

        When the only in-sync replica loses records, they are lost in Kafka, too.
        """
        b = self.pick(n, lambda b: self.view.isr != (b.id,))
        if b is not None:
            self.losses += 1
            self.end(b)
            b.lost, b.log = True, b.log[:kept]
            b.high_watermark = min(b.high_watermark, kept)

    @rule(n=NUMBERS)
    @precondition(lambda self: self.losses < MIN_ISR - 1)
    def die(self, n: int) -> None:
        b = self.pick(n, lambda b: b.alive)
        if b is not None:
            self.losses += 1
            self.end(b)
            b.dead_for_good = True

    @rule(n=NUMBERS)
    def start(self, n: int) -> None:
        b = self.pick(n, lambda b: not b.alive and not b.dead_for_good)
        if b is None:
            return
        election = state_at_start(self.view, b.id, may_have_lost=b.lost)
        if election is not None:
            self.write(election.after, self.view.version)
        b.alive, b.lost, b.epoch, b.leader, b.seen_version = True, False, -1, NO_LEADER, -1

    @rule(n=NUMBERS)
    def stop(self, n: int) -> None:
        """Controlled shutdown."""
        b = self.pick(n, lambda b: b.alive)
        if b is None:
            return
        election = state_without(self.view, b.id, self.live())
        if election is not None:
            self.write(election.after, self.view.version)
        self.end(b)

    @rule(seconds=st.sampled_from((1.0, 20.0)))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    # --- promises

    @invariant()
    def nothing_acknowledged_is_lost(self) -> None:
        leader = self.brokers.get(self.view.leader)
        if leader is None or not leader.alive:
            return
        for offset, record in self.acknowledged:
            assert offset < len(leader.log), f"{record} at {offset} was acknowledged and is lost"
            assert leader.log[offset] == record

    @invariant()
    def everything_acknowledged_survives_somewhere(self) -> None:
        """Also while no broker may lead."""
        for offset, record in self.acknowledged:
            held = [
                b.id for b in self.brokers.values() if not b.dead_for_good and b.log[offset : offset + 1] == [record]
            ]
            assert held, f"{record} at {offset} was acknowledged, and is on no broker"

    @invariant()
    def replicas_agree_below_the_watermark(self) -> None:
        for a in self.brokers.values():
            for b in self.brokers.values():
                common = min(a.high_watermark, b.high_watermark)
                assert a.log[:common] == b.log[:common]


TestReplication = Replication.TestCase
TestReplication.settings = settings(max_examples=200, stateful_step_count=80, deadline=None)

"""A model of one partition on three brokers: `InSyncState` and the controller's rules against any order of events.

Brokers append, fetch, learn states late, are killed, lose the end of their logs with the page cache, and start; the
leader and controllers write states by compare-and-set. Logs are lists of (leader epoch, number of the record).
"""

from __future__ import annotations

import dataclasses
import random
import sys
from collections.abc import Callable, Collection
from typing import TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from broker.cluster import controller_state
from broker.cluster.controller_state import Election, next_state, state_at_start, state_without
from broker.replica.cluster_metadata import NO_LEADER, PartitionInfo
from broker.replica.in_sync_state import InSyncState
from tests.support.randomness import seeded

MODEL = sys.modules[__name__]
BROKERS = (1, 2, 3)
MIN_ISR = 2
MAX_LAG_S = 10.0

NUMBERS = st.integers(0, 2)
SUSPECTED = st.sets(st.sampled_from(BROKERS)) | st.just(set[int]())
"""Any broker may be suspected to be dead, rightly or not."""
ANSWERS = ("received", "lost", "never sent")

Record = tuple[int, int]


@dataclasses.dataclass
class Broker:
    """What one broker has and believes. `role` is None unless it leads; the log and the watermark survive a crash."""

    id: int
    alive: bool = True
    dead_for_good: bool = False
    lost: bool = False
    """Its machine went down since it was stopped."""
    burnt: bool = False
    """It has lost its disk since it was stopped."""
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


M = TypeVar("M", bound="Replication")


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
        if b is not None:
            self.read_state(b)

    @rule()
    def all_learn(self) -> None:
        for b in self.brokers.values():
            if b.alive and b.seen_version != self.view.version:
                self.read_state(b)

    def read_state(self, b: Broker) -> None:
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
        if b is not None:
            self.fetch_once(b, most)

    @rule(followers=st.sets(st.sampled_from(BROKERS), min_size=1))
    def catch_up(self, followers: set[int]) -> None:
        """Followers fetch until the leader knows that they have all it has."""
        for replica in sorted(followers):
            for _ in range(4):
                if self.follows(self.brokers[replica]):
                    self.fetch_once(self.brokers[replica], self.records)

    def fetch_once(self, b: Broker, most: int) -> None:
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

    @rule(n=NUMBERS, answer=st.sampled_from(ANSWERS))
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

    @rule(n=NUMBERS, replica=st.sampled_from(BROKERS))
    def suspect(self, n: int, replica: int) -> None:
        """A leader takes a follower for dead."""
        b = self.pick(n, lambda b: b.alive and b.role is not None)
        if b is not None and b.role is not None:
            b.role.suspect(replica, self.now)
            self.settle(b)

    @rule(suspected=SUSPECTED)
    def control(self, suspected: set[int]) -> None:
        """A controller that knows who is registered."""
        election = next_state(self.view, self.live(), suspected=suspected, unclean_allowed=self.unclean)
        if election is not None:
            assert election.unclean is False or self.unclean
            self.write(election.after, self.view.version)

    @rule(n=NUMBERS)
    def kill(self, n: int) -> None:
        b = self.pick(n, lambda b: b.alive)
        if b is not None:
            self.end(b)

    @rule()
    def fail_over(self) -> None:
        """The leader dies, and a controller notices it."""
        if self.view.leader != NO_LEADER:
            self.end(self.brokers[self.view.leader])
            self.control(set())
            self.all_learn()

    def end(self, b: Broker) -> None:
        b.alive, b.role, b.waiting = False, None, []

    @rule()
    def heal(self) -> None:
        """All brokers run, and all replicas get in sync."""
        for n in range(len(BROKERS)):
            self.start(n)
        for _ in range(2):
            self.control(set())
            self.all_learn()
            self.catch_up(set(BROKERS))
            self.change_isr(0, "received")

    @rule(n=NUMBERS)
    def leave_one(self, n: int) -> None:
        """All brokers but one die, and a controller lets that one lead if it may."""
        last = self.pick(n, lambda b: b.alive)
        if last is not None:
            for b in self.brokers.values():
                if b is not last:
                    self.end(b)
            self.control(set())
            self.all_learn()

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
    def burn(self, n: int) -> None:
        """A disk is lost, perhaps that of the only in-sync replica."""
        b = self.pick(n, lambda b: True)
        if b is not None:
            self.losses += 1
            self.end(b)
            b.lost = b.burnt = True
            b.log, b.high_watermark = [], 0

    @rule(n=NUMBERS)
    @precondition(lambda self: self.losses < MIN_ISR - 1)
    def die(self, n: int) -> None:
        b = self.pick(n, lambda b: b.alive)
        if b is not None:
            self.losses += 1
            self.end(b)
            b.dead_for_good = True

    @rule(n=NUMBERS, fetches=st.integers(0, 2))
    def start(self, n: int, fetches: int = 0) -> None:
        """A broker starts, and may have fetched a little before anything else happens."""
        b = self.pick(n, lambda b: not b.alive and not b.dead_for_good)
        if b is None:
            return
        election = state_at_start(self.view, b.id, may_have_lost=b.lost, has_log=not b.burnt)
        if election is not None:
            self.write(election.after, self.view.version)
        b.alive, b.lost, b.burnt, b.epoch, b.leader, b.seen_version = True, False, False, -1, NO_LEADER, -1
        if fetches:
            self.control(set())
            self.all_learn()
        for _ in range(fetches):
            if self.follows(b):
                self.fetch_once(b, 1)

    @rule(n=NUMBERS, suspected=SUSPECTED)
    def stop(self, n: int, suspected: set[int]) -> None:
        """Controlled shutdown."""
        b = self.pick(n, lambda b: b.alive)
        if b is None:
            return
        election = state_without(self.view, b.id, self.live() - suspected)
        if election is not None:
            self.write(election.after, self.view.version)
        self.end(b)

    @rule(seconds=st.sampled_from((1.0, 20.0)))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    # --- promises

    def check(self) -> None:
        """What hypothesis looks at after each step."""
        self.nothing_acknowledged_is_lost()
        self.everything_acknowledged_survives_somewhere()
        self.each_in_sync_replica_has_what_was_shown()
        self.replicas_agree_below_the_watermark()

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
    def each_in_sync_replica_has_what_was_shown(self) -> None:
        """Any of them may be elected next (P1, P2). What a machine lost with its memory it says when it starts."""
        for b in self.brokers.values():
            if b.id in self.view.isr and not (b.lost or b.dead_for_good):
                assert b.log[: len(self.read)] == self.read, f"broker {b.id} is in sync, and lacks what was shown"

    @invariant()
    def replicas_agree_below_the_watermark(self) -> None:
        for a in self.brokers.values():
            for b in self.brokers.values():
                common = min(a.high_watermark, b.high_watermark)
                assert a.log[:common] == b.log[:common]


TestReplication = Replication.TestCase
TestReplication.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)


# --- walks: many short histories, with what is rare but telling more often than hypothesis would choose it


def suspect(dice: random.Random) -> set[int]:
    return set(dice.sample(BROKERS, dice.choice((0, 0, 0, 1, 2))))


LOSSES = "lose", "burn", "die"
"""Steps that take a machine or what it has; promise P1 is for one less than min.insync.replicas of them."""
Steps = dict[str, tuple[float, Callable[[random.Random], dict[str, object]]]]
"""The weight of each step and what draws its arguments."""
STEPS: Steps = {
    "heal": (1, lambda dice: {}),
    "learn": (2, lambda dice: {"n": dice.randrange(3)}),
    "all_learn": (3, lambda dice: {}),
    "produce": (6, lambda dice: {"n": dice.randrange(3), "count": dice.randint(1, 3)}),
    "fetch": (2, lambda dice: {"n": dice.randrange(3), "most": dice.randint(1, 4)}),
    "catch_up": (5, lambda dice: {"followers": set(dice.sample(BROKERS, dice.randint(1, 3)))}),
    "change_isr": (6, lambda dice: {"n": dice.randrange(3), "answer": dice.choice(ANSWERS)}),
    "control": (2, lambda dice: {"suspected": suspect(dice)}),
    "kill": (2, lambda dice: {"n": dice.randrange(3)}),
    "fail_over": (0.7, lambda dice: {}),
    "lose": (0.7, lambda dice: {"n": dice.randrange(3), "kept": dice.randint(0, 5)}),
    "burn": (0.4, lambda dice: {"n": dice.randrange(3)}),
    "die": (0.1, lambda dice: {"n": dice.randrange(3)}),
    "start": (5, lambda dice: {"n": dice.randrange(3), "fetches": dice.randint(0, 2)}),
    "suspect": (0.7, lambda dice: {"n": dice.randrange(3), "replica": dice.choice(BROKERS)}),
    "stop": (0.5, lambda dice: {"n": dice.randrange(3), "suspected": suspect(dice)}),
    "wait": (1.5, lambda dice: {"seconds": dice.choice((1.0, 20.0))}),
}


def walk(model: M, steps: Steps, count: int, seed: int) -> M:
    """A history of so many steps, after which one broker is left. Raises AssertionError with the steps."""
    dice, taken = seeded(seed), list[str]()
    model.create()
    names, weights = list(steps), [weight for weight, _ in steps.values()]
    try:
        for name in [*dice.choices(names, weights, k=count), "leave_one"]:
            if name in LOSSES and model.losses >= MIN_ISR - 1:
                continue
            arguments = {"n": dice.randrange(3)} if name == "leave_one" else steps[name][1](dice)
            taken.append(f"{name}({arguments})")
            getattr(model, name)(**arguments)
            model.check()
    except AssertionError as error:
        raise AssertionError(f"{error}; seed {seed}: {' '.join(taken)}") from error
    return model


def walk_all(count: int) -> None:
    for seed in range(count):
        walk(Replication(), STEPS, 25, seed)


def test_no_walk_breaks_a_promise() -> None:
    walk_all(1500)


def _join_early(state: InSyncState, replica: int, now: float) -> bool:
    return replica not in state.isr and state.is_known(replica)


def _keep_positions(state: InSyncState, isr: Collection[int], now: float) -> bool:
    state.isr, state.pending_isr = frozenset(isr), None
    return state._count(now)


def _advance_past_unknown(state: InSyncState, now: float) -> bool:
    known = [f.log_end_offset for r, f in state.followers.items() if r in state.largest_isr and state.is_known(r)]
    before, state.high_watermark = state.high_watermark, max(state.high_watermark, min([state.log_end_offset, *known]))
    return state.high_watermark > before


def _trust_every_start(now: PartitionInfo, broker: int, *, may_have_lost: bool, has_log: bool) -> Election | None:
    return controller_state.state_at_start(now, broker, may_have_lost=False)


def _lead_without_a_log(now: PartitionInfo, broker: int, *, may_have_lost: bool, has_log: bool) -> Election | None:
    return controller_state.state_at_start(now, broker, may_have_lost=may_have_lost)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "name", "fault"),
    [
        (InSyncState, "may_join", _join_early),
        (InSyncState, "written", _keep_positions),
        (InSyncState, "advance", _advance_past_unknown),
        (InSyncState, "largest_isr", property(lambda state: state.isr)),
        (InSyncState, "largest_isr", property(lambda state: state.pending_isr or state.isr)),
        (InSyncState, "min_isr", property(lambda state: 1)),
        (MODEL, "state_at_start", _trust_every_start),
        (MODEL, "state_at_start", _lead_without_a_log),
    ],
)
def test_walks_find_a_planted_fault(monkeypatch: pytest.MonkeyPatch, where: object, name: str, fault: object) -> None:
    monkeypatch.setattr(where, name, fault)
    with pytest.raises(AssertionError, match="seed"):
        walk_all(30_000)

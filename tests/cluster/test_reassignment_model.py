"""The model of replication with a fourth broker, and reassignments at any moment (KIP-455).

A broker that is no replica any more deletes its log. Promises P1 to P4 hold after every step.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import pytest

from broker.cluster import controller_state
from broker.cluster.controller_state import Election, state_reassigned
from broker.replica.cluster_metadata import NO_LEADER, PartitionInfo
from tests.cluster.test_replication_model import MIN_ISR, STEPS, Broker, Replication, Steps, walk

BROKERS = (1, 2, 3, 4)


class Reassignment(Replication):
    """Targets have at least `min.insync.replicas` brokers: with fewer the user gives P1 up."""

    def __init__(self) -> None:
        super().__init__()
        self.brokers[4] = Broker(4)
        self.begun = self.completed = self.cancelled = 0

    def reassign(self, target: Sequence[int] | None) -> None:
        """Begin, replace or, with None, cancel a reassignment."""
        now = self.view
        if target is None and not (now.adding or now.removing):
            return
        added = set(target or ()) - set(now.replicas)
        if not added <= self.live():
            return
        election = controller_state.state_reassigned(now, target, self.live(), min_isr=MIN_ISR)
        if election is not None and election.after.assignment != now.assignment:
            self.write(election.after, now.version)
            self.begun += target is not None
            self.cancelled += target is None

    def control(self, suspected: set[int]) -> None:
        was_moving = bool(self.view.adding or self.view.removing)
        super().control(suspected)
        self.completed += was_moving and not (self.view.adding or self.view.removing)

    def move_on(self) -> None:
        """A reassignment comes nearer to its end: its new replicas catch up and join."""
        self.all_learn()
        self.catch_up(set(BROKERS))
        self.change_isr(0, "received")

    def check(self) -> None:
        super().check()
        now = self.view
        assert len(set(now.replicas)) == len(now.replicas)
        assert set(now.adding) | set(now.removing) <= set(now.replicas)
        assert not set(now.adding) & set(now.removing)
        assert now.target
        assert set(now.isr) <= set(now.replicas)

    def read_state(self, b: Broker) -> None:
        super().read_state(b)
        if b.id not in self.view.replicas and b.id != self.view.leader:
            b.role, b.leader, b.waiting = None, NO_LEADER, []
            if not b.log or b.log[-1][0] < self.view.leader_epoch:
                b.log, b.high_watermark = [], 0
            else:
                raise AssertionError(f"broker {b.id} has newer records than the state that takes its replica away")


MOVES: Steps = {
    **STEPS,
    "reassign": (4, lambda dice: {"target": dice.choice((None, *(dice.sample(BROKERS, dice.randint(2, 3)),) * 3))}),
    "move_on": (5, lambda dice: {}),
    "control": (4, STEPS["control"][1]),
}


def walk_all(count: int) -> list[Reassignment]:
    return [walk(Reassignment(), MOVES, 30, seed) for seed in range(count)]


def test_no_walk_with_reassignments_breaks_a_promise() -> None:
    models = walk_all(1200)
    begun, completed, cancelled = (
        sum(getattr(model, what) for model in models) for what in ("begun", "completed", "cancelled")
    )
    assert min(begun / 10, completed, cancelled) > 150, (begun, completed, cancelled)


def _as_kafka(
    now: PartitionInfo, target: Sequence[int] | None, live: Collection[int] = (), *, min_isr: int = 1
) -> Election | None:
    """One replica is enough that a cancelled reassignment leaves in the ISR."""
    return state_reassigned(now, target, live, min_isr=1)


def _complete_early(now: PartitionInfo, live: Collection[int]) -> bool:
    """Without waiting for all of the target."""
    return bool(now.adding or now.removing) and any(r in now.isr and r in live for r in now.target)


def _complete_dead(now: PartitionInfo, live: Collection[int]) -> bool:
    """Whatever is in the ISR."""
    return bool(now.adding or now.removing)


@pytest.mark.parametrize("fault", [_complete_early, _complete_dead])
def test_planted_faults_are_found(fault: Callable[..., object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_state, "_is_reassigned", fault)
    with pytest.raises(AssertionError, match="seed"):
        walk_all(1000)


def _cancel_while_only_new_replicas_are_in_sync() -> Reassignment:
    model = Reassignment()
    model.create()
    model.reassign([1, 4])
    for replica in (2, 3):
        model.end(model.brokers[replica])
    model.control(set())
    model.move_on()
    model.all_learn()
    model.produce(0, 3)
    model.catch_up({4})
    assert model.acknowledged
    model.reassign(None)
    model.all_learn()
    model.die(0)
    model.everything_acknowledged_survives_somewhere()
    return model


def test_a_cancelled_reassignment_loses_nothing_with_one_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused where the replicas that it would drop are needed for min.insync.replicas (P1). Kafka drops them."""
    assert _cancel_while_only_new_replicas_are_in_sync().view.adding == (4,)
    monkeypatch.setattr(controller_state, "state_reassigned", _as_kafka)
    with pytest.raises(AssertionError, match="is on no broker"):
        _cancel_while_only_new_replicas_are_in_sync()

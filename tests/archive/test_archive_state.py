"""The leader's decisions about its archive, played against leaders that come, go, sleep and come back too late.

The model has replicas with logs, elections, clean ones and unclean ones, the real ManifestStore over a store in memory,
and puts that fail, that are done although they failed, and that arrive late. Its judge keeps each replica's records,
the deleted ones, too, and compares them with what the archive holds.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from broker.archive.archive_state import (
    COPY_LASTS_S,
    ArchiveState,
    Begin,
    ClosedSegment,
    Commit,
    Copy,
    Load,
    Step,
    Sweep,
    common_end,
)
from broker.archive.layout import new_object_name
from broker.archive.manifest import Add, ArchivedSegment, Change, Entry, EpochStart, Manifest, Mark, Start, Truncate
from broker.archive.manifest_store import CommitLost, ManifestStore
from tests.support.archived_segments import archived_segment
from tests.support.randomness import seeded

Record = tuple[int, int]
"""(leader epoch, a number of its own)."""
BROKERS = 3
DELAY_S = 10.0


class StoreInMemory:
    """What ManifestStore asks of a Storage. `answers` decides how the next `create` ends."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.answer = "ok"

    def create(self, path: str, data: bytes) -> None:
        answer, self.answer = self.answer, "ok"
        if answer == "failed":
            raise ConnectionError("the store is away")
        if path in self.files:
            raise FileExistsError(path)
        self.files[path] = data
        if answer == "answer lost":
            raise ConnectionError("no answer")

    def read(self, path: str) -> bytes:
        if path not in self.files:
            raise FileNotFoundError(path)
        return self.files[path]

    def exists(self, path: str) -> bool:
        return path in self.files

    def names(self, path: str) -> list[str]:
        return sorted(name.rpartition("/")[2] for name in self.files if name.startswith(path + "/"))

    def remove(self, path: str) -> None:
        self.files.pop(path, None)


@dataclass
class Replica:
    """A broker's log. `records` are all from offset 0 on, also those that were deleted or never were on this disk."""

    broker: int
    records: list[Record] = field(default_factory=list)
    start: int = 0
    bases: list[int] = field(default_factory=lambda: [0])
    """Of the segments on disk, the active one last."""
    committed: int = 0
    archived_end: int = 0
    """As a leader told it, or as the own manifest says; 0 in a new role, until that is known again."""
    state: ArchiveState | None = None
    step: Step | None = None
    knows_old_epochs: bool = True

    @property
    def end(self) -> int:
        return len(self.records)

    @property
    def local_start(self) -> int:
        return self.bases[0]

    @property
    def epochs(self) -> Sequence[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        first = min(self.start, self.end) if self.knows_old_epochs else self.local_start
        for offset in range(first, self.end):
            if not found or found[-1][0] != self.records[offset][0]:
                found.append((self.records[offset][0], offset))
        return found

    @property
    def is_copied(self) -> bool:
        return True

    def closed_after(self, offset: int) -> ClosedSegment | None:
        for base, end in zip(self.bases, self.bases[1:], strict=False):
            if end > offset:
                return ClosedSegment(base, end) if end <= self.committed else None
        return None

    def roll(self) -> None:
        if self.bases[-1] < self.end:
            self.bases.append(self.end)

    def begin_at(self, offset: int) -> None:
        """Drop what is on disk."""
        self.bases = [offset]

    def truncate(self, end: int) -> None:
        del self.records[end:]
        self.bases = [base for base in self.bases if base <= end] or [end]

    def delete_local(self) -> None:
        """Closed segments that are archived, or that no reader sees any more."""
        bound = max(min(self.archived_end, self.committed), self.start)
        while len(self.bases) > 1 and self.bases[1] <= bound:
            del self.bases[0]


class Archives(RuleBasedStateMachine):
    """One partition on three brokers, with one store."""

    def __init__(self) -> None:
        super().__init__()
        self.store = StoreInMemory()
        self.manifests = ManifestStore(self.store, "cluster", uuid.UUID(int=1), 0)  # type: ignore[arg-type]
        self.objects: dict[str, list[Record]] = {}
        self.replicas = [Replica(broker) for broker in range(BROKERS)]
        self.leader = self.replicas[0]
        self.epoch = 0
        self.now = 0.0
        self.number = 0
        self.late: list[tuple[Manifest, int, int, Commit]] = []
        """Puts of brokers that have forgotten them."""
        self.named_at: dict[str, float] = {}
        """When the manifest named an object last."""
        self.has_lost_records = False
        """Whether an unclean election may have dropped committed records."""

    @initialize(knows=st.booleans())
    def begin(self, knows: bool) -> None:
        for replica in self.replicas:
            replica.knows_old_epochs = knows
        self.leader.state = ArchiveState(0, DELAY_S, 0.0)

    # --- the cluster

    @rule(segments=st.lists(st.integers(1, 3), min_size=1, max_size=4), commits=st.sampled_from([True, True, False]))
    def produce(self, segments: list[int], commits: bool) -> None:
        if self._waits_for_archive():
            return
        for count in segments:
            self._append(self.leader, self.epoch, count)
            self.leader.roll()
        self._append(self.leader, self.epoch, 1)
        if commits:
            for follower in self.replicas:
                self._replicate(follower, rolls=follower.broker == 1)

    @rule(broker=st.integers(0, BROKERS - 1), rolls=st.booleans())
    def replicate(self, broker: int, rolls: bool) -> None:
        self._replicate(self.replicas[broker], rolls)

    def _replicate(self, follower: Replica, rolls: bool) -> None:
        """A follower that has heard of the leader fetches all; what all others have is committed."""
        leader = self.leader
        if follower.state is not None or self._waits_for_archive():
            return
        same = next(
            (o for o, pair in enumerate(zip(follower.records, leader.records, strict=False)) if pair[0] != pair[1]),
            min(follower.end, leader.end),
        )
        if same < follower.end:
            follower.truncate(same)
        if follower.end < leader.local_start or follower.end < follower.local_start:
            follower.begin_at(leader.local_start)
        follower.records = list(leader.records)
        follower.start, follower.archived_end = max(follower.start, leader.start), leader.archived_end
        if rolls:
            follower.roll()
        leader.committed = follower.committed = min(leader.end, max(leader.committed, leader.end))

    @rule(way=st.sampled_from([1, 2, 1, 2, 0]), clean=st.booleans(), hears=st.booleans())
    def elect(self, way: int, clean: bool, hears: bool) -> None:
        """With `hears`, the old leader learns of it. Else it sleeps, and does its next step whenever it wakes."""
        old, new = self.leader, self.replicas[(self.leader.broker + way) % BROKERS]
        held = slice(max(old.start, new.start), old.committed)
        if new.end < old.committed or new.records[held] != old.records[held]:
            if clean:
                return
            self.has_lost_records = True
        if hears or new is old:
            self._forget(old)
        self._forget(new)
        self.epoch += 1
        self.leader = new
        new.committed = min(new.committed, new.end)
        new.state = ArchiveState(self.epoch, DELAY_S, self.now)

    @rule(broker=st.integers(0, BROKERS - 1))
    def hear(self, broker: int) -> None:
        """A deposed leader learns that it is one."""
        if self.replicas[broker] is not self.leader:
            self._forget(self.replicas[broker])

    @rule(way=st.integers(1, 2), count=st.integers(1, 3))
    def go_on_as_deposed(self, way: int, count: int) -> None:
        """An old leader that is alone in its ISR takes and commits records until it hears: they will be lost."""
        replica = self.replicas[(self.leader.broker + way) % BROKERS]
        if replica is self.leader or replica.state is None or self._is_empty(replica):
            return
        self.has_lost_records = True
        self._append(replica, replica.state.epoch, count)
        replica.roll()
        replica.committed = replica.end

    @rule(broker=st.integers(0, BROKERS - 1))
    def lose_disk(self, broker: int) -> None:
        replica = self.replicas[broker]
        if replica is self.leader or replica.state is not None:
            return
        replica.records, replica.bases, replica.start = [], [0], 0
        replica.committed = replica.archived_end = 0

    @rule(share=st.floats(0, 1))
    def delete_records(self, share: float) -> None:
        leader = self.leader
        leader.start = max(leader.start, int(leader.committed * share))
        leader.archived_end = max(leader.archived_end, leader.start) if leader.state is None else leader.archived_end

    @rule(broker=st.integers(0, BROKERS - 1))
    def delete_local_segments(self, broker: int) -> None:
        self.replicas[broker].delete_local()

    @rule(seconds=st.sampled_from([1.0, DELAY_S, 400.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    # --- the archive

    @rule(answers=st.lists(st.sampled_from(["ok", "ok", "ok", "failed", "answer lost"]), min_size=1, max_size=12))
    def archive(self, answers: list[str]) -> None:
        """Half steps of the leader: a step is begun, or the one that was begun ends. It may sleep between them."""
        for answer in [*answers, *answers]:
            self._take_half_step(self.leader, answer)

    @rule(count=st.integers(2, 20))
    def archive_all(self, count: int) -> None:
        for _ in range(count):
            self._take_half_step(self.leader, "ok")

    @rule(way=st.integers(1, 2), answers=st.lists(st.sampled_from(["ok", "answer lost"]), min_size=1, max_size=6))
    def wake(self, way: int, answers: list[str]) -> None:
        """Half steps of a deposed leader that has not heard of it."""
        for answer in answers:
            self._take_half_step(self.replicas[(self.leader.broker + way) % BROKERS], answer)

    def _take_half_step(self, replica: Replica, answer: str) -> None:
        if replica.state is None:
            return
        if replica.step is None:
            replica.step = replica.state.next(replica, self.now)
            return
        step, replica.step = replica.step, None
        self._end(replica, replica.state, step, answer)
        if replica.state.is_ready and replica.state.manifest is not None:
            replica.archived_end = replica.state.manifest.end

    @precondition(lambda self: self.late)
    @rule(number=st.integers(0, 5))
    def arrive_late(self, number: int) -> None:
        """A put of a leader that has forgotten it reaches the store."""
        manifest, epoch, broker, step = self.late.pop(number % len(self.late))
        try:
            self.manifests.commit(manifest, epoch, broker, step.change)
        except CommitLost:
            pass

    def _end(self, replica: Replica, state: ArchiveState, step: Step, answer: str) -> None:
        if answer == "failed" and isinstance(step, Copy):
            self.objects[new_object_name(step.base, state.epoch)] = []  # half a copy
        if answer != "ok" and not isinstance(step, Commit):
            state.failed("the store is away", self.now)
            return
        match step:
            case Load():
                state.loaded(self.manifests.load(), self.now)
            case Begin():
                self._adopt(replica)
                state.begun()
            case Copy(segment, base):
                assert replica.bases[0] <= base < segment.end
                state.copied(self._archived(replica, base, segment.end, state.epoch), self.now)
            case Commit(change):
                assert state.manifest is not None
                self.store.answer = answer
                try:
                    state.committed(
                        self.manifests.commit(state.manifest, state.epoch, replica.broker, change), self.now
                    )
                except CommitLost as lost:
                    state.lost(lost.manifest, self.now)
                except OSError:
                    state.failed("no answer", self.now)
            case Sweep():
                for name in [*filter(step.takes, self.objects)]:
                    del self.objects[name]
                state.swept()

    def _archived(self, replica: Replica, base: int, end: int, epoch: int) -> ArchivedSegment:
        name = new_object_name(base, epoch)
        records = replica.records[base:end]
        self.objects[name] = records
        epochs = [EpochStart(records[0][0], base)]
        for offset, (of_record, _) in enumerate(records, base):
            if of_record != epochs[-1].epoch:
                epochs.append(EpochStart(of_record, offset))
        marks = (Mark(base, 0, -1),)
        return ArchivedSegment(name, base, end, len(records), 1, 0, -1, -1, tuple(epochs), marks)

    def _adopt(self, replica: Replica) -> None:
        """As the manager does: an empty log begins where the archive ends."""
        manifest = replica.state.manifest if replica.state else None
        if manifest is not None and self._is_empty(replica) and replica.end < manifest.end:
            replica.records = self._content(manifest, pad=True)
            replica.begin_at(manifest.end)
            replica.start = manifest.start

    def _waits_for_archive(self) -> bool:
        """Whether the leader's log is empty, and what the archive has is not known yet."""
        leader = self.leader
        if leader.state is None or not self._is_empty(leader) or self.epoch == 0:
            return False
        return leader.state.manifest is None or leader.state.must_begin(leader)

    def _is_empty(self, replica: Replica) -> bool:
        return replica.local_start == replica.end

    def _append(self, replica: Replica, epoch: int, count: int) -> None:
        for _ in range(count):
            self.number += 1
            replica.records.append((epoch, self.number))

    def _forget(self, replica: Replica) -> None:
        state, step = replica.state, replica.step
        if state is not None and isinstance(step, Commit) and state.manifest is not None:
            self.late.append((state.manifest, state.epoch, replica.broker, step))
        replica.state = replica.step = None
        replica.archived_end = 0

    def _content(self, manifest: Manifest, *, pad: bool = False) -> list[Record]:
        """The records that the archive holds; with `pad`, something for those before its start, so that the position
        in the list is the offset."""
        found: list[Record] = []
        for segment in manifest.segments:
            found += self.objects[segment.name][: segment.end - segment.base]
        found = found[len(found) - (manifest.end - manifest.start) :] if manifest.end > manifest.start else []
        return [(-1, -offset) for offset in range(manifest.start)] + found if pad else found

    # --- the judge

    def judge(self) -> None:
        self.the_archive_is_one_lineage_without_gap_or_overlap()
        self.it_holds_what_the_leaders_log_held()
        self.nothing_is_deleted_that_is_not_archived()
        self.every_object_that_counts_is_there()
        self.what_readers_may_have_in_their_plans_is_there()

    @invariant()
    def the_archive_is_one_lineage_without_gap_or_overlap(self) -> None:
        """ManifestStore folds the entries, and refuses gaps, overlaps and falling epochs."""
        manifest = self.manifests.load()
        assert sum(one.end - one.base for one in manifest.segments) >= manifest.end - manifest.start

    @invariant()
    def it_holds_what_the_leaders_log_held(self) -> None:
        state = self.leader.state
        if state is None or not state.is_ready or self._is_empty(self.leader):
            return
        manifest, records = self.manifests.load(), self.leader.records
        start = manifest.start
        if self.has_lost_records:  # of a log that does not know its old epochs, nobody can tell what it held before
            known_from = [first for _, first in self.leader.epochs] or [manifest.end]
            start = min(max(start, known_from[0]), manifest.end)
        known = [r for r in self._content(manifest, pad=True)[start:] if r[0] >= 0]
        held = [r for r in records[start : manifest.end] if r[0] >= 0]
        assert known[-len(held) :] == held if held else True
        assert len(held) == len(known) or any(r[0] < 0 for r in records)

    @invariant()
    def nothing_is_deleted_that_is_not_archived(self) -> None:
        leader = self.leader
        if self.has_lost_records or leader.state is None or not leader.state.is_ready:
            return
        assert leader.local_start <= max(self.manifests.load().end, leader.start)

    @invariant()
    def every_object_that_counts_is_there(self) -> None:
        for segment in self.manifests.load().segments:
            assert len(self.objects[segment.name]) >= segment.end - segment.base

    @invariant()
    def what_readers_may_have_in_their_plans_is_there(self) -> None:
        now = {segment.name: self.now for segment in self.manifests.load().segments}
        self.named_at |= now
        for name, when in self.named_at.items():
            assert name in self.objects or self.now >= when + DELAY_S


Archives.TestCase.settings = settings(
    max_examples=20, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestArchives = Archives.TestCase
"""Shrinks what it finds; but its rounds are short, so `play` draws long ones."""


def play(seed: int, steps: int) -> Archives:
    """A round of that many drawn events, judged after each."""
    dice, round_ = seeded(seed), Archives()
    round_.begin(dice.random() < 0.5)
    answers = ["ok", "ok", "ok", "ok", "failed", "answer lost"]

    def some(*, most: int, of: list[str]) -> list[str]:
        return dice.choices(of, k=dice.randint(1, most))

    def way() -> int:
        return dice.randint(1, 2)

    events: list[tuple[int, Callable[[], object]]] = [
        (6, lambda: round_.produce([dice.randint(1, 3) for _ in range(dice.randint(1, 3))], dice.random() < 0.7)),
        (6, lambda: round_.archive(some(most=12, of=answers))),
        (3, lambda: round_.wake(way(), some(most=6, of=["ok", "ok", "answer lost"]))),
        (2, lambda: round_.elect(dice.choice([1, 2, 1, 2, 0]), dice.random() < 0.6, dice.random() < 0.5)),
        (2, lambda: round_.replicate(dice.randrange(BROKERS), dice.random() < 0.5)),
        (1, lambda: round_.hear(dice.randrange(BROKERS))),
        (1, lambda: round_.go_on_as_deposed(way(), dice.randint(1, 3))),
        (1, lambda: round_.lose_disk(dice.randrange(BROKERS))),
        (1, lambda: round_.delete_records(dice.random())),
        (2, lambda: round_.delete_local_segments(dice.randrange(BROKERS))),
        (2, lambda: round_.wait(dice.choice([1.0, DELAY_S, 400.0]))),
        (1, lambda: round_.arrive_late(dice.randrange(6)) if round_.late else None),
    ]
    weights = [weight for weight, _ in events]
    for _ in range(steps):
        dice.choices(events, weights)[0][1]()
        round_.judge()
    return round_


@example(seed=1405)  # a leader that knows of no epoch at all
@example(seed=209122059)  # its deposed leader is elected again, and believed what it knew of the archive before
@given(seed=st.integers(0, 10**9))
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@pytest.mark.timeout(300)  # nearly a minute and a half were seen on a busy machine
def test_100_rounds_of_leaders_that_come_too_late(seed: int) -> None:
    play(seed, steps=45)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_thousands_of_rounds_of_leaders_that_come_too_late() -> None:
    for seed in range(3000):
        play(seed, steps=100)


# --- single decisions


def leader_of(*segments: ArchivedSegment, end: int = 0, epoch: int = 1) -> tuple[Replica, ArchiveState]:
    """A leader that has fenced the archive with these segments; its log has ten records a segment up to `end`."""
    replica = Replica(0, [(0, number) for number in range(end)], bases=[*range(0, end + 1, 10)], committed=end)
    manifest = Manifest()
    changes: list[Change] = [*map(Add, segments), Truncate(segments[-1].end if segments else 0)]
    for change in changes:
        manifest = manifest.apply(Entry(manifest.next_number, epoch, 0, change))
    state = ArchiveState(epoch, DELAY_S, 0.0)
    assert isinstance(state.next(replica, 0.0), Load)
    state.loaded(manifest, 0.0)
    return replica, state


@pytest.mark.parametrize(("archived", "common"), [(1, 20), (3, 10)])
def test_a_log_that_knows_no_old_epochs_cuts_what_cannot_have_been_before_it(archived: int, common: int) -> None:
    """Its first record, at offset 20, is of epoch 2."""
    replica = Replica(0, [(2, number) for number in range(30)], bases=[20, 30], knows_old_epochs=False)
    manifest = Manifest()
    for change in (Add(archived_segment(0, 10, 0)), Add(archived_segment(10, 25, archived))):
        manifest = manifest.apply(Entry(manifest.next_number, 3, 0, change))
    assert common_end(manifest, replica) == common


def move_start(replica: Replica, state: ArchiveState, start: int, now: float) -> None:
    replica.start = start
    assert state.manifest is not None
    assert state.next(replica, now) == Commit(Start(start))
    state.committed(state.manifest.apply(Entry(state.manifest.next_number, state.epoch, 0, Start(start))), now)


TEN, TWENTY = archived_segment(0, 10), archived_segment(10, 20)


def test_a_sweep_takes_nothing_of_a_later_leader() -> None:
    """Who may have truncated the archive below the start that this leader knows, and have gone on from there."""
    replica, state = leader_of(TEN, TWENTY, end=25)
    move_start(replica, state, 20, 0.0)
    sweep = state.next(replica, DELAY_S)
    assert isinstance(sweep, Sweep)
    assert sweep.takes(TEN.name)
    assert sweep.takes(new_object_name(5, 1))
    assert not sweep.takes(new_object_name(5, 2))


def test_a_sweep_spares_what_has_left_the_manifest_after_its_start_was_set() -> None:
    """The start lay within a segment, which readers had in their plans until the start moved again."""
    replica, state = leader_of(TEN, TWENTY, end=25)
    move_start(replica, state, 15, 0.0)
    move_start(replica, state, 20, DELAY_S - 1)
    sweep = state.next(replica, DELAY_S)
    assert isinstance(sweep, Sweep)
    assert sweep.takes(TEN.name)
    assert not sweep.takes(TWENTY.name)
    state.swept()
    assert state.next(replica, DELAY_S) is None
    sweep = state.next(replica, 2 * DELAY_S)
    assert isinstance(sweep, Sweep)
    assert sweep.takes(TWENTY.name)


def test_objects_that_cannot_be_deleted_hold_up_no_copy_and_are_swept_again() -> None:
    replica, state = leader_of(TEN, end=25)
    move_start(replica, state, 10, 0.0)
    replica.committed = 10
    assert isinstance(state.next(replica, DELAY_S), Sweep)
    state.failed("403", DELAY_S)
    assert (state.problem, state.failures) == ("403", 0)
    replica.committed = 20
    assert isinstance(state.next(replica, DELAY_S), Copy)
    state.copied(TWENTY, DELAY_S)
    replica.committed = 10
    assert state.next(replica, DELAY_S) == Commit(Add(TWENTY))
    assert state.manifest is not None
    state.committed(state.manifest.apply(Entry(state.manifest.next_number, 1, 0, Add(TWENTY))), DELAY_S)
    assert state.problem == "403"
    assert isinstance(state.next(replica, DELAY_S + 300), Sweep)
    state.swept()
    assert state.problem == ""


def test_a_copy_that_could_not_be_committed_for_long_is_made_again() -> None:
    """Its objects look like leftovers, and somebody may have deleted them."""
    replica, state = leader_of(end=15)
    assert isinstance(state.next(replica, 0.0), Copy)
    state.copied(TEN, 0.0)
    assert isinstance(state.next(replica, 1.0), Commit)
    state.failed("403", 1.0)
    assert isinstance(state.next(replica, COPY_LASTS_S), Commit)
    state.failed("403", COPY_LASTS_S)
    assert isinstance(state.next(replica, 2 * COPY_LASTS_S), Copy)


def test_a_commit_that_is_lost_to_nobody_is_tried_again_after_a_while() -> None:
    """A store that does not list what is there."""
    replica, state = leader_of(end=15)
    state.next(replica, 0.0)
    state.copied(TEN, 0.0)
    assert isinstance(state.next(replica, 0.0), Commit)
    assert state.manifest is not None
    state.lost(state.manifest, 0.0)
    assert "neither lists" in state.problem
    assert state.next(replica, 0.5) is None
    assert state.next(replica, 1.0) == Commit(Add(TEN))

"""Random histories of one share partition against a model that knows each offset: what is accepted never comes again,
deliveries are counted and limited, nothing gets lost."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from broker.errors import BrokerError
from broker.share.persister import ShareState, ShareWrite
from broker.share.share_partition_state import (
    AcknowledgeType,
    AcquiredRecords,
    FetchedBatch,
    RecordState,
    ShareLimits,
    SharePartitionState,
    Wanted,
    acknowledgements,
)
from broker.share.share_records import ShareSnapshot, ShareUpdate

MEMBERS = ("a", "b", "c")
members = st.sampled_from(MEMBERS)
KEEPS = (AcknowledgeType.ACCEPT, AcknowledgeType.REJECT, AcknowledgeType.GAP)


@dataclass
class Lock:
    member: str
    deadline: float


class ShareHistory(RuleBasedStateMachine):
    @initialize(
        limit=st.integers(2, 4),
        locks=st.integers(3, 40),
        sizes=st.lists(st.integers(1, 8), min_size=2),
        has_dead_letters=st.booleans(),
    )
    def begin(self, limit: int, locks: int, sizes: list[int], has_dead_letters: bool) -> None:
        self.limits = ShareLimits(limit, locks, 30.0, has_dead_letters)
        self.rejected: set[int] = set()  # an answered reject
        self.buried: set[int] = set()  # they have a dead letter
        self.now = 0.0
        self.log: list[FetchedBatch] = []
        self.log_start = self.log_end = 0
        self.stored = ShareSnapshot(0, 0, 0, -1)
        self.counts: dict[int, int] = {}  # deliveries, as far as they must be known
        self.locks: dict[int, Lock] = {}  # by offset
        self.kept: set[int] = set()  # an answered accept, reject or gap
        self.writing: ShareWrite | None = None
        self.asked: list[tuple[int, AcknowledgeType]] = []  # answered by the next write
        self.under_way: list[tuple[int, AcknowledgeType]] = []
        self.perhaps: set[int] = set()  # such ones whose write was stored, but not answered
        self.has_failed_over = False
        for size in sizes:
            self.append(size, 0, True)
        self.elect()

    def elect(self) -> None:
        snapshot = self.stored
        self.state = SharePartitionState(
            ShareState(snapshot.start_offset, 0, 0, snapshot.state_batches),
            1,
            self.limits,
            reset_offset=0,
            log_start=self.log_start,
            log_end=self.log_end,
        )

    # --- the log

    @rule(size=st.integers(1, 6), gap=st.sampled_from([0, 0, 0, 2]), has_records=st.sampled_from([True, True, False]))
    def append(self, size: int, gap: int, has_records: bool) -> None:
        first = self.log_end + gap
        self.log.append(FetchedBatch(first, first + size - 1, has_records))
        self.log_end = first + size

    @precondition(lambda self: len(self.log) > 1)
    @rule(data=st.data())
    def compact(self, data: st.DataObject) -> None:
        """A batch is gone, but for the last one. What nobody holds is lost to the group by this."""
        gone = self.log.pop(data.draw(st.integers(0, len(self.log) - 2)))
        self.kept.difference_update(range(gone.first_offset, gone.last_offset + 1))

    @rule(data=st.data())
    def delete_records(self, data: st.DataObject) -> None:
        self.log_start = data.draw(st.integers(self.log_start, self.log_end))
        self.log = [batch for batch in self.log if batch.last_offset >= self.log_start]
        self.state.log_start_moved(self.log_start)
        self.locks = {offset: lock for offset, lock in self.locks.items() if offset >= self.log_start}

    # --- members

    @rule(
        member=members,
        most=st.integers(1, 12),
        batch_size=st.integers(1, 8),
        read=st.integers(1, 6),
        is_record_limit=st.booleans(),
    )
    def fetch(self, member: str, most: int, batch_size: int, read: int, is_record_limit: bool) -> None:
        at = self.state.next_fetch_offset()
        if at is None:
            assert self.state.in_flight >= self.limits.max_record_locks
            return
        batches = [batch for batch in self.log if batch.last_offset >= at][:read]
        got = self.state.acquire(
            member,
            at,
            batches,
            self.now,
            Wanted(most, batch_size, is_record_limit),
        )
        if is_record_limit:
            assert sum(last - first + 1 for first, last, _ in got) <= most
        else:
            whole = [batch for batch in batches if batch.has_records]
            assert sum(last - first + 1 for first, last, _ in got) <= max(
                most, max((batch.last_offset - batch.first_offset + 1 for batch in whole), default=0)
            )
        self.delivered(member, got, batches)

    def delivered(self, member: str, got: list[AcquiredRecords], batches: list[FetchedBatch]) -> None:
        there = {
            offset
            for batch in batches
            if batch.has_records
            for offset in range(batch.first_offset, batch.last_offset + 1)
        }
        for first, last, count in got:
            for offset in range(first, last + 1):
                assert offset in there
                assert offset >= self.log_start
                assert offset not in self.kept, f"{offset} was answered and comes again"
                assert offset not in self.locks, f"{offset} has two owners"
                assert count == self.counts.get(offset, 0) + 1 <= self.limits.delivery_count_limit
                self.counts[offset] = count
                self.locks[offset] = Lock(member, self.now + 30.0)

    @precondition(lambda self: self.locks)
    @rule(data=st.data(), most=st.integers(1, 12), is_one_type=st.booleans())
    def acknowledge_own(self, data: st.DataObject, most: int, is_one_type: bool) -> None:
        """Some consecutive offsets that a member has got."""
        first = last = data.draw(st.sampled_from(sorted(self.locks)))
        member = self.locks[first].member
        while last - first + 1 < most and (lock := self.locks.get(last + 1)) and lock.member == member:
            last += 1
        size = 1 if is_one_type else last - first + 1
        kinds = data.draw(st.lists(st.sampled_from(AcknowledgeType), min_size=size, max_size=size))
        self.acknowledge(first, last, kinds, member)

    @rule(data=st.data(), member=members, most=st.integers(1, 20), is_stored=st.sampled_from([None, True, False]))
    def consume(self, data: st.DataObject, member: str, most: int, is_stored: bool | None) -> None:
        """The usual way: fetch, acknowledge, store. The end of the write may be left to another step."""
        self.fetch(member, most, 4, 3, False)
        if self.locks:
            self.acknowledge_own(data, most, data.draw(st.booleans()))
        self.begin_write()
        if self.writing is not None and is_stored is not None:
            self.end_write(is_stored, data.draw(st.booleans()))

    @rule(first=st.integers(0, 30), size=st.integers(1, 8), kind=st.sampled_from(AcknowledgeType), member=members)
    def acknowledge_any(self, first: int, size: int, kind: AcknowledgeType, member: str) -> None:
        self.acknowledge(first, first + size - 1, [kind], member)

    def acknowledge(self, first: int, last: int, kinds: list[AcknowledgeType], member: str) -> None:
        offsets = range(first, last + 1)
        under_way = {offset for offset, _ in (*self.asked, *self.under_way)}
        owns = [
            offset >= self.state.start_offset
            and (lock := self.locks.get(offset)) is not None
            and lock.member == member
            and offset not in under_way
            for offset in offsets
        ]
        before = self.state.batches()
        try:
            self.state.acknowledge(member, acknowledgements([(first, last, kinds)]), self.now)
        except BrokerError:
            assert not all(owns)
            assert self.state.batches() == before
            return
        for index, offset in enumerate(offsets):
            if offset < self.state.start_offset and not owns[index]:
                continue  # it is ignored
            assert owns[index]
            kind = kinds[index if len(kinds) > 1 else 0]
            if kind is AcknowledgeType.RENEW:
                self.locks[offset].deadline = self.now + 30.0
            else:
                self.asked.append((offset, kind))

    @rule(member=members)
    def leave(self, member: str) -> None:
        under_way = {offset for offset, _ in (*self.asked, *self.under_way)}
        self.state.release(member)
        for offset, lock in self.locks.items():
            if lock.member == member and offset not in under_way:
                self.asked.append((offset, AcknowledgeType.RELEASE))

    @rule(seconds=st.sampled_from([1.0, 14.0, 31.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        due = self.state.wake_at
        self.state.tick(self.now)
        expired = self.expire()
        assert not expired or due <= self.now

    def expire(self) -> list[int]:
        under_way = {offset for offset, _ in (*self.asked, *self.under_way)}
        expired = [
            offset for offset, lock in self.locks.items() if lock.deadline <= self.now and offset not in under_way
        ]
        for offset in expired:
            del self.locks[offset]
        return expired

    # --- storing

    @rule()
    def begin_write(self) -> None:
        write = self.state.next_write()
        if self.writing is not None:
            assert write is None
        elif write is not None:
            self.writing, self.under_way, self.asked = write, self.asked, []
        else:
            self.check_stored()

    @precondition(lambda self: self.writing is not None)
    @rule(is_answered=st.booleans(), is_stored=st.booleans())
    def end_write(self, is_answered: bool, is_stored: bool) -> None:
        """A write that is not answered may be stored or not."""
        assert self.writing is not None
        if is_answered or is_stored:
            self.store(self.writing)
        asked, self.under_way, self.writing = self.under_way, [], None
        self.state.write_ended(is_stored=is_answered, now=self.now)
        if is_answered:
            for offset, kind in asked:
                self.locks.pop(offset, None)
                if kind in KEEPS:
                    self.kept.add(offset)
                if kind is AcknowledgeType.REJECT:
                    self.rejected.add(offset)
        elif is_stored:
            self.perhaps.update(offset for offset, kind in asked if kind in KEEPS)
        self.expire()

    def write(self) -> None:
        """All that is due, answered."""
        self.begin_write()
        if self.writing is not None:
            self.end_write(True, True)

    def store(self, write: ShareWrite) -> None:
        self.stored = self.stored.updated(
            ShareUpdate(0, write.leader_epoch, write.start_offset, write.state_batches, write.delivery_complete_count)
        )

    @precondition(lambda self: self.limits.has_dead_letters)
    @rule()
    def bury(self) -> None:
        """The dead letters that are due are written."""
        for first, last, count, is_rejected in self.state.dead_letters():
            for offset in range(first, last + 1):
                assert offset not in self.locks
                assert count <= self.limits.delivery_count_limit
                assert is_rejected or count == self.limits.delivery_count_limit
                self.buried.add(offset)
            self.state.dead_letters_ended(first, last)

    @invariant()
    def what_is_rejected_is_archived_after_its_dead_letter(self) -> None:
        """In memory, and so in what is stored later."""
        if not self.limits.has_dead_letters:
            return
        archived = {
            offset
            for batch in self.state.batches()
            if batch.delivery_state == RecordState.ARCHIVED
            for offset in range(batch.first_offset, batch.last_offset + 1)
        }
        for offset in self.rejected - self.buried:
            assert offset < self.log_start or (offset >= self.state.start_offset and offset not in archived)

    @rule(is_stored=st.booleans())
    def fail_over(self, is_stored: bool) -> None:
        """The leader dies, perhaps after its write was stored. Locks and their counts end with it."""
        if self.writing is not None and is_stored:
            self.store(self.writing)
            self.perhaps.update(offset for offset, kind in self.under_way if kind in KEEPS)
        self.writing, self.asked, self.under_way, self.locks = None, [], [], {}
        self.elect()
        self.has_failed_over = True
        known = {offset: count * (offset < self.stored.start_offset) for offset, count in self.counts.items()}
        for batch in self.stored.state_batches:
            for offset in range(batch.first_offset, batch.last_offset + 1):
                known[offset] = batch.delivery_count
        self.counts = known

    # --- always

    @invariant()
    def no_more_are_locked_than_allowed(self) -> None:
        assert len(self.locks) <= self.state.locked <= self.limits.max_record_locks
        # What was archived and not stored is available again after a failover.
        assert self.state.in_flight <= self.limits.max_record_locks or self.has_failed_over

    @invariant()
    def runs_leave_nothing_out(self) -> None:
        position = self.state.start_offset
        for batch in self.state.batches():
            assert batch.first_offset == position <= batch.last_offset
            position = batch.last_offset + 1
        assert position == self.state.end_offset

    @invariant()
    def who_has_a_record_keeps_it_until_its_lock_expires(self) -> None:
        """And so does the one whose answer was not stored."""
        under_way = {offset for offset, _ in (*self.asked, *self.under_way)}
        states = {
            offset: batch.delivery_state
            for batch in self.state.batches()
            for offset in range(batch.first_offset, batch.last_offset + 1)
        }
        for offset in self.locks.keys() - under_way:
            assert offset < self.state.start_offset or states[offset] == RecordState.ACQUIRED

    def check_stored(self) -> None:
        """Nothing is left to store: another leader would know how often each record was delivered."""
        known = {
            offset: (batch.delivery_state, batch.delivery_count)
            for batch in self.stored.state_batches
            for offset in range(batch.first_offset, batch.last_offset + 1)
        }
        for batch in self.state.batches():
            if batch.delivery_state == RecordState.AVAILABLE and batch.delivery_count:
                for offset in range(batch.first_offset, batch.last_offset + 1):
                    assert offset in self.perhaps or known[offset] == (RecordState.AVAILABLE, batch.delivery_count)
        for offset, count in self.counts.items():
            if self.log_start <= offset < self.state.start_offset and count == self.limits.delivery_count_limit:
                assert offset < self.stored.start_offset or known[offset][0] != RecordState.AVAILABLE

    @invariant()
    def the_lowest_deadline_is_not_missed(self) -> None:
        under_way = {offset for offset, _ in (*self.asked, *self.under_way)}
        deadlines = [lock.deadline for offset, lock in self.locks.items() if offset not in under_way]
        assert self.state.wake_at <= min(deadlines, default=float("inf"))

    def teardown(self) -> None:
        """One member drains the rest: every record that nobody has kept comes, or came as often as is allowed."""
        if not hasattr(self, "state"):
            return
        if self.writing is not None:
            self.end_write(True, True)
        for _ in range(400):
            self.now += 31.0
            self.state.tick(self.now)
            self.expire()
            self.write()
            self.bury()
            self.write()
            at = self.state.next_fetch_offset()
            assert at is not None
            batches = [batch for batch in self.log if batch.last_offset >= at]
            if not batches:
                break
            got = self.state.acquire("drain", at, batches, self.now, Wanted(50, 50))
            self.delivered("drain", got, batches)
            if got:
                self.state.acknowledge("drain", acknowledgements((*r[:2], [1]) for r in got), self.now)
                self.asked += [(offset, AcknowledgeType.ACCEPT) for r in got for offset in range(r[0], r[1] + 1)]
        else:
            raise AssertionError("the rest is never drained")
        assert self.state.in_flight == 0
        assert self.stored.start_offset == self.state.start_offset
        for batch in self.log:
            for offset in range(max(batch.first_offset, self.log_start), batch.last_offset + 1):
                spent = self.counts.get(offset, 0) >= self.limits.delivery_count_limit
                assert not batch.has_records or offset in self.kept or spent or offset in self.perhaps


TestShareHistory = ShareHistory.TestCase
TestShareHistory.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)

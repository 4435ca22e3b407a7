"""What the members of one share group have of one partition (KIP-932). Pure.

Offsets from the start (Kafka's SPSO) to the end are in runs: consecutive offsets that share a state, a delivery count,
a member and a deadline. Offsets from the end on were never fetched. Memory is per run, never per record.

    available ──acquire, delivery count + 1──▶ acquired ──accept──▶ acknowledged
        ▲                                      │  │  └───reject, gap──▶ archived
        └──release, lock expired───────────────┘  └──the same at the delivery limit──▶ archived

If the group has a dead-letter topic, what was rejected or delivered too often is archiving first, until its dead
letters are written (KIP-1191). It holds the start, is stored, and comes to no member again.

The rules are those of Kafka's `SharePartition`. The start moves over what is acknowledged or archived.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import groupby
from math import ceil, inf
from operator import attrgetter
from typing import NamedTuple

from broker.errors import BrokerError, ErrorCode
from broker.share.persister import ShareState, ShareWrite, StateBatch


class RecordState(IntEnum):
    """With the values of the records of `__share_group_state`. ACQUIRED is never stored."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVING = 3
    ARCHIVED = 4


class AcknowledgeType(IntEnum):
    """What a member says about a record (ShareAcknowledge)."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class ShareLimits(NamedTuple):
    """Settings of a group (`group.share.*`, or its own `share.*`)."""

    delivery_count_limit: int = 5
    max_record_locks: int = 2000
    lock_duration_s: float = 30.0
    has_dead_letters: bool = False


class FetchedBatch(NamedTuple):
    """One record batch of the log, both ends included. `has_records` is False for a control batch, and, for committed
    reads, for one of an aborted transaction."""

    first_offset: int
    last_offset: int
    has_records: bool = True


class Wanted(NamedTuple):
    """How much a member wants (ShareFetch): whole batches, as many as `max_records` has room for, but one at least;
    with `is_record_limit` not more than `max_records` (KIP-1206). Ranges begin anew at the first batch after
    `batch_size` records."""

    max_records: int
    batch_size: int
    is_record_limit: bool = False


class AcquiredRecords(NamedTuple):
    """Offsets that a member has got, both ends included (ShareFetch)."""

    first_offset: int
    last_offset: int
    delivery_count: int


class DeadLetters(NamedTuple):
    """Offsets whose dead letters are due, both ends included. `is_rejected`: a member rejected them; else they were
    delivered as often as is allowed."""

    first_offset: int
    last_offset: int
    delivery_count: int
    is_rejected: bool


class Acknowledgement(NamedTuple):
    """What a member says about offsets, both ends included: one type for all, or one for each."""

    first_offset: int
    last_offset: int
    kinds: Sequence[int]

    def ranges(self, start: int) -> Iterator[tuple[int, int, AcknowledgeType]]:
        """First and last offset of each range with one type, from `start` on."""
        first, last, kinds = self
        if len(kinds) == 1:
            yield first, last, AcknowledgeType(kinds[0])
            return
        first = max(first, start)
        for kind, same in groupby(kinds[first - self.first_offset :]):
            size = sum(1 for _ in same)
            yield first, first + size - 1, AcknowledgeType(kind)
            first += size


_NEW_STATE = {
    AcknowledgeType.GAP: RecordState.ARCHIVED,
    AcknowledgeType.ACCEPT: RecordState.ACKNOWLEDGED,
    AcknowledgeType.RELEASE: RecordState.AVAILABLE,
    AcknowledgeType.REJECT: RecordState.ARCHIVING,
}
_FINAL = (RecordState.ACKNOWLEDGED, RecordState.ARCHIVED)
_MOST_DONE = 2**31 - 1
"""What the records of the state can say: a compacted log may lack more offsets."""
_RUNS_PER_LOCK = 4
"""Nothing new is acquired above this many runs for each record that may be locked. A record that stays at the start
for long would else let alternating states behind it grow without a bound, here and in the state topic."""


@dataclass(slots=True)
class _Run:
    first: int
    last: int
    state: RecordState
    count: int
    # Who has acquired it. Kept in transition, so that the change can be taken back.
    member: str = ""
    deadline: float = inf
    # The number of the write that has to store its state; 0: nothing to store.
    write: int = 0
    # Whether a member rejected it. While it is archiving.
    is_rejected: bool = False

    @property
    def size(self) -> int:
        return self.last - self.first + 1

    @property
    def is_available(self) -> bool:
        return self.state is RecordState.AVAILABLE and not self.member

    @property
    def is_done(self) -> bool:
        return self.state in _FINAL and not self.member


_SAME = attrgetter("state", "count", "member", "deadline", "write", "is_rejected")


class SharePartitionState:
    """The machine. `now` is monotonic (s). After each event call `tick` no later than `wake_at`.

    A change that must be stored is in transition until it is: `next_write` gives all such changes as one write, and the
    runtime reports its end to `write_ended`. One write is under way at a time; what comes meanwhile is in the next one.
    """

    def __init__(
        self,
        stored: ShareState,
        leader_epoch: int,
        limits: ShareLimits,
        *,
        reset_offset: int,
        log_start: int,
        log_end: int,
    ) -> None:
        """`reset_offset` is where a group begins whose start was never stored. What lies outside of the log is
        forgotten, but for a start behind its end: the group waits for that offset, as in Kafka. If it began at the end
        instead, its next leader would leave out what it has not read by then."""
        self.limits = limits
        self.leader_epoch = leader_epoch
        self.state_epoch = stored.state_epoch
        self.start_offset = stored.start_offset if stored.start_offset >= 0 else min(reset_offset, log_end)
        self.end_offset = self.start_offset
        self.wake_at = inf
        self._stored_start = stored.start_offset
        self._runs: list[_Run] = []
        """They leave no offset out from the start to the end."""
        self._writing: ShareWrite | None = None
        self._write_number = 1
        """Of the write under way, or of the next one."""
        self._is_start_due = stored.start_offset < 0
        """Whether the start must be stored without delay."""
        for batch in sorted(stored.state_batches):
            last = min(batch.last_offset, log_end - 1)
            first = max(batch.first_offset, self.end_offset)
            if first <= last:
                known = (*_FINAL, RecordState.ARCHIVING)
                state = RecordState(batch.delivery_state) if batch.delivery_state in known else RecordState.AVAILABLE
                self._extend(first - 1, RecordState.AVAILABLE)
                self._extend(last, state, batch.delivery_count)
        self.log_start_moved(log_start)
        self.set_limits(limits)

    # --- what is known -----------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """Offsets from the start to the end that are neither acknowledged nor archived."""
        return sum(run.size for run in self._runs if not run.is_done)

    @property
    def locked(self) -> int:
        """Offsets that members have."""
        return sum(run.size for run in self._runs if run.member)

    def next_fetch_offset(self) -> int | None:
        """Where to read the log for `acquire`, or None: as many records are in flight as may be."""
        most = self.limits.max_record_locks
        for run in self._runs:
            if run.is_available:
                return run.first if self.locked < most else None
        return self.end_offset if self.in_flight < most and len(self._runs) < most * _RUNS_PER_LOCK else None

    def batches(self) -> list[StateBatch]:
        """The present state of each run, in order and without a gap."""
        return [StateBatch(run.first, run.last, run.state, run.count) for run in self._runs]

    # --- fetches -----------------------------------------------------------------------------------

    def acquire(
        self,
        member_id: str,
        fetch_offset: int,
        batches: Sequence[FetchedBatch],
        now: float,
        wanted: Wanted,
    ) -> list[AcquiredRecords]:
        """Give a member available records of `batches`, which were read at `fetch_offset` without a gap.

        The log has no record between two of `batches`, nor from `fetch_offset` to the first one: such offsets are
        archived. Never more are locked than the limit, and nothing new comes beyond it. A record that was delivered
        often comes with few others, at its last delivery alone, so that it does not take good ones into the archive.
        """
        got: list[AcquiredRecords] = []
        max_records, batch_size, is_record_limit = wanted
        taken, position = 0, max(fetch_offset, self.start_offset)
        # Counted once: there may be many batches, and many runs.
        unlocked, room = self.limits.max_record_locks - self.locked, self.limits.max_record_locks - self.in_flight
        deadline = now + self.limits.lock_duration_s
        for batch in batches if max_records > 0 and position <= self.end_offset else ():
            if batch.last_offset < position:
                continue
            self._archive(position, batch.first_offset - 1)
            position = max(position, batch.first_offset)
            if not batch.has_records:
                self._archive(position, batch.last_offset)
            else:
                end, left = self.end_offset, (max_records - taken, unlocked - taken, room)
                runs, is_whole = self._offered(position, batch.last_offset, *left, is_record_limit, is_more=taken > 0)
                room -= self.end_offset - end
                for run in runs:
                    run.state, run.count, run.write = RecordState.ACQUIRED, run.count + 1, 0
                    run.member, run.deadline = member_id, deadline
                    _add(got, run, batch.first_offset, batch_size)
                    taken += run.size
                    self.wake_at = min(self.wake_at, deadline)
                if not is_whole:
                    break
            position = batch.last_offset + 1
        self._join_runs()
        return got

    def _offered(
        self, first: int, last: int, left: int, unlocked: int, room: int, is_record_limit: bool, *, is_more: bool
    ) -> tuple[list[_Run], bool]:
        """What a member gets of the offsets of one batch, and whether it may get of the next one, too.

        `left` is how many records it may get, `unlocked` how many more may be locked, and `room` how many more may be
        in flight; `is_more` whether it gets some of an earlier batch.
        """
        new = max(last - self.end_offset + 1, 0)
        known = self._available(first, last)
        size = sum(run.size for run in known) + new
        if size > left and is_more and not is_record_limit:
            return [], False
        left = min(left if is_record_limit else size, unlocked)
        added = min(new, room, left)
        if added > 0:
            self._extend(self.end_offset + added - 1, RecordState.AVAILABLE)
            known.append(self._runs[-1])
        offered: list[_Run] = []
        for run in known:
            most = self._most_at_once(run)
            if left <= 0 or (most is not None and (is_more or offered)):
                return offered, False
            if min(most or left, left) < run.size:
                self._cut(run.first + min(most or left, left))
            offered.append(run)
            left -= run.size
            if most is not None:
                return offered, False
        return offered, sum(run.size for run in offered) == size

    def _most_at_once(self, run: _Run) -> int | None:
        """From half of its deliveries on a record comes with fewer others each time, at last alone; None: no limit."""
        limit = self.limits.delivery_count_limit
        often = max(2, ceil(limit / 2))
        if run.count < often:
            return None
        return 1 if run.count == limit - 1 else max(1, run.size >> (run.count - often + 1))

    # --- acknowledgements --------------------------------------------------------------------------

    def acknowledge(self, member_id: str, said: Sequence[Acknowledgement], now: float) -> bool:
        """Put acquired records of a member into transition, all or none; renew locks. Returns whether anything must be
        stored.

        Raises BrokerError `invalid_record_state` if one is not acquired by the member (any more), or is in transition;
        `invalid_request` if it never was. Offsets below the start are ignored.
        """
        if said and said[-1].last_offset >= self.end_offset:
            raise BrokerError(ErrorCode.invalid_request, f"offset {said[-1].last_offset} was never acquired")
        for first, last, _ in said:  # before runs are cut, and types looked at: a request may have millions
            for run in self._overlapping(first, last):
                if run.state is not RecordState.ACQUIRED or run.member != member_id:
                    text = f"offset {max(run.first, first)} is not acquired by member {member_id}"
                    raise BrokerError(ErrorCode.invalid_record_state, text)
        is_changed = False
        for one in said:
            for first, last, kind in one.ranges(self.start_offset):
                for run in self._between(first, last):
                    if kind is AcknowledgeType.RENEW:
                        run.deadline = now + self.limits.lock_duration_s
                    else:
                        self._change(run, _NEW_STATE[kind])
                        is_changed = True
        self._join_runs()
        return is_changed

    def release(self, member_id: str) -> bool:
        """Put all that a member has acquired into transition to available (its session has ended). Returns whether it
        had anything."""
        acquired = [run for run in self._runs if run.state is RecordState.ACQUIRED]
        return self._give_back([run for run in acquired if run.member == member_id])

    def _give_back(self, runs: Sequence[_Run]) -> bool:
        for run in runs:
            self._change(run, RecordState.AVAILABLE)
        self._join_runs()
        return bool(runs)

    def _change(self, run: _Run, state: RecordState) -> None:
        is_rejected = state is RecordState.ARCHIVING
        if state is RecordState.AVAILABLE and run.count >= self.limits.delivery_count_limit:
            state = RecordState.ARCHIVING
        if state is RecordState.ARCHIVING and not self.limits.has_dead_letters:
            state = RecordState.ARCHIVED
        run.state, run.is_rejected = state, is_rejected and state is RecordState.ARCHIVING
        run.write = self._write_number + (self._writing is not None)

    # --- time, the log and the settings ------------------------------------------------------------

    def tick(self, now: float) -> bool:
        """Make available, or archive at the limit, what has an expired lock. Returns whether anything changed."""
        acquired = [run for run in self._runs if run.state is RecordState.ACQUIRED]
        expired = [run for run in acquired if run.deadline <= now]
        for run in expired:
            run.member, run.deadline = "", inf
        self.wake_at = min((run.deadline for run in acquired), default=inf)
        return self._give_back(expired)

    def log_start_moved(self, offset: int) -> None:
        """DeleteRecords or retention: nothing below `offset` is delivered any more."""
        if offset > self.start_offset:
            del self._runs[: self._cut(offset)]
            self.start_offset = offset
            self.end_offset = max(self.end_offset, offset)
            self._join_runs()

    def set_limits(self, limits: ShareLimits) -> None:
        """Also archives what has been delivered as often as is allowed now."""
        self.limits = limits
        self._give_back([run for run in self._runs if run.is_available and run.count >= limits.delivery_count_limit])

    # --- dead letters ------------------------------------------------------------------------------

    def dead_letters(self) -> list[DeadLetters]:
        """What is archiving, and stored as that. Another leader would write its dead letters again, too.

        Why is not stored: after a failover, what was not delivered as often as is allowed counts as rejected.
        """
        limit = self.limits.delivery_count_limit
        return [
            DeadLetters(run.first, run.last, run.count, run.is_rejected or run.count < limit)
            for run in self._runs
            if run.state is RecordState.ARCHIVING and not run.write and not run.member
        ]

    def dead_letters_ended(self, first: int, last: int) -> None:
        """The dead letters of these offsets are written, or cannot be: they are archived now, which must be stored."""
        for run in self._between(first, last):
            if run.state is RecordState.ARCHIVING and not run.write:
                self._change(run, RecordState.ARCHIVED)
        self._join_runs()

    # --- storing -----------------------------------------------------------------------------------

    def next_write(self) -> ShareWrite | None:
        """All changes that are not stored, if there are any and no write is under way.

        A start that moved alone, as over a marker of a transaction, is stored once nothing is in flight.
        """
        if self._writing is not None:
            return None
        start, done = self.start_offset, 0
        batches = []
        for run in self._runs:
            if run.first == start and run.state in _FINAL:
                start = run.last + 1
                continue
            done += run.size if run.state in _FINAL else 0
            if run.write:
                batches.append(StateBatch(run.first, run.last, run.state, run.count))
        is_behind = self._is_start_due or (self._stored_start < start and not self.in_flight)
        if not is_behind and not any(run.write for run in self._runs):
            return None
        self._is_start_due = False
        self._writing = ShareWrite(self.state_epoch, self.leader_epoch, start, min(done, _MOST_DONE), batches)
        return self._writing

    def write_ended(self, *, is_stored: bool, now: float) -> None:
        """Complete the transitions of the write, or take them back: the records are their member's again, unless the
        lock has expired meanwhile."""
        assert self._writing is not None
        if is_stored:
            self._stored_start = self._writing.start_offset
        self._is_start_due |= not is_stored
        for run in self._runs:
            if run.write != self._write_number:
                continue
            run.write = 0
            if is_stored:
                run.member, run.deadline = "", inf
            elif run.member:
                run.state, run.is_rejected = RecordState.ACQUIRED, False
            else:
                run.write = self._write_number + 1
        self._writing = None
        self._write_number += 1
        self.tick(now)

    # --- runs --------------------------------------------------------------------------------------

    def _extend(self, last: int, state: RecordState, count: int = 0) -> None:
        if last >= self.end_offset:
            self._runs.append(_Run(self.end_offset, last, state, count))
            self.end_offset = last + 1

    def _archive(self, first: int, last: int) -> None:
        """There are no records in these offsets. It is not stored, because the log says so."""
        for run in self._available(first, last):
            run.state, run.write = RecordState.ARCHIVED, 0
        self._extend(last, RecordState.ARCHIVED)

    def _available(self, first: int, last: int) -> list[_Run]:
        return [run for run in self._between(first, last) if run.is_available]

    def _overlapping(self, first: int, last: int) -> list[_Run]:
        begin = max(bisect_right(self._runs, first, key=_first) - 1, 0)
        return [run for run in self._runs[begin : bisect_right(self._runs, last, key=_first)] if run.last >= first]

    def _between(self, first: int, last: int) -> list[_Run]:
        """The runs of these offsets, cut at both ends."""
        begin, end = self._cut(first), self._cut(last + 1)
        return self._runs[begin:end]

    def _cut(self, offset: int) -> int:
        """Let a run begin at `offset`, and return its index: how many runs lie below."""
        index = bisect_right(self._runs, offset - 1, key=_first)
        if index and self._runs[index - 1].last >= offset:
            self._runs.insert(index, replace(self._runs[index - 1], first=offset))
            self._runs[index - 1].last = offset - 1
        return index

    def _join_runs(self) -> None:
        """Join runs that have become equal, and move the start."""
        joined: list[_Run] = []
        for _, same in groupby(self._runs, _SAME):
            run, *more = same
            if more:
                run.last = more[-1].last
            if not joined and run.is_done:
                self.start_offset = run.last + 1
                self._is_start_due |= run.write > 0
            else:
                joined.append(run)
        self._runs = joined


_first = attrgetter("first")


def acknowledgements(
    batches: Iterable[tuple[int, int, Sequence[int]]], largest: int = AcknowledgeType.RENEW
) -> list[Acknowledgement]:
    """The batches of a request, whose types are at most `largest`.

    Raises BrokerError `invalid_request`.
    """
    said: list[Acknowledgement] = []
    end = -1
    for first, last, kinds in batches:
        size = last - first + 1
        if not end < first <= last or len(kinds) not in (1, size) or not 0 <= min(kinds) <= max(kinds) <= largest:
            reason = f"the acknowledgement of [{first}, {last}] is not valid, or comes after {end}"
            raise BrokerError(ErrorCode.invalid_request, reason)
        end = last
        said.append(Acknowledgement(first, last, kinds))
    return said


def _add(got: list[AcquiredRecords], run: _Run, batch_offset: int, batch_size: int) -> None:
    """Add a run to the ranges of an answer."""
    before = got[-1] if got else None
    continues = before is not None and (before.last_offset + 1, before.delivery_count) == (run.first, run.count)
    is_full = before is not None and run.first == batch_offset and run.first - before.first_offset >= batch_size
    if before is not None and continues and not is_full:
        got[-1] = before._replace(last_offset=run.last)
    else:
        got.append(AcquiredRecords(run.first, run.last, run.count))

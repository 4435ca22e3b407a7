"""What members of a share group have of a partition: single rules. Random histories: test_share_partition_stateful."""

from __future__ import annotations

import tracemalloc

import pytest

from broker.errors import BrokerError, ErrorCode
from broker.share.persister import ShareState, ShareWrite, StateBatch
from broker.share.share_partition_state import (
    AcquiredRecords,
    FetchedBatch,
    ShareLimits,
    SharePartitionState,
    Wanted,
    acknowledgements,
)

GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
AVAILABLE, ACQUIRED, ACKNOWLEDGED, ARCHIVED = 0, 1, 2, 4


def machine(
    stored: ShareState | None = None, limits: ShareLimits | None = None, end: int = 1000
) -> SharePartitionState:
    return SharePartitionState(
        stored or ShareState(0), 3, limits or ShareLimits(), reset_offset=0, log_start=0, log_end=end
    )


def fetch(
    state: SharePartitionState,
    *batches: tuple[int, int] | tuple[int, int, bool],
    member: str = "a",
    most: int = 100,
    size: int = 100,
    now: float = 0,
    at: int | None = None,
    is_record_limit: bool = False,
) -> list[AcquiredRecords]:
    offset = state.next_fetch_offset() if at is None else at
    assert offset is not None
    found = [FetchedBatch(*batch) for batch in batches]
    return state.acquire(member, offset, found, now, Wanted(most, size, is_record_limit))


def say(state: SharePartitionState, first: int, last: int, *kinds: int, member: str = "a", now: float = 0) -> bool:
    return state.acknowledge(member, acknowledgements([(first, last, kinds)]), now)


def store(state: SharePartitionState, *, is_stored: bool = True, now: float = 0) -> ShareWrite | None:
    write = state.next_write()
    if write is not None:
        state.write_ended(is_stored=is_stored, now=now)
    return write


def expire(state: SharePartitionState, times: int, *batches: tuple[int, int]) -> None:
    """Deliver so many times, each time until the lock expires."""
    for turn in range(times):
        fetch(state, *batches, now=turn * 100)
        assert state.tick(turn * 100 + 30)


# --- fetches


def test_whole_batches_are_given_that_fit_but_one_at_least() -> None:
    assert fetch(machine(), (0, 9), (10, 19), (20, 29), most=25) == [(0, 19, 1)]
    assert fetch(machine(), (0, 9), (10, 19), most=3) == [(0, 9, 1)]
    assert fetch(machine(), (0, 9), most=0) == []


def test_a_record_limit_is_kept_to_the_record() -> None:
    state = machine()
    assert fetch(state, (0, 9), (10, 19), most=13, is_record_limit=True) == [(0, 12, 1)]
    assert state.next_fetch_offset() == 13
    assert fetch(state, (10, 19), member="b", most=3, is_record_limit=True) == [(13, 15, 1)]


def test_ranges_begin_anew_at_the_first_batch_after_the_batch_size() -> None:
    assert fetch(machine(), (0, 4), (5, 9), (10, 14), (15, 19), size=8) == [(0, 9, 1), (10, 19, 1)]


def test_no_more_is_in_flight_than_allowed() -> None:
    state = machine(limits=ShareLimits(5, 15))
    assert fetch(state, (0, 9), (10, 19)) == [(0, 14, 1)]
    assert state.next_fetch_offset() is None
    say(state, 3, 3, RELEASE)
    store(state)
    assert state.next_fetch_offset() == 3
    assert fetch(state, (0, 9), (10, 19), member="b") == [(3, 3, 2)]


def test_what_is_available_counts_as_in_flight() -> None:
    state = machine(limits=ShareLimits(5, 15))
    fetch(state, (0, 9))
    say(state, 0, 9, RELEASE)
    store(state)
    assert fetch(state, (10, 29), at=10) == [(10, 14, 1)]


def test_what_the_log_does_not_have_is_archived() -> None:
    """Gaps of compaction, control batches, aborted transactions."""
    state = machine()
    assert fetch(state, (3, 4), (5, 5, False), (8, 9), (10, 10, False)) == [(3, 4, 1), (8, 9, 1)]
    assert state.batches() == [(3, 4, ACQUIRED, 1), (5, 7, ARCHIVED, 0), (8, 9, ACQUIRED, 1), (10, 10, ARCHIVED, 0)]
    assert state.start_offset == 3
    say(state, 3, 4, ACCEPT)
    say(state, 8, 9, ACCEPT)
    assert store(state) == ShareWrite(0, 3, 11, 0, [])


def test_what_was_compacted_away_since_it_was_released_is_archived() -> None:
    state = machine()
    fetch(state, (0, 9), (10, 19))
    say(state, 0, 19, RELEASE)
    store(state)
    assert fetch(state, (10, 19)) == [(10, 19, 2)]
    assert state.start_offset == 10


def test_a_marker_alone_moves_the_stored_start_when_nothing_is_in_flight() -> None:
    state = machine()
    assert fetch(state, (0, 0, False)) == []
    assert store(state) == ShareWrite(0, 3, 1, 0, [])
    assert store(state) is None


def test_often_delivered_records_come_with_fewer_others_and_at_last_alone() -> None:
    state = machine(limits=ShareLimits(5))
    expire(state, 3, (0, 7))
    assert fetch(state, (0, 7), (8, 20), now=400) == [(0, 3, 4)]
    assert state.tick(430)
    assert fetch(state, (0, 7), now=500) == [(0, 0, 5)]
    assert fetch(state, (0, 7), now=500, member="b") == [(1, 1, 5)]


def test_a_record_that_is_due_alone_waits_for_the_next_fetch() -> None:
    state = machine(limits=ShareLimits(5))
    fetch(state, (0, 1))
    say(state, 0, 0, RELEASE)
    store(state)
    for turn in range(3):
        assert fetch(state, (1, 1), at=1, now=turn) in ([], [(1, 1, turn + 1)])
        state.release("a")
        store(state)
    assert fetch(state, (0, 1)) == [(0, 0, 2)]


def test_the_sixth_delivery_never_happens() -> None:
    state = machine(limits=ShareLimits(5))
    expire(state, 5, (0, 0))
    assert state.start_offset == 1
    assert fetch(state, (1, 1)) == [(1, 1, 1)]
    assert store(state) == ShareWrite(0, 3, 1, 0, [])  # at once: another leader must know it


def test_a_released_record_at_the_limit_is_archived() -> None:
    state = machine(limits=ShareLimits(2))
    for _ in range(2):
        fetch(state, (0, 0))
        say(state, 0, 0, RELEASE)
        store(state)
    assert state.start_offset == 1


# --- acknowledgements


def test_a_batch_that_is_partly_acknowledged() -> None:
    state = machine()
    fetch(state, (0, 9))
    assert say(state, 2, 7, ACCEPT, ACCEPT, RELEASE, REJECT, GAP, ACCEPT)
    changed = (2, 3, ACKNOWLEDGED, 1), (4, 4, AVAILABLE, 1), (5, 6, ARCHIVED, 1), (7, 7, ACKNOWLEDGED, 1)
    assert store(state) == ShareWrite(0, 3, 0, 5, [StateBatch(*batch) for batch in changed])
    assert fetch(state, (0, 9), member="b") == [(4, 4, 2)]
    say(state, 0, 1, ACCEPT)
    assert store(state) == ShareWrite(0, 3, 4, 3, [])
    assert state.start_offset == 4


@pytest.mark.parametrize(
    ("batches", "code"),
    [
        ([(0, 9, [ACCEPT]), (10, 10, [ACCEPT])], ErrorCode.invalid_request),  # never acquired
        ([(0, 2, [ACCEPT]), (2, 3, [ACCEPT])], ErrorCode.invalid_request),  # out of order
        ([(3, 2, [ACCEPT])], ErrorCode.invalid_request),
        ([(0, 2, [])], ErrorCode.invalid_request),
        ([(0, 2, [ACCEPT, ACCEPT])], ErrorCode.invalid_request),
        ([(0, 2, [5])], ErrorCode.invalid_request),
        ([(0, 2, [ACCEPT]), (5, 5, [ACCEPT])], ErrorCode.invalid_record_state),  # 5 is another member's
    ],
)
def test_a_wrong_acknowledgement_changes_nothing(batches: list[tuple[int, int, list[int]]], code: ErrorCode) -> None:
    state = machine()
    fetch(state, (0, 4), most=5)
    fetch(state, (5, 9), member="b")
    before = state.batches()
    with pytest.raises(BrokerError) as caught:
        state.acknowledge("a", acknowledgements(batches), 0)
    assert caught.value.code is code
    assert state.batches() == before
    assert state.next_write() is None


def test_a_refused_acknowledgement_takes_no_memory_for_its_types() -> None:
    """A member may send a type for each of millions of offsets that are done, behind one that is not."""
    count = 20_000
    state = machine(ShareState(0, 1, 1, [StateBatch(0, 0, 0, 1), StateBatch(1, count, 2, 1)]), end=count + 1)
    tracemalloc.start()
    try:
        with pytest.raises(BrokerError) as caught:
            state.acknowledge("a", acknowledgements([(1, count, bytes([1, 2]) * (count // 2))]), 0)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert caught.value.code is ErrorCode.invalid_record_state
    assert peak < 200_000


def test_what_is_being_stored_cannot_be_acknowledged_again() -> None:
    state = machine()
    fetch(state, (0, 9))
    say(state, 0, 9, RELEASE)
    with pytest.raises(BrokerError, match="not acquired"):
        say(state, 0, 9, ACCEPT)
    assert state.next_fetch_offset() == 10  # nor is it available yet


def test_a_write_that_failed_is_taken_back() -> None:
    state = machine()
    fetch(state, (0, 9), now=0)
    say(state, 0, 4, ACCEPT)
    store(state, is_stored=False, now=10)
    assert state.start_offset == 0
    say(state, 0, 9, REJECT, now=20)
    store(state, now=20)
    assert state.start_offset == 10


def test_a_lock_that_expired_during_a_failed_write_is_free() -> None:
    state = machine()
    fetch(state, (0, 9), now=0)
    say(state, 0, 9, ACCEPT)
    assert not state.tick(100)  # not while it is being stored
    store(state, is_stored=False, now=100)
    assert fetch(state, (0, 9), member="b", now=100) == [(0, 9, 2)]


def test_an_expired_lock_is_stored_with_the_next_write_if_this_one_fails() -> None:
    state = machine()
    expire(state, 1, (0, 9))
    assert store(state, is_stored=False) == store(state) == ShareWrite(0, 3, 0, 0, [StateBatch(0, 9, AVAILABLE, 1)])
    assert store(state) is None


def test_a_start_is_stored_again_after_a_failed_write() -> None:
    state = machine(limits=ShareLimits(2))
    expire(state, 1, (0, 0))
    fetch(state, (0, 0), now=100)
    fetch(state, (1, 1), now=100, member="b")
    say(state, 1, 1, RENEW, member="b", now=120)
    state.tick(130)
    assert store(state, is_stored=False, now=130) == ShareWrite(0, 3, 1, 0, [])
    assert store(state, now=130) == ShareWrite(0, 3, 1, 0, [])


def test_a_renewed_lock_lasts_longer() -> None:
    state = machine()
    fetch(state, (0, 9), now=0)
    assert not say(state, 2, 3, RENEW, now=20)
    assert state.tick(30)
    assert state.batches() == [(0, 1, AVAILABLE, 1), (2, 3, ACQUIRED, 1), (4, 9, AVAILABLE, 1)]
    assert state.wake_at == 50


def test_a_group_that_alternates_states_behind_a_stuck_record_stops() -> None:
    """Memory is bounded: the record at the start is renewed for ever."""
    state = machine(limits=ShareLimits(5, 10))
    fetch(state, (0, 0))
    offset = 1
    while (at := state.next_fetch_offset()) is not None:
        fetch(state, (at, at + 1))
        say(state, at, at + 1, ACCEPT, REJECT)
        store(state)
        offset = at
    assert offset < 100
    assert len(state.batches()) <= 44


# --- the log, settings, other leaders


def test_deleted_records_move_the_start_and_are_ignored_afterwards() -> None:
    state = machine()
    fetch(state, (0, 9))
    state.log_start_moved(5)
    assert state.start_offset == 5
    assert say(state, 0, 9, ACCEPT)
    assert store(state) == ShareWrite(0, 3, 10, 0, [])
    state.log_start_moved(30)
    assert state.next_fetch_offset() == 30
    assert not say(state, 5, 9, ACCEPT)


def test_a_stored_state_has_its_gaps_available() -> None:
    stored = ShareState(5, 2, 1, [StateBatch(8, 9, ACKNOWLEDGED, 1), StateBatch(12, 12, AVAILABLE, 3)])
    state = machine(stored)
    assert state.batches() == [
        (5, 7, AVAILABLE, 0), (8, 9, ACKNOWLEDGED, 1), (10, 11, AVAILABLE, 0), (12, 12, AVAILABLE, 3)
    ]  # fmt: skip
    assert (state.start_offset, state.end_offset, state.state_epoch) == (5, 13, 2)


def test_a_stored_state_is_cut_to_the_log() -> None:
    """After an unclean election the log may be shorter: what is written there now is new."""
    state = machine(ShareState(5, 0, 0, [StateBatch(5, 9, ACKNOWLEDGED, 1), StateBatch(12, 20, ARCHIVED, 1)]), end=14)
    assert state.batches() == [(10, 11, AVAILABLE, 0), (12, 13, ARCHIVED, 1)]
    with_impossible = machine(ShareState(5, 0, 0, [StateBatch(2, 6, 1, 1), StateBatch(4, 8, 77, 2)]))
    assert with_impossible.batches() == [(5, 6, AVAILABLE, 1), (7, 8, AVAILABLE, 2)]


def test_a_group_that_begins_behind_the_end_of_the_log_waits_for_that_offset() -> None:
    """Its offsets were altered to there. The next leader, which knows a longer log, must not begin elsewhere."""
    assert [machine(ShareState(50), end=end).next_fetch_offset() for end in (14, 40, 60)] == [50, 50, 50]
    state = machine(ShareState(50), end=14)
    assert fetch(state, (48, 51)) == [(50, 51, 1)]


def test_a_group_without_a_start_stores_it_first() -> None:
    state = SharePartitionState(ShareState(), 3, ShareLimits(), reset_offset=7, log_start=0, log_end=10)
    assert store(state) == ShareWrite(0, 3, 7, 0, [])
    assert store(state) is None


def test_a_lower_limit_archives_what_has_been_delivered_as_often() -> None:
    state = machine(limits=ShareLimits(5))
    expire(state, 3, (0, 0))
    state.set_limits(ShareLimits(3))
    assert state.start_offset == 1

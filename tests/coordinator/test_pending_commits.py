"""Records of open transactions: which of them count at the end, by the order of the log."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.coordinator.group_offsets import PendingCommits


def test_a_commit_shows_what_was_written_last() -> None:
    pending: PendingCommits[str, int] = PendingCommits()
    for value in (1, 2):
        pending.add(7, "a", value)
    pending.add(7, "b", 3)
    assert "a" in pending
    assert pending.end(7, commit=True) == {"a": 2, "b": 3}
    assert not pending
    assert pending.end(7, commit=True) == {}


def test_an_abort_shows_nothing() -> None:
    pending: PendingCommits[str, int] = PendingCommits()
    pending.add(7, "a", 1)
    assert pending.end(7, commit=False) == {}
    assert "a" not in pending


def test_a_later_plain_write_wins_but_the_key_stays_pending() -> None:
    pending: PendingCommits[str, int] = PendingCommits()
    pending.add(7, "a", 1)
    pending.supersede("a")
    assert "a" in pending
    assert pending.end(7, commit=True) == {}


def test_a_tombstone_ends_what_was_pending() -> None:
    pending: PendingCommits[str, int] = PendingCommits()
    pending.add(7, "a", 1)
    pending.remove("a")
    assert not pending
    pending.add(7, "b", 2)
    assert pending.end(7, commit=True) == {"b": 2}


def test_of_two_transactions_the_later_record_wins_whoever_ends_first() -> None:
    for first, second in ((1, 2), (2, 1)):
        pending: PendingCommits[str, int] = PendingCommits()
        pending.add(1, "a", 10)
        pending.add(2, "a", 20)
        shown = {**pending.end(first, commit=True), **pending.end(second, commit=True)}
        assert shown == {"a": 20}, (first, second)


events = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 3), st.sampled_from("ab")),
        st.tuples(st.sampled_from(["commit", "abort"]), st.integers(1, 3), st.just("")),
        st.tuples(st.sampled_from(["plain", "tombstone"]), st.just(0), st.sampled_from("ab")),
    ),
    max_size=30,
)


@given(events)
def test_it_ends_like_a_log_whose_committed_records_are_compacted(history: list[tuple[str, int, str]]) -> None:
    """The expected result: of all records that count, the last of each key."""
    pending: PendingCommits[str, int] = PendingCommits()
    shown: dict[str, int] = {}
    holds: list[tuple[int, str, int | None]] = []
    open_records: dict[int, list[tuple[int, str, int]]] = {}
    for position, (what, producer, key) in enumerate(history):
        if what == "add":
            pending.add(producer, key, position)
            open_records.setdefault(producer, []).append((position, key, position))
        elif what in ("commit", "abort"):
            shown.update(pending.end(producer, commit=what == "commit"))
            ended = open_records.pop(producer, [])
            holds += ended if what == "commit" else []
        elif what == "plain":
            shown[key] = position
            pending.supersede(key)
            holds.append((position, key, position))
        else:
            shown.pop(key, None)
            pending.remove(key)
            holds.append((position, key, None))
    expected = {key: value for _, key, value in sorted(holds, key=lambda record: record[0])}
    assert shown == {key: value for key, value in expected.items() if value is not None}
    unstable = {
        key
        for records in open_records.values()
        for position, key, _ in records
        if not any(p > position and k == key and v is None for p, k, v in holds)
    }
    assert set(pending.keys) == unstable

"""The checker of histories, on histories made by hand: a good one passes, each bad one is named for what it is."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker.protocol.topic_partition import TopicPartition
from broker.zookeeper.znodes import PartitionState
from tests.support.history import History, Outcome, Poll, Transaction, Write, anomalies

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def _good() -> History:
    """Two transactions, one after the other, a third that was aborted, a plain write; two consumers."""
    first = Transaction("first", 0, 1, Outcome.OK)
    second = Transaction("second", 2, 3, Outcome.OK)
    third = Transaction("third", 4, 5, Outcome.FAILED)
    unknown = Transaction("unknown", 6)
    return History(
        writes=[
            Write("p", 0, A, "a0", Outcome.OK, 0, first),
            Write("p", 1, B, "b0", Outcome.OK, 0, first),
            Write("p", 2, A, "a1", Outcome.OK, 2, second),
            Write("p", 3, B, "b1", Outcome.OK, 2, second),
            Write("p", 4, A, "a2", Outcome.OK, 4, third),
            Write("q", 0, A, "plain", Outcome.OK, 6),
            Write("q", 1, A, "nobody knows", Outcome.UNKNOWN),
            Write("q", 2, A, "refused", Outcome.FAILED),
            Write("r", 0, B, "u0", Outcome.OK, 4, unknown),
            Write("r", 1, B, "u1", Outcome.UNKNOWN, None, unknown),
        ],
        polls=[
            Poll("c", [(A, 0, "a0"), (B, 0, "b0")]),
            Poll("c", [(A, 2, "a1"), (B, 2, "b1"), (A, 6, "plain")]),
            Poll("d", [(A, 2, "a1")], frozenset({A})),
            Poll("d", [(A, 0, "a0"), (A, 2, "a1"), (A, 6, "plain")], frozenset({A})),
        ],
        final={A: [(0, "a0"), (2, "a1"), (6, "plain")], B: [(0, "b0"), (2, "b1")]},
        states=[
            (A, PartitionState(1, 0, (1, 2, 3), 1, version=0)),
            (B, PartitionState(2, 0, (2, 3), 1, version=0)),
            (A, PartitionState(1, 0, (1, 2), 1, version=1)),
            (A, PartitionState(2, 1, (2,), 1, version=2)),
            (B, PartitionState(-1, 1, (2, 3), 1, version=1)),
            (A, PartitionState(3, 4, (3, 2), 1, version=5)),
        ],
    )


def _lose(history: History) -> None:
    history.final[A].remove((6, "plain"))
    history.polls.clear()


def _lose_a_committed_one(history: History) -> None:
    history.final = {A: [(6, "plain")], B: [(2, "b1")]}
    history.polls.clear()


def _show_aborted(history: History) -> None:
    history.polls.append(Poll("e", [(A, 4, "a2")]))


def _show_refused(history: History) -> None:
    history.final[A].append((7, "refused"))


def _invent(history: History) -> None:
    history.final[B].append((9, "out of thin air"))


def _repeat(history: History) -> None:
    history.final[A].append((8, "plain"))


def _diverge_between_readers(history: History) -> None:
    history.polls.append(Poll("e", [(A, 0, "plain")]))


def _diverge_from_the_acknowledgement(history: History) -> None:
    history.writes[5].offset = 5
    history.final[A].insert(2, (5, "nobody knows"))


def _read_what_is_gone(history: History) -> None:
    history.polls.append(Poll("e", [(A, 8, "nobody knows")]))


def _go_back(history: History) -> None:
    history.polls.append(Poll("c", [(A, 2, "a1")]))


def _skip(history: History) -> None:
    history.polls = [Poll("c", [(A, 0, "a0")]), Poll("c", [(A, 6, "plain")])]


def _reorder(history: History) -> None:
    history.writes[5].number, history.writes[6].number = 1, 0
    history.final[A].append((7, "nobody knows"))


def _tear(history: History) -> None:
    history.writes[9].outcome = Outcome.OK
    history.final[B].append((5, "u1"))


def _cycle(history: History) -> None:
    for write in history.writes[:4]:
        write.offset = None
        write.producer = write.value  # nobody's order but that of the transactions
    history.polls.clear()
    history.final[A] = [(0, "a1"), (2, "a0"), (6, "plain")]


def _lead_an_epoch_twice(history: History) -> None:
    history.states.append((A, PartitionState(2, 4, (3, 2), 1, version=6)))


def _lead_an_epoch_after_nobody(history: History) -> None:
    history.states.append((B, PartitionState(2, 1, (2, 3), 1, version=2)))


def _go_back_to_an_epoch(history: History) -> None:
    history.states.append((A, PartitionState(2, 3, (3, 2), 1, version=9)))


def _lead_out_of_sync(history: History) -> None:
    history.states.append((B, PartitionState(1, 2, (1,), 1, version=2)))


BAD: list[tuple[str, Callable[[History], None]]] = [
    ("lost write", _lose),
    ("lost write", _lose_a_committed_one),
    ("aborted read", _show_aborted),
    ("aborted read", _show_refused),
    ("phantom", _invent),
    ("duplicate", _repeat),
    ("divergence", _diverge_between_readers),
    ("divergence", _diverge_from_the_acknowledgement),
    ("non-monotonic poll", _go_back),
    ("skipped", _skip),
    ("non-monotonic send", _reorder),
    ("torn transaction", _tear),
    ("write cycle", _cycle),
    ("vanished read", _read_what_is_gone),
    ("two leaders in one epoch", _lead_an_epoch_twice),
    ("two leaders in one epoch", _lead_an_epoch_after_nobody),
    ("leader epoch went back", _go_back_to_an_epoch),
    ("unclean election", _lead_out_of_sync),
]


def test_a_good_history_has_no_anomaly() -> None:
    assert anomalies(_good()) == []


def test_an_unknown_transaction_may_be_there_as_a_whole() -> None:
    history = _good()
    history.final[B] += [(4, "u0"), (5, "u1")]
    assert anomalies(history) == []


def test_transactions_that_overlap_in_time_may_interleave() -> None:
    history = _good()
    _cycle(history)
    for write in history.writes[:2]:
        assert write.transaction is not None
        write.transaction.ended = 2.5
    assert anomalies(history) == []


@pytest.mark.parametrize(("kind", "spoil"), BAD, ids=[spoil.__name__.strip("_") for _, spoil in BAD])
def test_a_bad_history_is_named(kind: str, spoil: Callable[[History], None]) -> None:
    history = _good()
    spoil(history)
    assert kind in {found.kind for found in anomalies(history)}

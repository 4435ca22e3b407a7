"""An hour of numbers: points, gaps, rates, and that nothing grows for ever."""

from __future__ import annotations

from pykafka_ui.history import POINTS, STEP_S, History


def test_a_rate_is_the_growth_between_two_points() -> None:
    history = History()
    for number, value in enumerate((100, 160, 160, 40, 100)):
        history.record(1000.0 + STEP_S * number, {("records", "t"): value})
    assert [value for _, value in history.rate("records", "t")] == [2.0, 0.0, None, 2.0], "a topic that was made again"
    assert history.last_rate("records", "t") == 2.0
    assert history.last_rate("records", "unknown") == 0.0


def test_names_come_and_go() -> None:
    history = History()
    history.record(0, {("lag", "a"): 1})
    history.record(30, {("lag", "a"): 2, ("lag", "b"): 5})
    history.record(60, {("lag", "b"): 6})
    assert history.values("lag", "a") == [(0, 1), (30, 2), (60, None)]
    assert history.values("lag", "b") == [(0, None), (30, 5), (60, 6)]
    for number in range(3, POINTS + 3):
        history.record(30 * number, {("lag", "b"): number})
    assert history.values("lag", "a") == [], "forgotten"
    assert len(history.values("lag", "b")) == POINTS
    assert list(history._series) == [("lag", "b")]


def test_it_is_due_each_step() -> None:
    history = History()
    assert history.is_due(5)
    history.record(5, {})
    assert not history.is_due(4 + STEP_S)
    assert history.is_due(5 + STEP_S)

"""An hour of numbers: points, gaps, rates, and that nothing grows for ever."""

from __future__ import annotations

from broker.protocol.topic_partition import TopicPartition
from pykafka_ui.seen.history import HOUR_S, STEP_S, Growth, History


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
    for number in range(3, 1000):
        history.record(30 * number, {("lag", "b"): number})
    assert history.values("lag", "a") == [], "forgotten"
    kept = history.values("lag", "b")
    assert (kept[-1][0] - kept[0][0], len(kept)) == (HOUR_S, 121)
    assert list(history._series) == [("lag", "b")]


def test_an_hour_is_an_hour_however_seldom_it_is_recorded() -> None:
    history = History()
    for number in range(100):
        history.record(120.0 * number, {("lag", "a"): number})
    kept = history.values("lag", "a")
    assert kept[-1][0] - kept[0][0] == HOUR_S


def test_it_is_due_each_step() -> None:
    history = History()
    assert history.is_due(5)
    history.record(5, {})
    assert not history.is_due(4 + STEP_S)
    assert history.is_due(5 + STEP_S)


A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def test_growth_is_counted_by_name_and_in_all() -> None:
    growth = Growth()
    assert growth.add({("a", A0): 10, ("a", A1): 5, ("b", B0): 7}) == {"a": 0, "b": 0, "": 0}
    assert growth.add({("a", A0): 12, ("a", A1): 6, ("b", B0): 7}) == {"a": 3, "b": 0, "": 3}
    assert growth.add({("a", A0): 12, ("b", B0): 9}, lambda name: name != "b") == {"a": 3, "b": 2, "": 3}


def test_a_position_that_is_new_or_comes_back_is_no_burst() -> None:
    growth = Growth()
    growth.add({("a", A0): 10, ("b", B0): 10})
    assert growth.add({("a", A0): 11, ("a", A1): 1_000_000_000, ("b", B0): 3})[""] == 1
    assert growth.add({("a", A0): 11})[""] == 1, "its leader is away"
    assert growth.add({("a", A0): 11, ("a", A1): 1_000_000_500})[""] == 1
    assert growth.add({("a", A0): 11, ("a", A1): 1_000_000_501})[""] == 2

"""A request of a version that is not served is logged at most once a minute for each client, in bounded memory."""

from __future__ import annotations

from broker.net.router import MOST_UNSERVED, UNSERVED_EVERY_S, UnservedVersions


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_each_is_due_once_a_minute() -> None:
    clock = Clock()
    unserved = UnservedVersions(clock)
    keys = [("a", 0, 2), ("b", 0, 2), (None, 0, 2), ("a", 0, 1), ("a", 1, 2)]
    assert [unserved.is_due(key) for key in keys] == [True] * 5
    clock.now += UNSERVED_EVERY_S - 1
    assert not any(unserved.is_due(key) for key in keys)
    clock.now += 1
    assert [unserved.is_due(key) for key in keys] == [True] * 5
    assert not unserved.is_due(keys[0])


def test_clients_that_make_up_names_fill_neither_log_nor_memory() -> None:
    clock = Clock()
    unserved = UnservedVersions(clock)
    assert sum(unserved.is_due((f"c{number}", 0, 2)) for number in range(3 * MOST_UNSERVED)) == MOST_UNSERVED
    assert len(unserved) == MOST_UNSERVED
    clock.now += UNSERVED_EVERY_S
    assert unserved.is_due(("c0", 0, 2))
    assert len(unserved) == 1

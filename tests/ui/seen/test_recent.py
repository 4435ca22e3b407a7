"""Many who ask for the same ask once: for its value, and for its error; and not for what was before a change."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from pykafka_ui.seen.recent import Recent
from tests.support.waiting import eventually


class Slow:
    """Counts its calls, and answers when it may."""

    def __init__(self, error: Exception | None = None) -> None:
        self.calls = 0
        self.may_answer = threading.Event()
        self._error = error

    def __call__(self) -> int:
        self.calls += 1
        number = self.calls
        assert self.may_answer.wait(60)
        if self._error is not None:
            raise self._error
        return number


def test_a_value_is_kept_for_a_while() -> None:
    now = 0.0
    recent = Recent[int](5.0, lambda: now)
    made = iter(range(9))
    assert [recent.get("a", lambda: next(made)) for _ in range(3)] == [0, 0, 0]
    assert recent.get("b", lambda: next(made)) == 1
    now = 5.0
    assert recent.get("a", lambda: next(made)) == 2
    recent.forget()
    assert recent.get("a", lambda: next(made)) == 3


@pytest.mark.parametrize("error", [None, OSError("down")])
def test_those_who_ask_meanwhile_get_the_same(error: Exception | None) -> None:
    """A cluster that takes seconds to fail is not asked by one after the other."""
    recent, slow = Recent[int](60.0), Slow(error)
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(recent.get, "a", slow) for _ in range(8)]
        eventually(lambda: slow.calls == 1 and len(recent._asking) == 1)
        slow.may_answer.set()
        found = [one.exception() or one.result() for one in asked]
    assert slow.calls == 1 or error is not None, "those who came later may have asked again"
    assert set(map(str, found)) == {str(error or 1)}
    assert recent._asking == {}


def test_what_was_asked_before_a_change_is_not_kept() -> None:
    recent, before = Recent[int](60.0), Slow()
    with ThreadPoolExecutor(2) as pool:
        old = pool.submit(recent.get, "a", before)
        eventually(lambda: before.calls == 1)
        recent.forget()
        assert recent.get("a", lambda: 7) == 7, "it does not wait for the old one"
        before.may_answer.set()
        assert old.result() == 1
    assert recent.get("a", lambda: 8) == 7


def test_who_cannot_wait_gets_what_was_known_before() -> None:
    """A broker that hangs holds no page: what it would say comes with a later one."""
    now = 0.0
    recent, slow = Recent[int](5.0, lambda: now), Slow()
    assert recent.soon("a", lambda: 7, 0.0) == 7, "what was never known is waited for"
    now = 5.0
    assert [recent.soon("a", slow, 0.0) for _ in range(3)] == [7, 7, 7]
    slow.may_answer.set()
    eventually(lambda: recent.soon("a", slow, 0.0) == 1)
    assert slow.calls == 1
    now = 10.0
    held = Slow()
    assert recent.soon("a", held, 0.0) == 1
    recent.forget()
    assert recent.soon("a", lambda: 8, 0.0) == 8, "what was before a change is not shown after it"
    held.may_answer.set()
    with pytest.raises(OSError, match="down"):
        recent.soon("b", failing, 0.0)


def failing() -> int:
    raise OSError("down")

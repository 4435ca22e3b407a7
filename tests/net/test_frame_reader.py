"""One bound for the requests of all connections: who waits, who goes on, and that somebody always does."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.net.frame_reader import RequestMemory


class Frame:
    """A frame under way."""

    def __init__(self) -> None:
        self.taken = 0
        self.starved = False

    def granted(self, size: int) -> None:
        self.taken += size
        self.starved = False


def take(memory: RequestMemory, frame: Frame, size: int) -> bool:
    if memory.take(frame, size):
        frame.taken += size
        return True
    frame.starved = True
    return False


def test_without_a_limit_nobody_waits() -> None:
    memory = RequestMemory(-1)
    assert all(take(memory, Frame(), 1 << 30) for _ in range(100))
    assert not memory.full


def test_beyond_the_limit_one_frame_goes_on_and_the_others_wait_in_order() -> None:
    memory = RequestMemory(100)
    first, second, third = Frame(), Frame(), Frame()
    assert take(memory, first, 90)
    assert take(memory, second, 20)  # the favoured one
    assert not take(memory, third, 5)
    assert not take(memory, first, 5)
    assert take(memory, second, 500)
    memory.finished(second, second.taken)
    assert (third.starved, first.starved) == (False, False)
    assert memory.used == first.taken + third.taken == 100


def test_one_that_gives_up_makes_room() -> None:
    memory = RequestMemory(10)
    first, second, third = Frame(), Frame(), Frame()
    take(memory, first, 10)
    take(memory, second, 10)
    take(memory, third, 10)
    memory.finished(third, 0)
    assert memory.waiting == 0
    memory.finished(second, 10)
    memory.finished(first, 10)
    assert memory.used == 0


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 60), st.booleans()), max_size=200))
def test_there_is_always_one_that_is_not_kept_waiting(steps: list[tuple[int, int, bool]]) -> None:
    memory, frames = RequestMemory(100), [Frame() for _ in range(10)]
    largest = 0
    for index, size, ends in steps:
        frame = frames[index]
        if frame.starved and not ends:
            continue
        if ends:
            taken, frame.taken, frame.starved = frame.taken, 0, False
            memory.finished(frame, taken)
        else:
            take(memory, frame, size)
        largest = max(largest, *(f.taken for f in frames))
        assert memory.used == sum(f.taken for f in frames)
        assert memory.used <= 100 + largest
        starved = [f for f in frames if f.starved]
        assert memory.waiting == len(starved)
        if starved:
            assert any(f.taken and not f.starved for f in frames)

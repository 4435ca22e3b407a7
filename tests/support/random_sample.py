"""Tests that tests/test_randomness.py runs in a process of its own, to see what they draw."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from tests.support.randomness import seed_of, seeded

drawn: list[int] = []


@settings(max_examples=7)
@given(st.integers(0, 2**64))
def test_numbers(number: int) -> None:
    drawn.append(number)


class Machine(RuleBasedStateMachine):
    runs = 0

    def __init__(self) -> None:
        super().__init__()
        Machine.runs += 1

    @rule()
    def step(self) -> None:
        pass


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=3, stateful_step_count=2)


def test_shown() -> None:
    print("drawn", len(drawn), hash(tuple(drawn)), "runs", Machine.runs, "seed", seed_of(5), "dice", seeded(5).random())

"""Searches by Hypothesis from the seed of a test: many examples, none shrunk, and counts of what came of each."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

Compare = Callable[[Any, Counter[str]], None]
"""Judges one drawn example, and counts."""


def search(number: int, examples: int, drawn: SearchStrategy[Any], compare: Compare) -> Counter[str]:
    """What `compare` has counted in that many examples. A failure names the seed."""
    counts: Counter[str] = Counter()

    @seed(number)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        report_multiple_bugs=False,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(drawn)
    def each(example: Any) -> None:
        compare(example, counts)

    try:
        each()
    except AssertionError as error:
        raise AssertionError(f"seed {number}: {error}") from error
    return counts


def search_on(seconds: float, after: int, once: Callable[[int], Counter[str]]) -> None:
    """`once` with the seeds after this one, one after the other, for so long; prints what they counted together."""
    counts: Counter[str] = Counter()
    begin, number = time.monotonic(), after
    while time.monotonic() - begin < seconds:
        number += 1
        counts += once(number)
    print(f"seeds {after + 1} to {number}: {dict(counts)}")

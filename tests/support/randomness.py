"""What tests draw: the same in every run of a gate, anew where somebody explores.

Hypothesis has two profiles. With `ci`, the default, each test takes its own fixed examples. With `explore` it takes
ten times as many, by the seed of the run (`make explore SEED=…`, `make slow SEED=…`), and says how to repeat a failure.
tests/conftest.py loads them and prints them in the header. Nothing else in a test may be left to chance: dice are made
by `seeded(number)` or `Random(seed_of(…))`, bytes that do not compress by `noise`.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

EXPLORE = "explore"
TIMES = 10
"""How many times as many examples an exploration takes."""
_TIMEOUT_S = 120  # that of pyproject.toml

_noise = Random(0)
_run: dict[str, int] = {}


def register_profiles() -> None:
    """A busy machine fails no test that Hypothesis makes."""
    patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.register_profile("ci", patient, derandomize=True, print_blob=True)
    settings.register_profile(EXPLORE, patient, derandomize=False, print_blob=True)
    settings.load_profile("ci")


def is_exploring() -> bool:
    return settings.get_current_profile_name() == EXPLORE


def begin_run(config: pytest.Config) -> None:
    """Raises UsageError for an exploration without a seed, which nobody could repeat."""
    seed = config.getoption("hypothesis_seed", None)
    if config.getoption("hypothesis_profile", None) == EXPLORE:
        if seed in {None, "random"}:
            raise pytest.UsageError(
                "--hypothesis-profile=explore needs --hypothesis-seed=NUMBER: make explore SEED=NUMBER"
            )
        _run["seed"] = int(seed)


def header() -> str:
    if not is_exploring():
        return "random tests: the same examples in every run (profile ci); make explore SEED=… draws others"
    again = f"--hypothesis-profile={EXPLORE} --hypothesis-seed={seed_of(0)}"
    return f"random tests: seed {seed_of(0)}, {TIMES} times as many examples; to repeat one: pytest {again} TEST"


def begin_test(item: pytest.Item) -> None:
    _noise.seed(item.nodeid)


def explore(item: pytest.Item) -> None:
    """Mark what draws anew; give a test of Hypothesis more examples, and the time for them."""
    test = getattr(item, "obj", None)
    if not is_exploring():
        return
    if getattr(getattr(item, "module", None), "seeded", None) is seeded:
        item.add_marker(pytest.mark.seeded)
    if not getattr(test, "is_hypothesis_test", False):
        return
    own = item.get_closest_marker("timeout")
    item.add_marker(pytest.mark.timeout(TIMES * (own.args[0] if own and own.args else _TIMEOUT_S)), append=False)
    holder: Any = test
    name = "_hypothesis_internal_use_settings"
    if (machine := getattr(item, "cls", None)) is not None and isinstance(getattr(machine, "settings", None), settings):
        holder, name = machine, "settings"
    function = getattr(holder, "__func__", holder)
    now = getattr(function, name, None) or settings()
    if not getattr(function, "is_explored", False):  # parameters share a function
        setattr(function, name, settings(now, max_examples=examples(now.max_examples)))
        function.is_explored = True


def examples(number: int) -> int:
    """For settings that a test makes when it runs."""
    return TIMES * number if is_exploring() else number


def seed_of(fixed: int) -> int:
    """`fixed`, or the seed of an exploration."""
    return _run.get("seed", fixed)


def seeded(number: int) -> Random:
    """Dice: the same for each `number` in every run of a gate, others in an exploration."""
    return Random(f"{_run['seed']}/{number}" if _run else number)


def noise(size: int) -> bytes:
    """Bytes that do not compress; each call in a test gives others, the same ones in each run."""
    return _noise.randbytes(size)

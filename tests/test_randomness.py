"""No gate depends on luck: what tests draw is fixed, or comes of the seed of an exploration that the header prints."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.support.randomness import noise
from tests.support.source_tree import ROOT

TESTS = ROOT / "tests"
OWN_CHANCE = {
    "support/free_ports.py": "two processes must not try the same ports",
    "support/kill_jobs.py": "processes of other rounds must not wait alike",
    "support/kill_rounds.py": "a command, which prints its seed",
}
OWN_PROFILE = {"support/randomness.py", "support/mutants.py"}


def luck_in(path: Path) -> Iterator[str]:
    """What in a file draws by chance, or takes a test out of the profiles."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imported = {one.name for node in ast.walk(tree) if isinstance(node, ast.Import) for one in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "derandomize":
            yield f"{node.value.lineno}: derandomize"
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        of_module = "random" in imported and re.fullmatch(r"random\.([a-z_]+|SystemRandom)", called)
        without_seed = called.split(".")[-1] in {"Random", "default_rng"} and not (node.args or node.keywords)
        legacy = called.startswith(("np.random.", "numpy.random.")) and not called.endswith(
            ("default_rng", "Generator")
        )
        if of_module or without_seed or legacy or called in {"os.urandom", "urandom", "SystemRandom"}:
            yield f"{node.lineno}: {called}"


def test_nothing_is_drawn_without_a_seed() -> None:
    found = {
        f"{name}:{luck}"
        for path in TESTS.rglob("*.py")
        if (name := path.relative_to(TESTS).as_posix()) not in OWN_CHANCE and name not in OWN_PROFILE
        for luck in luck_in(path)
    }
    assert found == set(), "use noise, seeded, seed_of or Random(number): see tests/support/randomness.py"


@pytest.mark.parametrize(
    ("code", "luck"),
    [
        ("import random\nx = random.random()", "2: random.random"),
        ("import random\nrandom.seed(1)", "2: random.seed"),
        ("from random import Random\nx = Random()", "2: Random"),
        ("import os\nx = os.urandom(3)", "2: os.urandom"),
        ("import numpy as np\nx = np.random.default_rng()", "2: np.random.default_rng"),
        ("import numpy as np\nx = np.random.rand(3)", "2: np.random.rand"),
        ("x = settings(derandomize=False)", "1: derandomize"),
        ("import random\nx = random.Random(3).random()", ""),
        ("def f(random):\n    random.shuffle([])", ""),  # of hypothesis
    ],
)
def test_luck_is_found(tmp_path: Path, code: str, luck: str) -> None:
    (tmp_path / "x.py").write_text(code, encoding="utf-8")
    assert list(luck_in(tmp_path / "x.py")) == ([luck] if luck else [])


SAMPLE = TESTS / "support" / "random_sample.py"


def shown(*options: str) -> tuple[str, str]:
    """(the header's line, what a run of SAMPLE drew)."""
    command = [sys.executable, "-m", "pytest", "-s", "-p", "no:cacheprovider", str(SAMPLE), *options]
    # Tests spare the processes that they start the import of Hypothesis, by a directory in PYTHONPATH.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return next(one for one in lines if one.startswith("random tests")), next(
        one[one.index("drawn ") :] for one in lines if "drawn " in one
    )


def test_a_gate_draws_the_same_in_every_run() -> None:
    header, drawn = shown()
    assert "profile ci" in header
    assert "runs 3" in drawn
    assert f"seed 5 dice {Random(5).random()}" in drawn
    assert shown() == (header, drawn)


def test_an_exploration_draws_by_its_seed_and_ten_times_as_much() -> None:
    explore = ("--hypothesis-profile=explore", "--hypothesis-seed=17")
    header, drawn = shown(*explore)
    assert "seed 17, 10 times as many examples; to repeat one: pytest --hypothesis-profile=explore" in header
    assert drawn.split()[1] == "70"
    assert drawn.split()[4] == "30"
    assert drawn.endswith(thrown := f"seed 17 dice {Random('17/5').random()}")
    assert shown(*explore, "-m", "seeded and not hypothesis")[1].endswith(thrown)  # `make explore` chooses dice too
    assert shown(*explore) == (header, drawn)
    assert shown("--hypothesis-profile=explore", "--hypothesis-seed=18")[1] != drawn
    with pytest.raises(AssertionError, match="needs --hypothesis-seed"):
        shown("--hypothesis-profile=explore")


@pytest.mark.timeout(300)  # collecting them all takes 13 s of a core
def test_every_process_gives_the_tests_the_same_names(request: pytest.FixtureRequest) -> None:
    """Else pytest-xdist does not start. A name holds the values of parameters: no time, no order of a set."""
    names = {item.nodeid for item in request.session.items}
    files = sorted({str(item.path) for item in request.session.items})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "", "-p", "no:cacheprovider", *files]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"PYTHONHASHSEED": "7"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert names - set(done.stdout.splitlines()) == set(), "give the parameter an id, or a value that stays"


def test_noise_is_that_of_the_test(request: pytest.FixtureRequest) -> None:
    dice = Random(request.node.nodeid)
    assert [noise(5), noise(3)] == [dice.randbytes(5), dice.randbytes(3)]

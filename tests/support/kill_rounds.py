"""Plays rounds of kills, one after the other, and tells what came of them: a line for each, and a table of all.

A `Matrix` holds what rounds share; archive_kills.py, table_kills.py and kill_round.py have one each. `command` makes it
a command of its own, and `check_round` and `check_rounds` judge in tests.
"""

from __future__ import annotations

import abc
import argparse
import contextlib
import fnmatch
import itertools
import random
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Generic, Self, TypeVar

from tests.support.requirements import Unavailable


@dataclass
class Played:
    """What came of a round. `kills` are the blows that hit somebody who was at work."""

    cell: Any
    seed: int
    kills: int = 0
    seconds: float = 0.0
    steps: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    shown: ClassVar[dict[str, str]] = {}
    """Attribute → heading of its sum in the table."""

    def __str__(self) -> str:
        verdict = "ok" if not self.problems else "FAILED: " + " | ".join(self.problems)
        told = [*self.steps, *(f"{getattr(self, name)} {heading}" for name, heading in self.shown.items())]
        return f"{self.cell} seed={self.seed} [{'; '.join(told)}] {self.seconds:.1f} s {verdict}"


P = TypeVar("P", bound=Played)


class Matrix(abc.ABC, Generic[P]):
    """What rounds share, while it is open; `directory` takes all they write."""

    played: type[P]

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._numbers = itertools.count(1)
        self._running = contextlib.ExitStack()

    def play(self, cell: Any, seed: int) -> P:
        """One round; a failure is noted, so that others can be played. Raises Unavailable for what cannot be had."""
        played, begun = self.played(cell, seed), time.monotonic()
        try:
            self._play(played)
        except Unavailable:
            raise
        except Exception as problem:
            known = isinstance(problem, AssertionError) and str(problem)
            played.problems.append(str(problem) if known else traceback.format_exc())
        finally:
            self._end(played)
        played.seconds = time.monotonic() - begun
        return played

    @abc.abstractmethod
    def _play(self, played: P) -> None:
        """Play the round of its cell and seed, and note in it what comes of it."""

    def _end(self, played: P) -> None:
        """Comes after each round."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._running.close()


Cells = Sequence[Any]


def schedule(rounds: int, seed: int, cells: Cells) -> Cells:
    """`rounds` cells, every one as often as any other to within one, in a drawn order."""
    dice = random.Random(seed)
    return [cell for _ in range(rounds // len(cells) + 1) for cell in dice.sample(cells, len(cells))][:rounds]


def play_rounds(opened: Matrix[P], cells: Cells, seed: int) -> list[P]:
    """A round of each of these cells; a failed round does not end them."""
    print(f"{len(cells)} rounds, seed {seed}", flush=True)
    played: list[P] = []
    seeds = random.Random(seed)
    with opened as matrix:
        for number, cell in enumerate(cells, start=1):
            played.append(matrix.play(cell, seeds.randrange(10**9)))
            print(f"{number}/{len(cells)} {played[-1]}", flush=True)
            if number % 25 == 0:
                print(table(played), flush=True)
    return played


def table(played: Iterable[Played]) -> str:
    """Per cell, by name, and of all: rounds, the sums that are `shown`, rounds that failed."""
    by_cell: defaultdict[str, list[Played]] = defaultdict(list)
    for one in sorted(played, key=lambda one: str(one.cell)):
        by_cell[str(one.cell)].append(one)
    by_cell["all"] = list(itertools.chain.from_iterable(by_cell.values()))
    shown = by_cell["all"][0].shown if by_cell["all"] else {}
    rows = [["cell", "rounds", *shown.values(), "failed"]]
    for name, those in by_cell.items():
        sums = [sum(getattr(one, attribute) for one in those) for attribute in shown]
        rows.append([name, *map(str, (len(those), *sums, sum(bool(one.problems) for one in those)))])
    width = max(map(len, by_cell))
    return "\n".join(f"{row[0]:<{width}}" + "".join(f"{cell:>11}" for cell in row[1:]) for row in rows)


def check_round(matrix: Matrix[P], cell: Any, seed: int) -> P:
    """Raises AssertionError for a round with problems, and for one whose blows came too late twice, as they may on a
    busy machine once."""
    played = matrix.play(cell, seed)
    if not played.kills and not played.problems:
        print(played)
        played = matrix.play(cell, seed + 1)
    print(played)
    assert not played.problems, str(played)
    assert played.kills > 0, f"every run ended before its blow: {played}"
    return played


def check_rounds(opened: Matrix[P], cells: Cells, seed: int) -> None:
    """As `check_round`, of a round of each cell; one of ten may end before its blow."""
    played = play_rounds(opened, cells, seed)
    print(table(played))
    failed = [str(one) for one in played if one.problems]
    assert not failed, "\n".join(failed)
    assert sum(one.kills > 0 for one in played) > 0.9 * len(cells), "too many runs ended before their blow"


def command(
    about: str | None,
    opened: Callable[[Path], Matrix[Any]],
    cells: Cells,
    order: Callable[[int, int, Cells], Cells] = schedule,
) -> None:
    """Play what the arguments of this process say, print the table, and end with 1 for a problem."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--cells", nargs="+", default=["*"], help=f"patterns of {', '.join(map(str, cells))}")
    parser.add_argument("--directory", type=Path, default=None)
    given = parser.parse_args()
    wanted = [cell for cell in cells if any(fnmatch.fnmatch(str(cell), pattern) for pattern in given.cells)]
    directory = given.directory or Path(tempfile.mkdtemp(prefix="kills-"))
    directory.mkdir(parents=True, exist_ok=True)
    print(f"in {directory}")
    played = play_rounds(opened(directory), order(given.rounds, given.seed, wanted), given.seed)
    print(table(played))
    sys.exit(any(one.problems for one in played))

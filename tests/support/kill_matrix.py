"""Many rounds of the kill matrix and the table of what came of them.

`python -m tests.support.kill_matrix [--rounds N] [--seed N] [--jobs read,…] [--victims leader,…] [--directory D]` does;
tests/faults/test_kill_matrix.py does so in the slow set. Every round prints a line; one that failed keeps its files.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections import defaultdict
from collections.abc import Collection, Iterable
from pathlib import Path

from tests.support.kill_cells import CELLS, Job, Victim, schedule
from tests.support.kill_round import Matrix, Played


def play_rounds(
    directory: Path,
    rounds: int,
    seed: int,
    jobs: Collection[Job] = frozenset(Job),
    victims: Collection[Victim] = frozenset(Victim),
) -> list[Played]:
    """That many rounds, over all cells in turn; a failed round does not end them."""
    print(f"{rounds} rounds, seed {seed}, in {directory}", flush=True)
    played: list[Played] = []
    seeds = random.Random(seed)
    with Matrix(directory) as matrix:
        for number, cell in enumerate(schedule(rounds, seed, jobs, victims), start=1):
            played.append(matrix.play(cell, seeds.randrange(10**9)))
            print(f"{number}/{rounds} {played[-1]}", flush=True)
            if number % 25 == 0:
                print(table(played), flush=True)
    return played


def table(played: Iterable[Played]) -> str:
    """Per cell: rounds, kills that hit, runs of the job beyond one per round, rounds that failed."""
    by_cell: defaultdict[str, list[Played]] = defaultdict(list)
    for each in played:
        by_cell[str(each.cell)].append(each)
    lines = [f"{'cell':<34}{'rounds':>7}{'kills':>7}{'restarts':>10}{'failed':>8}"]
    for name in [str(cell) for cell in CELLS] + ["all"]:
        those = [one for each in by_cell.values() for one in each] if name == "all" else by_cell.get(name, [])
        if those:
            kills, tries = sum(one.kills for one in those), sum(one.tries for one in those)
            failed = sum(bool(one.problems) for one in those)
            lines.append(f"{name:<34}{len(those):>7}{kills:>7}{tries - len(those):>10}{failed:>8}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--jobs", default=",".join(job.value for job in Job))
    parser.add_argument("--victims", default=",".join(victim.value for victim in Victim))
    parser.add_argument("--directory", type=Path, default=None)
    given = parser.parse_args()
    directory = given.directory or Path(tempfile.mkdtemp(prefix="kill-matrix-"))
    directory.mkdir(parents=True, exist_ok=True)
    jobs = frozenset(Job(name) for name in given.jobs.split(","))
    victims = frozenset(Victim(name) for name in given.victims.split(","))
    played = play_rounds(directory, given.rounds, given.seed, jobs, victims)
    print(table(played))
    sys.exit(any(one.problems for one in played))


if __name__ == "__main__":
    main()

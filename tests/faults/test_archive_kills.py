"""Leaders that are killed while they copy to the archive: every step of a copy once, 200 rounds in the slow set.

Brokers are real processes, and so are the kills; a client that is not ours reads what is left (promise A3).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.archive_kills import CELLS, ArchiveMatrix, Cell, Played, play_rounds, table
from tests.support.held_broker import STEPS
from tests.support.randomness import seed_of

ROUNDS = 200
SEED = 20


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ArchiveMatrix]:
    with ArchiveMatrix(tmp_path_factory.mktemp("archives")) as matrix:
        yield matrix


@pytest.mark.timeout(300)
@pytest.mark.parametrize("step", STEPS)
def test_a_leader_that_is_killed_leaves_no_gap_and_no_overlap(matrix: ArchiveMatrix, step: str) -> None:
    played = matrix.play(Cell("one", step), SEED)
    print(played)
    assert not played.problems, str(played)
    assert played.blows > 0


@pytest.mark.slow
@pytest.mark.timeout(14400)
def test_200_rounds_lose_and_double_nothing(tmp_path: Path) -> None:
    """A cluster of three goes on under another leader, or under the same; and the old one may wake too late."""
    played = play_rounds(tmp_path, ROUNDS, seed=seed_of(1))
    print(table(played))
    assert [str(one) for one in played if one.problems] == []


def test_the_table_tells_what_came_of_each_cell() -> None:
    lines = table(
        [
            Played(CELLS[0], 1, blows=1, acknowledged=10, leftovers=2),
            Played(CELLS[0], 2, blows=2, acknowledged=20, problems=["gap or overlap"]),
            Played(CELLS[1], 3, blows=1, acknowledged=5),
        ]
    ).splitlines()
    assert [line.split() for line in lines] == [
        ["cell", "rounds", "blows", "records", "left", "over", "failed"],
        [str(CELLS[0]), "2", "3", "30", "2", "1"],
        [str(CELLS[1]), "1", "1", "5", "0", "0"],
        ["all", "3", "4", "35", "2", "1"],
    ]

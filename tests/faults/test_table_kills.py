"""Loads into tables under kill -9: every kind of table and of load once, 200 rounds in the slow set.

Processes are real ones, and so are the kills; the readers that judge are deltalake, pyiceberg and pyarrow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.randomness import seed_of
from tests.support.table_kills import Played, TableMatrix, play_rounds, schedule, table
from tests.support.table_works import CELLS, Cell

ROUNDS = 200
SEED = 20


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TableMatrix]:
    with TableMatrix(tmp_path_factory.mktemp("tables")) as matrix:
        yield matrix


@pytest.mark.timeout(300)
@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_a_killed_load_loses_and_doubles_nothing(matrix: TableMatrix, cell: Cell) -> None:
    played = matrix.play(cell, SEED)
    if not played.kills and not played.problems:  # on a busy machine a blow may come too late
        print(played)
        played = matrix.play(cell, SEED + 1)
    print(played)
    assert not played.problems, str(played)
    assert played.kills > 0, f"every run ended before its blow: {played}"


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_200_rounds_lose_and_double_nothing(tmp_path: Path) -> None:
    played = play_rounds(tmp_path, ROUNDS, seed=seed_of(1))
    print(table(played))
    assert [str(one) for one in played if one.problems] == []
    assert sum(one.kills > 0 for one in played) > 0.9 * ROUNDS, "too many runs ended before their blow"


def test_a_schedule_is_balanced_and_drawn_from_its_seed() -> None:
    drawn = schedule(ROUNDS, seed=1)
    counts = Counter(map(str, drawn))
    assert set(counts) == set(map(str, CELLS))
    assert max(counts.values()) - min(counts.values()) <= 1
    assert drawn == schedule(ROUNDS, seed=1) != schedule(ROUNDS, seed=2)


def test_the_table_tells_what_came_of_each_cell() -> None:
    lines = table(
        [
            Played(CELLS[0], 1, kills=1, rivals=1, refused=1),
            Played(CELLS[0], 2, kills=2, problems=["1 records missing: …"]),
            Played(CELLS[1], 3, kills=1),
        ]
    ).splitlines()
    assert [line.split() for line in lines] == [
        ["cell", "rounds", "kills", "rivals", "refused", "failed"],
        [str(CELLS[0]), "2", "3", "1", "1", "1"],
        [str(CELLS[1]), "1", "1", "0", "0", "0"],
        ["all", "3", "4", "1", "1", "1"],
    ]

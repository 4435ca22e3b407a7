"""Loads into tables under kill -9: every kind of table and of load once, 200 rounds in the slow set.

Processes are real ones, and so are the kills; the readers that judge are deltalake, pyiceberg and pyarrow.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.kill_rounds import check_round, check_rounds, schedule
from tests.support.randomness import seed_of
from tests.support.table_kills import TableMatrix
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
    check_round(matrix, cell, SEED)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_200_rounds_lose_and_double_nothing(tmp_path: Path) -> None:
    check_rounds(TableMatrix(tmp_path), schedule(ROUNDS, seed_of(1), CELLS), seed_of(1))

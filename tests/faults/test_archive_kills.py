"""Leaders that are killed while they copy to the archive: every step of a copy once, 200 rounds in the slow set.

Brokers are real processes, and so are the kills; a client that is not ours reads what is left (promise A3).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.archive_kills import CELLS, ArchiveMatrix, Cell
from tests.support.held_broker import STEPS
from tests.support.kill_rounds import check_round, check_rounds, schedule
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
    check_round(matrix, Cell("one", step), SEED)


@pytest.mark.slow
@pytest.mark.timeout(14400)
def test_200_rounds_lose_and_double_nothing(tmp_path: Path) -> None:
    """A cluster of three goes on under another leader, or under the same; and the old one may wake too late."""
    check_rounds(ArchiveMatrix(tmp_path), schedule(ROUNDS, seed_of(1), CELLS), seed_of(1))

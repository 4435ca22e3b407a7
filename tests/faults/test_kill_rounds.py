"""What plays rounds of kills: their order, their table, and what is a failure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support import archive_kills, kill_cells, table_works
from tests.support.archive_kills import ArchiveKills
from tests.support.kill_round import JobKills
from tests.support.kill_rounds import Matrix, Played, check_round, check_rounds, schedule, table
from tests.support.requirements import Unavailable
from tests.support.table_kills import TableKills


@pytest.mark.parametrize(
    ("cells", "order"),
    [(archive_kills.CELLS, schedule), (table_works.CELLS, schedule), (kill_cells.CELLS, kill_cells.schedule)],
    ids=["archive", "tables", "jobs"],
)
def test_a_schedule_is_balanced_and_drawn_from_its_seed(cells: Sequence[Any], order: Callable[..., Any]) -> None:
    drawn = order(200, 1, cells)
    assert len(drawn) == 200
    counts = Counter(map(str, drawn))
    assert set(counts) == set(map(str, cells))
    assert max(counts.values()) - min(counts.values()) <= 1
    assert drawn == order(200, 1, cells) != order(200, 2, cells)


@pytest.mark.parametrize(
    ("played", "headings", "first", "second", "both"),
    [
        (
            [
                ArchiveKills("a", 1, kills=1, acknowledged=10, segments=3, leftovers=2),
                ArchiveKills("a", 2, kills=2, acknowledged=20, segments=3, problems=["gap or overlap"]),
                ArchiveKills("b", 3, kills=1, acknowledged=5, segments=1),
            ],
            "kills records segments left over",
            "3 30 6 2 1",
            "1 5 1 0 0",
            "4 35 7 2 1",
        ),
        (
            [
                TableKills("a", 1, kills=1, rivals=1, refused=1),
                TableKills("a", 2, kills=2, problems=["1 records missing: …"]),
                TableKills("b", 3, kills=1),
            ],
            "kills rivals refused",
            "3 1 1 1",
            "1 0 0 0",
            "4 1 1 1",
        ),
        (
            [
                JobKills("a", 1, kills=1, tries=2),
                JobKills("a", 2, kills=2, tries=4, problems=["1 records missing: …"]),
                JobKills("b", 3, kills=1, tries=1),
            ],
            "kills restarts",
            "3 4 1",
            "1 0 0",
            "4 4 1",
        ),
    ],
    ids=["archive", "tables", "jobs"],
)
def test_the_table_tells_what_came_of_each_cell(
    played: list[Played], headings: str, first: str, second: str, both: str
) -> None:
    lines = [line.split() for line in table(played).splitlines()]
    rows = f"cell rounds {headings} failed", f"a 2 {first}", f"b 1 {second}", f"all 3 {both}"
    assert lines == [row.split() for row in rows]


class Scripted(Matrix[Played]):
    """A cell is what its rounds do, one after the other."""

    played = Played

    def _play(self, played: Played) -> None:
        what = played.cell.pop(0)
        if isinstance(what, Exception):
            raise what
        played.kills += what

    def _end(self, played: Played) -> None:
        played.steps.append("ended")


def test_a_round_with_a_problem_or_without_a_blow_twice_fails(tmp_path: Path) -> None:
    matrix = Scripted(tmp_path)
    assert check_round(matrix, [1], 7).steps == ["ended"]
    assert check_round(matrix, [0, 1], 7).seed == 8, "on a busy machine a blow may come too late"
    for cell, said in (
        ([AssertionError("1 record is missing")], "FAILED: 1 record is missing"),
        ([ZeroDivisionError("of a program")], "ZeroDivisionError: of a program"),
        ([0, 0], "every run ended before its blow"),
    ):
        with pytest.raises(AssertionError, match=said):
            check_round(matrix, cell, 7)
    with pytest.raises(Unavailable):
        matrix.play([Unavailable("no HDFS")], 7)


def test_of_many_rounds_all_are_played_and_one_that_fails_is_told(tmp_path: Path) -> None:
    cells: list[list[Any]] = [[AssertionError("gap")], *([1] for _ in range(19))]
    with pytest.raises(AssertionError, match="FAILED: gap"):
        check_rounds(Scripted(tmp_path), cells, 1)
    assert not any(cells)
    check_rounds(Scripted(tmp_path), [[0], *([1] for _ in range(19))], 1)
    with pytest.raises(AssertionError, match="too many runs"):
        check_rounds(Scripted(tmp_path), [[0], [0], *([1] for _ in range(18))], 1)

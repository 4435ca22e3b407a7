"""What is counted after a cut, and that docs/promises.md shows the outcome of every cut that test_cuts.py plays."""

from __future__ import annotations

import itertools
import re

from tests.support.host_counts import Numbers
from tests.support.host_cuts import AT_LEAST_ONCE, HEADING, JOBS, Cut, Found, Outcome, judge, table
from tests.support.source_tree import ROOT

CELL = re.compile(r"(\d+) / (\d+), \d+ s")


def test_numbers_go_from_host_to_host_with_what_was_doubled() -> None:
    numbers = Numbers.of([5, 1, 2, 3, 2, 9])
    assert numbers.to_json() == {"found": [[1, 3], [5, 5], [9, 9]], "doubled": [[2, 2]]}
    assert Numbers.of_json(numbers.to_json()) == numbers
    assert Numbers.of_json(Numbers.of([]).to_json()) == Numbers.of([])


def test_a_record_that_is_lost_or_doubled_is_counted() -> None:
    assert judge(Numbers.of([0, 1, 2, 3]), [0, 1, 2]) == ([], [])
    assert judge(Numbers.of([0, 2, 2, 3]), [0, 1, 2]) == ([1], [2])


def test_only_a_group_may_find_a_record_twice() -> None:
    found = Outcome(Cut.LEADER, 10, {job: Found([], [7], 1.0) for job in JOBS}).problems
    assert {problem.partition(":")[0] for problem in found} == set(JOBS) - AT_LEAST_ONCE
    lost = Outcome(Cut.LEADER, 10, {job: Found([7], [], 1.0) for job in JOBS})
    assert len(lost.problems) == len(JOBS)
    cells = "| 1 / 0, 1 s " * len(JOBS)
    assert table([lost]).splitlines()[-1] == f"| host of a leader silent, 30 s | 10 {cells}|"


def test_the_document_shows_every_cut_and_no_loss() -> None:
    assert [cut for cut, *_ in rows()] == [str(cut) for cut in Cut]
    for cut, acknowledged, *cells in rows():
        assert int(acknowledged.replace(",", "")) > 0, cut
        for job, cell in zip(JOBS, cells, strict=True):
            count = CELL.fullmatch(cell)
            assert count is not None, (cut, job)
            assert count[1] == "0", (cut, job)
            assert count[2] == "0" or job in AT_LEAST_ONCE, (cut, job)


def rows() -> list[list[str]]:
    """Of the table in the document."""
    text = (ROOT / "docs" / "promises.md").read_text(encoding="utf-8")
    _, found, below = text.partition(HEADING + "\n")
    assert found, HEADING
    lines = itertools.takewhile(lambda line: line.startswith("|"), below.splitlines()[1:])
    return [line.strip("| ").split(" | ") for line in lines]

"""What is counted after a cut, and that docs/promises.md shows the outcome of every cut that the tests play."""

from __future__ import annotations

import itertools
import re

import pytest

from tests.support.host_clients import KEYS
from tests.support.host_counts import Numbers
from tests.support.host_cuts import (
    AT_LEAST_ONCE,
    CLIENTS,
    CUTS_OF_CLIENTS,
    CUTS_OF_SPARK,
    SPARK,
    Cut,
    Found,
    Outcome,
    heading,
    judge,
    judge_upsert,
    table,
)
from tests.support.source_tree import ROOT

CELL = re.compile(r"(\d+) / (\d+), \d+ s(, \d+ failed)?")


def test_numbers_go_from_host_to_host_with_what_was_doubled() -> None:
    numbers = Numbers.of([5, 1, 2, 3, 2, 9])
    assert numbers.to_json() == {"found": [[1, 3], [5, 5], [9, 9]], "doubled": [[2, 2]]}
    assert Numbers.of_json(numbers.to_json()) == numbers
    assert Numbers.of_json(Numbers.of([]).to_json()) == Numbers.of([])


def test_a_record_that_is_lost_or_doubled_is_counted() -> None:
    assert judge(Numbers.of([0, 1, 2, 3]), [0, 1, 2]) == ([], [])
    assert judge(Numbers.of([0, 2, 2, 3]), [0, 1, 2]) == ([1], [2])


def test_an_upsert_has_one_row_per_key_of_the_last_record_or_a_later_one() -> None:
    acknowledged = [0, 1, 2, KEYS, KEYS + 1]
    assert judge_upsert(Numbers.of([2, KEYS, KEYS + 1]), acknowledged) == ([], [])
    assert judge_upsert(Numbers.of([2, KEYS, 2 * KEYS + 1]), acknowledged) == ([], [])
    assert judge_upsert(Numbers.of([2, KEYS, 1]), acknowledged) == ([1], [])
    assert judge_upsert(Numbers.of([KEYS, KEYS + 1]), acknowledged) == ([2], [])
    assert judge_upsert(Numbers.of([2, 0, KEYS, KEYS + 1]), acknowledged) == ([], [0])
    assert judge_upsert(Numbers.of([2, KEYS, KEYS, KEYS + 1]), acknowledged) == ([], [0])


def test_only_a_group_may_find_a_record_twice() -> None:
    jobs = {**CLIENTS, **SPARK}
    found = Outcome(Cut.LEADER, 10, {job: Found([], [7], 1.0) for job in jobs}).problems
    assert {problem.partition(":")[0] for problem in found} == set(jobs) - AT_LEAST_ONCE


def test_what_is_lost_and_what_failed_is_shown() -> None:
    lost = Outcome(Cut.LEADER, 10, {job: Found([7], [], 1.0, ["no"] * 2) for job in SPARK})
    assert len(lost.problems) == len(SPARK)
    cells = "| 1 / 0, 1 s, 2 failed " * len(SPARK)
    assert table([lost], SPARK).splitlines()[-1] == f"| host of a leader silent, 30 s | 10 {cells}|"


@pytest.mark.parametrize(
    ("jobs", "cuts"), [(CLIENTS, CUTS_OF_CLIENTS), (SPARK, CUTS_OF_SPARK)], ids=["clients", "spark"]
)
def test_the_document_shows_every_cut_and_no_loss(jobs: dict[str, str], cuts: tuple[Cut, ...]) -> None:
    assert [cut for cut, *_ in rows(jobs)] == [str(cut) for cut in cuts]
    for cut, acknowledged, *cells in rows(jobs):
        assert int(acknowledged.replace(",", "")) > 0, cut
        for job, cell in zip(jobs, cells, strict=True):
            count = CELL.fullmatch(cell)
            assert count is not None, (cut, job)
            assert count[1] == "0", (cut, job)
            assert count[2] == "0" or job in AT_LEAST_ONCE, (cut, job)


def rows(jobs: dict[str, str]) -> list[list[str]]:
    """Of the table of these jobs in the document."""
    text = (ROOT / "docs" / "promises.md").read_text(encoding="utf-8")
    _, found, below = text.partition(heading(jobs) + "\n")
    assert found, heading(jobs)
    lines = itertools.takewhile(lambda line: line.startswith("|"), below.splitlines()[1:])
    return [line.strip("| ").split(" | ") for line in lines]

"""What is counted after a cut."""

from __future__ import annotations

from tests.support.host_clients import KEYS
from tests.support.host_counts import Numbers
from tests.support.host_cuts import AT_LEAST_ONCE, JOBS, Cut, Found, Outcome, judge, judge_upsert, table


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


def test_only_a_group_may_find_a_record_twice() -> None:
    twice = {job: Found([], [7], 1.0) for job in JOBS}
    found = Outcome(Cut.LEADER, 10, twice).problems
    assert {problem.partition(":")[0] for problem in found} == set(JOBS) - AT_LEAST_ONCE
    lost = Outcome(Cut.LEADER, 10, {job: Found([7], [], 1.0) for job in JOBS})
    assert len(lost.problems) == len(JOBS)
    assert table([lost]).splitlines()[-1].startswith("| host of a leader silent, 40 s | 10 | 1 / 0, 1 s |")

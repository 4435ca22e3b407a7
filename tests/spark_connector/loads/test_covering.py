"""Whose a row of a shared table is: what others should have goes to them first, what is too many is the load's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.protocol.topic_partition import TopicPartition
from spark_connector.loads.covering import Claim, Claims, rows_of
from spark_connector.loads.record import LoadRange, LoadRecord

TP = TopicPartition("t", 0)


def load(
    group: str, number: int, start: int, end: int, *, rows: int | None = None, stored: int | None = 0
) -> LoadRecord:
    size = end - start if rows is None else rows
    load_id = f"{group}-{number:06d}-{number:08x}"
    return LoadRecord(load_id, "file:///o", "sql", "table", 0, (LoadRange("t", 0, start, end, stored, size),))


def claim(start: int, end: int, *, certain: bool = True) -> Claim:
    return Claim("g-000009-00000009", "g", start, end, certain)


@pytest.mark.parametrize(
    ("rows", "own", "others", "expected"),
    [
        ([1, 2, 2], 1, [], [1, 2, 2]),
        ([1, 1, 2, 2], 1, [claim(0, 3)], [1, 2]),
        ([1, 2, 2], 1, [claim(0, 3)], [2]),  # one of two is missing
        ([1, 2, 2], 1, [claim(0, 3, certain=False)], [1, 2]),
        ([1, 1, 1], 1, [claim(0, 3, certain=False)], [1, 1]),
        ([1, 2], 0, [claim(0, 2)], [2]),  # its own lie elsewhere: what is left is doubled
        ([1, 1, 1, 1], 1, [claim(0, 2), claim(1, 5, certain=False)], [1, 1]),
        ([], 1, [claim(0, 2)], []),
    ],
)
def test_rows_are_shared_out(rows: list[int], own: int, others: list[Claim], expected: list[int]) -> None:
    assert rows_of(np.array(rows, np.int64), own, others).tolist() == expected


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(1, 8)), max_size=4),
    st.sets(st.integers(0, 25), max_size=6),
    st.sets(st.integers(0, 25), max_size=6),
)
def test_what_is_missing_or_doubled_is_found_beside_any_others(
    spans: list[tuple[int, int]], missing: set[int], doubled: set[int]
) -> None:
    others = [claim(start, start + size) for start, size in spans]
    rows = [offset for other in others for offset in range(other.start, other.end)]
    mine = [offset for offset in range(26) if offset not in missing] + sorted(doubled)
    found = rows_of(np.array(sorted(rows + mine), np.int64), 1, others) if others else np.array(sorted(mine), np.int64)
    within = [offset for offset in found.tolist() if offset < 26]
    assert within == sorted(mine)


def test_a_load_with_gaps_is_certain_of_nothing() -> None:
    loads = [load("a", 1, 0, 10), load("b", 1, 5, 15), load("c", 1, 5, 15, rows=3), load("a", 2, 10, 20)]
    others = Claims.of(loads, loads, {}).others(loads[0].load_id, loads[0].ranges[0])
    assert [(other.group, other.certain) for other in others] == [("b", True), ("c", False)]


def test_what_a_log_has_forgotten_may_be_anywhere_before_what_it_knows() -> None:
    loads = [load("a", 1, 0, 10), load("b", 7, 40, 50, stored=40), load("b", 8, 0, 5, stored=50)]
    stored = {"a": {TP: 10}, "b": {TP: 5}, "gone": {TP: 30}}
    claims = Claims.of(loads, loads, stored)
    others = claims.others(loads[0].load_id, loads[0].ranges[0])
    assert {(other.name, other.start, other.end) for other in others} == {
        ("b-000008-00000008", 0, 5),
        ("forgotten loads of group 'b'", 0, 50),
        ("forgotten loads of group 'gone'", 0, 30),
    }
    assert {claim.name for _, claim in claims.outsiders(loads)} == {
        "forgotten loads of group 'b'",
        "forgotten loads of group 'gone'",
    }

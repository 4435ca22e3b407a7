"""The checker of the kill matrix finds what it is there to find: damage made by hand, each kind by its name."""

from __future__ import annotations

import pytest

from tests.support.record_audit import Copy, Row, audit_copies, audit_rows
from tests.support.topic_data import TopicData

ENDS = [3, 2]
CONTENT = TopicData.record
SOURCES = [(partition, offset) for partition, end in enumerate(ENDS) for offset in range(end)]


def rows() -> list[Row]:
    return [Row("t", partition, offset, *CONTENT(partition, offset)) for partition, offset in SOURCES]


def copies() -> list[Copy]:
    """All of it in one partition, with the holes that transaction markers leave."""
    return [Copy(0, 2 * number, *CONTENT(*source)) for number, source in enumerate(SOURCES)]


def found(rows: list[Row], *, complete: bool = True) -> str:
    return "\n".join(audit_rows(rows, "t", ENDS, CONTENT, complete=complete))


def found_in(copies: list[Copy], *, complete: bool = True, ordered: bool = True) -> str:
    return "\n".join(audit_copies(copies, "t", ENDS, CONTENT, complete=complete, ordered=ordered))


def test_what_came_whole_is_in_order_whatever_the_order_of_rows() -> None:
    assert found(rows()) == found(rows()[::-1]) == ""
    assert found_in(copies()) == ""


def test_a_duplicate_is_found() -> None:
    assert found([*rows(), rows()[1]]) == "1 records doubled: ('t', 0, 1) × 2"
    assert "1 records doubled: ('t', 0, 1) × 2" in found_in([*copies(), Copy(0, 99, *CONTENT(0, 1))])


def test_a_duplicate_in_another_partition_is_found() -> None:
    assert found_in([*copies(), Copy(1, 0, *CONTENT(0, 1))]) == "1 records doubled: ('t', 0, 1) × 2"


def test_a_hole_is_found_when_all_should_be_there() -> None:
    assert found(rows()[1:]) == "1 records missing: ('t', 0, 0)"
    assert found(rows()[1:], complete=False) == ""
    assert found_in(copies()[:-1]) == "1 records missing: ('t', 1, 1)"
    assert found_in(copies()[:-1], complete=False) == ""


def test_a_hole_and_a_duplicate_that_leave_the_count_right_are_both_found() -> None:
    assert found([*rows()[1:], rows()[1]]) == ("1 records doubled: ('t', 0, 1) × 2\n1 records missing: ('t', 0, 0)")


def test_nothing_at_all_is_a_hole() -> None:
    assert found([]).startswith("5 records missing")
    assert found_in([]).startswith("5 records missing")


@pytest.mark.parametrize("complete", [True, False])
def test_a_record_that_was_never_produced_is_found(complete: bool) -> None:
    strangers = [Row("t", 0, 3, *CONTENT(0, 3)), Row("t", 7, 0, *CONTENT(7, 0)), Row("u", 0, 0, *CONTENT(0, 0))]
    assert found([*rows(), *strangers], complete=complete).startswith("3 records never produced")
    assert "never produced: ('t', 0, 3)" in found_in([*copies(), Copy(0, 99, *CONTENT(0, 3))], complete=complete)


@pytest.mark.parametrize("wrong", [(b"key-0", b"value-0-1"), (b"key-1", b"value-0-0"), (None, None), (b"key-0", b"")])
def test_wrong_bytes_are_found_even_before_all_is_there(wrong: tuple[bytes | None, bytes | None]) -> None:
    damaged = [Row("t", 0, 0, *wrong), *rows()[1:]]
    assert "1 records of wrong bytes: ('t', 0, 0) holds" in found(damaged, complete=False)


@pytest.mark.parametrize("wrong", [(b"key-1", b"value-0-0"), (None, b"value-0-0"), (b"key-0", None), (b"", b"stuff")])
def test_a_copy_with_wrong_bytes_is_found_and_does_not_count(wrong: tuple[bytes | None, bytes | None]) -> None:
    problems = found_in([Copy(0, 0, *wrong), *copies()[1:]])
    assert "1 records missing: ('t', 0, 0)" in problems
    assert "1 records of wrong bytes: Copy(partition=0, offset=0" in problems


def test_copies_out_of_order_are_found_where_order_is_promised() -> None:
    first, second, *rest = copies()
    swapped = [first._replace(offset=second.offset), second._replace(offset=first.offset)][::-1]
    assert "1 records out of order: Copy(partition=0, offset=2" in found_in(swapped + rest)
    assert found_in(swapped + rest, ordered=False) == ""


def test_copies_spread_over_partitions_have_no_order_between_them() -> None:
    spread = [copy._replace(partition=number % 2) for number, copy in enumerate(copies())]
    assert found_in(sorted(spread, reverse=True, key=lambda copy: -copy.partition)) == ""


def test_only_some_examples_are_shown() -> None:
    problems = audit_rows([], "t", [1000], CONTENT)
    assert problems[0].startswith("1000 records missing: ")
    assert len(problems[0]) < 200

"""What a reset says before it is done: what is read again, what is skipped, and what nobody knows."""

from __future__ import annotations

import pytest

from broker.protocol.topic_partition import TopicPartition
from pykafka_ui.reset_preview import Move, summary


def move(before: int | None, to: int, start: int = 0, end: int = 100) -> Move:
    return Move(TopicPartition("t", 0), before, to, start, end)


@pytest.mark.parametrize(
    ("moved", "again", "skipped"),
    [
        (move(60, 10), 50, 0),
        (move(10, 60), 0, 50),
        (move(50, 50), 0, 0),
        (move(None, 10), None, None),
        (move(500, 90), 10, 0),  # it was beyond the end: what is not there was not read
        (move(5, 40, start=20), 0, 20),  # what is no longer in the log is not skipped by this
    ],
)
def test_records_that_are_read_again_and_skipped(moved: Move, again: int | None, skipped: int | None) -> None:
    assert (moved.again, moved.skipped) == (again, skipped)


def test_the_rows_say_where_an_offset_was_and_what_is_not_known() -> None:
    assert move(6_000, 1_000, end=9_000).cells == ("t-0", "6,000", "1,000", "5,000", "0", "8,000")
    assert move(500, 90).cells[1] == "500 (beyond the end)"
    assert move(5, 40, start=20).cells[1] == "5 (no longer in the log)"
    assert move(None, 10).cells == ("t-0", "none", "10", "not known", "not known", "90")


def test_the_summary_adds_up_and_leaves_nothing_out() -> None:
    assert summary([move(60, 10), move(2_000, 0, end=2_000)]) == "At most 2,050 records will be read again."
    assert summary([move(60, 10), move(10, 11), move(None, 0)]) == (
        "At most 50 records will be read again, and at most 1 record will never be read, and of 1 partition without an "
        "offset it is not known what was read."
    )
    assert summary([move(7, 7)]) == "Nothing is read again, and nothing is skipped."

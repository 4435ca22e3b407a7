"""What a test that waited in vain tells: what it expected, what it saw, and the broker's log of this test only."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.waiting import eventually


def test_a_condition_that_does_not_come_true_is_shown_with_what_was_seen() -> None:
    sizes = [3, 4]
    with pytest.raises(AssertionError) as raised:
        eventually(lambda: len(sizes) == 5, timeout=0)
    said = str(raised.value)
    assert "lambda: len(sizes) == 5" in said
    assert "where sizes = [3, 4]" in said
    assert "seen len(sizes) = 2" in said


def test_a_condition_that_cannot_be_looked_at_again_is_shown_all_the_same() -> None:
    calls: list[int] = []

    def comes_true() -> bool:
        calls.append(len(calls))
        return len(calls) > 9

    with pytest.raises(AssertionError, match=r"(?s)def comes_true.*where calls = \[0\]"):
        eventually(comes_true, timeout=-1)


def test_a_failed_test_shows_the_log_since_it_began(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path)
    broker.log_file.parent.mkdir(exist_ok=True, parents=True)
    broker.log_file.write_text("of an earlier test\n", encoding="utf-8")
    assert broker.output_of_test == "of an earlier test\n", "of a broker that began with this test"
    broker.begin_test()
    with broker.log_file.open("a", encoding="utf-8") as log:
        log.write("of this one\n")
    assert broker.output_of_test == "of this one\n"
    assert broker.output == "of an earlier test\nof this one\n"

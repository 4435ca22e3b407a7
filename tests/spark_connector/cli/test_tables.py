"""The tables of loads, which must survive a narrow terminal and a pipe."""

from __future__ import annotations

import pytest

from spark_connector.cli.tables import print_ranges
from spark_connector.loads.record import LoadRange


def test_ranges_are_a_line_each_however_narrow_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    topic = "t" * 249
    print_ranges([LoadRange(topic, 0, 0, 1_200_000, None, 1_200_000), LoadRange(topic, 17, 5, 9, 5)])
    head, *rows = (line.split() for line in capsys.readouterr().out.splitlines())
    assert head == ["topic", "partition", "from", "to", "rows"]
    assert rows == [[topic, "0", "0", "1,200,000", "1,200,000"], [topic, "17", "5", "9", "-"]]

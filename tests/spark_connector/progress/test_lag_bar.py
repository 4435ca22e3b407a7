"""What the progress bar draws."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from spark_connector.progress.lag_bar import LagBar
from spark_connector.progress.stream_lag import QueryLag, query_lag
from tests.spark_connector.progress.reports import offset, report, source


def a_lag(end: int, latest: int | None = 100, **changes: Any) -> QueryLag:
    begin = source(
        offset({"t": {0: 0}}), offset({"t": {0: end}}), None if latest is None else offset({"t": {0: latest}})
    )
    return query_lag(report(begin, **{"name": "flights", **changes}))


def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, force_jupyter=False, width=120, color_system=None)


def drawn(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_line_says_how_far_a_source_is() -> None:
    console = terminal()
    LagBar(console).progressed(a_lag(40))
    assert "flights: t" in drawn(console)
    assert "batch 3 60 behind 24 rows/s" in drawn(console)
    bar = drawn(console).split("flights: t ")[1].split(" batch")[0]
    assert (len(bar), bar.count("━")) == (30, 12)


def test_the_bar_counts_from_where_the_run_began() -> None:
    console = terminal()
    bar = LagBar(console)
    first = source(offset({"t": {0: 80}}), offset({"t": {0: 80}}), offset({"t": {0: 100}}))
    bar.progressed(query_lag(report(first, name="flights")))
    second = source(offset({"t": {0: 80}}), offset({"t": {0: 90}}), offset({"t": {0: 100}}))
    bar.progressed(query_lag(report(second, name="flights")))
    assert drawn(console).rsplit("flights: t ", 1)[1].split(" batch")[0].count("━") == 15


def test_unknown_lag_and_big_sizes_are_said() -> None:
    console = terminal()
    bar = LagBar(console)
    bar.progressed(a_lag(40, None))
    assert "lag unknown" in drawn(console)
    lag = query_lag(
        report(source(None, offset({"t": {0: 0}}, t=1200), offset({"t": {0: 5_000}}))),
        lambda read, ends: dict.fromkeys(ends, 1000.0),
    )
    bar.progressed(lag)
    assert "5,000 behind (~5.0 MB), 1,200 skipped" in drawn(console)


def test_two_queries_have_a_line_each_until_they_end() -> None:
    console = terminal()
    bar = LagBar(console)
    bar.progressed(a_lag(1))
    bar.progressed(a_lag(2, name="other", runId="run-2"))
    before = len(drawn(console))
    bar.ended("run-1")
    assert "flights" not in drawn(console)[before:]
    assert "other: t" in drawn(console)[before:]
    bar.ended("run-2")
    bar.ended("run-2")
    bar.progressed(a_lag(3, runId="run-3"))
    bar.ended("run-3")


def test_nothing_is_written_to_a_file() -> None:
    console = Console(file=io.StringIO(), force_terminal=False, force_jupyter=False)
    bar = LagBar(console)
    bar.progressed(a_lag(1))
    bar.ended("run-1")
    assert drawn(console) == ""


def test_a_notebook_shows_one_output_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[dict[str, str]] = []

    class Handle:
        def update(self, bundle: dict[str, str], *, raw: bool) -> None:
            shown.append(bundle)

    def display(bundle: dict[str, str], *, raw: bool, display_id: bool) -> Handle:
        shown.append(bundle)
        return Handle()

    monkeypatch.setattr("IPython.display.display", display)
    bar = LagBar(Console(force_jupyter=True))
    bar.progressed(a_lag(1))
    bar.progressed(a_lag(2))
    bar.ended("run-1")
    assert ["99 behind" in bundle["text/plain"] for bundle in shown] == [True, False]
    assert "98 behind" in shown[1]["text/html"]

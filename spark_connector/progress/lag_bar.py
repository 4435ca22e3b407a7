"""Progress bars of running streams, in a terminal or a notebook.

For `LagListener()` (the default) or `LagListener(LagBar())`. One line per source: how much was read of what lay between
the beginning of the run and the ends of the topics, the lag, and the rate. Elsewhere (a log file, a pipe) nothing is
printed. In a terminal it writes to standard error; set `spark.ui.showConsoleProgress` to false, because Spark's own bar
draws there too.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from spark_connector.progress.stream_lag import QueryLag, SourceLag

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_BAR_WIDTH = 30


class LagBar:
    """The bars of all queries of one or more listeners; use one LagBar per terminal."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._screen: _Terminal | _Notebook | None = None
        if self._console.is_jupyter:
            self._screen = _Notebook()
        elif self._console.is_terminal:
            self._screen = _Terminal(self._console)
        self._latest: dict[str, QueryLag] = {}
        self._begin: dict[tuple[str, int], int] = {}

    def progressed(self, lag: QueryLag) -> None:
        if self._screen is None:
            return
        for source in lag.sources:
            self._begin.setdefault((lag.run_id, source.index), sum(source.start.values()))
        self._latest[lag.run_id] = lag
        self._screen.show(self._table())

    def ended(self, run_id: str) -> None:
        """The last bars stay visible; if no other run is left, the next one begins below them."""
        if self._screen is None or self._latest.pop(run_id, None) is None:
            return
        if self._latest:
            self._screen.show(self._table())
        else:
            self._screen.leave()
        self._begin = {key: begin for key, begin in self._begin.items() if key[0] != run_id}

    def _table(self) -> Table:
        table = Table.grid(padding=(0, 1))
        for lag in self._latest.values():
            for source in lag.sources:
                done = sum(source.end.values()) - self._begin[lag.run_id, source.index]
                whole = None if source.total is None else max(done + source.total, 1)  # None: a pulsing bar
                bar = ProgressBar(total=whole, completed=max(done, 0), width=_BAR_WIDTH)
                table.add_row(_title(lag, source), bar, f"batch {lag.batch_id}", *_figures(source))
        return table


class _Terminal:
    """Lines at the bottom of a terminal, drawn by `show`; it has no thread."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None

    def show(self, table: Table) -> None:
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False)
            self._live.start()
        self._live.update(table, refresh=True)

    def leave(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


class _Notebook:
    """One output of a cell, which each update replaces. Rich's own display for notebooks needs ipywidgets."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, table: Table) -> None:
        from IPython.display import display

        shown = _mime_bundle(table)
        if self._handle is None:
            self._handle = display(shown, raw=True, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self._handle.update(shown, raw=True)

    def leave(self) -> None:
        self._handle = None


def _mime_bundle(table: Table) -> Mapping[str, str]:
    recorder = Console(record=True, file=io.StringIO(), width=120, force_terminal=True)
    recorder.print(table)
    html = recorder.export_html(inline_styles=True, code_format="<pre>{code}</pre>", clear=False)
    return {"text/html": html, "text/plain": recorder.export_text()}


def _title(lag: QueryLag, source: SourceLag) -> str:
    topics = sorted({tp.topic for tp in source.end})
    more = f" +{len(topics) - 1}" if len(topics) > 1 else ""
    return f"{lag.name or lag.id[:8]}: {''.join(topics[:1])}{more}"


def _figures(source: SourceLag) -> tuple[str, str]:
    behind = "lag unknown" if source.total is None else f"{source.total:,} behind"
    if source.bytes_behind is not None:
        behind += f" (~{_size(source.bytes_behind)})"
    if skipped := sum(source.skipped.values()):
        behind += f", {skipped:,} skipped"
    return behind, f"{source.processed_rows_per_second:,.0f} rows/s"


def _size(count: float) -> str:
    for unit in _UNITS:
        if count < 1000 or unit == _UNITS[-1]:
            break
        count /= 1000
    return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"

"""Queries that report themselves to a console, and what their silence means."""

from __future__ import annotations

from pathlib import Path

import pytest

from pykafka_ui.seen.streams import MOST_QUERIES, SILENT_S, StreamReport, Streams
from spark_connector.listener import LagListener
from spark_connector.progress.console_reports import ConsoleReports
from spark_connector.progress.stream_lag import query_lag
from tests.spark_connector.progress.reports import offset, report, source
from tests.support.kafka import Kafka
from tests.support.ui_process import UiProcess


def told(run: str = "run-1", lag: int | None = 5, **more: object) -> StreamReport:
    return StreamReport.model_validate({"id": "q", "run_id": run, "lag": lag, **more})


def test_restarts_are_counted_and_an_unknown_lag_is_a_gap() -> None:
    streams = Streams(lambda: 0.0)
    for one in (told(), told(lag=None), told("run-2", 7), told("run-2", 0), told("run-3")):
        streams.reported(one)
    ((found, state, _),) = streams.seen()
    assert (found.restarts, found.lags, state) == (2, (5, None, 7, 0, 5), ("ok", "reports"))


def test_who_is_silent_is_not_known_to_run_and_who_ended_has_ended() -> None:
    now = [0.0]
    streams = Streams(lambda: now[0])
    streams.reported(told())
    now[0] = SILENT_S + 1
    assert [state for _, state, _ in streams.seen()] == [("unknown", "silent")]
    streams.reported(told(ended=True, lag=None))
    ((found, state, _),) = streams.seen()
    assert (state, found.report.lag, found.lags) == (("warn", "ended"), 5, (5,)), "its last numbers stay"
    streams.reported(told("run-2"))
    streams.reported(told("run-1", ended=True))
    assert [state for _, state, _ in streams.seen()] == [("ok", "reports")], "the end of a run before is no end"
    now[0] += 100_000
    assert streams.seen() == []


def test_only_so_many_are_kept() -> None:
    streams = Streams(lambda: 0.0)
    for number in range(MOST_QUERIES + 5):
        streams.reported(told().model_copy(update={"id": f"q{number:04}"}))
    kept = [one.report.id for one, _, _ in streams.seen()]
    assert (len(kept), kept[0]) == (MOST_QUERIES, "q0005")


def test_a_listener_reports_to_a_console_that_shows_it(broker: Kafka, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret-of-the-console\n")
    document = report(
        source(offset({"t": {0: 1}}), offset({"t": {0: 4}}), offset({"t": {0: 46}}), inputRowsPerSecond=1234.0),
        name="<b>flights</b>",
        batchDuration=817,
    )
    with UiProcess(broker.bootstrap, "--token-file", str(token)) as ui:
        shown = {"authorization": "Bearer secret-of-the-console"}
        assert "None has reported." in ui.get("/streams", shown).text
        reports = ConsoleReports(ui.address, token_file=str(token))
        reports.progressed(query_lag(document))
        page = ui.get("/streams", shown).text
        for text in ("&lt;b&gt;flights&lt;/b&gt;", ">42<", "1,234", "817 ms", "reports"):
            assert text in page, text
        assert "<b>flights" not in page
        reports.ended("run-1")
        assert ">ended<" in ui.get("/streams", shown).text
        with pytest.raises(OSError, match="401"):
            ConsoleReports(ui.address).progressed(query_lag(document))
        wrong = ui.post(
            "/api/streams", '{"id": "q", "run_id": "r", "lag": -1}', shown | {"content-type": "application/json"}
        )
        assert (wrong.status, "lag" in wrong.text) == (400, True)


def test_a_console_that_is_away_is_left_alone_for_a_minute_and_disturbs_nobody() -> None:
    now = [0.0]
    reports = ConsoleReports("http://127.0.0.1:9", monotonic=lambda: now[0])
    lag = query_lag(report(source(None, offset({"t": {0: 4}}), offset({"t": {0: 4}}))))
    with pytest.raises(OSError, match="refused"):
        reports.progressed(lag)
    reports.progressed(lag)
    now[0] = 61.0
    with pytest.raises(OSError, match="refused"):
        reports.progressed(lag)
    LagListener._attempt(reports.progressed, lag)

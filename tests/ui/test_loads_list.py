"""The list of all series of loads: their state, how far they are behind their topics, and lists of thousands."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request

from broker.protocol.topic_partition import TopicPartition
from pykafka_ui.loads.pages import LoadPages
from pykafka_ui.loads.places import GroupOfLoads, LoadPlace, LoadPlaces
from pykafka_ui.loads.series_health import SMALL_FILES, Health, Series, Survey, next_offsets, series_health
from pykafka_ui.render import Renderer
from pykafka_ui.seen.snapshot import Partition, Snapshot, Topic
from spark_connector.loads.history import History, HistoryEntry, LoadState
from spark_connector.loads.record import LoadFile, LoadId, LoadRange, LoadRecord, Origin, Rewind, UndoneLoad
from spark_connector.loads.request import Target
from tests.support.kafka import Kafka
from tests.support.plain_loads import PlainLoads
from tests.support.topic_data import TopicData
from tests.support.ui_process import UiProcess
from tests.support.waiting import eventually

HOUR_MS = 3_600_000
NOW_MS = 1_700_000_000_000


def a_load(number: int, *, at_ms: int = NOW_MS, rows: int = 10, size: int = 1000, **more: Any) -> HistoryEntry:
    """Number n loads ten rows of t-0, from offset 10 · (n - 1) on."""
    state = more.pop("state", LoadState.PUBLISHED)
    span = LoadRange("t", 0, 10 * (number - 1), 10 * number, 10 * (number - 1) or None, rows)
    record = LoadRecord(
        str(LoadId("g", number, "0" * 8)), "/lake", more.pop("format", "delta"), "table", at_ms, (span,), **more
    )
    files = dataclasses.replace(record, files=(LoadFile("part-0.parquet", size),))
    return HistoryEntry(record, state, f"/lake/{number}", files)


def series_of(*entries: HistoryEntry, error: str = "") -> Series:
    return Series.of("/lake", GroupOfLoads(Target("/lake", "g", format="delta"), History(list(entries)), error), NOW_MS)


def cluster(end: int, *more: Partition, **fields: Any) -> Snapshot:
    topic = Topic("t", False, (Partition(0, 1, (1,), (1,), 0, end), *more))
    return Snapshot(NOW_MS, topics={"t": topic}, **fields)


def hourly(count: int = 5, newest_ms: int = NOW_MS) -> list[HistoryEntry]:
    return [a_load(one + 1, at_ms=newest_ms - (count - 1 - one) * HOUR_MS) for one in range(count)]


def word_of(series: Series, seen: Snapshot) -> str:
    return series.health(series.lag(seen)[0], NOW_MS).word


def test_late_is_what_is_silent_for_more_than_three_of_its_usual_intervals_and_has_something_to_load() -> None:
    for hours, end, word in (
        (2.9, 60, "ok"),
        (3.1, 60, "late"),
        (3.1, 50, "ok"),  # all is loaded: a load that finds nothing leaves no trace
        (3.1, -1, "late"),  # nobody knows whether all is loaded
    ):
        series = series_of(*hourly(newest_ms=NOW_MS - int(hours * HOUR_MS)))
        assert word_of(series, cluster(end)) == word, (hours, end)
    few = series_of(*hourly(3, NOW_MS - 100 * HOUR_MS))
    assert word_of(few, cluster(60)) == "ok", "of two intervals nobody knows the usual one"
    late = series_of(*hourly(newest_ms=NOW_MS - 4 * HOUR_MS)).health(7, NOW_MS)
    assert late.why == "nothing was loaded for 4 h, usually it is every 1 h; 7 records wait"
    assert late.kind == "warn"


def test_the_state_is_the_worst_of_what_the_history_says() -> None:
    standing = hourly()
    for state, word in (
        (LoadState.DEAD, "failed"),
        (LoadState.SEALED, "failed"),
        (LoadState.UNFINISHED, "unknown"),
        (LoadState.RUNNING, "running"),
        (LoadState.VOID, "ok"),
    ):
        assert word_of(series_of(*standing, a_load(6, state=state)), cluster(60)) == word, state
    for state, word in (
        (LoadState.HIDDEN, "hidden"),
        (LoadState.ABSENT, "failed"),
        (LoadState.UNKNOWN, "failed"),
        (LoadState.ELSEWHERE, "ok"),
    ):
        assert word_of(series_of(*standing, a_load(6, state=state)), cluster(60)) == word, state
    overtaken = dataclasses.replace(standing[2], state=LoadState.DEAD)
    assert word_of(series_of(*standing, overtaken), cluster(60)) == "ok", "a later load has its number"
    assert word_of(series_of(error="cannot be read"), cluster(60)) == "unknown"
    assert word_of(series_of(), cluster(60)) == "unknown"
    both = series_of(*hourly(newest_ms=NOW_MS - 9 * HOUR_MS), a_load(6, state=LoadState.DEAD))
    assert word_of(both, cluster(60)) == "failed"


def test_the_lag_is_what_is_not_loaded_or_not_known() -> None:
    series = series_of(*hourly())
    assert series.lag(cluster(57)) == (7, "")
    assert series.lag(cluster(57, Partition(1, 1, (1,), (1,), 3, 13)))[0] == 17, "of a partition that is new"
    for seen, why in (
        (cluster(-1), "the end of t-0 is not known"),
        (cluster(49), "t-0 ends at 49, before what was loaded"),
        (cluster(57, Partition(1, 1, (1,), (1,), -1, 13)), "the end of t-1 is not known"),
        (Snapshot(), "does not show the topic t"),
    ):
        lag, told = series.lag(seen)
        assert lag is None
        assert why in told
    elsewhere = series_of(*hourly(4), a_load(5, origin=Origin("other", "b:9092")))
    assert elsewhere.lag(cluster(57, cluster_id="this")) == (None, "it was loaded from another cluster, other")
    assert elsewhere.lag(cluster(57, cluster_id="other"))[0] == 7
    part = series_of(*hourly(4), a_load(5, reading={"assign": '{"t":[0]}'}))
    assert part.lag(cluster(57, Partition(1, 1, (1,), (1,), 0, 10)))[0] == 7, "it does not read the other partition"


def test_a_rewind_sets_the_offsets_back() -> None:
    first, second, third = hourly(3)
    undone = [dataclasses.replace(one, state=LoadState.REWOUND) for one in (second, third)]
    gone = tuple(UndoneLoad(one.record.load_id, "/lake") for one in undone)
    back = LoadRecord(
        str(LoadId("g", 4, "0" * 8)),
        "/lake",
        "delta",
        "table",
        NOW_MS,
        (LoadRange("t", 0, 10, 10, 30, 0),),
        rewind=Rewind(first.record.load_id, gone, delete=False),
    )
    entries = [first, *undone, HistoryEntry(back, LoadState.REWIND)]
    assert next_offsets(entries) == {TopicPartition("t", 0): 10}
    assert series_of(*entries).lag(cluster(35)) == (25, "")


def test_rows_a_day_are_those_of_the_last_week_or_since_it_began() -> None:
    day = 24 * HOUR_MS
    assert series_of(*(a_load(1 + n, at_ms=NOW_MS - n * day // 2) for n in range(3))).a_day == 30
    old = [a_load(1 + n, at_ms=NOW_MS - (20 - n) * day, rows=70) for n in range(20)]
    assert series_of(*old).a_day == pytest.approx(70.0)
    assert series_of(a_load(1, at_ms=-1)).a_day is None


def test_compaction_is_worth_it_for_many_small_files_of_a_table() -> None:
    for count, size, kind, worth in (
        (50, SMALL_FILES - 1, "delta", True),
        (49, SMALL_FILES - 1, "delta", False),
        (50, SMALL_FILES, "iceberg", False),
        (50, 1, "parquet", False),
    ):
        found = series_of(*(a_load(1 + n, size=size, format=kind) for n in range(count)))
        assert (found.files, found.needs_compaction) == (count, worth)


def test_a_look_is_not_waited_for_by_an_overview_and_is_kept_for_a_while(tmp_path: Path) -> None:
    now = 1000.0
    survey = Survey(LoadPlaces([LoadPlace(str(tmp_path))]), lambda: now)
    first = survey.seen()
    assert (first.is_whole, list(first.empty)) == (True, [str(tmp_path)])
    assert survey.seen() is first
    now += 6
    assert survey.seen(wait=False) is first, "who shows them beside other things does not need them so fresh"
    second = survey.seen()
    assert second is not first
    now += 61
    assert series_health(survey, Snapshot()) == []
    eventually(lambda: survey.seen(wait=False) is not second)


def test_what_cannot_be_read_is_unknown_and_hides_nothing(tmp_path: Path) -> None:
    class Broken(LoadPlaces):
        def each(self) -> Iterator[Any]:
            yield "/broken", (), "no such bucket"
            yield str(tmp_path), (), ""
            raise ValueError("postgresql://ann:secret@h/x fell over")

    survey = Survey(Broken([]))
    survey.seen()
    found = series_health(survey, Snapshot())
    assert [(health.word, health.kind, one.place) for one, _, health in found] == [
        ("unknown", "unknown", "/broken"),
        ("unknown", "unknown", "the places of loads"),
    ]
    assert "secret" not in str(found)


@dataclasses.dataclass(frozen=True)
class Seen:
    """A survey that looked once, and would fail if it looked again."""

    series: Sequence[Series]
    is_whole: bool = True
    empty: Sequence[str] = ()

    def seen(self, *, wait: bool = True) -> Seen:
        return self

    def now_ms(self) -> int:
        return NOW_MS


def page_of(seen: Seen, **asked: Any) -> str:
    """The page of the list, of a console that was not started."""
    loads = SimpleNamespace(survey=seen, places=None, verifications=None)
    console: Any = SimpleNamespace(
        loads=loads, sampler=SimpleNamespace(watch=lambda: cluster(60), snapshot=cluster(60))
    )
    request = Request({"type": "http", "path": "/loads", "headers": [], "query_string": b"", "method": "GET"})
    pages = LoadPages(console, Renderer(console, "0"), allow_changes=False)
    return bytes(pages.series(request, **asked).body).decode()


def test_a_list_of_thousands_is_cut_into_pages_and_its_counts_agree() -> None:
    standing = series_of(*hourly())
    late = series_of(*hourly(newest_ms=NOW_MS - 9 * HOUR_MS))
    many = [dataclasses.replace(late if one % 25 == 0 else standing, group=f"g{one}") for one in range(5_000)]
    page = page_of(Seen(many))
    assert page.count('<td class="series">') == 100
    told = {
        word: int(number) for word, number in re.findall(r'">(late|ok)</span>\s*(\d[\d,]*)</a>', page.replace(",", ""))
    }
    assert told == {"late": 200, "ok": 4800}
    for word, number in told.items():
        assert f"{number:,} rows" in page_of(Seen(many), state=word)
    assert "1 row<" in page_of(Seen(many), q="G4999")
    first = re.findall(r"group=(g\d+)", page)
    assert first[0] == "g0", "the worst first"


def test_names_are_text() -> None:
    bad = dataclasses.replace(
        series_of(*hourly()), group="<script>a</script>", place="<b>p", found=Health("failed", "<i>why")
    )
    page = page_of(Seen([bad]))
    assert not re.search("<script>a|<b>p|<i>why", page)
    assert page.count("&lt;i&gt;why") == 1


def test_a_real_console_lists_all_series(broker: Kafka, tmp_path: Path) -> None:
    data = TopicData(broker.bootstrap, "ui-series", partitions=2)
    nightly = PlainLoads(broker.bootstrap, "ui-series", tmp_path, group="nightly")
    data.produce(10)
    nightly.must_load()
    data.produce(7)
    places = (str(tmp_path), "postgresql://ann:secret@127.0.0.1:1/lake#flights")
    with UiProcess(broker.bootstrap, *(word for place in places for word in ("--loads", place))) as ui:
        eventually(lambda: '<td class="number">7</td>' in ui.get("/loads").text)
        page = ui.get("/loads").text
        assert re.search(r'class="state ok">ok</span>\s*1</a>', page)
        assert re.search(r'class="state unknown">unknown</span>\s*1</a>', page)
        assert "secret" not in page
        unknown = ui.get("/loads?state=unknown").text
        assert "cannot connect" in unknown
        assert "nightly" not in unknown

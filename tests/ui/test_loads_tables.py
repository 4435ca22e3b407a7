"""The pages of a series and of its table: columns over time, rows, versions, queries that run, and rewinds.

The loads are real ones, so small that the driver writes them without Spark.
"""

from __future__ import annotations

import dataclasses
import html
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from markupsafe import escape
from pyspark.sql import SparkSession

from pykafka_ui.loads.places import LoadPlace, LoadPlaces
from pykafka_ui.loads.queries import command, snippets
from pykafka_ui.loads.tables import Known, Tables, dots, schema_history
from spark_connector.load import run_load
from spark_connector.loads.history import LoadState
from spark_connector.loads.record import LoadResult
from spark_connector.loads.request import LoadRequest, Target
from spark_connector.loads.table_snapshot import TableVersion
from spark_connector.maintenance import history
from tests.support.history_loads import no_session
from tests.support.kafka import Kafka
from tests.support.plain_loads import PlainLoads
from tests.support.table_harness import add_catalog
from tests.support.topic_data import TopicData
from tests.support.topics import Topic
from tests.support.ui_process import UiProcess
from tests.ui.test_loads_list import a_load

HOSTILE = "<script>document.title='run'</script>"
STORE = {"key": "secret-key", "secret": "secret", "endpoint_url": "http://minio:9000"}
KINDS = ("parquet", "delta", "iceberg", "sql")


class Loads:
    """Loads of one topic into one place."""

    def __init__(self, broker: Kafka, root: Path, format: str) -> None:
        self.topic, self.format = Topic(broker.bootstrap, f"ui-table-{format}"), format
        catalog = add_catalog(root) if format == "iceberg" else None
        self.to = {"iceberg": "iceberg:lake.t", "sql": f"sqlite:///{root}/place.db#t"}.get(format, str(root / "place"))
        self.target = Target(self.to, "nightly", format=format, catalog=catalog).check()
        self.place = LoadPlace(self.to, catalog=catalog)
        self.at = self.place.shown

    def load(self, count: int = 3) -> LoadResult:
        value = json.dumps({"n": 7, "name": HOSTILE, "raw": None}).encode()
        self.topic.produce([value] * count)
        request = LoadRequest.build(
            self.target,
            bootstrap_servers=self.topic.bootstrap,
            topic=self.topic.name,
            publish_offsets=False,
            options={"valueFormat": "json", "valueSchema": "n INT, name STRING, raw BINARY"},
        )
        return run_load(request, no_session, lambda phase, record: None)

    @property
    def options(self) -> list[str]:
        return ["--catalog", self.target.catalog] if self.target.catalog else ["--loads", self.to]

    def asked(self, page: str, **more: str) -> str:
        return f"/loads/{page}?{urlencode({'at': self.at, 'group': 'nightly', **more})}"


@pytest.fixture(scope="module", params=KINDS)
def loads(request: pytest.FixtureRequest, broker: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Loads:
    """With two loads of three rows each."""
    made = Loads(broker, tmp_path_factory.mktemp("lake"), request.param)
    assert (made.load().rows, made.load().rows) == (3, 3)
    return made


def test_what_is_shown_for_querying_runs_as_it_stands(loads: Loads) -> None:
    """In a new process, as a person has it: pyiceberg reads its configuration once."""
    shown = [one for one in snippets(loads.target, loads.format) if one.tool != "Spark"]
    assert [one.tool for one in shown] == (
        ["DuckDB", "polars", "pandas"] if loads.format != "sql" else ["pandas", "polars"]
    )
    counted = "print('counted', rows.count('*').fetchone()[0] if hasattr(rows, 'fetchone') else len(rows))"
    program = "\n".join(f"{one.code}\n{counted}" for one in shown)
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert re.findall(r"^counted (\d+)$", ran.stdout, re.MULTILINE) == ["6"] * len(shown), ran.stderr


def test_what_is_shown_for_spark_runs_as_it_stands(broker: Kafka, tmp_path: Path, spark: SparkSession) -> None:
    data = TopicData(broker.bootstrap, "ui-table-spark", partitions=1)
    data.produce(5)
    plain = PlainLoads(broker.bootstrap, "ui-table-spark", tmp_path / "it's here", group="nightly")
    plain.must_load()
    for one in snippets(plain.target.check(), "parquet"):
        names: dict[str, Any] = {}
        exec(one.code, names)
        rows = names["rows"]
        assert (
            len(rows.fetchall()) if one.tool == "DuckDB" else rows.count() if one.tool == "Spark" else len(rows)
        ) == 5


def test_columns_versions_and_rows_of_a_table(loads: Loads) -> None:
    content = Tables().content(loads.at, LoadPlaces([loads.place]).target(loads.at, "nightly"))
    if loads.format == "sql":
        assert "the snippets below" in content.columns.why
        assert content.columns.why == content.rows.why
    else:
        columns = {one.name: one.type for one in content.columns.value}
        assert columns["value"] == "struct<n: integer, name: string, raw: binary>"
        assert columns["offset"] == "long"
        values, keys = ([row[list(columns).index(name)] for row in content.rows.value] for name in ("value", "key"))
        assert [HOSTILE in value for value in values] == [True] * 6
        assert keys == [None] * 6
    made = [one.version.load_id for one in content.versions.value if one.version.load_id]
    assert made == [one.record.load_id for one in history(loads.target).entries]


def test_a_table_that_does_not_answer_is_unknown(loads: Loads, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    monkeypatch.setattr("pykafka_ui.loads.tables.table_versions", lambda *_: release.wait() and [])
    try:
        content = Tables(patience_s=0.05).content("there", loads.target)
    finally:
        release.set()
    assert content.columns == content.rows == content.versions == Known(why="nothing came within 0.05 s")


def test_a_broken_table_is_unknown_without_its_secrets(tmp_path: Path) -> None:
    content = Tables().content("there", Target("postgresql://ann:secret@127.0.0.1:1/lake#t", "g", format="sql"))
    assert content.rows.value is None
    assert content.rows.why
    assert "secret" not in content.rows.why


@pytest.fixture(scope="module")
def console(loads: Loads) -> Iterator[UiProcess]:
    with UiProcess(loads.topic.bootstrap, *loads.options, "--allow-changes") as process:
        yield process


def test_the_pages_of_a_series_and_its_table(loads: Loads, console: UiProcess) -> None:
    known = [one.record.load_id for one in history(loads.target).entries]
    table = console.get(loads.asked("table"))
    assert table.status == 200
    assert "<script>document" not in table.text
    if loads.format != "sql":
        assert table.text.count(str(escape(HOSTILE))) == 6
        assert table.text.count('<small class="null">NULL</small>') >= 6
    assert all(one.code in html.unescape(table.text) for one in snippets(loads.target, loads.format))
    series = console.get(loads.asked("group")).text
    assert all(load_id in series for load_id in known)
    assert series.count(">rewind</a>") == 1, "the newest is where the group stands"
    assert "value.name <small>string</small>" in series


def test_a_rewind_is_looked_at_before_it_is_done(loads: Loads, console: UiProcess) -> None:
    first, second = (one.record.load_id for one in history(loads.target).entries)
    preview = console.get(loads.asked("rewind", to=first))
    assert "1 load with 3 rows would be taken back" in preview.text
    assert f'{loads.topic.name}-0</td><td class="number">6</td><td class="number">3</td>' in preview.text
    assert command(loads.target, "rewind", "--to-load", first) in html.unescape(preview.text)
    assert len(history(loads.target).committed) == 2, "nothing was changed"
    with UiProcess(loads.topic.bootstrap, *loads.options) as reading:
        assert "Yes, take them back" not in reading.get(loads.asked("rewind", to=first)).text
        assert reading.post(loads.asked("rewind", to=first, newest=second), "").status == 405
    action = html.unescape(re.findall(r'action="(/loads/rewind[^"]*)"', preview.text)[0])
    stale = action.replace(second, first)
    assert "other loads came meanwhile" in console.post(stale, "").text
    assert len(history(loads.target).committed) == 2
    for _ in range(2):  # a double click
        assert console.post(action, "").status == 200
    assert [one.record.load_id for one in history(loads.target).committed] == [first]
    assert "there is nothing to take back" in console.get(loads.asked("rewind", to=first)).text


def test_columns_over_time_are_told_by_the_records() -> None:
    fields = ({"a": "int"}, {"a": "int"}, {"a": "bigint", "b": "string"}, None, {"b": "string"})
    entries = [a_load(1 + at, fields=one) for at, one in enumerate(fields)]
    undone = dataclasses.replace(a_load(9, fields={"z": "int"}), state=LoadState.REWOUND)
    found = schema_history([*entries, undone])
    assert [(one.entry, one.new, one.gone, one.other, one.is_first) for one in found] == [
        (entries[0], (("a", "int"),), (), (), True),
        (entries[2], (("b", "string"),), (), (("a", "int", "bigint"),), False),
        (entries[4], (), ("a",), (), False),
    ]
    assert schema_history([a_load(1)]) == []


def test_versions_are_on_a_line_of_time() -> None:
    versions = [TableVersion(str(at), at_ms, "WRITE") for at, at_ms in enumerate((1000, 2000, 5000))]
    assert [one.at for one in dots(versions)] == [0, 25, 100]
    assert [one.at for one in dots([one._replace(at_ms=-1) for one in versions[:2]])] == [50, 100]
    assert dots([]) == []


def test_snippets_hold_no_secret_and_quote_what_is_strange() -> None:
    secret = Target("postgresql://ann:secret@db/lake#t", "g", format="sql").check()
    for target in (secret, Target("s3://b/t", "g", format="delta", storage_options=STORE).check()):
        for one in snippets(target, str(target.format)):
            assert "secret" not in one.code
            compile(one.code, "snippet", "exec")
    delta = snippets(Target("s3://b/t", "g", format="delta", storage_options=STORE).check(), "delta")
    assert "http://minio:9000" in delta[1].code
    strange = snippets(Target("/a'b\"\\{c}", "g", format="parquet").check(), "parquet")
    assert [one.tool for one in strange] == ["DuckDB", "polars", "pandas"], "Spark takes such a path for a pattern"
    for one in strange:
        compile(one.code, "snippet", "exec")

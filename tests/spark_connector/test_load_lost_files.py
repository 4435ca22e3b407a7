"""A file that a task has written and its readers do not find: the load fails, says where, and nothing moves.

So it is where executors write to a disk of their own host. Here a file is removed or cut at each moment between a task
and the commit that would name it, in each kind of place, by each road.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from deltalake import DeltaTable

from spark_connector.load import run_load
from spark_connector.loads import compaction
from spark_connector.loads.file_check import check_written
from spark_connector.loads.iceberg.iceberg_catalog import open_catalog
from spark_connector.loads.record import LoadError, LoadRecord, LoadResult
from spark_connector.loads.request import LoadRequest, Target
from spark_connector.loads.tasks import file_writer, task_job
from spark_connector.maintenance import compact
from tests.support.history_loads import no_session
from tests.support.kafka import Kafka
from tests.support.table_harness import add_catalog
from tests.support.topics import Topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JSON = {"valueFormat": "json", "valueSchema": "n INT"}
PLACES = ("parquet", "delta", "iceberg")


def removed(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 9)


def overwritten(path: Path) -> None:
    """With as many bytes."""
    path.write_bytes(b"x" * path.stat().st_size)


DAMAGES: dict[Callable[[Path], None], str] = {
    removed: "is not there",
    cut: r"has [\d,]+ bytes, not the [\d,]+ that were written",
    overwritten: "has the right size, but another footer",
}


class Loads:
    """Loads of one topic into one place; without Spark unless a session is given."""

    def __init__(self, broker: Kafka, topic: str, root: Path, format: str, **arguments: Any) -> None:
        self.root, self.format, self.arguments = root, format, arguments
        self.topic = Topic(broker.bootstrap, topic)
        catalog = add_catalog(root / "place") if format == "iceberg" else None
        to = "iceberg:lake.t" if catalog else str(root / "place")
        self.target = Target(to, f"g-{topic}", format=format, catalog=catalog).check()

    def __call__(
        self,
        spark: SparkSession | None = None,
        on_phase: Callable[[str, LoadRecord | None], None] = lambda phase, record: None,
    ) -> LoadResult:
        request = LoadRequest.build(
            self.target,
            bootstrap_servers=self.topic.bootstrap,
            topic=self.topic.name,
            publish_offsets=False,
            **self.arguments,
        )
        return run_load(request, no_session if spark is None else lambda: spark, on_phase)

    def files(self, place: str = "place") -> set[Path]:
        """Data files below the place."""
        return set((self.root / place).rglob("part-*.*"))

    def rows(self) -> int:
        """By a reader who knows nothing of us."""
        if self.format == "delta":
            return int(DeltaTable(self.target.to).to_pyarrow_table().num_rows)
        if self.format == "iceberg":
            assert self.target.catalog is not None
            return int(open_catalog(self.target.catalog).load_table("lake.t").scan().to_arrow().num_rows)
        return sum(1 for path in Path(self.target.to).glob("load=*/**/part-*"))


def fails(loads: Loads, match: str, act: Callable[[], object] | None = None) -> str:
    """The load fails so, nothing of it stays, and the next one loads the same records."""
    files, rows = loads.files(), loads.rows()
    with pytest.raises(LoadError, match=match) as raised:
        act() if act is not None else loads()
    assert loads.rows() == rows
    assert loads.files() == files, "what failed is discarded"
    return str(raised.value)


@pytest.fixture
def after_tasks(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Has something happen when the tasks of the next load have ended."""
    run = task_job.TaskJob.run

    def plan(act: Callable[[], None]) -> None:
        def with_act(self: Any, *arguments: Any) -> Any:
            result = run(self, *arguments)
            monkeypatch.undo()
            act()
            return result

        monkeypatch.setattr(task_job.TaskJob, "run", with_act)

    return plan


def begun(broker: Kafka, topic: str, root: Path, format: str, **arguments: Any) -> Loads:
    """With one good load, and a record behind it."""
    loads = Loads(broker, topic, root, format, **{"options": JSON, **arguments})
    loads.topic.produce([b'{"n": 1}'], key=b"k")
    loads()
    loads.topic.produce([b'{"n": 2}'], key=b"l")
    return loads


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("format", [*PLACES, "json", "avro"])
def test_between_the_tasks_and_the_driver(
    broker: Kafka,
    topic: str,
    tmp_path: Path,
    format: str,
    damage: Callable[[Path], None],
    after_tasks: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loads = begun(broker, topic, tmp_path, format)
    before = loads.files()

    def act() -> None:
        (new,) = loads.files() - before
        damage(new)

    after_tasks(act)
    monkeypatch.setattr(file_writer, "socket", mock.Mock(gethostname=lambda: "worker-7"))
    text = fails(loads, f"part-[0-9a-f]+.[a-z]+, which a task on host worker-7 has written, {DAMAGES[damage]}")
    assert f"do not share this path with the driver on host {socket.gethostname()}" in text
    left = re.search(
        r"The files of this try are left in file://(\S+) on host worker-7: remove that directory there$", text
    )
    assert left is not None
    assert "all hosts share: an object store (s3://, gs://, abfss://), hdfs://, or a network file system" in text
    assert loads().rows == 1
    assert loads.rows() == 2


@pytest.mark.parametrize("damage", [removed, cut])
@pytest.mark.parametrize("format", [*PLACES, "json", "avro"])
def test_in_the_last_moment_before_the_commit(
    broker: Kafka, topic: str, tmp_path: Path, format: str, damage: Callable[[Path], None]
) -> None:
    loads = begun(broker, topic, tmp_path, format)
    before = loads.files()

    def act(phase: str, record: LoadRecord | None) -> None:
        if phase == "commit":
            (new,) = loads.files() - before
            damage(new)

    fails(loads, DAMAGES[damage], lambda: loads(on_phase=act))
    assert loads().rows == 1
    assert loads.rows() == 2


@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_the_changes_of_an_upsert(broker: Kafka, topic: str, tmp_path: Path, format: str, after_tasks: Any) -> None:
    loads = begun(broker, topic, tmp_path, format, mode="upsert", key="n", order_by="timestamp")
    before = loads.files()

    def act() -> None:
        (new,) = loads.files() - before
        new.unlink()

    after_tasks(act)
    fails(loads, "on this host, .* is not there. Something else has removed or changed it")
    assert loads().rows == 1
    assert loads.rows() == 2


@pytest.mark.parametrize("format", PLACES)
def test_dead_letters(broker: Kafka, topic: str, tmp_path: Path, format: str, after_tasks: Any) -> None:
    loads = begun(broker, topic, tmp_path, format, dead_letters=f"delta:{tmp_path}/bad")
    loads.topic.produce([b"no json"])

    def act() -> None:
        (new,) = loads.files("bad")
        new.unlink()

    after_tasks(act)
    fails(loads, "bad/.*part-.* is not there")
    assert DeltaTable(str(tmp_path / "bad")).to_pyarrow_table().num_rows == 0
    result = loads()
    assert (result.rows, result.bad_rows) == (1, 1)


def test_what_is_left_of_rows_and_of_dead_letters(
    broker: Kafka, topic: str, tmp_path: Path, after_tasks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads = begun(broker, topic, tmp_path, "parquet", dead_letters=f"delta:{tmp_path}/bad")
    loads.topic.produce([b"no json"])
    before = loads.files()

    def act() -> None:
        for new in (loads.files() | loads.files("bad")) - before:
            new.unlink()

    after_tasks(act)
    monkeypatch.setattr(file_writer, "socket", mock.Mock(gethostname=lambda: "worker-7"))
    text = fails(loads, "place/.* is not there")
    left = "The files of this try are left in file://{} on host worker-7: remove that directory there"
    assert re.search(left.format(rf"{tmp_path}/place/\S+"), text)
    assert re.search(left.format(rf"{tmp_path}/bad/\S+"), text)


@pytest.mark.parametrize("damage", [removed, cut])
@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_a_compaction(
    broker: Kafka,
    topic: str,
    tmp_path: Path,
    format: str,
    damage: Callable[[Path], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loads = begun(broker, topic, tmp_path, format)
    loads()
    before = loads.files()

    def act(*arguments: Any) -> None:
        (new,) = loads.files() - before
        damage(new)
        check_written(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(compaction, "check_written", act)
        fails(loads, f"compaction .*{DAMAGES[damage]}", lambda: compact(loads.target, rewindable="0"))
    assert compact(loads.target, rewindable="0").files_before == 2
    assert loads.rows() == 2


@pytest.mark.parametrize("format", ["json", "orc", "avro"])
def test_formats_that_spark_writes(spark: SparkSession, broker: Kafka, topic: str, tmp_path: Path, format: str) -> None:
    loads = Loads(broker, topic, tmp_path, format)
    loads.topic.produce([b"1", b"2"])

    def act(phase: str, record: LoadRecord | None) -> None:
        if phase == "commit":
            for new in loads.files():
                new.unlink()

    fails(loads, "is not there. The executors may not share this path", lambda: loads(spark, act))
    assert loads(spark).rows == 2

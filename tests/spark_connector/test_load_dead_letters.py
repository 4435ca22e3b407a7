"""`load` with a table of dead letters, with a real broker, and Spark where tasks write."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset
import pytest
from deltalake import DeltaTable, write_deltalake

from broker.errors import ConfigError
from spark_connector.load import LoadResult, run_load
from spark_connector.loads.iceberg.iceberg_catalog import open_catalog
from spark_connector.loads.record import LoadError
from spark_connector.loads.request import LoadRequest, Target
from spark_connector.maintenance import history, recover, rewind, verify
from tests.support.kafka import Kafka
from tests.support.schema_registry import schema_registry
from tests.support.table_harness import add_catalog
from tests.support.topics import Topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JSON = {"valueFormat": "json", "valueSchema": "n INT"}
GOOD, BAD = b'{"n": 1}', b"\xff\x00{"


class Loads:
    """Loads of one group into one place; without Spark unless a session is given."""

    def __init__(self, topic: Topic, root: Path, format: str = "delta") -> None:
        self.topic = topic
        self.bad = root / "bad"
        self.target = Target(str(root / "loads"), f"g-{topic.name}", format=format)
        self.arguments: dict[str, Any] = {"dead_letters": f"delta:{self.bad}", "options": JSON}

    def __call__(
        self, session: SparkSession | None = None, on_commit: Callable[[], None] = lambda: None, **arguments: Any
    ) -> LoadResult:
        given = {**self.arguments, **arguments}
        request = LoadRequest.build(
            self.target, bootstrap_servers=self.topic.bootstrap, topic=self.topic.name, publish_offsets=False, **given
        )

        def spark() -> SparkSession:
            assert session is not None, "a load as small as this needs no Spark"
            return session

        return run_load(request, spark, lambda phase, record: on_commit() if phase == "commit" else None)

    def rows(self) -> list[dict[str, Any]]:
        if self.target.format == "delta":
            found = DeltaTable(self.target.to).to_pyarrow_table()
        else:
            found = pyarrow.dataset.dataset(self.target.to, partitioning="hive").to_table()
        return sorted(found.to_pylist(), key=lambda row: (row["partition"], row["offset"]))

    def bad_rows(self) -> list[dict[str, Any]]:
        rows = DeltaTable(str(self.bad)).to_pyarrow_table().to_pylist()
        return sorted(rows, key=lambda row: (row["partition"], row["offset"]))

    def check_verified(self) -> None:
        found = verify(self.target, self.topic.bootstrap)
        assert found.ok, found


@pytest.fixture(params=["delta", "parquet"])
def loads(broker: Kafka, topic: str, tmp_path: Path, request: pytest.FixtureRequest) -> Loads:
    return Loads(Topic(broker.bootstrap, topic, 2), tmp_path, request.param)


def test_each_record_is_in_one_of_the_two_tables(loads: Loads) -> None:
    loads.topic.produce(
        [GOOD, BAD, None, GOOD], partition=0, key=b"k", timestamp=1_700_000_000_123, headers=[("h", b"v")]
    )
    loads.topic.produce([GOOD], partition=1)
    result = loads()
    assert (result.rows, result.bad_rows, result.dead_letters) == (4, 1, f"delta:file://{loads.bad}")
    assert [(range.rows, range.bad) for range in result.ranges] == [(3, 1), (1, 0)]
    assert [(row["partition"], row["offset"]) for row in loads.rows()] == [(0, 0), (0, 2), (0, 3), (1, 0)]
    (bad,) = loads.bad_rows()
    assert int(bad.pop("timestamp").timestamp() * 1000) == 1_700_000_000_123
    assert bad.pop("reason").startswith("value: not JSON")
    assert bad == {
        "topic": loads.topic.name,
        "partition": 0,
        "offset": 1,
        "key": b"k",
        "value": BAD,
        "schema_id": None,
        "headers": [{"key": "h", "value": b"v"}],
        "load": result.load_id,
    }
    loads.check_verified()
    loads.topic.produce([GOOD], partition=1)
    assert loads().bad_rows == 0
    assert len(loads.bad_rows()) == 1
    assert loads().load_id is None
    loads.check_verified()


def test_a_rewind_takes_the_dead_letters_back(loads: Loads) -> None:
    loads.topic.produce([GOOD, BAD], partition=0)
    first = loads()
    loads.topic.produce([BAD, GOOD, BAD], partition=1)
    second = loads()
    assert [row["load"] for row in loads.bad_rows()] == [first.load_id, second.load_id, second.load_id]
    assert rewind(loads.target, str(first.load_id)) is not None
    assert [row["load"] for row in loads.bad_rows()] == [first.load_id]
    loads.check_verified()
    third = loads()
    assert (third.rows, third.bad_rows) == (1, 2)
    assert [row["load"] for row in loads.bad_rows()] == [first.load_id, third.load_id, third.load_id]
    loads.check_verified()
    counts = [(entry.record.rows, entry.record.bad_rows) for entry in history(loads.target).entries]
    assert counts == [(1, 1), (1, 2), (0, None), (1, 2)]


def test_verify_finds_a_dead_letter_that_was_deleted_by_hand(loads: Loads) -> None:
    loads.topic.produce([BAD, GOOD, BAD], partition=0)
    result = loads()
    loads.check_verified()
    DeltaTable(str(loads.bad)).delete('"offset" = 2')
    (check,) = verify(loads.target, loads.topic.bootstrap).loads
    assert check.verdict == "mismatch"
    tp = f"{loads.topic.name}-0"
    assert check.problems[0] == f"{tp}: 2 dead letters were committed, 1 are in their table"
    assert "1 records of the log are not in" in check.problems[1]
    assert check.partitions[0].examples == (2,)
    DeltaTable(str(loads.bad)).delete()
    assert result.bad_rows == 2
    (check,) = verify(loads.target, loads.topic.bootstrap).loads
    assert check.partitions[0].missing == 2


def test_verify_finds_a_record_that_is_in_both_tables(loads: Loads) -> None:
    loads.topic.produce([BAD, GOOD], partition=0)
    loads()
    table = DeltaTable(str(loads.bad))
    rows = table.to_pyarrow_table()
    both = rows.set_column(rows.schema.get_field_index("offset"), "offset", pa.array([1], pa.int64()))
    write_deltalake(str(loads.bad), both, mode="append")
    (check,) = verify(loads.target, loads.topic.bootstrap).loads
    assert any("more than once, such as offset 1" in problem for problem in check.problems)


@pytest.mark.parametrize(("limit", "bad"), [("1", 2), (0, 1), ("20%", 3), ("0.1%", 1)])
@pytest.mark.parametrize("letters", [True, False], ids=["letters", "nulls"])
def test_too_many_bad_records_fail_the_load_and_leave_nothing(
    loads: Loads, limit: str | int, bad: int, letters: bool
) -> None:
    loads.topic.produce([GOOD] * (10 - bad), partition=0)
    loads.topic.produce([BAD] * bad, partition=1)
    arguments: dict[str, Any] = {"max_bad": limit} if letters else {"max_bad": limit, "dead_letters": None}
    with pytest.raises(LoadError) as raised:
        loads(**arguments)
    text = str(raised.value)
    assert f"{bad} of 10 records cannot be decoded, more than max_bad (--max-bad) {limit} allows" in text
    assert f"offset 0 of topic '{loads.topic.name}', partition 1: value: not JSON" in text
    assert not raised.value.retriable
    root = Path(loads.target.to)
    assert list(root.rglob("*.parquet")) == []
    assert list(loads.bad.rglob("*.parquet")) == []
    assert list(root.rglob("intent.json")) == []
    assert loads(**{**arguments, "max_bad": "30%"}).rows == (10 - bad if letters else 10)


def test_a_limit_may_stand_for_itself(loads: Loads) -> None:
    """Without dead letters the mode says what becomes of bad records, as ever."""
    loads.topic.produce([GOOD, BAD, GOOD], partition=0)
    result = loads(dead_letters=None, max_bad="34%")
    assert (result.rows, result.bad_rows) == (3, None)
    assert loads.rows()[1]["_corrupt_record"] == BAD
    loads.topic.produce([GOOD, BAD, GOOD], partition=1)
    with pytest.raises(LoadError, match="1 of 3 records"):
        loads(dead_letters=None, max_bad="33%", options={**JSON, "mode": "DROPMALFORMED"}, allow_changed_options=True)


def test_to_begin_or_end_with_dead_letters_is_a_change_of_what_is_read(loads: Loads) -> None:
    loads.topic.produce([GOOD, BAD], partition=0)
    loads(dead_letters=None, options={**JSON, "mode": "PERMISSIVE"})
    loads.topic.produce([GOOD, BAD], partition=0)
    with pytest.raises(ConfigError, match="dead_letters=a table"):
        loads()
    assert loads(allow_changed_options=True).bad_rows == 1
    loads.topic.produce([BAD], partition=0)
    assert loads(dead_letters=f"delta:{loads.bad}-2").bad_rows == 1
    assert len(loads.bad_rows()) == 1
    loads.topic.produce([BAD], partition=0)
    with pytest.raises(ConfigError, match="dead_letters=not set"):
        loads(dead_letters=None)
    loads.check_verified()


def test_the_table_of_the_load_takes_no_dead_letters(loads: Loads) -> None:
    loads.topic.produce([GOOD, BAD], partition=0)
    with pytest.raises(ConfigError, match="is where the load itself goes"):
        loads(dead_letters=f"delta:{loads.target.to}")


def test_another_kind_of_table_is_refused_before_anything_is_written(loads: Loads) -> None:
    loads.topic.produce([GOOD, BAD], partition=0)
    DeltaTable.create(str(loads.bad), pa.schema([("offset", pa.string()), ("load", pa.string())]))
    with pytest.raises(ConfigError, match="has no column|as string"):
        loads()
    assert list(Path(loads.target.to).rglob("*.parquet")) == []


def test_tasks_of_spark_write_both_kinds_of_rows(spark: SparkSession, loads: Loads) -> None:
    """More records than the driver loads itself."""
    values = [BAD if number % 1000 == 7 else GOOD for number in range(30_000)]
    loads.topic.produce(values, partition=0)
    loads.topic.produce(values, partition=1)
    result = loads(spark, options={**JSON, "minPartitions": "4"})
    assert (result.rows, result.bad_rows) == (59_940, 60)
    expected = [(partition, number) for partition in (0, 1) for number in range(7, 30_000, 1000)]
    assert [(row["partition"], row["offset"]) for row in loads.bad_rows()] == expected
    loads.check_verified()
    loads.topic.produce(values, partition=1)
    with pytest.raises(LoadError, match=r"30 of 30,000 records .* partition 1: value: not JSON"):
        loads(spark, options={**JSON, "minPartitions": "4"}, max_bad=29)
    assert len(loads.bad_rows()) == 60
    assert loads(spark, options={**JSON, "minPartitions": "4"}, max_bad="0.1%").bad_rows == 30
    loads.check_verified()


def test_the_schema_id_of_a_framed_record_is_a_column(loads: Loads) -> None:
    with schema_registry() as registry:
        id_ = registry.register(
            f"{loads.topic.name}-value", '{"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}]}'
        )
        other = registry.register("other", '"string"')
        values = [framed(id_, b"\x02"), framed(id_, b"\x02more"), framed(other, b"\x02a"), framed(99, b""), b"no", b""]
        loads.topic.produce(values, partition=0)
        options = {"valueFormat": "avro", "schema.registry.url": registry.url}
        result = loads(options=options)
        assert (result.rows, result.bad_rows) == (1, 5)
        bad = loads.bad_rows()
        assert [row["schema_id"] for row in bad] == [id_, other, 99, None, None]
        assert [row["value"] for row in bad] == values[1:]
        assert "schema id 99" in bad[2]["reason"]
        loads.check_verified()


def framed(schema_id: int, data: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4) + data


@pytest.mark.parametrize("step", [1, 2])
def test_a_load_that_is_killed_between_its_commits_is_repeated_whole(loads: Loads, step: int) -> None:
    """By SIGKILL, of a process of its own: right after the dead letters are committed, and right after the load is."""
    loads.topic.produce([GOOD, BAD], partition=0)
    loads()
    loads.topic.produce([BAD, GOOD, BAD], partition=1)
    target = loads.target
    arguments = (loads.topic.bootstrap, loads.topic.name, target.to, loads.bad, step, target.format, target.group)
    killed = subprocess.run(
        [sys.executable, "-c", _KILLED, *map(str, arguments)],
        check=False,
        capture_output=True,
        text=True,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert len(loads.bad_rows()) == 3
    if step == 1:
        found = verify(loads.target, loads.topic.bootstrap)
        assert any("2 dead letters" in note and "the next load decides" in note for note in found.notes), found
    loads.topic.produce([BAD], partition=1)
    loads()
    assert [(row["partition"], row["offset"]) for row in loads.bad_rows()] == [(0, 1), (1, 0), (1, 2), (1, 3)]
    assert [(row["partition"], row["offset"]) for row in loads.rows()] == [(0, 0), (1, 1)]
    loads.check_verified()


def test_a_recovery_decides_about_dead_letters_too(loads: Loads) -> None:
    loads.topic.produce([GOOD, BAD], partition=0)
    loads()
    loads.topic.produce([BAD], partition=1)
    with pytest.raises(KeyboardInterrupt):
        loads(on_commit=_interrupt)
    assert len(loads.bad_rows()) == 2
    finished = recover(loads.target)  # a directory has the sealed load, and a table nothing of it
    assert len(finished) == (1 if loads.target.format == "parquet" else 0)
    assert len(loads.bad_rows()) == 1 + len(finished)
    loads()
    assert len(loads.bad_rows()) == 2
    loads.check_verified()


@pytest.mark.parametrize("main", ["iceberg", "delta"])
def test_dead_letters_in_an_iceberg_table(broker: Kafka, topic: str, tmp_path: Path, main: str) -> None:
    """Whose catalog is that of the load, or named with it: what reads the record of a load is not told of it."""
    catalog = add_catalog(tmp_path / "catalogs")
    loads = Loads(Topic(broker.bootstrap, topic, 2), tmp_path)
    place = "iceberg:lake.bad"
    if main == "iceberg":
        loads.target = Target("iceberg:lake.loads", loads.target.group, catalog=catalog)
    else:
        loads.arguments["dead_letters"] = place
        loads.topic.produce([GOOD, BAD], partition=0)
        with pytest.raises(ConfigError, match="needs a catalog: iceberg:CATALOG/NAMESPACE.TABLE"):
            loads()
        place = f"iceberg:{catalog}/lake.bad"
    loads.arguments["dead_letters"] = place
    loads.topic.produce([GOOD, BAD], partition=0, key=b"k", headers=[("h", b"v")])
    first = loads()
    assert first.dead_letters == f"iceberg:{catalog}/lake.bad"
    loads.topic.produce([BAD, GOOD], partition=1)
    loads()
    bad = _iceberg_rows(catalog)
    assert [(row["partition"], row["value"], row["reason"][:15]) for row in bad][-2:] == [
        (0, BAD, "value: not JSON"),
        (1, BAD, "value: not JSON"),
    ]
    assert [header for row in bad for header in row["headers"] or ()][-1] == {"key": "h", "value": b"v"}
    loads.check_verified()
    assert rewind(loads.target, str(first.load_id)) is not None
    assert {row["load"] for row in _iceberg_rows(catalog)} == {first.load_id}
    assert loads().bad_rows == 1
    loads.check_verified()


def _iceberg_rows(catalog: str) -> list[dict[str, Any]]:
    opened = open_catalog(catalog)
    rows = opened.load_table("lake.bad").scan().to_arrow().to_pylist()
    opened.close()
    return sorted(rows, key=lambda row: (row["partition"], row["offset"]))


def _interrupt() -> None:
    raise KeyboardInterrupt


_KILLED = """
import os, signal, sys
from spark_connector.load import run_load
from spark_connector.loads.delta.delta_log import DeltaCommitLog
from spark_connector.loads.files.directory import FilesCommitLog
from spark_connector.loads.request import LoadRequest, Target
servers, topic, to, bad, step, format, group = sys.argv[1:]
left = int(step)
def killing(append):
    def call(*arguments):
        global left
        append(*arguments)
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
    return call
for log in (DeltaCommitLog, FilesCommitLog):
    log.append = killing(log.append)
request = LoadRequest.build(
    Target(to, group, format=format), bootstrap_servers=servers, topic=topic, dead_letters=f"delta:{bad}",
    options={"valueFormat": "json", "valueSchema": "n INT"}, publish_offsets=False,
)
run_load(request, None, lambda phase, record: None)
"""

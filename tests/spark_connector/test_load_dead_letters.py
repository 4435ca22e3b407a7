"""`load` with a table of dead letters, with a real broker, and Spark where tasks write."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset
import pytest
from deltalake import DeltaTable, write_deltalake

from broker.errors import ConfigError
from spark_connector.load import LoadResult, run_load
from spark_connector.loads.record import LoadError
from spark_connector.loads.request import LoadRequest, Target
from spark_connector.maintenance import history, rewind, verify
from tests.support.kafka import Kafka
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

    def __call__(self, session: SparkSession | None = None, **arguments: Any) -> LoadResult:
        given = {**self.arguments, **arguments}
        request = LoadRequest.build(
            self.target, bootstrap_servers=self.topic.bootstrap, topic=self.topic.name, publish_offsets=False, **given
        )

        def spark() -> SparkSession:
            assert session is not None, "a load as small as this needs no Spark"
            return session

        return run_load(request, spark, lambda phase, record: None)

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
    loads(dead_letters=None)
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

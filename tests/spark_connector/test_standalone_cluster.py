"""What a shared cluster does to jobs: second attempts of slow tasks, executors that come and go, jobs at the same time.

Slow: a standalone cluster and an application for each test.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.support.committed_records import committed_values
from tests.support.kafka import Kafka
from tests.support.standalone_spark import StandaloneSpark
from tests.support.topics import Topic

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneSpark]:
    with StandaloneSpark(tmp_path_factory.mktemp("standalone")) as cluster:
        yield cluster


def data_files(place: Path) -> set[str]:
    """Names of the files of rows below it, whether a reader sees them or not."""
    return {path.name for path in place.rglob("part-*")}


def test_of_two_attempts_of_a_task_that_both_write_one_counts(
    cluster: StandaloneSpark, broker: Kafka, topic: str, tmp_path: Path
) -> None:
    made = Topic(broker.bootstrap, topic, 2)
    for partition in range(2):
        made.number(100, partition, first=100 * partition)
    given = {"bootstrap": broker.bootstrap, "topic": topic, "home": str(tmp_path)}
    seen = cluster.run("tests.support.speculation_session", **given)
    assert "spark.speculation=true may start a second attempt" in seen.pop("exactly-once")
    assert len(seen) == 6
    for name, load in seen.items():
        assert (load["rows"], load["values"], load["ok"]) == (200, list(range(200)), True), name
        there = data_files(tmp_path / name)
        if name.endswith("whole"):
            (first,), (second,) = load["wrote"]["attempt-0"], load["wrote"]["attempt-1"]
            assert second in there, name
            assert first not in there, "what was written by the attempt that does not count is removed"
            assert len(there) == 2, name


def test_jobs_get_executors_anew_after_all_were_given_back(
    cluster: StandaloneSpark, broker: Kafka, topic: str, tmp_path: Path
) -> None:
    given = {"part": "dynamic", "bootstrap": broker.bootstrap, "topic": topic, "home": str(tmp_path)}
    assert cluster.run("tests.support.shared_application", **given) == {"loaded": 200, "read": 200}
    assert values_of(tmp_path, "dynamic") == list(range(200))
    copies = [int(value) for value in committed_values(broker.bootstrap, f"{topic}-copies")]
    assert sorted(copies) == list(range(200))


def test_loads_in_fair_pools_at_the_same_time(
    cluster: StandaloneSpark, broker: Kafka, topic: str, tmp_path: Path
) -> None:
    """Of four groups all are committed; of two loads of one group one is, and the other one leaves nothing."""
    given = {"part": "at once", "bootstrap": broker.bootstrap, "topic": topic, "home": str(tmp_path)}
    seen = cluster.run("tests.support.shared_application", **given)
    assert seen["groups"] == [200] * 4
    for number in range(4):
        assert values_of(tmp_path, f"group-{number}") == list(range(200))
    for found in seen["rivals"]:
        assert sorted(map(str, found)) == ["200", "conflict"]
    assert DeltaTable(str(tmp_path / "delta-rivals")).to_pyarrow_table().num_rows == 200
    assert len(list((tmp_path / "parquet-rivals").glob("load=*"))) == 1
    files = len(DeltaTable(str(tmp_path / "delta-rivals")).file_uris())
    assert len(data_files(tmp_path / "delta-rivals")) == files


def values_of(home: Path, group: str) -> list[int]:
    """The numbers in what the group has loaded, a directory of parquet files or a Delta table."""
    (place,) = home.glob(f"*-{group}")
    if place.name.startswith("delta"):
        rows = DeltaTable(str(place)).to_pyarrow_table()
    else:
        import pyarrow.dataset as ds

        rows = ds.dataset(sorted(map(str, place.glob("load=*/*.parquet")))).to_table()
    return sorted(int(value) for value in rows["value"].to_pylist())

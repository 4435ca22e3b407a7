"""`load` with a table of dead letters, with a real broker, and Spark where tasks write."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset
import pytest
from deltalake import DeltaTable

from spark_connector.load import LoadResult, run_load
from spark_connector.loads.request import LoadRequest, Target
from spark_connector.maintenance import verify
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

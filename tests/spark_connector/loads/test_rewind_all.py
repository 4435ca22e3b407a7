"""All loads of a group are taken back, the first one, too: the next load begins where that began."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from deltalake import DeltaTable

from broker.errors import ConfigError
from broker.verdict import Verdict
from spark_connector.load import run_load
from spark_connector.loads.history import LoadState
from spark_connector.loads.iceberg.iceberg_catalog import open_catalog
from spark_connector.loads.record import LoadResult
from spark_connector.loads.request import LoadRequest, Target
from spark_connector.maintenance import history, prune, rewind, verify
from tests.support.history_loads import no_session
from tests.support.kafka import Kafka
from tests.support.table_harness import add_catalog
from tests.support.topics import Topic

JSON = {"valueFormat": "json", "valueSchema": "n INT"}


class Loads:
    """Loads of one topic into one place, so small that the driver writes them."""

    def __init__(self, broker: Kafka, topic: str, root: Path, format: str) -> None:
        self.topic, self.format, self.root = Topic(broker.bootstrap, topic), format, root
        catalog = add_catalog(root) if format == "iceberg" else None
        to = {"iceberg": "iceberg:lake.t", "sql": f"sqlite:///{root}/place.db#t"}.get(format, str(root / "place"))
        self.target = Target(to, f"g-{topic}", format=format, catalog=catalog).check()

    def __call__(self, **given: Any) -> LoadResult:
        arguments = {"bootstrap_servers": self.topic.bootstrap, "topic": self.topic.name, "publish_offsets": False}
        request = LoadRequest.build(self.target, **{**arguments, "options": JSON, **given})
        return run_load(request, no_session, lambda phase, record: None)

    def offsets(self) -> list[int]:
        """Of the rows, as a reader who knows nothing of us sees them."""
        if self.format == "iceberg":
            assert self.target.catalog is not None
            rows = open_catalog(self.target.catalog).load_table("lake.t").scan().to_arrow()
            return sorted(rows.column("offset").to_pylist())
        if self.format == "sql":
            with contextlib.closing(sqlite3.connect(self.root / "place.db")) as database:
                return sorted(row[0] for row in database.execute('SELECT "offset" FROM t'))
        if self.format == "delta":
            return sorted(DeltaTable(self.target.to).to_pyarrow_table().column("offset").to_pylist())
        files = Path(self.target.to).glob("load=*/**/*.parquet")
        return sorted(n for file in files for n in pyarrow.parquet.read_table(file).column("offset").to_pylist())


@pytest.fixture(params=["parquet", "delta", "iceberg", "sql"])
def loads(request: pytest.FixtureRequest, broker: Kafka, topic: str, tmp_path: Path) -> Loads:
    """With two loads of one record each."""
    loads = Loads(broker, topic, tmp_path, request.param)
    for number in (1, 2):
        loads.topic.produce([b'{"n": %d}' % number], key=b"k")
        loads()
    return loads


def test_all_is_taken_back_and_loaded_again(loads: Loads) -> None:
    plan = rewind(loads.target, None, delete=loads.format == "sql")
    assert plan is not None
    assert [range.end for range in plan.ranges] == [0]
    assert loads.offsets() == []
    assert [entry.state for entry in history(loads.target).entries][:2] == [LoadState.REWOUND] * 2
    assert loads().rows == 2
    assert loads.offsets() == [0, 1]
    assert verify(loads.target, loads.topic.bootstrap).verdict is Verdict.OK
    assert rewind(loads.target, None, delete=loads.format == "sql") is not None, "and once more"
    assert loads.offsets() == []


def test_options_may_be_others_afterwards(loads: Loads) -> None:
    """A first load that was read wrongly is why one begins anew."""
    changed = {**JSON, "filterKey": "k"}
    with pytest.raises(ConfigError, match="was read with other options"):
        loads(options=changed)
    rewind(loads.target, None, delete=loads.format == "sql")
    assert loads(options=changed).rows == 2


def test_there_must_be_something_to_take_back(loads: Loads) -> None:
    rewind(loads.target, None, delete=loads.format == "sql")
    with pytest.raises(ConfigError, match="there is no load 'the beginning' to rewind to; there is none that stands"):
        rewind(loads.target, None, delete=loads.format == "sql")


def test_a_load_that_is_forgotten_may_have_been_the_first(broker: Kafka, topic: str, tmp_path: Path) -> None:
    loads = Loads(broker, topic, tmp_path, "sql")
    for number in (1, 2):
        loads.topic.produce([b'{"n": %d}' % number], key=b"k")
        loads()
    prune(loads.target, 1)
    with pytest.raises(ConfigError, match="cannot rewind to 'the beginning': load number 1 has been pruned"):
        rewind(loads.target, None, delete=True)
    assert loads.offsets() == [0, 1]


def test_a_table_of_upserts_is_dropped_instead(broker: Kafka, topic: str, tmp_path: Path) -> None:
    loads = Loads(broker, topic, tmp_path, "delta")
    loads.topic.produce([b'{"n": 1}'], key=b"k")
    loads(mode="upsert", key="n", order_by="timestamp")
    with pytest.raises(ConfigError, match="goes back to a load, not to the beginning: drop the table"):
        rewind(loads.target, None)

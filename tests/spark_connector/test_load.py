"""`load` with real Spark, broker and ZooKeeper: what is loaded, what the caller is told, what is refused."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import fastavro
import pyarrow.dataset
import pytest

from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.client.committed_offsets import GroupOffsets
from broker.errors import ConfigError
from broker.protocol.topic_partition import TopicPartition
from spark_connector.errors import DataLoss
from spark_connector.load import LoadResult, load, recover
from spark_connector.loads.record import LoadError, LoadInterrupted
from spark_connector.loads.request import Target
from spark_connector.offset_store.base import OffsetConflict
from tests.support.broker_process import BrokerProcess
from tests.support.kafka import Kafka
from tests.support.topic_data import TopicData, transact

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KAFKA_COLUMNS = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]


class Loads:
    """`load` into one directory with the arguments all these tests share."""

    def __init__(self, spark: SparkSession, data: TopicData, to: Path, offsets: str, zookeeper: str) -> None:
        self.spark, self.data, self.to = spark, data, to
        self.common: dict[str, Any] = {
            "bootstrap_servers": data.bootstrap,
            "topic": data.topic,
            "group": f"g-{data.topic}",
            "offsets": offsets,
            "zookeeper_connect": f"{zookeeper}/loads" if offsets == "zookeeper" else None,
        }

    def __call__(self, **arguments: Any) -> LoadResult:
        """By tasks of Spark: without `minPartitions` the driver would load so few records itself."""
        options = {"minPartitions": "2", **arguments.pop("options", {})}
        return load(self.spark, **{**self.common, "to": str(self.to), "options": options, **arguments})

    @property
    def target(self) -> Target:
        return Target(str(self.to), self.common["group"], self.common["offsets"], self.common["zookeeper_connect"])

    def rows(self, format: str = "parquet") -> DataFrame:
        return self.spark.read.format(format).load(str(self.to))

    def check_exactly_once(self) -> None:
        rows = [tuple(row) for row in self.rows().select("topic", "partition", "offset").collect()]
        assert sorted(rows) == self.data.positions()


@pytest.fixture
def data(broker: Kafka, topic: str) -> TopicData:
    return TopicData(broker.bootstrap, topic, partitions=3)


@pytest.fixture(params=["files", "zookeeper"])
def loads(
    request: pytest.FixtureRequest, spark: SparkSession, data: TopicData, tmp_path: Path, zookeeper: str
) -> Loads:
    return Loads(spark, data, tmp_path / "output", request.param, zookeeper)


@pytest.fixture
def files(spark: SparkSession, data: TopicData, tmp_path: Path, zookeeper: str) -> Loads:
    return Loads(spark, data, tmp_path / "output", "files", zookeeper)


def test_each_load_takes_what_is_new(loads: Loads) -> None:
    loads.data.produce(300)
    first = loads()
    assert (first.rows, first.recovered) == (300, ())
    assert [(range.start, range.end, range.rows) for range in first.ranges] == [(0, 100, 100)] * 3
    assert first.path == f"file://{loads.to}/load={first.load_id}"
    visible = [path.name for path in loads.to.iterdir() if not path.name.startswith(("_", "."))]
    assert visible == [f"load={first.load_id}"], "what is not committed is hidden"
    loads.data.produce(30)
    second = loads()
    assert second.rows == 30
    assert second.load_id != first.load_id
    before = sorted(loads.to.rglob("*"))
    empty = loads()
    assert (empty.load_id, empty.path, empty.rows, empty.ranges) == (None, None, 0, ())
    assert sorted(loads.to.rglob("*")) == before, "nothing new commits nothing"
    loads.check_exactly_once()


def test_lag_tools_see_what_is_loaded(files: Loads) -> None:
    files.data.produce(30)
    with Cluster(files.data.bootstrap) as cluster:
        offsets = GroupOffsets(cluster, files.common["group"])
        files(publish_offsets=False)
        assert offsets.fetch() == {}
        files.data.produce(6)
        files()
        assert offsets.fetch() == {TopicPartition(files.data.topic, n): 12 for n in range(3)}


def test_the_output_is_the_kafka_schema_and_the_load(files: Loads) -> None:
    files.data.produce(30)
    result = files()
    assert files.rows().columns == [*KAFKA_COLUMNS, "load"]
    assert {row.load for row in files.rows().select("load").distinct().collect()} == {result.load_id}
    (loaded,) = files.rows().where("partition = 1 and offset = 4").collect()
    assert (bytes(loaded.key), bytes(loaded.value)) == files.data.record(1, 4)


def test_pyarrow_reads_it_too(files: Loads) -> None:
    files.data.produce(30)
    files()
    files.data.produce(3)
    files()
    dataset = pyarrow.dataset.dataset(files.to, format="parquet")
    assert dataset.count_rows() == 33
    assert dataset.schema.names == KAFKA_COLUMNS


@pytest.mark.parametrize("format", ["json", "orc"])
def test_other_formats_of_spark(files: Loads, format: str) -> None:
    files.data.produce(30)
    assert files(format=format).rows == 30
    rows = [tuple(row) for row in files.rows(format).select("topic", "partition", "offset").collect()]
    assert sorted(rows) == files.data.positions()


@pytest.mark.parametrize("compression", ["snappy", "deflate"])
def test_avro_without_sparks_jar(files: Loads, compression: str) -> None:
    files.data.produce(30, headers=[("h", b"1")])
    result = files(format="avro", options={"includeHeaders": "true"}, write_options={"compression": compression})
    assert result.rows == 30
    records: list[dict[str, Any]] = []
    for path in files.to.glob("load=*/*.avro"):
        with path.open("rb") as file:
            reader = fastavro.reader(file)
            assert reader.metadata["avro.codec"] == compression
            records += cast("list[dict[str, Any]]", list(reader))
    assert sorted((r["topic"], r["partition"], r["offset"]) for r in records) == files.data.positions()
    assert all((r["key"], r["value"]) == files.data.record(r["partition"], r["offset"]) for r in records)
    assert records[0]["headers"] == [{"key": "h", "value": b"1"}]
    assert records[0]["timestamp"].year > 2020


def test_records_of_aborted_transactions_are_not_loaded_unless_that_is_asked_for(files: Loads, tmp_path: Path) -> None:
    transact(files.data.bootstrap, files.data.topic, "abort", "commit")
    assert files().rows == 10
    everything = {"options": {"kafka.isolation.level": "read_uncommitted"}}
    with pytest.raises(ConfigError, match="--allow-changed-options"):
        files(**everything)
    assert files(to=str(tmp_path / "everything"), group="everything", **everything).rows == 20


def test_headers_go_into_parquet(files: Loads) -> None:
    files.data.produce(3, headers=[("h", b"1")])
    files(options={"includeHeaders": "true"})
    assert [row.headers[0].key for row in files.rows().collect()] == ["h"] * 3


def test_max_records_caps_a_load_and_the_next_goes_on(files: Loads) -> None:
    files.data.produce(300)
    assert [files(max_records=70).rows for _ in range(6)] == [70, 70, 70, 70, 20, 0]
    files.check_exactly_once()


def test_a_load_may_start_and_stop_where_it_is_told(files: Loads) -> None:
    files.data.produce(30)
    offsets = {files.data.topic: {"0": 5, "1": 6, "2": 7}}
    ends = {files.data.topic: {"0": 8, "1": 8, "2": 8}}
    first = files(starting_offsets=json.dumps(offsets), options={"endingOffsets": json.dumps(ends)})
    assert [(range.start, range.end) for range in first.ranges] == [(5, 8), (6, 8), (7, 8)]
    assert [(range.start, range.end) for range in files().ranges] == [(8, 10), (8, 10), (8, 10)]


def test_a_reader_can_start_where_the_loads_stopped(files: Loads) -> None:
    files.data.produce(30)
    files()
    files.data.produce(6)
    rest = (
        files.spark.read.format("pykafka")
        .option("kafka.bootstrap.servers", files.data.bootstrap)
        .option("subscribe", files.data.topic)
        .option("startingOffsets", "committed")
        .option("offsetStore", "files")
        .option("offsetStore.path", f"{files.to}/_offsets")
        .option("group", files.common["group"])
        .load()
    )
    assert rest.count() == 6


def test_a_rerun_loads_again_into_another_directory_and_moves_nothing(loads: Loads, tmp_path: Path) -> None:
    loads.data.produce(30)
    loads()
    loads.data.produce(9)
    second = loads()
    loads.data.produce(6)
    third = loads()
    loads.data.produce(3)  # not loaded yet: not for the re-run either
    again = tmp_path / "again"
    source = {"from_directory": str(loads.to)} if loads.common["offsets"] == "files" else {}
    result = loads(to=str(again), from_load=second.load_id, **source)
    assert result.rows == second.rows + third.rows == 15
    assert loads.spark.read.parquet(str(again)).count() == 15
    assert loads(to=str(again), from_load=second.load_id, **source).load_id == result.load_id  # done already
    assert loads(to=str(again)).rows == 3  # and the loads can go on in the new directory
    with pytest.raises(ConfigError, match="holds loads of group"):
        loads(from_load=third.load_id, **source)
    with pytest.raises(ConfigError, match="has no committed load 'nonsense'"):
        loads(to=str(tmp_path / "third"), from_load="nonsense", **source)


def test_a_topic_created_anew_that_has_outgrown_the_old_one_is_noticed(files: Loads) -> None:
    files.data.produce(3)
    files()
    with Cluster(files.data.bootstrap) as cluster:
        Admin(cluster).delete_topics([files.data.topic])
    again = TopicData(files.data.bootstrap, files.data.topic, partitions=2)
    again.produce(60)
    with pytest.raises(DataLoss, match="created again"):
        files()
    result = files(options={"failOnDataLoss": "false"})
    assert result.rows == 60
    assert [(range.start, range.end) for range in result.ranges] == [(0, 30), (0, 30), (0, 0)]


def test_two_loads_at_once_one_wins(loads: Loads) -> None:
    loads.data.produce(300)
    start = threading.Barrier(2)
    outcomes: list[object] = []

    def run() -> None:
        def wait_before_writing(phase: str, _record: object) -> None:
            if phase == "write":
                start.wait()

        try:
            outcomes.append(loads(on_phase=wait_before_writing).rows)
        except OffsetConflict as error:
            outcomes.append(str(error))

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(type, outcomes), key=str) == [int, str], outcomes
    loads.check_exactly_once()
    assert list((loads.to / "_staging").glob("*/*")) == []


class Killed(BaseException):
    pass


def die_at_commit(phase: str, _record: object) -> None:
    if phase == "commit":
        raise Killed


def test_recover_needs_no_spark(files: Loads) -> None:
    files.data.produce(3)
    with pytest.raises(Killed):
        files(on_phase=die_at_commit)
    assert not list(files.to.glob("load=*"))
    (recovered,) = recover(files.target)
    assert [path.name for path in files.to.glob("load=*")] == [f"load={recovered}"]
    assert files().rows == 0
    files.check_exactly_once()


def test_a_load_finishes_what_was_killed_and_says_so(loads: Loads) -> None:
    loads.data.produce(3)
    with pytest.raises(Killed):
        loads(on_phase=die_at_commit)
    loads.data.produce(3)
    result = loads()
    assert len(result.recovered) == 1
    assert result.rows == 3
    loads.check_exactly_once()


def test_a_broker_that_goes_before_spark_plans_may_come_back(
    spark: SparkSession, broker_factory: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    broker = broker_factory()
    data = TopicData(broker.bootstrap, "t", partitions=1)
    data.produce(3)
    arguments: dict[str, Any] = {
        "bootstrap_servers": broker.bootstrap,
        "topic": "t",
        "to": str(tmp_path / "out"),
        "group": "g",
    }

    def waiting(ms: int) -> dict[str, str]:
        return {"kafka.default.api.timeout.ms": str(ms)}

    def go(phase: str, _record: object) -> None:
        if phase == "write":
            broker.kill()

    with pytest.raises(LoadInterrupted, match="ConnectionFailed"):
        load(spark, **arguments, options=waiting(1000), on_phase=go)
    broker.start()
    assert load(spark, **arguments, options=waiting(30_000)).rows == 3


def test_a_failed_write_leaves_nothing(files: Loads) -> None:
    files.data.produce(3)
    with pytest.raises(LoadError, match="failed: .*nonsense"):
        files(format="orc", write_options={"compression": "nonsense"})
    assert list((files.to / "_staging" / "files").iterdir()) == []
    with pytest.raises(ConfigError, match="takes the write option 'compression' only: one of zstd, snappy"):
        files(write_options={"compression": "nonsense"})
    assert files().rows == 3


@pytest.mark.parametrize(
    ("to", "message"),
    [
        ("hdfs://127.0.0.1:1/x", r"nothing answers at 127\.0\.0\.1:1, the NameNode of"),
        ("{file}/x", "Not a directory: .*file/x"),
    ],
)
def test_an_output_that_cannot_be_reached_is_one_clear_error(
    files: Loads, tmp_path: Path, to: str, message: str
) -> None:
    files.data.produce(1)
    (tmp_path / "file").write_text("no directory")
    with pytest.raises(LoadError, match=message):
        files(to=to.format(file=tmp_path / "file"), storage_options={})


def test_the_same_group_may_not_change_its_store(files: Loads, zookeeper: str) -> None:
    files.data.produce(3)
    files()
    with pytest.raises(ConfigError, match="holds loads of group"):
        files(offsets="zookeeper", zookeeper_connect=f"{zookeeper}/loads")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"format": "csv"},
            r"format \(--format\) must be one of parquet, json, orc, avro, delta, iceberg, sql, not 'csv'",
        ),
        ({"offsets": "group"}, "offsets must be files or zookeeper"),
        ({"offsets": "zookeeper"}, "needs 'zookeeper_connect'"),
        ({"zookeeper_connect": "localhost:1"}, "no effect with offsets=files"),
        ({"group": "a/b"}, "group 'a/b' cannot be used"),
        ({"to": " "}, "load needs 'to'"),
        ({"to": "memory://x/y"}, "atomic rename"),
        ({"max_records": 0}, r"max_records \(--max-records\) must be at least 1"),
        ({"options": {"group": "x"}}, "option 'group' cannot be used in a load"),
        (
            {"options": {"filterKey": "a", "filterKeyPartitioner": "murmur2"}},
            "option 'filterKeyPartitioner' cannot be used in a load",
        ),
        ({"options": {"failOnDataLos": "true"}}, "Did you mean 'failOnDataLoss'"),
        ({"starting_offsets": "latest"}, "can't be latest"),
        ({"from_load": "x"}, "needs from_directory"),
        ({"from_directory": "x"}, "goes with from_load"),
        ({"topic": None}, "subscribe"),
        ({"format": "avro", "write_options": {"level": "1"}}, "takes the write option 'compression' only"),
    ],
)
def test_a_wrong_argument_is_one_clear_error(files: Loads, arguments: Mapping[str, Any], message: str) -> None:
    files.data.produce(1)
    with pytest.raises(ConfigError, match=message):
        files(**arguments)
    assert not list(files.to.glob("load=*"))

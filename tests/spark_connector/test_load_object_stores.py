"""Loads into tables on object stores with real Spark and broker; duckdb reads the tables back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import duckdb
import pytest
from deltalake import DeltaTable

from broker.errors import ConfigError
from broker.storage.storage import open_storage
from spark_connector.destinations import open_dead_letters
from spark_connector.load import load
from spark_connector.loads.bad_record_options import DeadLetterPlace
from spark_connector.loads.request import Target
from spark_connector.maintenance import history, rewind, verify
from tests.support.console import answer_of
from tests.support.fake_s3 import FakeS3
from tests.support.kafka import Kafka
from tests.support.topic_data import TopicData

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_connector.loads.destination import Destination

MANY = 25_000
"""More than the driver loads itself, so that tasks of Spark write."""


def test_a_delta_table_on_s3_takes_load_after_load(spark: SparkSession, broker: Kafka, topic: str, s3: FakeS3) -> None:
    data = TopicData(broker.bootstrap, topic, partitions=2)
    data.produce(MANY)
    to, group = f"s3://lake/{topic}", f"g-{topic}"
    arguments: dict[str, Any] = {"format": "delta", "partition_by": ["date"], "storage_options": s3.options}

    def run() -> Any:
        return load(spark, bootstrap_servers=data.bootstrap, topic=topic, to=to, group=group, **arguments)

    def read() -> list[tuple[Any, ...]]:
        options = open_storage(to, s3.options).object_store_options
        table = DeltaTable(to, storage_options=options).to_pyarrow_dataset()
        found = duckdb.connect().sql('SELECT topic, "partition", "offset" FROM "table" ORDER BY ALL').fetchall()
        assert table.count_rows() == len(found)
        return found

    first = run()
    data.produce(6)
    assert (first.rows, run().rows, run().rows) == (MANY, 6, 0)
    assert first.path == to
    assert read() == data.positions()
    target = Target(to, group, storage_options=s3.options, format="delta")
    verified = verify(target, data.bootstrap)
    assert verified.ok, verified
    assert [entry.record.rows for entry in history(target).entries] == [MANY, 6]
    words = ["--to", to, "--group", group, "--format", "delta"]
    for name, value in s3.options.items():
        words += ["--storage-option", f"{name}={value}"]
    assert [entry["rows"] for entry in json.loads(answer_of("loads", "--json", *words))] == [MANY, 6]
    assert rewind(target, str(first.load_id)) is not None
    assert len(read()) == MANY
    assert run().rows == 6
    assert read() == data.positions()
    assert [key for key in s3.keys(f"lake/{topic}/") if "/_staging/" in key or "/_probe" in key] == []
    assert s3.uploads() == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"to": "s3://lake/x"}, r"loads into files need .* atomic rename.*format=delta.*delta,s3.*iceberg:NAMESPACE"),
        ({"to": "s3a://lake/x", "format": "json"}, "loads into files need"),
        ({"to": "gs://lake/x"}, r"'pykafka-spark\[delta,gcs\]'"),
        ({"to": "abfss://c@a.dfs.core.windows.net/x"}, r"'pykafka-spark\[delta,azure\]'"),
        (
            {"to": "s3://lake/x", "format": "delta", "storage_options": {"x": "hush-hush"}},
            "storage option x: s3:// takes",
        ),
        ({"to": "sqlite:///x.db#a", "storage_options": {"key": "x"}}, "are for directories and object stores"),
    ],
)
def test_what_cannot_be_is_one_clear_error(spark: SparkSession, arguments: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        load(spark, bootstrap_servers="localhost:1", topic="t", group="g", **arguments)
    assert "hush-hush" not in str(raised.value)


def test_the_environment_is_enough_for_the_commands(
    broker: Kafka, topic: str, s3: FakeS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    data = TopicData(broker.bootstrap, topic, partitions=1)
    data.produce(5)
    to, group = f"s3://lake/{topic}", f"g-{topic}"
    where = ["--to", to, "--group", group, "--format", "delta"]
    cluster = ["--bootstrap-server", data.bootstrap]
    first = json.loads(answer_of("load", "--topic", topic, *where, *cluster, "--json"))
    data.produce(5)
    assert json.loads(answer_of("load", "--topic", topic, *where, *cluster, "--json"))["rows"] == 5
    assert len(json.loads(answer_of("loads", "--json", *where))) == 2
    answer_of("loads", "verify", *where, *cluster)
    answer_of("loads", "rewind", *where, "--to-load", first["load_id"], "--yes")
    store = {"aws_endpoint": s3.url, "aws_region": "us-east-1", "allow_http": "true"}
    assert DeltaTable(to, storage_options=store).to_pyarrow_table().num_rows == 5


def test_dead_letters_in_another_kind_of_storage_take_its_options_from_the_environment(
    s3: FakeS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    loads = cast("Destination", SimpleNamespace(url="hdfs://namenode:1/x"))
    target = Target(loads.url, "g", storage_options={"dfs.client.use.datanode.hostname": "true"}, format="parquet")
    in_s3 = Target("s3a://lake/loads", "g", storage_options={"x": "y"})
    place = DeadLetterPlace.parse("delta:s3://lake/bad")
    with open_dead_letters(place, target, loads) as letters:
        assert letters.name == "delta:s3://lake/bad"
        assert letters.table.log.newest().sequence == 0
    with pytest.raises(ConfigError, match="storage option x: s3:// takes"), open_dead_letters(place, in_s3, loads):
        pass

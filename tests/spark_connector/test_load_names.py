"""Loads into directories whose names hold characters that URLs, patterns and shells mean something by."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from broker.errors import ConfigError
from spark_connector.load import load
from spark_connector.loads.request import Target
from spark_connector.maintenance import history, rewind, verify
from tests.support.kafka import Kafka
from tests.support.topic_data import TopicData

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize(
    ("format", "name"),
    [
        ("avro", "a#b"),
        ("avro", "a?b"),
        ("avro", "a\tb c"),
        ("json", "a*b"),
        ("json", "{a[b]\\"),
        ("orc", "a{b,c}?#%20ä"),
        ("parquet", "a*b#c?d[e]"),
        ("delta", "a b*{ä}"),
    ],
)
def test_a_load_goes_to_the_directory_of_this_name_and_to_no_other(
    spark: SparkSession, broker: Kafka, topic: str, tmp_path: Path, format: str, name: str
) -> None:
    data = TopicData(broker.bootstrap, topic, partitions=1)
    to = f"file://{tmp_path}/{name}/"
    common: dict[str, Any] = {"bootstrap_servers": broker.bootstrap, "topic": topic, "group": "g", "format": format}
    data.produce(3)
    (tmp_path / "ab").mkdir()
    (tmp_path / "ab" / "part-0.json").write_text('{"topic": "x", "partition": 0, "offset": 7}\n')  # a pattern finds it
    first = load(spark, to=to, **common)
    data.produce(2)
    assert (first.rows, load(spark, to=to, **common).rows, load(spark, to=to, **common).rows) == (3, 2, 0)
    assert {path.name for path in tmp_path.iterdir()} == {"ab", name}
    target = Target(str(tmp_path / name), "g", format=format)
    found = verify(target, broker.bootstrap, session=lambda: spark)
    assert found.ok, found
    assert [sum(count.file_rows for count in one.partitions) for one in found.loads] == [3, 2]
    assert rewind(target, str(first.load_id)) is not None
    assert [entry.record.rows for entry in history(target).entries][:2] == [3, 2]
    assert load(spark, to=to, **common).rows == 2


@pytest.mark.parametrize("name", ["a#b", "a\tb", "a\nb"])
def test_a_delta_table_that_its_library_would_put_elsewhere_is_refused(
    spark: SparkSession, broker: Kafka, topic: str, tmp_path: Path, name: str
) -> None:
    with pytest.raises(ConfigError, match="the name of a Delta table's directory cannot hold a"):
        load(spark, to=str(tmp_path / name), bootstrap_servers=broker.bootstrap, topic=topic, group="g", format="delta")
    assert list(tmp_path.iterdir()) == []


def test_a_load_is_refused_in_the_output_of_a_stream_and_in_the_format_of_another_group(
    spark: SparkSession, broker: Kafka, topic: str, tmp_path: Path
) -> None:
    data = TopicData(broker.bootstrap, topic, partitions=1)
    data.produce(3)
    common: dict[str, Any] = {"bootstrap_servers": broker.bootstrap, "topic": topic}
    (tmp_path / "stream" / "_spark_metadata").mkdir(parents=True)
    with pytest.raises(ConfigError, match="is the output of a Spark stream"):
        load(spark, to=str(tmp_path / "stream"), group="g", **common)
    assert [path.name for path in (tmp_path / "stream").iterdir()] == ["_spark_metadata"]
    assert load(spark, to=str(tmp_path / "out"), group="g", **common).rows == 3
    with pytest.raises(ConfigError, match="holds loads in parquet so far, not in json"):
        load(spark, to=str(tmp_path / "out"), group="h", format="json", new_group=True, **common)
    data.produce(2)
    assert load(spark, to=str(tmp_path / "out"), group="g", **common).rows == 2
    target = Target(str(tmp_path / "out"), "g")
    rewind(target, str(history(target).entries[0].record.load_id))
    with pytest.raises(ConfigError, match="holds loads in parquet so far, not in json"):
        load(spark, to=str(tmp_path / "out"), group="g", format="json", **common)
    assert load(spark, to=str(tmp_path / "out"), group="g", **common).rows == 2
    with pytest.raises(ConfigError, match="the output of other loads"):
        load(spark, to=str(tmp_path / "out" / "sub"), group="h", **common)

"""A query that moves here from Spark's own kafka source: on its checkpoint it is told where to continue.

Spark's source is an extra jar, which is not here. What it writes is one line of `offsets/N`, so the checkpoint is that
of a real query in which this line is Spark's.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from tests.support.kafka import Kafka
from tests.support.topic_data import TopicData

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Queries:
    """Queries over one topic; each gives its offsets to a directory of JSON."""

    def __init__(self, spark: SparkSession, data: TopicData, to: Path) -> None:
        self._spark, self._data, self._to = spark, data, to

    def run(self, checkpoint: Path, **options: str) -> None:
        reader = self._spark.readStream.format("pykafka").options(**options)
        reader = reader.option("kafka.bootstrap.servers", self._data.bootstrap).option("subscribe", self._data.topic)
        writer = reader.load().select("partition", "offset").writeStream.format("json")
        writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        writer.start(str(self._to / checkpoint.name)).awaitTermination()

    def error(self, checkpoint: Path) -> str:
        with pytest.raises(StreamingQueryException) as caught:
            self.run(checkpoint)
        return str(caught.value)

    def read(self, checkpoint: Path) -> list[tuple[int, int]]:
        rows = self._spark.read.schema("partition int, offset long").json(str(self._to / checkpoint.name)).collect()
        return sorted((row.partition, row.offset) for row in rows)


def make_foreign(checkpoint: Path) -> dict[int, dict[str, int]]:
    """Replace the offsets of every batch by those that Spark's source writes; gives them by batch."""
    found = {}
    for path in (checkpoint / "offsets").glob("[0-9]*"):
        *lines, last = path.read_text().splitlines()
        topics = json.loads(last)["topics"]
        path.write_text("\n".join([*lines, json.dumps(topics, separators=(",", ":"))]))
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
        (found[int(path.name)],) = topics.values()
    return found


def forget_last_commit(checkpoint: Path, to: Path) -> None:
    """Also in the log of the sink, which would pass over the batch."""
    for log in (checkpoint / "commits", to / checkpoint.name / "_spark_metadata"):
        last = max(log.glob("[0-9]*"), key=lambda path: int(path.name))
        last.unlink()
        last.with_name(f".{last.name}.crc").unlink(missing_ok=True)


@pytest.mark.parametrize("finished", [True, False])
def test_the_offsets_to_continue_from_are_in_the_error_and_lose_and_double_nothing(
    spark: SparkSession, broker: Kafka, topic: str, tmp_path: Path, finished: bool
) -> None:
    data = TopicData(broker.bootstrap, topic, partitions=2)
    queries, old, new = Queries(spark, data, tmp_path / "out"), tmp_path / "old", tmp_path / "new"
    for _ in range(2):
        data.produce(4)
        queries.run(old, startingOffsets="earliest")
    ends = make_foreign(old)
    if not finished:
        forget_last_commit(old, tmp_path / "out")
    at = ends[1 if finished else 0]
    data.produce(6)
    error = queries.error(old)
    assert "PYKAFKA_CHECKPOINT_UNREADABLE" in error
    (told,) = set(re.findall(r"""option\("startingOffsets", '(\{.*?\}\})'\)""", error))
    assert json.loads(told) == {topic: at}
    queries.run(new, startingOffsets=told)
    assert queries.read(new) == [(n, offset) for n in range(2) for offset in range(at[str(n)], data.ends[n])]


def test_a_first_batch_that_did_not_finish_is_not_passed_over(
    spark: SparkSession, broker: Kafka, topic: str, tmp_path: Path
) -> None:
    data = TopicData(broker.bootstrap, topic, partitions=2)
    queries, old = Queries(spark, data, tmp_path / "out"), tmp_path / "old"
    data.produce(4)
    queries.run(old, startingOffsets="earliest")
    make_foreign(old)
    forget_last_commit(old, tmp_path / "out")
    error = queries.error(old)
    assert "first batch did not finish" in error
    assert "sources/0/0" in error
    assert 'option("startingOffsets"' not in error

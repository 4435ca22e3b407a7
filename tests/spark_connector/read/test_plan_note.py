"""What a batch query says when it is planned: once, in the process that Spark has started, and only there."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from broker.protocol.topic_partition import TopicPartition
from spark_connector.options.read_options import Mode, parse_options
from spark_connector.read import plan_note
from spark_connector.read.plan_note import PLAN_VARIABLE, describe_plan, tell_plan
from spark_connector.read.planning import OffsetRange
from spark_connector.read.readers import KafkaBatchReader
from tests.support.kafka import Kafka
from tests.support.source_tree import ROOT
from tests.support.topics import Topic

_QUERIES = """
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
options = {"kafka.bootstrap.servers": sys.argv[1], "subscribe": sys.argv[2], "startingOffsets": "earliest"}
frame = spark.read.format("pykafka").options(**options).load()
print(frame.count())
stream = spark.readStream.format("pykafka").options(**options).load()
stream.writeStream.format("noop").trigger(availableNow=True).start().awaitTermination()
"""


def ranges(*sizes: int, topics: int = 1) -> list[OffsetRange]:
    return [
        OffsetRange(TopicPartition(f"t{number % topics}", number // topics), 5, 5 + size)
        for number, size in enumerate(sizes)
    ]


@pytest.mark.parametrize(
    ("planned", "said"),
    [
        ([], "0 topics, 0 partitions, 0 records"),
        (ranges(1), "1 topic, 1 partition, 1 record"),
        (ranges(9_999), "1 topic, 1 partition, 9,999 records"),
        (ranges(12_345), "1 topic, 1 partition, 12 k records"),
        (ranges(*[100_000] * 12, topics=3), "3 topics, 12 partitions, 1.2 M records"),
        (ranges(3_000_000_000_000), "1 topic, 1 partition, 3,000 G records"),
    ],
)
def test_topics_partitions_and_records_are_counted(planned: list[OffsetRange], said: str) -> None:
    assert describe_plan(planned) == said


def test_only_a_process_of_sparks_says_it_and_only_if_it_may(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tell_plan(ranges(3))
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(plan_note, "in_spark_worker", lambda: True)
    tell_plan(ranges(3), beside=["a.parquet"])
    assert capsys.readouterr() == ("", "pykafka: 1 topic, 1 partition, 3 records beside 1 file of the table\n")
    monkeypatch.setenv(PLAN_VARIABLE, "0")
    tell_plan(ranges(3))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("state", ["closed", "none", "broken"])
def test_without_a_standard_error_nothing_fails_and_nothing_is_printed(
    state: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plan_note, "in_spark_worker", lambda: True)
    read_end, write_end = os.pipe()
    os.close(read_end)
    stream = open(write_end, "w", buffering=1)  # noqa: SIM115 - of a pipe that nobody reads
    if state == "closed":
        monkeypatch.setattr(sys, "stderr", closed := io.StringIO())
        closed.close()
    else:
        monkeypatch.setattr(sys, "stderr", stream if state == "broken" else None)
    tell_plan(ranges(3))
    assert capsys.readouterr().out == ""
    with contextlib.suppress(BrokenPipeError):
        stream.close()


def test_a_batch_says_it_when_it_is_planned(
    broker: Kafka, topic: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Topic(broker.bootstrap, topic, 2).produce([b"a", b"b", b"c"], partition=1)
    options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    reader = KafkaBatchReader(parse_options(options, Mode.BATCH))
    monkeypatch.setattr(plan_note, "in_spark_worker", lambda: True)
    reader.partitions()
    assert capsys.readouterr().err == "pykafka: 1 topic, 2 partitions, 3 records\n"


@pytest.mark.slow  # a Spark of its own, whose standard error is read
def test_a_query_says_it_once_on_the_drivers_standard_error_and_a_stream_does_not(
    broker: Kafka, topic: str, tmp_path: Path
) -> None:
    Topic(broker.bootstrap, topic, 2).produce([b"a", b"b", b"c"], partition=1)
    program = tmp_path / "queries.py"
    program.write_text(_QUERIES)
    command = [sys.executable, str(program), broker.bootstrap, topic]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=True)
    assert done.stdout == "3\n"
    assert [line for line in done.stderr.splitlines() if "pykafka: " in line] == [
        "pykafka: 1 topic, 2 partitions, 3 records"
    ]

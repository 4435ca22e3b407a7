"""Spark Declarative Pipelines (Spark 4.1 and newer): a streaming table from a topic, and a sink into one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.client.producer import Producer
from tests.support.committed_records import committed_values
from tests.support.kafka import Kafka
from tests.support.spark_versions import since_spark

PIPELINE = """
name: flights
storage: file://{directory}/storage
libraries:
  - glob:
      include: flights.py
"""
DEFINITIONS = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()
servers = {{"kafka.bootstrap.servers": "{bootstrap}"}}


@dp.table
def arrivals():
    return spark.readStream.format("pykafka").options(subscribe="{topic}", startingOffsets="earliest", **servers).load()


dp.create_sink("late", "pykafka", {{**servers, "topic": "{topic}-late"}})


@dp.append_flow(target="late")
def late_arrivals():
    return spark.readStream.table("arrivals").where("value LIKE '%late'").select("key", "value")
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
@since_spark("4.1", "declarative pipelines")
def test_a_pipeline_reads_one_topic_and_writes_another(broker: Kafka, topic: str, tmp_path: Path) -> None:
    with Cluster(broker.bootstrap) as cluster:
        for name in (topic, f"{topic}-late"):
            Admin(cluster).create_topic(name, 1)
        with Producer(broker.bootstrap) as producer:
            for number in range(100):
                producer.send(topic, b"%d %s" % (number, b"late" if number % 4 == 0 else b"on time"))
        (tmp_path / "spark-pipeline.yml").write_text(PIPELINE.format(directory=tmp_path), encoding="utf-8")
        definitions = DEFINITIONS.format(bootstrap=broker.bootstrap, topic=topic)
        (tmp_path / "flights.py").write_text(definitions, encoding="utf-8")
        program = Path(sys.executable).with_name("spark-pipelines")
        environment = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}
        done = subprocess.run([program, "run"], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        wanted = [b"%d late" % number for number in range(0, 100, 4)]
        assert committed_values(broker.bootstrap, f"{topic}-late") == sorted(wanted)

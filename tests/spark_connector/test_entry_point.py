"""What Spark shows of an error: one sentence for what we raise on purpose, the traceback for a bug."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from broker.errors import ConfigError
from spark_connector import spark_worker
from spark_connector.entry_point import entry_point
from tests.support.broker_process import BrokerProcess
from tests.support.free_ports import refused_port
from tests.support.kafka import Kafka
from tests.support.source_tree import ROOT
from tests.support.topics import Topic

SPARKS_OWN = ("[", "An exception was thrown from the Python worker", "SQLSTATE")
"""How the other lines of an error begin; what Spark says of a streaming query comes behind them."""

Query = Callable[[SparkSession, dict[str, str]], object]


def read(spark: SparkSession, options: dict[str, str]) -> DataFrame:
    return spark.read.format("pykafka").options(**options).load()


def batch(spark: SparkSession, options: dict[str, str]) -> object:
    return read(spark, options).count()


def stream(spark: SparkSession, options: dict[str, str]) -> object:
    found = spark.readStream.format("pykafka").options(**options).load()
    query = found.writeStream.format("noop").trigger(availableNow=True).start()
    return query.awaitTermination()


def write(spark: SparkSession, options: dict[str, str], columns: str = "'a' value") -> None:
    given = {name: value for name, value in options.items() if name != "subscribe"}
    rows = spark.range(1).selectExpr(*columns.split(", "))
    rows.write.format("pykafka").mode("append").options(**given).save()


def stream_write(spark: SparkSession, options: dict[str, str]) -> object:
    given = {name: value for name, value in options.items() if name != "subscribe"}
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", "1").load().selectExpr("'a' value")
    written = rows.writeStream.format("pykafka").options(**given).trigger(once=True)
    return written.start().awaitTermination()


WRONG: dict[str, tuple[Query, dict[str, str], str]] = {
    "offsets that are no JSON": (batch, {"startingOffsets": '{"t":{0:1}'}, "Option 'startingOffsets' is not JSON"),
    "unknown option of a write": (write, {"topik": "t"}, "Unknown option 'topik'"),
    "missing topic of a stream": (stream, {"subscribe": "no-such-topic"}, "there is no topic 'no-such-topic'"),
    "missing topic of a write": (write, {"topic": "no-such-topic"}, "there is no topic 'no-such-topic'"),
    "missing topic of a sink": (stream_write, {"topic": "no-such-topic"}, "there is no topic 'no-such-topic'"),
    "no topic to write to": (write, {}, "topic"),
    "offset out of range": (stream, {"startingOffsets": '{"TOPIC":{"0":1000}}'}, "KAFKA_DATA_LOSS"),
    "no schema": (batch, {"valueFormat": "json", "valueSchema": "x notatype"}, "'notatype' is not a type"),
    "missing column": (
        lambda spark, options: write(spark, options, "'a' valeu"),
        {"topic": "TOPIC"},
        "'value' not found",
    ),
    "a partition that is not there, in a task": (
        lambda spark, options: write(spark, options, "'a' value, 77 partition"),
        {"topic": "TOPIC"},
        "77 is not in the range",
    ),
    "TLS to a plaintext port": (batch, {"kafka.security.protocol": "SSL"}, "TLS"),
}


@pytest.mark.parametrize(("query", "changes", "sentence"), WRONG.values(), ids=list(WRONG))
def test_what_is_wrong_is_told_in_one_sentence(
    spark: SparkSession, broker: Kafka, topic: str, query: Query, changes: dict[str, str], sentence: str, tmp_path: Path
) -> None:
    Topic(broker.bootstrap, topic).number(10)
    options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic}
    if query is stream_write:
        options["checkpointLocation"] = str(tmp_path)
    options |= {name: value.replace("TOPIC", topic) for name, value in changes.items()}
    with pytest.raises(PySparkException) as raised:
        query(spark, options)
    lines = str(raised.value).partition("=== Streaming Query ===")[0].splitlines()
    told = [line for line in lines if sentence in line]
    others = [line for line in lines if line not in told]
    assert len(told) == 1, str(raised.value)
    assert all(line.strip().startswith(SPARKS_OWN) for line in others), str(raised.value)


@pytest.mark.parametrize("query", [batch, stream_write])
def test_an_address_where_nothing_listens_is_named_after_seconds(
    spark: SparkSession, query: Query, tmp_path: Path
) -> None:
    with refused_port() as port:
        address = f"127.0.0.1:{port}"
        options = {"kafka.bootstrap.servers": address}
        options |= {"subscribe": "t"} if query is batch else {"topic": "t", "checkpointLocation": str(tmp_path)}
        started = time.monotonic()
        with pytest.raises(
            PySparkException, match=f"no broker of bootstrap.servers could be reached.*{address}"
        ) as raised:
            query(spark, options)
        assert "Traceback" not in str(raised.value)
        assert time.monotonic() - started < 45, "Kafka's clients take a minute"


def test_a_sink_waits_for_a_broker_that_its_application_has_reached(
    spark: SparkSession, broker_factory: Callable[..., BrokerProcess], tmp_path: Path
) -> None:
    """Each micro-batch is planned in a new process, which must not take a restart for a mistyped address."""
    own = broker_factory()
    there = Topic(own.bootstrap, "sunk")
    there.number(1)
    options = {"kafka.bootstrap.servers": own.bootstrap, "topic": "sunk", "checkpointLocation": str(tmp_path)}
    stream_write(spark, options)
    own.kill()
    with subprocess.Popen(["sleep", "8"]) as later:  # longer than a first contact
        query = (
            spark.readStream.format("rate-micro-batch")
            .option("rowsPerBatch", "1")
            .load()
            .selectExpr("'a' value")
            .writeStream.format("pykafka")
            .options(**options)
            .trigger(once=True)
            .start()
        )
        later.wait()
        own.start()
        query.awaitTermination()
    assert query.exception() is None


class TestInASparkWorker:
    @pytest.fixture(autouse=True)
    def worker(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        monkeypatch.delenv("SPARK_HIDE_TRACEBACK", raising=False)
        monkeypatch.setattr("spark_connector.spark_worker.in_spark_worker", lambda: True)
        monkeypatch.setattr("spark_connector.entry_point.in_spark_worker", lambda: True)
        monkeypatch.setattr(spark_worker, "_hidden", False)
        yield
        os.environ.pop("SPARK_HIDE_TRACEBACK", None)

    def fail(self, error: Exception, *, lazily: bool = False) -> str | None:
        """Whether Spark is asked to hide the traceback when an entry point raises `error`."""

        def items() -> Iterator[int]:
            yield 1
            raise error

        def method() -> Iterator[int]:
            if lazily:
                return items()
            raise error

        with pytest.raises(type(error)):
            list(entry_point(method)())
        return os.environ.get("SPARK_HIDE_TRACEBACK")

    @pytest.mark.parametrize("lazily", [False, True])
    def test_the_traceback_of_our_own_error_is_hidden_and_that_of_a_bug_is_not(self, lazily: bool) -> None:
        assert self.fail(ConfigError("wrong"), lazily=lazily) == "1"
        assert self.fail(KeyError("bug"), lazily=lazily) is None

    def test_a_setting_of_the_user_stays(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "yes")
        assert self.fail(ConfigError("wrong")) == "yes"
        assert self.fail(KeyError("bug")) == "yes"


def test_in_the_users_own_process_nothing_is_hidden() -> None:
    with pytest.raises(ConfigError) as raised:
        entry_point(lambda: int(_refuse()))()
    assert "_refuse" in [entry.name for entry in raised.traceback]
    assert "SPARK_HIDE_TRACEBACK" not in os.environ


def _refuse() -> str:
    raise ConfigError("no")


def test_a_python_of_sparks_without_what_pykafka_needs_is_named_with_the_way_out(tmp_path: Path) -> None:
    """As in a clone whose Python workers run the system's Python: the files are found there, kio is not."""
    program = """
        import sys
        sys.modules["kio"] = None
        import pyspark_pykafka
        try:
            pyspark_pykafka.DefaultSource({}).schema()
        except ImportError as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.startswith(f"Spark runs its Python code with {sys.executable}, which has no module 'kio"), done
    assert "export PYSPARK_PYTHON=" in done.stdout

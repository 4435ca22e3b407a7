"""Spark against brokers with TLS and logins, by the options of Spark's own source; secrets stay secret."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from spark_connector.options.read_options import Mode, parse_options
from spark_connector.options.write_options import parse_write_options
from spark_connector.read.readers import KafkaBatchReader, make_reader
from tests.support.all_available import take_all
from tests.support.committed_records import committed_values
from tests.support.secured import (
    PLAIN_PASSWORD,
    PLAIN_USER,
    SCRAM_PASSWORD,
    SCRAM_USER,
    SECRETS,
    Certificates,
    SecuredBroker,
)
from tests.support.topics import Topic

WRONG = "wrong-s3cret"
QUICKLY = 45.0  # seconds until a refused login or certificate must have been an error twice, on a busy machine


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, zookeeper: str) -> Iterator[SecuredBroker]:
    directory = tmp_path_factory.mktemp("secured")
    certificates = Certificates.make(directory)
    with SecuredBroker(directory / "data", certificates, f"{zookeeper}/spark-secured") as process:
        yield process


def login(module: str, user: str, password: str) -> str:
    return f'org.apache.kafka.common.security.{module} required username="{user}" password="{password}";'


def sasl_ssl(broker: SecuredBroker, password: str = SCRAM_PASSWORD, ca: Path | None = None) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": broker.listeners["SASL_SSL"],
        "kafka.security.protocol": "SASL_SSL",
        "kafka.ssl.truststore.location": str(ca or broker.certificates.ca),
        "kafka.ssl.truststore.type": "PEM",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": login("scram.ScramLoginModule", SCRAM_USER, password),
    }


def sasl_plaintext(broker: SecuredBroker) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": broker.listeners["SASL_PLAINTEXT"],
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.jaas.config": login("plain.PlainLoginModule", PLAIN_USER, PLAIN_PASSWORD),
    }


def client_certificate(broker: SecuredBroker) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": broker.listeners["MTLS"],
        "kafka.security.protocol": "SSL",
        "kafka.ssl.truststore.certificates": broker.certificates.ca.read_text(),
        "kafka.ssl.keystore.location": str(broker.certificates.client),
        "kafka.ssl.keystore.type": "PEM",
    }


@pytest.fixture
def numbers(secured: SecuredBroker, topic: str) -> dict[str, str]:
    """The options that name a topic of 30 records."""
    Topic(secured.listeners["PLAINTEXT"], topic).number(30)
    return {"subscribe": topic, "startingOffsets": "earliest"}


def to_files(spark: SparkSession, options: dict[str, str], home: Path) -> DataStreamWriter:
    writer = spark.readStream.format("pykafka").options(**options).load().writeStream.format("parquet")
    where = {"path": str(home / "output"), "checkpointLocation": str(home / "checkpoint")}
    return writer.options(**where)


@pytest.mark.parametrize("way", [sasl_ssl, sasl_plaintext, client_certificate], ids=lambda way: way.__name__)
def test_batch_stream_and_the_store_of_offsets(
    spark: SparkSession,
    secured: SecuredBroker,
    numbers: dict[str, str],
    way: Callable[[SecuredBroker], dict[str, str]],
    group: str,
    tmp_path: Path,
) -> None:
    options = {**numbers, **way(secured)}
    assert spark.read.format("pykafka").options(**options).load().count() == 30
    take_all(to_files(spark, {**options, "offsetStore": "group", "group": group}, tmp_path))
    assert spark.read.parquet(str(tmp_path / "output")).count() == 30
    consumer = Consumer({"bootstrap.servers": secured.listeners["PLAINTEXT"], "group.id": group})
    (found,) = consumer.committed([TopicPartition(numbers["subscribe"], 0)], 30)
    consumer.close()
    assert found.offset == 30


def test_batch_and_exactly_once_stream_are_written_over_tls_and_scram(
    spark: SparkSession, secured: SecuredBroker, numbers: dict[str, str], topic: str, tmp_path: Path
) -> None:
    Topic(secured.listeners["PLAINTEXT"], f"{topic}-copy")
    read, target = {**numbers, **sasl_ssl(secured)}, {**sasl_ssl(secured), "topic": f"{topic}-copy"}
    rows = spark.range(5, numPartitions=1).selectExpr("concat('batch ', id) AS value")
    rows.write.format("pykafka").options(**target).mode("append").save()
    stream = spark.readStream.format("pykafka").options(**read).load().select("value").writeStream.format("pykafka")
    stream = stream.options(**target, delivery="exactly-once", checkpointLocation=str(tmp_path))
    take_all(stream)
    back = spark.read.format("pykafka").options(**{**read, "subscribe": f"{topic}-copy"}).load()
    found = sorted(bytes(row.value) for row in back.select("value").collect())
    source = committed_values(secured.listeners["PLAINTEXT"], topic)
    assert found == sorted([b"batch %d" % n for n in range(5)] + source)
    assert len(found) == 35


@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
def test_a_write_with_a_wrong_password_is_an_error_at_once_that_tells_no_secret(
    spark: SparkSession,
    secured: SecuredBroker,
    numbers: dict[str, str],
    delivery: str,
    tmp_path: Path,
) -> None:
    target = {**sasl_ssl(secured, WRONG), "topic": numbers["subscribe"], "delivery": delivery}
    began = time.monotonic()
    with pytest.raises(PySparkException, match=r"(?i)authentication") as batch:
        spark.range(3).selectExpr("'v' AS value").write.format("pykafka").options(**target).mode("append").save()
    stream = spark.readStream.format("pykafka").options(**{**numbers, **sasl_ssl(secured)}).load().select("value")
    writer = stream.writeStream.format("pykafka").options(**target, checkpointLocation=str(tmp_path))
    query = writer.trigger(availableNow=True).start()
    with pytest.raises(StreamingQueryException, match=r"(?i)authentication") as written:
        query.awaitTermination(100)
    assert time.monotonic() - began < QUICKLY
    assert_no_secret(f"{batch.value}\n{written.value}\n{query.exception()}\n{written.value!r}")
    assert len(committed_values(secured.listeners["PLAINTEXT"], numbers["subscribe"])) == 30


def test_nothing_that_is_shown_of_a_query_has_a_secret(
    spark: SparkSession, secured: SecuredBroker, numbers: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    options = {**numbers, **sasl_ssl(secured)}
    frame = spark.read.format("pykafka").options(**options).load().where("offset > 3")
    stream = spark.readStream.format("pykafka").options(**options).load()
    frame.createOrReplaceTempView("secured")
    for one in (frame, stream):
        one.explain(True)
        one.explain("formatted")
    spark.sql("EXPLAIN EXTENDED SELECT count(*) FROM secured").show(truncate=False)
    spark.sql("DESCRIBE EXTENDED secured").show(truncate=False)
    shown = [capsys.readouterr().out, *_plans(frame), *_plans(stream)]
    for read in (
        KafkaBatchReader(parse_options(options, Mode.BATCH)),
        make_reader(parse_options(options, Mode.STREAM)),
    ):
        shown += [str(read), repr(read), str(vars(read))]
    shown.append(repr(parse_options({**options, "offsetStore": "group", "group": "g"}, Mode.STREAM)))
    assert "pykafka" in shown[0]
    assert_no_secret("\n".join(shown))


def test_options_are_pickled_with_their_secrets_for_executors_must_log_in_too(secured: SecuredBroker) -> None:
    options = parse_options({"subscribe": "t", **sasl_ssl(secured)}, Mode.BATCH)
    assert pickle.loads(pickle.dumps(options)) == options
    assert SCRAM_PASSWORD.encode() in pickle.dumps(options)


@pytest.mark.parametrize("refused", ["password", "authority"])
def test_a_refused_login_or_certificate_is_an_error_at_once_that_tells_no_secret(
    spark: SparkSession, secured: SecuredBroker, numbers: dict[str, str], refused: str, tmp_path: Path
) -> None:
    changed: dict[str, Any] = {"password": WRONG} if refused == "password" else {"ca": secured.certificates.stranger_ca}
    says = r"(?i)authentication" if refused == "password" else r"(?i)certificate"
    options = {**numbers, **sasl_ssl(secured, **changed)}
    began = time.monotonic()
    with pytest.raises(PySparkException, match=says) as batch:
        spark.read.format("pykafka").options(**options).load().count()
    query = to_files(spark, options, tmp_path).trigger(availableNow=True).start()
    with pytest.raises(StreamingQueryException, match=says) as stream:
        query.awaitTermination(100)
    assert time.monotonic() - began < QUICKLY
    assert_no_secret(f"{batch.value}\n{stream.value}\n{query.exception()}\n{stream.value!r}")


@pytest.mark.parametrize(
    "wrong", [{"kafka.sasl.jaas.config": f'nonsense password="{WRONG}"'}, {"kafka.sasl.mechanism": "GSSAPI"}]
)
def test_a_login_that_cannot_be_read_is_refused_without_showing_it(
    secured: SecuredBroker, wrong: dict[str, str]
) -> None:
    options = {**sasl_ssl(secured), **wrong}
    with pytest.raises(ValueError, match="sasl") as reading:
        parse_options({"subscribe": "t", **options}, Mode.ANY)
    with pytest.raises(ValueError, match="sasl") as writing:
        parse_write_options({"topic": "t", **options}, stream=False)
    assert_no_secret(f"{reading.value!r} {writing.value!r}")


def _plans(frame: DataFrame) -> list[str]:
    """The plan as Spark's event log and UI have it, and as its debugging aids."""
    execution = frame._jdf.queryExecution()
    return [execution.toString(), execution.logical().toJSON(), execution.analyzed().toJSON(), repr(frame), str(frame)]


def assert_no_secret(text: str) -> None:
    for secret in (*SECRETS, WRONG, "PRIVATE KEY"):
        assert secret not in text

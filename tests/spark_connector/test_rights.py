"""The rights that jobs need (tests/support/job_rights.py), on a broker that denies all else.

With its rights a job works. Without any one of them it fails at once with an error that says which right who lacks on
what, or goes on as the table says. All of it in this process, as Spark's driver and tasks do it; then one run of each
job by Spark itself.
"""

from __future__ import annotations

import dataclasses
import logging
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from broker.errors import BrokerError, PykafkaError
from broker.security.acl_types import AclOperation, AclResourceType
from spark_connector.load import load
from spark_connector.watch import watch
from spark_connector.worker_clients import worker_clients
from tests.conftest import unique_name
from tests.support.all_available import take_all
from tests.support.committed_records import committed_values
from tests.support.denying import Denying, denying_kafka
from tests.support.job_rights import JOBS, LIMIT, NOT_MOVED, PUBLISH, READ, SIZES, WRITE_IDS, Job, Right
from tests.support.right_jobs import RECORDS, RUNS, World, mirror_names
from tests.support.source_tree import ROOT
from tests.support.topic_data import TopicData
from tests.support.topics import Topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

AT_ONCE_S = 20.0
"""In which a denied job has failed, on a busy machine; a retry would go on for a minute."""

NO_SPARK = ("verify", "mirror, at the source", "mirror, at the target")
CONNECTOR_JOBS = [job for job in JOBS if job.name in RUNS]

IMPLIED = {
    AclOperation.READ: AclOperation.DESCRIBE,
    AclOperation.WRITE: AclOperation.DESCRIBE,
    AclOperation.ALTER_CONFIGS: AclOperation.DESCRIBE_CONFIGS,
}
SAYS = {
    SIZES: "Brokers do not report sizes",
    LIMIT: "the brokers do not report their transaction.max.timeout.ms",
    PUBLISH: "its offsets were not published to the consumer group",
}
"""What the log has of a right that is lacking."""


@pytest.fixture(scope="module")
def denying(tmp_path_factory: pytest.TempPathFactory, foreign_guarded: tuple[str, str] | None) -> Iterator[Denying]:
    with denying_kafka(tmp_path_factory.mktemp("denying") / "data", foreign_guarded) as found:
        yield found
        worker_clients().close()


@pytest.fixture(scope="module")
def topics(denying: Denying) -> dict[str, str]:
    """Those that all tests share: what they read is the same for all, and what they write nobody reads."""
    names = {name: unique_name(f"rights-{name}") for name in ("topic", "sink", "bad")}
    data = TopicData(denying.listeners["PLAINTEXT"], names["topic"], partitions=2)
    data.produce(RECORDS)
    for name in ("sink", "bad"):
        Topic(denying.listeners["PLAINTEXT"], names[name])
    return names


@pytest.fixture
def world(denying: Denying, topics: dict[str, str], group: str, tmp_path: Path) -> World:
    prefix = unique_name("sink") + "-"
    names = {**topics, "group": group, "prefix": prefix}
    return World(denying, {**names, **mirror_names(names)}, tmp_path)


def without(job: Job, right: Right) -> list[Right]:
    return [one for one in job.rights if one is not right]


def _implied(right: Right) -> AclOperation:
    """What a job may ask for first."""
    return IMPLIED.get(right.operation, right.operation)


def cases(rights: Callable[[Job], Iterable[Right]]) -> list[Any]:
    return [pytest.param(job, right, id=f"{job.name}-{right}") for job in CONNECTOR_JOBS for right in rights(job)]


NEEDED = cases(lambda job: job.needed)
MORE_THAN_DESCRIBE = cases(lambda job: (one for one in job.needed if _implied(one) is not one.operation))
OPTIONAL = cases(lambda job: job.optional)


@pytest.mark.parametrize("job", CONNECTOR_JOBS, ids=lambda job: job.name)
def test_a_job_works_with_its_rights(world: World, job: Job, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "pykafka.spark"):
        assert RUNS[job.name](world, world.broker.user(job.rights, world.names)) == RECORDS
    assert "AUTHORIZATION_FAILED" not in caplog.text


@pytest.mark.parametrize("job", CONNECTOR_JOBS, ids=lambda job: job.name)
def test_the_rights_that_it_must_have_are_enough(world: World, job: Job) -> None:
    assert RUNS[job.name](world, world.broker.user(job.needed, world.names)) == RECORDS


@pytest.mark.parametrize(("job", "right"), NEEDED)
def test_without_a_right_it_fails_at_once_and_says_which_one(world: World, job: Job, right: Right) -> None:
    user = world.broker.user(without(job, right), world.names)
    began = time.monotonic()
    with pytest.raises(BrokerError) as caught:
        RUNS[job.name](world, user)
    assert time.monotonic() - began < AT_ONCE_S
    assert not caught.value.retriable
    pattern, text = right.place.pattern_of(world.names), str(caught.value)
    kind = {AclResourceType.TRANSACTIONAL_ID: "transactional id"}.get(pattern.type, pattern.type.title.lower())
    lacks = {f"User:{user} lacks {one.title} on {kind} {pattern.name}" for one in (right.operation, _implied(right))}
    assert any(one in text for one in lacks), text
    assert f"an admin grants it with: pykafka acls add --allow-principal User:{user} --operation" in text
    assert world.broker.properties(user)["sasl.password"] not in text


@pytest.mark.parametrize(("job", "right"), MORE_THAN_DESCRIBE)
def test_with_describe_alone_it_fails_where_it_needs_more(world: World, job: Job, right: Right) -> None:
    """The lookups of the driver need no more than Describe: what fails is the work itself."""
    describe = dataclasses.replace(right, operation=_implied(right))
    user = world.broker.user([*without(job, right), describe], world.names)
    began = time.monotonic()
    with pytest.raises(BrokerError) as caught:
        RUNS[job.name](world, user)
    assert time.monotonic() - began < AT_ONCE_S
    text = str(caught.value)
    if text.startswith("CLUSTER_AUTHORIZATION_FAILED"):  # whoever may write to no topic gets no producer id
        assert right.operation is AclOperation.WRITE
        assert f"User:{user} lacks IdempotentWrite on the cluster (or Write on any topic" in text
    else:
        assert f"User:{user} lacks {right.operation.title} on " in text
        assert f"{right.place.pattern_of(world.names).name}" in text


@pytest.mark.parametrize(("job", "right"), OPTIONAL)
def test_without_an_optional_right_it_goes_on(
    world: World, job: Job, right: Right, caplog: pytest.LogCaptureFixture
) -> None:
    user = world.broker.user(without(job, right), world.names)
    with caplog.at_level(logging.DEBUG, "pykafka.spark"):
        assert RUNS[job.name](world, user) == RECORDS
    if job.name == "load" and right is SIZES:
        assert "AUTHORIZATION_FAILED" not in caplog.text  # only Spark's plan of the load asks for sizes
    elif right in SAYS:
        assert SAYS[right] in caplog.text
        assert f"User:{user} lacks {_implied(right).title} on " in caplog.text
    elif job.name == "stream that commits to a group":
        assert "were not published, the next commit retries" in caplog.text
        assert f"User:{user} lacks Describe on group {world.names['group']}" in caplog.text
    elif right.without == NOT_MOVED:
        assert f"User:{user} lacks " in caplog.text
        assert world.names["moved"] == "0"
    elif job.name == "mirror, at the source":
        assert world.names["moved"] == "0"
    elif job.name == "verify":
        assert world.names["compacted"] == "True"
    if right.place.type is AclResourceType.GROUP and "mirror" not in job.name:
        assert world.committed() == {}


def test_what_a_group_is_told_is_there_with_the_right(world: World) -> None:
    for name in ("stream that commits to a group", "load"):
        job = next(one for one in JOBS if one.name == name)
        RUNS[name](world, world.broker.user(job.rights, world.names))
        assert sum(world.committed().values()) == RECORDS
    verify = next(one for one in JOBS if one.name == "verify")
    RUNS["verify"](world, world.broker.user(verify.rights, {**world.names}))
    assert world.names["compacted"] == "False"


def test_every_job_is_tested() -> None:
    assert [job.name for job in JOBS] == [*RUNS, "console in the browser"]


# --- by Spark itself


class Queries:
    """The jobs as a user of Spark writes them. Each returns `RECORDS` when all went well."""

    def __init__(self, spark: SparkSession, world: World, user: str) -> None:
        self._spark = spark
        self._world = world
        self._user = user

    def run(self, job: str) -> int:
        return getattr(self, "_" + job.replace(",", "").replace(" ", "_"))()

    def _batch_read(self, **more: str) -> int:
        return self._spark.read.format("pykafka").options(**self._world.read_options(self._user, **more)).load().count()

    def _batch_read_from_committed_offsets(self) -> int:
        return self._batch_read(offsetStore="group", group=self._world.names["group"], startingOffsets="committed")

    def _read_with_a_topic_of_bad_records(self) -> int:
        formats = {"valueFormat": "json", "valueSchema": "a INT", "mode": "DROPMALFORMED"}
        return RECORDS - self._batch_read(**formats, badRecordsTopic=self._world.names["bad"])

    def _stream(self, **more: str) -> int:
        options = self._world.read_options(self._user, **more)
        frame = self._spark.readStream.format("pykafka").options(**options).load().select("value")
        return self._taken(frame.writeStream.format("parquet").option("path", str(self._world.directory / "out")))

    def _stream_that_commits_to_a_group(self) -> int:
        rows = self._stream(offsetStore="group", group=self._world.names["group"])
        assert sum(self._world.committed().values()) == RECORDS
        return rows

    def _batch_write_at_least_once(self) -> int:
        return self._batch_write("at-least-once")

    def _batch_write_exactly_once(self) -> int:
        return self._batch_write("exactly-once")

    def _stream_write_at_least_once(self) -> int:
        return self._stream_write("at-least-once")

    def _stream_write_exactly_once(self) -> int:
        return self._stream_write("exactly-once")

    def _load(self) -> int:
        result = load(self._spark, **self._load_arguments())
        assert sum(self._world.committed().values()) == RECORDS
        return result.rows

    def watch(self) -> int:
        return sum(one.rows for one in watch(self._spark, interval="10ms", max_loads=1, **self._load_arguments()))

    def _load_arguments(self) -> dict[str, Any]:
        options = self._world.broker.options(self._user)
        return {
            "bootstrap_servers": options.pop("kafka.bootstrap.servers"),
            "topic": self._world.names["topic"],
            "to": str(self._world.directory / "loads"),
            "group": self._world.names["group"],
            "options": options,
        }

    def _target(self, delivery: str) -> dict[str, str]:
        prefix = self._world.names["prefix"].removesuffix("-")
        login = self._world.broker.options(self._user)
        return {**login, "topic": self._world.names["sink"], "delivery": delivery, "transactionalIdPrefix": prefix}

    def _batch_write(self, delivery: str) -> int:
        return self._written(lambda: self._save(delivery))

    def _save(self, delivery: str) -> None:
        rows = self._spark.range(RECORDS, numPartitions=2).selectExpr("CAST(id AS STRING) AS value")
        rows.write.format("pykafka").options(**self._target(delivery)).mode("append").save()

    def _stream_write(self, delivery: str) -> int:
        """What another user reads, so that the rights are those of the write."""
        options = {
            "kafka.bootstrap.servers": self._world.broker.listeners["PLAINTEXT"],
            "subscribe": self._world.names["topic"],
            "startingOffsets": "earliest",
        }
        frame: DataFrame = self._spark.readStream.format("pykafka").options(**options).load().select("value")
        writer = frame.writeStream.format("pykafka").options(**self._target(delivery))
        return self._written(lambda: self._run(writer))

    def _taken(self, writer: DataStreamWriter) -> int:
        self._run(writer)
        return self._spark.read.parquet(str(self._world.directory / "out")).count()

    def _run(self, writer: DataStreamWriter) -> None:
        take_all(writer.option("checkpointLocation", str(self._world.directory / "checkpoint")))

    def _written(self, write: Callable[[], None]) -> int:
        bootstrap, sink = self._world.broker.listeners["PLAINTEXT"], self._world.names["sink"]
        before = len(committed_values(bootstrap, sink))
        write()
        return len(committed_values(bootstrap, sink)) - before


def job_of(name: str) -> Job:
    return next(one for one in JOBS if one.name == name)


@pytest.mark.parametrize("name", [job.name for job in CONNECTOR_JOBS if job.name not in NO_SPARK])
def test_spark_does_it_with_the_rights_that_it_must_have(spark: SparkSession, world: World, name: str) -> None:
    job = job_of(name)
    rights = job.rights if name in ("load", "stream that commits to a group") else job.needed
    if "write" in name:  # in that of all others are transactions that nobody may end
        sink = Topic(world.broker.listeners["PLAINTEXT"], unique_name("rights-sink"))
        world.names = {**world.names, "sink": sink.name}
    assert Queries(spark, world, world.broker.user(rights, world.names)).run(name) == RECORDS


def test_watch_does_it_with_the_rights_of_a_load(spark: SparkSession, world: World) -> None:
    user = world.broker.user(job_of("load").needed, world.names)
    assert Queries(spark, world, user).watch() == RECORDS


DENIED_IN_SPARK = {
    "batch read": (READ, "lacks Describe on topic", False),
    "batch read, in a task": (READ, "lacks Read on topic", True),
    "stream": (READ, "lacks Read on topic", True),
    "batch write, at least once": (None, "lacks Describe on topic", False),
    "stream write, exactly once": (WRITE_IDS, "lacks Describe on transactional id", False),
}
"""The right that is taken away, all of them for None, what is said, and whether Describe is left."""


@pytest.mark.parametrize("case", DENIED_IN_SPARK)
def test_the_error_of_spark_says_which_right_is_lacking(spark: SparkSession, world: World, case: str) -> None:
    right, says, left = DENIED_IN_SPARK[case]
    job = job_of(case.removesuffix(", in a task"))
    rights = [one for one in job.needed if right not in (one, None)]
    if left and right is not None:
        rights.append(dataclasses.replace(right, operation=AclOperation.DESCRIBE))
    user = world.broker.user(rights, world.names)
    began = time.monotonic()
    with pytest.raises(Exception, match="AUTHORIZATION_FAILED") as caught:
        Queries(spark, world, user).run(job.name)
    assert time.monotonic() - began < 2 * AT_ONCE_S
    assert f"User:{user} {says}" in str(caught.value)
    assert f"pykafka acls add --allow-principal User:{user}" in str(caught.value)


@pytest.mark.parametrize("left", [False, True])
def test_a_watch_ends_at_once_when_it_lacks_a_right(spark: SparkSession, world: World, left: bool) -> None:
    """An outage would be waited out."""
    rights = [dataclasses.replace(READ, operation=AclOperation.DESCRIBE)] if left else []
    user = world.broker.user(rights, world.names)
    lacking = "Read" if left else "Describe"
    with pytest.raises(PykafkaError, match=f"User:{user} lacks {lacking} on topic") as caught:
        Queries(spark, world, user).watch()
    assert not caught.value.retriable


# --- by the commands


@pytest.mark.timeout(300)
def test_the_commands_do_it_with_these_rights_and_say_which_is_lacking(world: World, tmp_path: Path) -> None:
    def run(words: str, rights: Iterable[Right]) -> tuple[str, subprocess.CompletedProcess[str]]:
        user = world.broker.user(rights, world.names)
        config = tmp_path / f"{user}.properties"
        config.write_text("".join(f"{name}={value}\n" for name, value in world.broker.properties(user).items()))
        group = world.names["group"]
        place = ["--config", str(config), "--to", str(tmp_path / "out"), "--group", group]
        command = [sys.executable, "-m", "broker.tools.main", *words.split(), *place]
        return user, subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250, check=False)

    load, topic = f"load --master local[1] --topic {world.names['topic']}", world.names["topic"]
    for words, job, failed in ((load, "load", 1), ("loads verify", "verify", 3)):  # 3: it could not look
        user, denied = run(words, [])
        assert denied.returncode == failed, denied.stdout
        assert f"User:{user} lacks Describe on topic {topic}" in denied.stderr
        assert "Traceback" not in denied.stderr
        _, done = run(words, job_of(job).needed)
        assert done.returncode == 0, done.stderr
        assert f"{RECORDS} rows" in done.stdout

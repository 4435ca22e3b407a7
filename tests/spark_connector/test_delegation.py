"""`delegationToken=auto`: what executors get to log in with, for how long, and what is done where there is no token.

With a broker of its own, for it needs a secret and users.
"""

from __future__ import annotations

import contextlib
import logging
import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from broker.client.admin import Admin
from broker.client.client_settings import ClientSettings
from broker.client.cluster import Cluster
from broker.security.scram import ScramMechanism
from spark_connector import delegation
from spark_connector.history_and_tail.fitted_read import FittedRead
from spark_connector.history_and_tail.readers import HistoryBatchReader, HistoryStreamReader
from spark_connector.load import load
from spark_connector.options.history_options import HistoryOptions
from spark_connector.options.read_options import Mode, parse_options
from spark_connector.options.write_options import parse_write_options
from spark_connector.read.readers import KafkaBatchReader, make_reader
from spark_connector.worker_clients import worker_clients
from spark_connector.write.write_plan import plan_write
from spark_connector.write.writers import KafkaBatchWriter
from tests.support.all_available import take_all
from tests.support.broker_process import BrokerProcess
from tests.support.committed_records import committed_values
from tests.support.token_broker import TOKEN_SETTINGS, properties_of
from tests.support.topics import Topic
from tests.support.waiting import eventually

OPEN = {name: value for name, value in TOKEN_SETTINGS.items() if not name.startswith("authorizer")}
SECRET = "dave-secret"


@pytest.fixture(scope="module")
def issuing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("tokens"), OPEN, standalone=True) as process:
        yield process
    assert "Traceback" not in process.output


@contextlib.contextmanager
def administration(broker: BrokerProcess, user: str = "admin") -> Iterator[Admin]:
    with contextlib.closing(Cluster(ClientSettings.from_properties(properties_of(broker, user)))) as cluster:
        yield Admin(cluster)


@pytest.fixture
def dave(issuing: BrokerProcess) -> Iterator[dict[str, str]]:
    """The options of a user who can be deleted."""
    with administration(issuing) as admin:
        admin.set_password("dave", SECRET, list(ScramMechanism))
    given = {**properties_of(issuing, "dave"), "sasl.mechanism": "SCRAM-SHA-256"}
    yield {f"kafka.{name}": value for name, value in given.items()} | {"delegationToken": "auto"}
    worker_clients().close()
    while delegation._logins:
        delegation._logins.popitem()[1][1].set()


def delete(broker: BrokerProcess, user: str) -> None:
    with administration(broker) as admin:
        admin.delete_user(user, list(ScramMechanism))
    worker_clients().close()


def tokens_of(broker: BrokerProcess, user: str) -> set[str]:
    with administration(broker) as admin:
        return {one.token.token_id for one in admin.describe_delegation_tokens([f"User:{user}"])}


@pytest.fixture
def numbers(issuing: BrokerProcess, topic: str) -> dict[str, str]:
    """The options that name a topic of 30 records."""
    Topic(issuing.listeners["PLAINTEXT"], topic).number(30)
    return {"subscribe": topic, "startingOffsets": "earliest", "kafka.metadata.max.age.ms": "300000"}


def rows_of(reader: Any, partitions: list[Any]) -> int:
    """As an executor has them: from pickles."""
    sent = pickle.dumps((reader, partitions))
    assert SECRET.encode() not in sent
    there, tasks = pickle.loads(sent)
    return sum(batch.num_rows for task in tasks for batch in there.read(task))


def test_tasks_of_a_batch_need_no_password(
    issuing: BrokerProcess, dave: dict[str, str], numbers: dict[str, str]
) -> None:
    reader = KafkaBatchReader(parse_options({**numbers, **dave}, Mode.BATCH))
    partitions = reader.partitions()
    delete(issuing, "dave")
    assert rows_of(reader, partitions) == 30


def test_tasks_of_a_stream_need_no_password_and_its_batches_share_a_token_while_it_is_fresh(
    issuing: BrokerProcess, dave: dict[str, str], numbers: dict[str, str]
) -> None:
    options = {**numbers, **dave, "maxPrefetchedRecords": "0", "offsetStore": "group", "group": "g"}
    before = tokens_of(issuing, "dave")
    reader = make_reader(parse_options(options, Mode.STREAM))
    start = reader.initialOffset()
    driver = reader._driver()
    middle = driver.next_end(start, cap=10)
    last = driver.next_end(middle)
    batches = [reader.partitions(start, middle), reader.partitions(middle, last)]
    assert len(tokens_of(issuing, "dave") - before) == 1
    delete(issuing, "dave")
    assert [rows_of(reader, batch) for batch in batches] == [10, 20]
    reader.stop()


def test_a_write_sends_no_password(issuing: BrokerProcess, dave: dict[str, str], numbers: dict[str, str]) -> None:
    options = parse_write_options({**dave, "topic": numbers["subscribe"]}, stream=False)
    sent = pickle.dumps(KafkaBatchWriter(plan_write(options)))
    assert SECRET.encode() not in sent
    delete(issuing, "dave")
    there = pickle.loads(sent)._plan.options.client
    assert numbers["subscribe"] in worker_clients().cluster(there).topics()


def test_batch_and_exactly_once_write_in_spark_share_a_token(
    spark: SparkSession, issuing: BrokerProcess, dave: dict[str, str], numbers: dict[str, str]
) -> None:
    before, target = tokens_of(issuing, "dave"), {**dave, "topic": f"{numbers['subscribe']}-copy"}
    Topic(issuing.listeners["PLAINTEXT"], target["topic"])
    rows = spark.read.format("pykafka").options(**numbers, **dave).load().select("value")
    rows.write.format("pykafka").options(**target, delivery="exactly-once").mode("append").save()
    assert len(committed_values(issuing.listeners["PLAINTEXT"], target["topic"])) == 30
    assert len(tokens_of(issuing, "dave") - before) == 1  # of three processes that plan


def test_the_micro_batches_of_a_stream_and_of_what_it_writes_share_a_token(
    spark: SparkSession, issuing: BrokerProcess, dave: dict[str, str], numbers: dict[str, str], tmp_path: Path
) -> None:
    before, target = tokens_of(issuing, "dave"), {**dave, "topic": f"{numbers['subscribe']}-copy"}
    Topic(issuing.listeners["PLAINTEXT"], target["topic"])
    read = {**numbers, **dave, "maxPrefetchedRecords": "0", "maxOffsetsPerTrigger": "15"}
    stream = spark.readStream.format("pykafka").options(**read).load().select("value").writeStream.format("pykafka")
    take_all(stream.options(**target, checkpointLocation=str(tmp_path)))
    assert len(committed_values(issuing.listeners["PLAINTEXT"], target["topic"])) == 30
    assert len(tokens_of(issuing, "dave") - before) <= 1  # none where the test before has left one


def test_a_load_expires_its_token(
    spark: SparkSession, issuing: BrokerProcess, dave: dict[str, str], numbers: dict[str, str], tmp_path: Path
) -> None:
    before, created = tokens_of(issuing, "dave"), issuing.output.count("created delegation token")
    options = {name: value for name, value in dave.items() if name != "kafka.bootstrap.servers"}
    servers = dave["kafka.bootstrap.servers"]
    # min partitions: Spark's tasks read it, and not the driver
    given = {**options, "minPartitions": "2"}
    done = load(
        spark,
        to=str(tmp_path / "rows"),
        group="of-tokens",
        bootstrap_servers=servers,
        topic=numbers["subscribe"],
        options=given,
    )
    assert done.rows == 30
    assert tokens_of(issuing, "dave") <= before
    assert issuing.output.count("created delegation token") > created


def test_tasks_of_a_load_get_a_token_that_ends_with_them(
    issuing: BrokerProcess, dave: dict[str, str], numbers: dict[str, str]
) -> None:
    before, options = tokens_of(issuing, "dave"), parse_options({**numbers, **dave}, Mode.BATCH)
    with delegation.lent_to_tasks(options) as lent:
        assert SECRET.encode() not in pickle.dumps(lent)
        assert numbers["subscribe"] in worker_clients().cluster(lent.client).topics()
        assert len(tokens_of(issuing, "dave") - before) == 1
    assert tokens_of(issuing, "dave") <= before


@pytest.mark.parametrize("kind", [HistoryBatchReader, HistoryStreamReader])
def test_a_read_with_history_sends_no_password(dave: dict[str, str], kind: Callable[[FittedRead], object]) -> None:
    given = {**dave, "subscribe": "t"}
    history = HistoryOptions("delta:/t", "g", None, None, None, {}, given)
    fitted = FittedRead(history, parse_options(given, Mode.BATCH), pa.schema([]), None, None, given)
    assert SECRET.encode() in pickle.dumps(fitted)
    assert SECRET.encode() not in pickle.dumps(kind(fitted))


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


def settings_of(options: Mapping[str, str]) -> ClientSettings:
    return parse_options({**options, "subscribe": "t"}, Mode.BATCH).client


def test_a_token_is_used_until_half_of_its_life_is_over(issuing: BrokerProcess, dave: dict[str, str]) -> None:
    clock, client = Clock(), settings_of(dave)
    first = delegation.executors_settings(client, clock)
    clock.now_s += 29  # of delegation.token.expiry.time.ms, a minute
    assert delegation.executors_settings(client, clock) == first
    clock.now_s += 1
    assert delegation.executors_settings(client, clock) != first


def test_without_a_right_to_tokens_executors_log_in_as_the_driver_does(
    dave: dict[str, str], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    without = {name: value for name, value in OPEN.items() if name != "delegation.token.secret.key"}
    with BrokerProcess(tmp_path, without, standalone=True) as broker, caplog.at_level(logging.WARNING):
        given = {f"kafka.{name}": value for name, value in properties_of(broker, "alice").items()}
        client = settings_of({**given, "delegationToken": "auto"})
        assert delegation.executors_settings(client) == delegation.executors_settings(client) == client
    (told,) = [one.getMessage() for one in caplog.records if "delegationToken" in one.getMessage()]
    assert "the brokers have no delegation.token.secret.key" in told


def test_a_token_that_no_listener_takes_is_expired(
    dave: dict[str, str], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    plain = {**OPEN, "sasl.enabled.mechanisms": "PLAIN"}
    with BrokerProcess(tmp_path, plain, standalone=True) as broker, caplog.at_level(logging.WARNING):
        given = {f"kafka.{name}": value for name, value in properties_of(broker, "alice").items()}
        client = settings_of({**given, "delegationToken": "auto"})
        assert delegation.executors_settings(client) == client
        assert not tokens_of(broker, "alice")
    assert "does not offer sasl.mechanism=SCRAM-SHA-512; it has PLAIN" in caplog.text


def test_a_wrong_password_is_an_error_and_no_reason_to_send_it(issuing: BrokerProcess, dave: dict[str, str]) -> None:
    from broker.errors import AuthenticationFailed

    with pytest.raises(AuthenticationFailed):
        delegation.executors_settings(replace(settings_of(dave), sasl_password="wrong"))


def test_a_token_is_renewed_while_tasks_use_it(issuing: BrokerProcess, dave: dict[str, str]) -> None:
    client = settings_of(dave)
    login = delegation._ask(client, Clock())
    assert login.token is not None
    with administration(issuing, "admin") as admin, contextlib.closing(Cluster(client)) as cluster:
        soon = Admin(cluster).expire_delegation_token(login.token.hmac, 2_000)
        brief = replace(login.token, token=replace(login.token.token, expires_ms=login.token.token.issued_ms + 200))
        ended = delegation._keep_renewed(client, replace(login, token=brief))

        def expires_ms() -> int:
            return next(one.token.expires_ms for one in admin.describe_delegation_tokens() if one.hmac == brief.hmac)

        eventually(lambda: expires_ms() > soon)
        ended.set()

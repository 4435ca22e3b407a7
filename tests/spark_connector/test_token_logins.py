"""Jobs that log in with access tokens: a long task logs in again, and every program reads the same settings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.client.broker_connection import BrokerConnection
from broker.client.cluster import Cluster
from broker.client.cluster_metadata import Node
from broker.client.fetcher import FetchStream
from broker.protocol.topic_partition import TopicPartition
from broker.records.record import decode_records
from spark_connector.options.read_options import Mode, parse_options
from spark_connector.read.readers import KafkaBatchReader
from spark_connector.worker_clients import WorkerClients
from tests.support.broker_process import BrokerProcess
from tests.support.console import answer_of
from tests.support.identity_provider import CLIENT_ID, CLIENT_SECRET, IdentityProvider
from tests.support.topics import Topic
from tests.support.waiting import eventually

PROVIDER = f"{__name__}:corporate_token"
_identity: IdentityProvider


def corporate_token(options: Any, host: str) -> tuple[str, float]:
    """A token provider as a company would write it."""
    assert options == {"path": "kv"}
    return _identity.token(), _identity.lifetime_s


@pytest.fixture(scope="module")
def identity() -> Iterator[IdentityProvider]:
    global _identity
    with IdentityProvider() as found:
        _identity = found
        yield found


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, identity: IdentityProvider) -> Iterator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("tokens")
    with BrokerProcess(directory / "data", identity.listener_settings(), standalone=True) as process:
        yield process


@pytest.fixture
def own(broker: BrokerProcess) -> dict[str, str]:
    """The settings of a client with a provider of its own."""
    return {
        "bootstrap.servers": broker.listeners["SASL_PLAINTEXT"],
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.provider": PROVIDER,
        "sasl.jaas.config": 'a.OAuthBearerLoginModule required path="kv" extension_logicalCluster="lkc-1";',
    }


def for_spark(settings: dict[str, str], **more: str) -> dict[str, str]:
    return {**{f"kafka.{name}": text for name, text in settings.items()}, **more}


def test_a_task_that_reads_for_longer_than_its_session_logs_in_again_on_its_connection(
    broker: BrokerProcess,
    identity: IdentityProvider,
    own: dict[str, str],
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As tasks read a large range: with a fetch ahead, and slowly."""
    written = Topic(broker.listeners["PLAINTEXT"], topic)
    for _ in range(6):
        written.number(10)  # a batch, and so a fetch
    opened: list[BrokerConnection] = []
    logins: list[BrokerConnection] = []
    open_connection, log_in = Cluster.open_connection, BrokerConnection.log_in

    def recorded(cluster: Cluster, node: Node) -> BrokerConnection:
        opened.append(open_connection(cluster, node))
        return opened[-1]

    def counted(connection: BrokerConnection) -> None:
        logins.append(connection)
        log_in(connection)

    monkeypatch.setattr(Cluster, "open_connection", recorded)
    monkeypatch.setattr(BrokerConnection, "log_in", counted)
    monkeypatch.setattr(identity, "lifetime_s", 2.0)
    more = {"subscribe": topic, "kafka.max.partition.fetch.bytes": "1"}
    settings = parse_options(for_spark(own, **more), Mode.BATCH).client
    clients, found = WorkerClients(), []
    with clients.fetcher(settings, TopicPartition(topic, 0)) as fetcher:
        for number, fetched in enumerate(FetchStream(fetcher, 0, 60)):
            found += [record.value for record in decode_records(fetched.records)]
            if number < 3:
                eventually(lambda: opened[0].login_is_old)
    clients.close()
    assert len(found) == 60
    assert len(opened) == 1
    assert logins.count(opened[0]) >= 4


def test_a_batch_is_read_with_a_provider_of_ones_own(broker: BrokerProcess, own: dict[str, str], topic: str) -> None:
    """As Spark calls the reader: the driver plans, the tasks read."""
    Topic(broker.listeners["PLAINTEXT"], topic).number(30)
    reader = KafkaBatchReader(parse_options(for_spark(own, subscribe=topic), Mode.BATCH))
    assert sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part)) == 30


@pytest.mark.parametrize("provider", ["own", "oidc", "file", "strimzi"])
def test_a_file_of_the_console_has_the_same_settings(
    broker: BrokerProcess, identity: IdentityProvider, own: dict[str, str], topic: str, provider: str, tmp_path: Path
) -> None:
    Topic(broker.listeners["PLAINTEXT"], topic).number(1)
    token = tmp_path / "token"
    token.write_text(identity.token())
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
    credentials = f'clientId="{CLIENT_ID}" clientSecret="{CLIENT_SECRET}"'
    strimzi = f'oauth.client.id="{CLIENT_ID}" oauth.client.secret="{CLIENT_SECRET}"'
    settings = {name: own[name] for name in ("security.protocol", "sasl.mechanism")}
    settings |= {
        "own": own,
        "oidc": {
            "sasl.oauthbearer.token.provider": "oidc",
            "sasl.oauthbearer.token.endpoint.url": identity.token_url,
            "sasl.jaas.config": f"{module} {credentials};",
        },
        "file": {
            "sasl.oauthbearer.token.provider": "file",
            "sasl.oauthbearer.token.endpoint.url": token.as_uri(),
        },
        "strimzi": {
            "sasl.login.callback.handler.class": "io.strimzi.kafka.oauth.client.JaasClientOauthLoginCallbackHandler",
            "sasl.jaas.config": f'{module} {strimzi} oauth.token.endpoint.uri="{identity.token_url}";',
        },
    }[provider]
    file = tmp_path / "client.properties"
    file.write_text("".join(f"{name}={text}\n" for name, text in settings.items()))
    at = ("--bootstrap-server", own["bootstrap.servers"], "--command-config", str(file))
    assert topic in answer_of("topics", "list", *at)

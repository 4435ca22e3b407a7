"""The shared connections of a client, when several threads want them at once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from broker.client.broker_connection import BrokerConnection
from broker.client.client_settings import ClientSettings, parse_bootstrap
from broker.client.cluster_metadata import Node
from broker.client.node_pool import NodePool
from tests.support.kafka import Kafka


@pytest.fixture
def pool(broker: Kafka) -> Iterator[NodePool]:
    settings = ClientSettings.of(broker.bootstrap)
    pool = NodePool(parse_bootstrap(settings.bootstrap_servers), settings)
    yield pool
    pool.close()


def test_a_connection_that_is_known_meanwhile_stays_and_the_new_one_is_closed(
    pool: NodePool, broker: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, port = broker.bootstrap.rsplit(":", 1)
    node = Node(0, host, int(port))
    first = pool.bootstrap()
    opened: list[BrokerConnection] = []
    open_one = pool.open

    def open_while_the_bootstrap_connection_becomes_known(host: str, port: int) -> BrokerConnection:
        opened.append(open_one(host, port))
        pool.adopt_bootstrap([node])
        return opened[0]

    monkeypatch.setattr(pool, "open", open_while_the_bootstrap_connection_becomes_known)
    assert pool.get(node) is first
    assert first.usable, "somebody may be using it"
    assert not opened[0].usable

"""Quotas in ZooKeeper: Kafka's nodes, what others write there, and the credentials beside them."""

from __future__ import annotations

import json
import logging

import pytest

from broker.cluster.quota_configs import QuotaConfigs
from broker.cluster.users import Users
from broker.errors import BrokerError
from broker.quotas.client_quotas import ClientQuotas
from broker.quotas.connection_rates import ConnectionRates
from broker.quotas.quota_entity import DEFAULT, QuotaEntity
from broker.security.scram import ScramCredential, ScramMechanism
from broker.zookeeper import znodes
from broker.zookeeper.client import ZooKeeper
from broker.zookeeper.cluster_store import ClusterStore
from broker.zookeeper.config_nodes import entity_of, entity_path
from broker.zookeeper.registry import Registry

SHA_256, _ = ScramMechanism
MADE = ScramCredential.make(SHA_256, "s3cret")
ENTITIES = {
    "users/bob%2C%20the%20%2A": QuotaEntity("bob, the *"),
    "users/<default>": QuotaEntity(DEFAULT),
    "users/%3Cdefault%3E": QuotaEntity("<default>"),
    "users/bob/clients/a%2Fb": QuotaEntity("bob", "a/b"),
    "users/bob/clients/<default>": QuotaEntity("bob", DEFAULT),
    "users/<default>/clients/<default>": QuotaEntity(DEFAULT, DEFAULT),
    "clients/reports": QuotaEntity(None, "reports"),
    "clients/<default>": QuotaEntity(None, DEFAULT),
    "ips/127.0.0.1": QuotaEntity(ip="127.0.0.1"),
    "ips/<default>": QuotaEntity(ip=DEFAULT),
}


class Applied:
    """Quotas and where they are applied."""

    def __init__(self, store: ClusterStore) -> None:
        self.clients, self.connections = ClientQuotas(), ConnectionRates()
        self.configs = QuotaConfigs(store, clients=self.clients, connections=self.connections)


@pytest.fixture
def applied(store: ClusterStore) -> Applied:
    return Applied(store)


@pytest.mark.parametrize(("path", "entity"), ENTITIES.items(), ids=str)
async def test_an_entity_is_kept_as_kafka_keeps_it(
    zk: ZooKeeper, applied: Applied, path: str, entity: QuotaEntity
) -> None:
    assert (entity_path(entity), entity_of(path)) == (path, entity)
    key = "connection_creation_rate" if entity.ip is not None else "producer_byte_rate"
    await applied.configs.alter(entity, {key: "1000"})
    assert json.loads(zk.get(f"/config/{path}")[0]) == {"version": 1, "config": {key: "1000"}}
    (change,) = zk.children(znodes.CONFIG_CHANGES)
    told = json.loads(zk.get(f"{znodes.CONFIG_CHANGES}/{change}")[0])
    assert told == {"version": 2, "entity_path": path}
    assert applied.configs.known == {entity: {key: 1000.0}}


async def test_all_that_others_wrote_is_read(
    zk: ZooKeeper, registry: Registry, store: ClusterStore, applied: Applied
) -> None:
    for entity in ENTITIES.values():
        key = "connection_creation_rate" if entity.ip is not None else "producer_byte_rate"
        await applied.configs.alter(entity, {key: "1000"})
    other = Applied(store)
    await other.configs.refresh()
    assert other.configs.known == applied.configs.known
    assert len(other.configs.known) == len(ENTITIES)
    assert other.clients.produced("bob", "a/b", 10_100, 0.0) == 10_000
    assert [other.connections.accepted_from("A", "127.0.0.1", 0.0) for _ in range(3)] == [0, 0, 0]


async def test_a_notification_names_what_is_read_again(
    zk: ZooKeeper, registry: Registry, store: ClusterStore, applied: Applied
) -> None:
    other = Applied(store)
    entity = QuotaEntity("bob", DEFAULT)
    await applied.configs.alter(entity, {"consumer_byte_rate": "5"})
    await applied.configs.alter(QuotaEntity("ann"), {"consumer_byte_rate": "6"})
    await other.configs.refresh("users/bob/clients/<default>")
    assert other.configs.known == {entity: {"consumer_byte_rate": 5.0}}
    await applied.configs.alter(entity, {"consumer_byte_rate": None})
    await other.configs.refresh("users/bob/clients/<default>")
    assert other.configs.known == {}


async def test_credentials_and_quotas_of_a_user_survive_each_other(
    zk: ZooKeeper, registry: Registry, store: ClusterStore, applied: Applied
) -> None:
    users = Users(store)
    bob = QuotaEntity("bob")
    await users.alter("bob", {SHA_256: MADE})
    await applied.configs.alter(bob, {"producer_byte_rate": "1000"})
    await users.refresh()
    assert users.credential(SHA_256, "bob") == MADE
    await applied.configs.alter(bob, {"producer_byte_rate": None})
    await users.refresh()
    assert users.credential(SHA_256, "bob") == MADE
    await applied.configs.alter(bob, {"producer_byte_rate": "7"})
    await users.alter("bob", {SHA_256: None})
    await applied.configs.refresh()
    assert applied.configs.known == {bob: {"producer_byte_rate": 7.0}}
    assert "SCRAM" not in str(applied.configs.known)


async def test_empty_nodes_are_deleted_and_others_stay(zk: ZooKeeper, applied: Applied) -> None:
    both, user = QuotaEntity("bob", "c"), QuotaEntity("bob")
    await applied.configs.alter(both, {"producer_byte_rate": "1"})
    await applied.configs.alter(user, {"producer_byte_rate": "1"})
    await applied.configs.alter(user, {"producer_byte_rate": None})
    assert zk.exists("/config/users/bob/clients/c")
    await applied.configs.alter(both, {"producer_byte_rate": None})
    assert zk.children("/config/users") == []
    await applied.configs.alter(both, {"producer_byte_rate": None})
    assert zk.children("/config/users") == [], "nothing is made for what is removed"


async def test_what_cannot_be_read_is_left_out_and_not_shown(
    zk: ZooKeeper, applied: Applied, caplog: pytest.LogCaptureFixture
) -> None:
    zk.create("/config/users/bad", b"salt=s3cret")
    zk.create("/config/clients/wrong", b'{"version":1,"config":{"producer_byte_rate":"0","consumer_byte_rate":"x"}}')
    zk.create("/config/clients/right", b'{"version":1,"config":{"producer_byte_rate":"10"}}')
    zk.create("/config/ips/no such host", b'{"version":1,"config":{"connection_creation_rate":"1"}}')
    with caplog.at_level(logging.ERROR):
        await applied.configs.refresh()
    assert applied.configs.known[QuotaEntity(None, "right")] == {"producer_byte_rate": 10.0}
    assert QuotaEntity(None, "wrong") not in applied.configs.known
    assert "/config/users/bad" in caplog.text
    assert "producer_byte_rate=0 of client-id wrong" in caplog.text
    assert "the quota of ip no such host is ignored" in caplog.text
    assert "s3cret" not in caplog.text


async def test_without_zookeeper_the_last_known_quotas_apply(
    zk: ZooKeeper, applied: Applied, store: ClusterStore
) -> None:
    await applied.configs.alter(QuotaEntity("bob"), {"producer_byte_rate": "100"})
    zk.close()
    with pytest.raises(BrokerError):
        await applied.configs.refresh()
    assert applied.clients.produced("bob", "", 1010, 0.0) == 10_000

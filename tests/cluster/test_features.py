"""Which features the controller finalizes while brokers of two releases come and go, in a real ZooKeeper."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

import broker.server
from broker.client.client_settings import ClientSettings
from broker.client.cluster import Cluster
from broker.client.transaction_requests import transaction_version
from broker.cluster.features import SUPPORTED, Features
from broker.cluster.metadata_cache import MetadataCache
from broker.errors import BrokerError, ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.replica.cluster_metadata import BrokerInfo, PartitionInfo
from broker.zookeeper import znodes
from broker.zookeeper.cluster_store import ClusterStore
from broker.zookeeper.feature_node import FinalizedFeatures, read_features, write_features
from broker.zookeeper.metadata_store import MetadataStore
from broker.zookeeper.registry import Registry
from tests.support.raw_requests import Requests
from tests.support.replicating import Brokers
from tests.support.waiting import eventually

BOTH = {"transaction.version": 2}


def broker_of(number: int, *, is_old: bool = False) -> BrokerInfo:
    return BrokerInfo.plaintext(number, "h", 9092, features={} if is_old else SUPPORTED)


def wanted(now: dict[str, int], brokers: list[BrokerInfo], replicas: tuple[int, ...] = ()) -> dict[str, int]:
    partitions = {0: PartitionInfo(1, 0, replicas, replicas)}
    metadata = SimpleNamespace(
        brokers={one.broker_id: one for one in brokers}, topics={"t": SimpleNamespace(partitions=partitions)}
    )
    features = Features(
        cast(MetadataStore, None), cast(ClusterStore, None), cast(MetadataCache, SimpleNamespace(metadata=metadata))
    )
    features.finalized = FinalizedFeatures(now, 3)
    return features._wanted()


def test_a_feature_needs_all_brokers() -> None:
    assert wanted({}, [broker_of(1), broker_of(2)]) == BOTH
    assert wanted({}, [broker_of(1), broker_of(2, is_old=True)]) == {}
    assert wanted({}, []) == {}


def test_it_is_not_raised_while_a_broker_is_down_that_may_be_old() -> None:
    assert wanted({}, [broker_of(1), broker_of(2)], replicas=(1, 2, 3)) == {}
    assert wanted({}, [broker_of(1), broker_of(2), broker_of(3)], replicas=(1, 2, 3)) == BOTH
    assert wanted(BOTH, [broker_of(1), broker_of(2)], replicas=(1, 2, 3)) == BOTH


def test_it_is_taken_back_when_an_old_broker_joins() -> None:
    assert wanted(BOTH, [broker_of(1), broker_of(2), broker_of(3, is_old=True)], replicas=(1, 2)) == {}
    assert wanted({"transaction.version": 1}, [broker_of(1)]) == BOTH
    assert wanted({"of.a.later.release": 7}, [broker_of(1)], replicas=(1, 2)) == {}


def test_a_broker_node_of_an_earlier_release_has_no_features() -> None:
    new, old = broker_of(1), broker_of(2, is_old=True)
    assert znodes.decode_broker(1, znodes.encode_broker(new)).features == {"transaction.version": 2}
    assert znodes.decode_broker(2, znodes.encode_broker(old)).features == {}
    with pytest.raises(znodes.MalformedNode):
        znodes.decode_broker(1, znodes.encode_broker(new).replace(b'"max_version"', b'"max"'))


def test_the_node_is_written_by_the_controller_alone_and_its_version_is_the_epoch(
    zk: MetadataStore, registry: Registry
) -> None:
    controller = registry.controller.epoch().version
    assert read_features(zk) == FinalizedFeatures({}, -1)
    assert write_features(zk, BOTH, -1, controller_version=controller)
    assert read_features(zk) == FinalizedFeatures(BOTH, 0)
    assert not write_features(zk, {}, -1, controller_version=controller)
    assert not write_features(zk, {}, 5, controller_version=controller)
    assert write_features(zk, {}, 0, controller_version=controller)
    assert read_features(zk) == FinalizedFeatures({}, 1)
    with pytest.raises(BrokerError) as refused:
        write_features(zk, BOTH, 1, controller_version=controller + 1)
    assert refused.value.code is ErrorCode.not_controller


@pytest.mark.parametrize(
    ("data", "versions"),
    [
        (b'{"version":2,"status":1,"features":{"a":3}}', {"a": 3}),
        (b'{"version":1,"status":1,"features":{"a":{"min_version_level":1,"max_version_level":3}}}', {"a": 3}),
        (b'{"version":2,"status":0,"features":{"a":3}}', {}),
        (b'{"version":2,"status":1,"features":[1]}', {}),
        (b"\xff", {}),
        (b"", {}),
    ],
)
def test_any_content_of_the_node_is_read(zk: MetadataStore, data: bytes, versions: dict[str, int]) -> None:
    zk.create(znodes.FEATURE, data)
    assert read_features(zk) == FinalizedFeatures(versions, 0)


@pytest.fixture
async def rolling(tmp_path: Path, zookeeper: str) -> AsyncIterator[Brokers]:
    running = Brokers(tmp_path, f"{zookeeper}/{tmp_path.name}")
    try:
        yield running
    finally:
        for broker_id in tuple(running.running):
            await running.stop(broker_id)


async def test_a_rolling_upgrade_ends_with_the_feature_and_a_broker_that_lacks_it_takes_it_back(
    rolling: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def start(broker_id: int, *, is_old: bool) -> None:
        monkeypatch.setattr(broker.server, "SUPPORTED", {} if is_old else SUPPORTED)
        await rolling.start(broker_id)

    def told() -> set[int]:
        return {_version_at(address["PLAINTEXT"]) for address in rolling.addresses.values()}

    async def restart(broker_id: int, *, is_old: bool) -> None:
        await rolling.stop(broker_id)
        await start(broker_id, is_old=is_old)

    for number in (1, 2, 3):
        await start(number, is_old=True)
    await asyncio.to_thread(rolling.create, "t")
    for number in (3, 2):
        await restart(number, is_old=False)
        assert await asyncio.to_thread(told) == {0}
    await restart(1, is_old=False)
    await asyncio.to_thread(eventually, lambda: told() == {2})
    address = rolling.addresses[1]["PLAINTEXT"]
    with Requests(address) as at_work, Requests(address) as plain:
        await asyncio.to_thread(_end_transaction, at_work)
        await restart(2, is_old=True)
        await asyncio.to_thread(eventually, lambda: told() == {0})
        assert await asyncio.to_thread(_is_hung_up_on, at_work), "it uses version 2 as long as it stays connected"
        closed = rolling.running[1]._metrics.listeners["PLAINTEXT"].closed
        assert closed["unsupported"] == 1, "not by the client"
        produce = {"transactional_id": None, "acks": 1, "timeout": 1000, "topic_data": ()}
        await asyncio.to_thread(plain.ask, ApiKey.PRODUCE, produce, 12)
    with Requests(address) as anew:
        await asyncio.to_thread(_end_transaction, anew)
    await restart(2, is_old=False)
    await asyncio.to_thread(eventually, lambda: told() == {2})


def _end_transaction(ask: Requests) -> None:
    """With a request of version 2, of whoever."""
    end = {"transactional_id": "t", "producer_id": 1, "producer_epoch": 0, "committed": True}
    assert ask.ask(ApiKey.END_TXN, end, 5).error_code is not ErrorCode.none


def _is_hung_up_on(ask: Requests) -> bool:
    try:
        _end_transaction(ask)
    except ConnectionError:
        return True
    return False


def _version_at(address: str) -> int:
    with Cluster(ClientSettings.of(address)) as cluster:
        return transaction_version(cluster)

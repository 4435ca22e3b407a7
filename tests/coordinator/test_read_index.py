"""Whether this broker still leads, by what the in-sync replicas say."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.cluster.metadata_cache import MetadataCache
from broker.coordinator import read_index
from broker.coordinator.read_index import ReadIndex
from broker.errors import BrokerError, ErrorCode
from broker.net.peer_connection import PeerConnection
from broker.protocol.topic_partition import TopicPartition

HERE, EPOCH = 1, 5
TP = TopicPartition("__consumer_offsets", 0)


class Cluster:
    """`epochs`: the leader epoch that each other broker knows; a broker without one gives no answer."""

    def __init__(self, *isr: int) -> None:
        self.isr = frozenset(isr)
        self.epochs: dict[int, int] = {}
        self.is_led = True
        self.check = ReadIndex(cast(MetadataCache, SimpleNamespace(partition=self._partition)), HERE, self._connect)

    def _partition(self, tp: TopicPartition) -> object:
        if not self.is_led:
            raise BrokerError(ErrorCode.not_leader_or_follower)
        return SimpleNamespace(leader_epoch=EPOCH, in_sync=SimpleNamespace(largest_isr=self.isr))

    def _connect(self, broker_id: int) -> PeerConnection:
        if broker_id not in self.epochs:
            self.isr -= {broker_id}  # it leaves the ISR once it is known to be dead
            raise BrokerError(ErrorCode.broker_not_available)
        return cast(PeerConnection, _Peer(self.epochs[broker_id]))


class _Peer:
    def __init__(self, epoch: int) -> None:
        self.address = str(epoch)
        self._epoch = epoch

    async def request(self, *_: object) -> Any:
        found = SimpleNamespace(partition_index=TP.partition, leader_epoch=self._epoch)
        return SimpleNamespace(topics=[SimpleNamespace(name=TP.topic, partitions=[found])])

    def close(self) -> None:
        pass


@pytest.mark.parametrize(("known", "leads"), [((EPOCH, EPOCH), True), ((EPOCH - 1, EPOCH), True), ((EPOCH, 6), False)])
async def test_a_later_epoch_at_any_in_sync_replica_is_another_leader(known: tuple[int, int], leads: bool) -> None:
    cluster = Cluster(HERE, 2, 3)
    cluster.epochs = dict(zip((2, 3), known, strict=True))
    assert await cluster.check.leads(TP) is leads


async def test_a_single_in_sync_replica_asks_nobody() -> None:
    assert await Cluster(HERE).check.leads(TP)


async def test_a_dead_replica_is_waited_for_until_it_has_left_the_isr() -> None:
    cluster = Cluster(HERE, 2, 3)
    cluster.epochs = {2: EPOCH}
    assert await cluster.check.leads(TP)


async def test_without_an_answer_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_index, "TIMEOUT_S", 0.1)
    cluster = Cluster(HERE, 2)
    cluster._connect = cluster.check._peers._connect = _refuse  # type: ignore[method-assign]
    assert await cluster.check.leads(TP) is None
    cluster.is_led = False
    assert await cluster.check.leads(TP) is False


def _refuse(broker_id: int) -> PeerConnection:
    raise BrokerError(ErrorCode.broker_not_available)

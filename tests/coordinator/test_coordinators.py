"""The coordinators follow the leadership of their partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from broker.clock import ManualClock
from broker.cluster.metadata_cache import MetadataCache
from broker.cluster.producer_ids import ProducerIds
from broker.config.broker_config import BrokerConfig
from broker.coordinator import coordinators
from broker.coordinator.coordinators import Coordinators
from broker.errors import BrokerError, ErrorCode
from broker.net.peer_connection import PeerConnection
from broker.protocol.topic_partition import TopicPartition
from broker.replica.partition import Partition
from tests.support.batches import open_log
from tests.support.coordinators import settle

OFFSETS = TopicPartition("__consumer_offsets", 0)


@pytest.mark.parametrize("is_deposed", [False, True])
async def test_a_load_that_failed_is_tried_again_while_this_broker_leads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_deposed: bool
) -> None:
    monkeypatch.setattr(coordinators, "LOAD_RETRY_S", 0)
    partition = Partition(OFFSETS, open_log(tmp_path / "__consumer_offsets-0"), 4)
    elected: list[Callable[[Partition], None]] = []

    def led(tp: TopicPartition, epoch: int = -1) -> Partition:
        if is_deposed:
            raise BrokerError(ErrorCode.not_leader_or_follower)
        return partition

    topics = SimpleNamespace(
        metadata=SimpleNamespace(topics={OFFSETS.topic: SimpleNamespace(partitions={0: None})}),
        partition=led,
        add_change_listener=lambda on_change: None,
        add_deletion_listener=lambda on_deleted: None,
        add_leadership_listener=lambda topic, on_elected, on_resigned: elected.append(on_elected),
    )
    reads: list[int] = []

    async def drain() -> None:
        reads.append(1)
        if len(reads) == 1:
            raise OSError("the disk does not answer")

    monkeypatch.setattr(partition.queue, "drain", drain)
    ids = ProducerIds(lambda: range(0))
    both = Coordinators(BrokerConfig.load(None, {}), cast(MetadataCache, topics), ids, ManualClock(), _refuse)
    await both.start()
    elected[0](partition)
    await settle()
    async with asyncio.timeout(10):
        while not is_deposed and not both.groups.coordinates(0):
            await settle()
    await both.groups.wait_for_load(0, 10)
    found = (await both.groups.fetch_offsets("g")).error
    assert found is (ErrorCode.not_coordinator if is_deposed else ErrorCode.none)
    await both.close()


def _refuse(broker_id: int) -> PeerConnection:
    raise BrokerError(ErrorCode.broker_not_available)

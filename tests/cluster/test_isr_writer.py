"""The ISR writer over a real ZooKeeper."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from broker.clock import ManualClock
from broker.cluster.failure_detector import FailureDetector
from broker.cluster.isr_writer import IsrWriter
from broker.cluster.metadata_cache import MetadataCache
from broker.errors import BrokerError, ConnectionFailed
from broker.protocol.topic_partition import TopicPartition
from broker.replica.cluster_metadata import PartitionInfo
from broker.replica.partition import Partition
from broker.zookeeper.change_notifications import ChangeNotifications
from broker.zookeeper.cluster_store import ClusterStore
from broker.zookeeper.registry import Registry
from tests.support.batches import open_log

TP = TopicPartition("t", 0)


async def test_brokers_are_notified_later_of_an_isr_whose_notification_failed(
    tmp_path: Path, registry: Registry
) -> None:
    registry.create_topic("t", {0: (1, 2)})
    clock, notified = ManualClock(), list[TopicPartition]()
    info = PartitionInfo(1, 0, (1, 2), (1, 2), version=0)
    partition = Partition(TP, open_log(tmp_path / "t-0"), 0, info=info, max_lag_s=10, clock=clock)
    failures = [ConnectionFailed("no answer from ZooKeeper")]

    def notify(partitions: Iterable[TopicPartition]) -> None:
        if failures:
            raise failures.pop()
        notified.extend(partitions)

    async def refresh(names: object) -> None:
        raise AssertionError(f"read {names} again")

    store = ClusterStore(registry, cast(ChangeNotifications, SimpleNamespace(notify_isr_change=notify)))
    topics = cast(MetadataCache, SimpleNamespace(refresh=refresh, replicas=SimpleNamespace(broker_id=1)))
    writer = IsrWriter(store, topics, FailureDetector(1, lambda _: None), interval_s=5)
    clock.advance(11_000)
    with pytest.raises(BrokerError):
        await writer.write([partition])
    assert registry.partition_states([TP])[TP].isr == (1,)
    assert partition.isr_to_write() is None
    await writer.write([partition])
    assert notified == [TP]
    await writer.write([partition])
    assert notified == [TP]
    store.close()

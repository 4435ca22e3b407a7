"""Which partitions this broker leads and follows, as the metadata say: roles, leader epochs, watermarks, logs."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import uuid
from collections.abc import AsyncIterator, Collection
from pathlib import Path

import pytest

from broker.clock import ManualClock
from broker.config.broker_config import BrokerConfig
from broker.log.log_config import LogConfig
from broker.log.manager import LogManager
from broker.protocol.topic_partition import TopicPartition
from broker.replica import replica_manager
from broker.replica.cluster_metadata import NO_LEADER, ClusterMetadata, PartitionInfo, Topic
from broker.replica.replica_manager import ReplicaManager, stored_log_config
from tests.support.batches import NOW, batch, fill

TP = TopicPartition("t", 0)
ME, OTHER, THIRD = 1, 2, 3


class Replicas:
    """The replica manager of broker 1, and the metadata that it is told."""

    def __init__(self, logs: LogManager) -> None:
        self.logs = logs
        self.manager = ReplicaManager(BrokerConfig(broker_id=ME), logs)

    async def learn(
        self,
        leader: int,
        epoch: int,
        *,
        replicas: tuple[int, ...] = (ME, OTHER, THIRD),
        topic_id: int = 5,
        adding: tuple[int, ...] = (),
    ) -> list[TopicPartition]:
        """Apply a state of the partition; returns the newly led ones."""
        info = PartitionInfo(leader, epoch, replicas, replicas, version=epoch, adding=adding)
        return await self.become(self.manager.metadata.with_topics([Topic("t", uuid.UUID(int=topic_id), {0: info})]))

    async def become(self, after: ClusterMetadata) -> list[TopicPartition]:
        names = self.manager.metadata.topics.keys() | after.topics.keys()
        await self.manager.open_new(after, names)
        led, gone = self.manager.apply(after, names)
        await self.manager.delete(gone)
        return led

    def hosts_nothing(self) -> bool:
        return self.role is None and self.logs.get(TP) is None

    @property
    def role(self) -> tuple[str, int] | None:
        """("leads" or "follows", leader epoch)."""
        partition, follower = self.manager.led.get(TP), self.manager.followed.get(TP)
        assert partition is None or follower is None
        if partition is not None:
            return "leads", partition.leader_epoch
        return ("follows", follower.leader_epoch) if follower is not None else None


@contextlib.asynccontextmanager
async def replicas(directory: Path) -> AsyncIterator[Replicas]:
    logs = LogManager([directory], ManualClock(NOW))
    logs.load(lambda topic: LogConfig())
    made = Replicas(logs)
    try:
        yield made
    finally:
        await made.manager.close()
        logs.close()


async def test_roles_follow_the_metadata_and_epochs_go_only_forward(tmp_path: Path) -> None:
    async with replicas(tmp_path) as r:
        assert await r.learn(OTHER, 0) == []
        assert r.role == ("follows", 0)
        log = r.logs.get(TP)
        assert log is not None
        assert log.topic_id == uuid.UUID(int=5)
        assert await r.learn(ME, 1) == [TP]
        assert r.role == ("leads", 1)
        assert await r.learn(OTHER, 0) == []
        assert r.role == ("leads", 1), "metadata that come late change nothing"
        assert await r.learn(THIRD, 3) == []
        assert r.role == ("follows", 3)
        assert await r.learn(ME, 2) == []
        assert r.role == ("follows", 3)
        assert await r.learn(NO_LEADER, 4) == []
        assert r.role == ("follows", 4)
        assert r.manager.followed[TP].log is log


async def test_the_high_watermark_goes_from_role_to_role_and_over_a_restart(tmp_path: Path) -> None:
    async with replicas(tmp_path) as r:
        await r.learn(ME, 0)
        partition = r.manager.led.get(TP)
        assert partition is not None
        for _ in range(5):
            partition.append(batch(b"x"))
        partition.fetched_by(OTHER, 5)
        partition.fetched_by(THIRD, 3)
        assert partition.high_watermark == 3
        await r.learn(OTHER, 1)
        follower = r.manager.followed[TP]
        assert (follower.high_watermark, follower.log.committed) == (3, 3)
        await follower.append(bytearray(), 4, 0)
        await r.learn(ME, 2)
        led = r.manager.led.get(TP)
        assert led is not None
        assert led.high_watermark == 4
        assert r.manager.high_watermarks() == {TP: 4}
    async with replicas(tmp_path) as r:
        await r.learn(OTHER, 3)
        assert r.manager.followed[TP].high_watermark == 4


async def test_the_same_role_stays_the_same_object(tmp_path: Path) -> None:
    async with replicas(tmp_path) as r:
        await r.learn(OTHER, 1)
        follower = r.manager.followed[TP]
        await r.learn(OTHER, 1)
        assert r.manager.followed[TP] is follower
        await r.learn(OTHER, 2)
        assert r.manager.followed[TP] is not follower
        assert follower.is_closed
        await r.learn(ME, 3)
        partition = r.manager.led.get(TP)
        assert await r.learn(ME, 4) == []
        assert r.manager.led.get(TP) is partition
        assert r.role == ("leads", 4)


async def test_a_reassignment_may_end_within_the_leader_epoch(tmp_path: Path) -> None:
    """A topic and the states of its partitions are read at different times."""
    async with replicas(tmp_path) as r:
        await r.learn(OTHER, 1, adding=(ME,))
        follower = r.manager.followed[TP]
        assert follower.is_added
        await r.learn(OTHER, 1)
        assert r.manager.followed[TP] is follower
        assert not follower.is_added


async def test_one_replica_needs_no_watermark(tmp_path: Path) -> None:
    async with replicas(tmp_path) as r:
        await r.learn(ME, 0, replicas=(ME,))
        partition = r.manager.led.get(TP)
        assert partition is not None
        assert (partition.in_sync, partition.log.committed, r.manager.high_watermarks()) == (None, None, {})


async def test_a_partition_without_a_leader_gets_no_log(tmp_path: Path) -> None:
    async with replicas(tmp_path) as r:
        await r.learn(NO_LEADER, 0)
        assert r.hosts_nothing()


async def test_a_broker_that_is_no_replica_does_not_begin_to_lead(tmp_path: Path) -> None:
    """The state is of a deleted topic of that name. The replicas would cut their logs to an empty one."""
    async with replicas(tmp_path) as r:
        assert await r.learn(ME, 1, replicas=(OTHER, THIRD)) == []
        assert r.hosts_nothing()


async def test_a_reassigned_replica_and_a_deleted_topic_leave_no_log(tmp_path: Path) -> None:
    async with replicas(tmp_path) as r:
        await r.learn(OTHER, 1)
        await r.learn(OTHER, 2, replicas=(OTHER, THIRD))
        assert r.hosts_nothing()
        await r.learn(OTHER, 3)
        assert r.role == ("follows", 3)
        await r.become(dataclasses.replace(r.manager.metadata, topics={}))
        assert r.hosts_nothing()


async def test_a_log_that_is_newer_than_the_reassignment_stays(tmp_path: Path) -> None:
    """ZooKeeper's data were restored from a copy that is older than the log."""
    async with replicas(tmp_path) as r:
        await r.learn(ME, 0)
        fill(r.manager.led[TP].log, 3)
        await r.learn(OTHER, 0, replicas=(OTHER, THIRD))
        assert r.role is None
        assert r.logs.get(TP) is not None
        await r.learn(OTHER, 1, replicas=(OTHER, THIRD))
        assert r.hosts_nothing()


async def test_a_log_that_was_reassigned_while_the_broker_was_away_is_deleted_when_it_starts(tmp_path: Path) -> None:
    async with replicas(tmp_path) as r:
        await r.learn(OTHER, 1)
    async with replicas(tmp_path) as r:
        await r.learn(OTHER, 2, replicas=(OTHER, THIRD))
        assert r.hosts_nothing()


async def test_a_topic_that_was_created_again_elsewhere_leaves_no_log(tmp_path: Path) -> None:
    async with replicas(tmp_path) as r:
        await r.learn(OTHER, 1)
        await r.learn(OTHER, 0, topic_id=6, replicas=(OTHER, THIRD))
        assert r.hosts_nothing()


async def test_nothing_is_reported_after_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be read from a store that is closed."""
    monkeypatch.setattr(replica_manager, "STALE_DELAY_S", 0.0)
    async with replicas(tmp_path) as r:
        reported: list[Collection[str]] = []
        r.manager.on_stale = reported.append
        r.manager._note_stale("t")
    for _ in range(3):
        await asyncio.sleep(0)
    assert reported == []


async def test_a_topic_that_was_created_again_gets_a_new_log(tmp_path: Path) -> None:
    async with replicas(tmp_path) as r:
        await r.learn(OTHER, 7)
        fill(r.manager.followed[TP].log, 3)
        await r.learn(OTHER, 0, topic_id=6)
        follower = r.manager.followed[TP]
        assert (follower.leader_epoch, follower.log.log_end_offset) == (0, 0)
        assert follower.log.topic_id == uuid.UUID(int=6)


@pytest.mark.parametrize(
    ("defaults", "overrides"),
    [
        (LogConfig(retention_ms=1_000), {"local.retention.ms": "5000"}),
        (LogConfig(retention_ms=1_000, local_retention_ms=5_000), {}),
        (LogConfig(cleanup_policy=("compact",)), {}),
        (LogConfig(), {"cleanup.policy": "compact"}),
        (LogConfig(), {"remote.log.copy.disable": "true", "local.retention.bytes": "7"}),
    ],
)
def test_a_default_of_the_broker_takes_no_archive_away(defaults: LogConfig, overrides: dict[str, str]) -> None:
    """Without it the log would start where its local part does, and delete by retention.* what is not archived."""
    config = stored_log_config("t", {**overrides, "remote.storage.enable": "true"}, defaults)
    assert config.remote_storage_enable
    assert (config.cleanup_policy, config.local_ms) == (("delete",), config.retention_ms)

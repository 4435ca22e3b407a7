"""A running group coordinator in tests: a manual clock, a gated store, requests with few words."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from broker.clock import ManualClock
from broker.config.setting_groups import GroupSettings
from broker.coordinator.group_coordinator import GroupCoordinator
from broker.coordinator.group_messages import CommitRequest, JoinReply, JoinRequest, SyncRequest
from broker.coordinator.group_records import OffsetAndMetadata
from broker.coordinator.modern_group_messages import Topics
from broker.errors import ErrorCode
from broker.protocol.topic_partition import TopicPartition
from tests.support.record_stores import GatedRecordStore

PARTITIONS = 5


class Groups:
    """A coordinator of all partitions and what stands around it."""

    def __init__(
        self,
        store: GatedRecordStore | None = None,
        clock: ManualClock | None = None,
        *,
        initial_delay_ms: int = 0,
        max_size: int = 1_000,
        topics: Topics | None = None,
    ) -> None:
        self.store = store or GatedRecordStore()
        self.clock = clock or ManualClock()
        self.config = GroupSettings(group_initial_rebalance_delay_ms=initial_delay_ms, group_max_size=max_size)
        self.topics = dict(topics or {})
        self.coordinator = GroupCoordinator(
            self.store, self.clock, self.config, PARTITIONS, topics=lambda: dict(self.topics)
        )

    async def load(self) -> None:
        for partition in range(PARTITIONS):
            await self.coordinator.load(partition)

    def advance(self, ms: int) -> None:
        """Turn the clock forward second by second, with what falls due on the way."""
        while ms > 0:
            step = min(ms, 1_000)
            self.clock.advance(step)
            self.coordinator._timer.run_due()
            ms -= step

    async def join(self, group: str = "g", member: str = "", *, two_steps: bool = False) -> JoinReply:
        return await self.coordinator.join(
            JoinRequest(
                group,
                member,
                "client",
                "/host",
                "consumer",
                (("range", b"topics"),),
                10_000,
                60_000,
                require_known_member_id=two_steps,
            )
        )

    async def stable_member(self, group: str = "g") -> str:
        """The only member of a stable generation 1."""
        joined = await self.join(group)
        sync = SyncRequest(group, 1, joined.member_id, {joined.member_id: b"work"})
        assert (await self.coordinator.sync(sync)).error is ErrorCode.none
        return joined.member_id

    async def commit(
        self, offset: int, *, group: str = "g", topic: str = "t", generation: int = -1, member: str = ""
    ) -> ErrorCode:
        partition = TopicPartition(topic, 0)
        request = CommitRequest(group, {partition: OffsetAndMetadata(offset)}, generation, member)
        return (await self.coordinator.commit_offsets(request))[partition]

    async def committed(self, group: str = "g") -> dict[str, int]:
        """Topic → committed offset, as OffsetFetch of everything tells it."""
        reply = await self.coordinator.fetch_offsets(group)
        assert reply.error is ErrorCode.none
        return {partition.topic: committed.offset for partition, committed in reply.offsets.items()}


@asynccontextmanager
async def running_groups(groups: Groups | None = None) -> AsyncIterator[Groups]:
    """Load, hand over, close."""
    groups = groups or Groups()
    await groups.load()
    try:
        yield groups
    finally:
        groups.store.gate.set()
        await groups.coordinator.close()


async def settle() -> None:
    """Let every task that can run do so."""
    for _ in range(20):
        await asyncio.sleep(0)

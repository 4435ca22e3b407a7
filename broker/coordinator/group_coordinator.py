"""The group coordinator: what the API handlers call, one coroutine per request.

Routes a request to the shard of its group's `__consumer_offsets` partition, lets the pure rules
decide, and waits where they park the caller. Nothing is raised for a bad request: errors are in the
replies. A caller may be cancelled (its connection closed) at any point without harm to the group.
Belongs to one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection, Iterable, Sequence
from typing import TypeVar
from uuid import uuid4

from broker.clock import Clock
from broker.coordinator import group_events, group_join
from broker.coordinator.group_config import GroupConfig
from broker.coordinator.group_effects import GroupState
from broker.coordinator.group_messages import (
    CommitRequest,
    FetchReply,
    GroupDescription,
    JoinReply,
    JoinRequest,
    LeaveReply,
    LeavingMember,
    ListedGroup,
    SyncReply,
    SyncRequest,
)
from broker.coordinator.group_shard import GroupShard
from broker.coordinator.group_state import ClassicGroup
from broker.coordinator.offset_commits import OffsetCommits, commit_error
from broker.coordinator.record_store import RecordStore
from broker.coordinator.shard_map import ShardMap
from broker.errors import ErrorCode
from broker.protocol.topic_partition import TopicPartition

__all__ = ["GroupCoordinator"]

_Answer = TypeVar("_Answer", JoinReply, SyncReply)


class GroupCoordinator:
    """All groups whose partitions this broker leads. `load` a partition before its groups are served."""

    def __init__(self, store: RecordStore, clock: Clock, config: GroupConfig, partitions: int) -> None:
        self._config = config
        self._shards = ShardMap(
            lambda partition, timer: GroupShard(partition, store, clock, config, timer),
            clock,
            partitions,
            expiry_interval_ms=config.offsets_retention_check_interval_ms,
            invalid_id=ErrorCode.invalid_group_id,
        )
        self._offsets = OffsetCommits(self._shards, config)

    # --- partitions ------------------------------------------------------------------------------

    def partition_for(self, group_id: str) -> int:
        """The partition whose leader coordinates the group (FindCoordinator)."""
        return self._shards.partition_for(group_id)

    def coordinates(self, partition: int) -> bool:
        """Whether this broker has begun to coordinate the partition: a new one is led a moment before."""
        return self._shards.get(partition) is not None

    async def load(self, partition: int) -> None:
        """Become the coordinator of a partition's groups: replay what is stored of them.

        Until it returns their requests get COORDINATOR_LOAD_IN_PROGRESS. Raises what the store's `read`
        raises; the partition is not served then.
        """
        await self._shards.load(partition)

    async def unload(self, partition: int) -> None:
        """Stop to coordinate a partition's groups; whoever waits gets NOT_COORDINATOR."""
        await self._shards.unload(partition)

    async def close(self) -> None:
        """Stop: whoever waits gets COORDINATOR_NOT_AVAILABLE, what is being stored is waited for."""
        await self._shards.close()

    def run_timers(self) -> None:
        """Do now what is due by the clock; the event loop's own timer does the same by itself."""
        self._shards.run_timers()

    # --- membership ------------------------------------------------------------------------------

    async def join(self, request: JoinRequest) -> JoinReply:
        """JoinGroup; returns when the generation is complete, or at once with an error."""
        shard = self._shards.locate(request.group_id)
        if isinstance(shard, ErrorCode):
            return JoinReply(shard, request.member_id)
        config = self._config
        if not config.group_min_session_timeout_ms <= request.session_timeout_ms <= config.group_max_session_timeout_ms:
            return JoinReply(ErrorCode.invalid_session_timeout, request.member_id)
        group = shard.groups.get(request.group_id)
        if group is None:
            if request.member_id:
                return JoinReply(ErrorCode.unknown_member_id, request.member_id)
            group = shard.create(request.group_id)
        new_id = "" if request.member_id else f"{request.group_instance_id or request.client_id}-{uuid4()}"
        waiter: asyncio.Future[JoinReply] = asyncio.get_running_loop().create_future()
        shard.perform(group, group_join.join(group, request, new_id, waiter, shard.now()))
        knows_itself = bool(request.member_id) or request.group_instance_id is not None
        return await self._answer(shard, group, waiter, can_return=knows_itself)

    async def sync(self, request: SyncRequest) -> SyncReply:
        """SyncGroup; returns when the leader's assignment is stored, or at once with an error."""
        shard = self._shards.locate(request.group_id)
        if isinstance(shard, ErrorCode):
            # The rebalance was lost with the old coordinator: the member is to join again.
            loading = shard is ErrorCode.coordinator_load_in_progress
            return SyncReply(ErrorCode.rebalance_in_progress if loading else shard)
        group = shard.groups.get(request.group_id)
        if group is None:
            return SyncReply(ErrorCode.unknown_member_id)
        waiter: asyncio.Future[SyncReply] = asyncio.get_running_loop().create_future()
        shard.perform(group, group_events.sync(group, request, waiter, shard.now()))
        return await self._answer(shard, group, waiter, can_return=True)

    async def _answer(
        self, shard: GroupShard, group: ClassicGroup, waiter: asyncio.Future[_Answer], *, can_return: bool
    ) -> _Answer:
        try:
            return await waiter
        except asyncio.CancelledError:
            shard.perform(group, group_events.abandon(group, waiter, can_return=can_return, now=shard.now()))
            raise

    async def heartbeat(
        self, group_id: str, generation_id: int, member_id: str, group_instance_id: str | None = None
    ) -> ErrorCode:
        """Heartbeat; never waits."""
        shard = self._shards.locate(group_id)
        if isinstance(shard, ErrorCode):
            # While groups are loaded nobody's session can end.
            return ErrorCode.none if shard is ErrorCode.coordinator_load_in_progress else shard
        group = shard.groups.get(group_id)
        if group is None:
            return ErrorCode.unknown_member_id
        return group_events.heartbeat(group, member_id, group_instance_id, generation_id, shard.now())

    async def leave(self, group_id: str, members: Sequence[LeavingMember]) -> LeaveReply:
        """LeaveGroup of one or several members; never waits."""
        shard = self._shards.locate(group_id)
        if isinstance(shard, ErrorCode):
            return LeaveReply(shard)
        group = shard.groups.get(group_id)
        if group is None:
            return LeaveReply(ErrorCode.none, tuple((member, ErrorCode.unknown_member_id) for member in members))
        if group.state is GroupState.DEAD:
            return LeaveReply(ErrorCode.coordinator_not_available)
        effects, results = group_events.leave(group, members, shard.now())
        shard.perform(group, effects)
        return LeaveReply(ErrorCode.none, results)

    # --- offsets ---------------------------------------------------------------------------------

    async def commit_offsets(self, request: CommitRequest) -> dict[TopicPartition, ErrorCode]:
        """OffsetCommit; returns when the offsets are stored, with one result per partition."""
        return await self._offsets.commit(request)

    async def commit_transactional_offsets(self, request: CommitRequest) -> dict[TopicPartition, ErrorCode]:
        """TxnOffsetCommit of `request.producer`; the offsets stay pending until `transaction_ended`."""
        assert request.producer is not None
        return await self._offsets.commit(request)

    def transaction_ended(
        self, partition: int, producer_id: int, commit: bool, waiting: Awaitable[object] | None = None
    ) -> None:
        """A transaction's marker stands in this partition of `__consumer_offsets`: what the producer has committed
        there holds from now on, or is dropped. With `waiting` it has its place there, and does so in the end."""
        self._offsets.transaction_ended(partition, producer_id, commit, waiting)

    async def fetch_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition] | None = None, *, require_stable: bool = False
    ) -> FetchReply:
        """OffsetFetch of some partitions, or (None) of all that have a committed offset."""
        return await self._offsets.fetch(group_id, partitions, require_stable=require_stable)

    async def delete_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition]
    ) -> tuple[ErrorCode, dict[TopicPartition, ErrorCode]]:
        """OffsetDelete: an error for the whole group, or one result per partition."""
        return await self._offsets.delete(group_id, partitions)

    async def forget_partitions(self, deleted: Collection[TopicPartition]) -> None:
        """Topics were deleted: drop the offsets of their partitions in every group."""
        await self._offsets.forget_partitions(deleted)

    # --- administration --------------------------------------------------------------------------

    async def describe(self, group_id: str) -> GroupDescription:
        """DescribeGroups of one group; Dead when there is none."""
        shard = self._shards.locate(group_id, may_be_empty=True)
        if isinstance(shard, ErrorCode):
            return GroupDescription(shard, group_id)
        group = shard.groups.get(group_id)
        if group is None:
            return GroupDescription(ErrorCode.none, group_id, GroupState.DEAD.value)
        return group_events.describe(group)

    async def list_groups(self, states: Collection[str] = ()) -> tuple[ErrorCode, tuple[ListedGroup, ...]]:
        """ListGroups: the groups of the loaded partitions, in the given states (none = all; case does not matter)."""
        loading = any(not shard.loaded for shard in self._shards.all())
        wanted = {state.casefold() for state in states}
        listed = tuple(
            ListedGroup(group.group_id, group.roster.protocol_type or "", group.state.value)
            for shard in self._shards.all()
            for group in shard.groups.values()
            if not wanted or group.state.value.casefold() in wanted
        )
        return ErrorCode.coordinator_load_in_progress if loading else ErrorCode.none, listed

    def all_groups(self) -> list[ClassicGroup]:
        """Every group of the loaded partitions, for who only looks (metrics)."""
        return [group for shard in self._shards.all() for group in shard.groups.values()]

    async def delete_groups(self, group_ids: Iterable[str]) -> dict[str, ErrorCode]:
        """DeleteGroups: empty groups with all their offsets."""
        return {group_id: await self._delete_group(group_id) for group_id in dict.fromkeys(group_ids)}

    async def _delete_group(self, group_id: str) -> ErrorCode:
        shard = self._shards.locate(group_id, may_be_empty=True)
        if isinstance(shard, ErrorCode):
            return shard
        group = shard.groups.get(group_id)
        if group is None or group.state is GroupState.DEAD:
            return ErrorCode.group_id_not_found
        if group.state is not GroupState.EMPTY:
            return ErrorCode.non_empty_group
        if group.offsets.in_flight:
            return ErrorCode.coordinator_not_available  # retriable: a commit is being stored
        code = await shard.delete_group(group)
        return commit_error(code)

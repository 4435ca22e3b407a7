"""Committed offsets: OffsetCommit, TxnOffsetCommit, OffsetFetch, OffsetDelete, and the ends of transactions.

A part of the group coordinator, which hands its requests on. Nothing is raised for a bad request: errors are in the
replies. Belongs to the event loop. Of a transaction nothing is verified here but what the log verifies: the producer's
epoch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection, Iterable

from broker.coordinator import group_events
from broker.coordinator.group_config import GroupConfig
from broker.coordinator.group_effects import GroupState
from broker.coordinator.group_messages import NO_OFFSET, CommitRequest, FetchReply
from broker.coordinator.group_shard import GroupShard
from broker.coordinator.group_state import ClassicGroup
from broker.coordinator.record_store import KeyValue
from broker.coordinator.records import MalformedRecord, OffsetAndMetadata, encode_offset, encode_offset_key
from broker.coordinator.shard_map import ShardMap
from broker.errors import ErrorCode
from broker.protocol.topic_partition import TopicPartition

__all__ = ["OffsetCommits", "commit_error"]

# What a committer is told when its offsets cannot be stored; other codes pass as they are.
_COMMIT_ERRORS = {
    ErrorCode.unknown_topic_or_partition: ErrorCode.coordinator_not_available,
    ErrorCode.not_enough_replicas: ErrorCode.coordinator_not_available,
    ErrorCode.not_enough_replicas_after_append: ErrorCode.coordinator_not_available,
    ErrorCode.request_timed_out: ErrorCode.coordinator_not_available,
    ErrorCode.not_leader_or_follower: ErrorCode.not_coordinator,
    ErrorCode.kafka_storage_error: ErrorCode.not_coordinator,
    ErrorCode.message_too_large: ErrorCode.invalid_commit_offset_size,
    ErrorCode.record_list_too_large: ErrorCode.invalid_commit_offset_size,
}


def commit_error(code: ErrorCode) -> ErrorCode:
    """How a failed append of offsets is told."""
    return _COMMIT_ERRORS.get(code, code)


class OffsetCommits:
    """The offsets of all groups coordinated here."""

    def __init__(self, shards: ShardMap[GroupShard], config: GroupConfig) -> None:
        self._shards = shards
        self._config = config

    async def commit(self, request: CommitRequest) -> dict[TopicPartition, ErrorCode]:
        """Store offsets, within a transaction when the request names its producer; one result per partition."""
        transactional = request.producer is not None
        shard = self._shards.locate(request.group_id, may_be_empty=not transactional)
        if isinstance(shard, ErrorCode):
            return dict.fromkeys(request.offsets, shard)
        group = shard.groups.get(request.group_id)
        if group is None:
            if request.generation_id >= 0:
                return dict.fromkeys(request.offsets, ErrorCode.illegal_generation)
            group = shard.create(request.group_id)
        now = shard.now()
        error = group_events.check_commit(
            group,
            request.member_id,
            request.group_instance_id,
            request.generation_id,
            now,
            transactional=transactional,
        )
        if error is not ErrorCode.none:
            return dict.fromkeys(request.offsets, error)
        return await self._store(shard, group, request, now.wall_ms)

    async def _store(
        self, shard: GroupShard, group: ClassicGroup, request: CommitRequest, now_ms: int
    ) -> dict[TopicPartition, ErrorCode]:
        results: dict[TopicPartition, ErrorCode] = {}
        records: list[KeyValue] = []
        committed: dict[TopicPartition, OffsetAndMetadata] = {}
        expire_at = -1 if request.retention_time_ms < 0 else now_ms + request.retention_time_ms
        for partition, wanted in request.offsets.items():
            if len(wanted.metadata) > self._config.offset_metadata_max_bytes:
                results[partition] = ErrorCode.offset_metadata_too_large
                continue
            value = OffsetAndMetadata(wanted.offset, wanted.leader_epoch, wanted.metadata, now_ms, expire_at)
            try:
                records.append((encode_offset_key(group.group_id, *partition), encode_offset(value)))
            except MalformedRecord:
                results[partition] = ErrorCode.invalid_commit_offset_size
                continue
            committed[partition] = value
        if committed:
            code = commit_error(await shard.commit(group, records, committed, request.producer))
            results.update(dict.fromkeys(committed, code))
        return results

    def transaction_ended(
        self, partition: int, producer_id: int, commit: bool, waiting: Awaitable[object] | None = None
    ) -> None:
        """A transaction's marker stands in a partition of `__consumer_offsets` or, with `waiting`, has its place."""
        shard = self._shards.get(partition)
        if shard is not None:
            shard.transaction_ended(producer_id, commit=commit, waiting=waiting)

    async def fetch(
        self, group_id: str, partitions: Iterable[TopicPartition] | None, *, require_stable: bool
    ) -> FetchReply:
        """The offsets of some partitions, or (None) of all that have one."""
        shard = self._shards.locate(group_id, may_be_empty=True)
        if isinstance(shard, ErrorCode):
            return FetchReply(shard, {})
        group = shard.groups.get(group_id)
        if group is None:
            group = ClassicGroup(group_id, self._config, 0)  # answers like one without offsets
        offsets = group.offsets.all() if partitions is None else group.offsets.of(partitions)
        if not require_stable:
            return FetchReply(ErrorCode.none, offsets)
        unstable = frozenset(filter(group.offsets.is_unstable, offsets))
        if unstable:
            offsets = {tp: NO_OFFSET if tp in unstable else offset for tp, offset in offsets.items()}
        return FetchReply(ErrorCode.none, offsets, unstable)

    async def delete(
        self, group_id: str, partitions: Iterable[TopicPartition]
    ) -> tuple[ErrorCode, dict[TopicPartition, ErrorCode]]:
        """OffsetDelete: an error for the whole group, or one result per partition."""
        shard = self._shards.locate(group_id)
        if isinstance(shard, ErrorCode):
            return shard, {}
        group = shard.groups.get(group_id)
        if group is None or group.state is GroupState.DEAD:
            return ErrorCode.group_id_not_found, {}
        results = group_events.deletable_offsets(group, partitions)
        if results is None:
            return ErrorCode.non_empty_group, {}
        known = group.offsets.known(tp for tp, error in results.items() if error is ErrorCode.none)
        if known:
            code = await shard.delete_offsets(group, known)
            results.update(dict.fromkeys(known, commit_error(code)))
        return ErrorCode.none, results

    async def forget_partitions(self, deleted: Collection[TopicPartition]) -> None:
        """Topics were deleted: drop the offsets of their partitions in every group, those of open transactions too."""
        gone = set(deleted)
        writes = []
        for shard in tuple(self._shards.all()):
            for group in shard.groups.values():
                known = group.offsets.any_of(gone)
                if known:
                    writes.append(shard.delete_offsets(group, known))
            await asyncio.sleep(0)  # there may be many groups
        for write in writes:
            await write

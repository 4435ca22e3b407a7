"""The group coordinator: what the API handlers call, one method per request.

It routes a request to the shard of its group's `__consumer_offsets` partition, applies the pure rules
(`group_requests`), and waits if they let the request wait. Errors are in the replies; nothing is raised for a bad
request. A caller may be cancelled (its connection closed) at any time without harm to the group. Belongs to one event
loop. Of a transaction only the producer's epoch is checked here, by the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Any, TypeVar
from uuid import uuid4

from broker.clock import Clock
from broker.config.group_config import GroupConfig
from broker.config.setting_groups import GroupSettings
from broker.coordinator import consumer_group_requests, group_migration, group_requests
from broker.coordinator.consumer_group_state import ConsumerGroup
from broker.coordinator.group import Effects, Group, Now, Waiter
from broker.coordinator.group_kinds import GroupKinds
from broker.coordinator.group_messages import (
    NO_MEMBER,
    NO_OFFSET,
    CommitRequest,
    FetchingMember,
    FetchReply,
    GroupDescription,
    JoinReply,
    JoinRequest,
    LeaveReply,
    LeavingMember,
    SyncReply,
    SyncRequest,
)
from broker.coordinator.group_records import OffsetAndMetadata, encode_offset, encode_offset_key
from broker.coordinator.group_shard import GroupShard
from broker.coordinator.group_state import ClassicGroup, GroupState
from broker.coordinator.modern_group_messages import (
    JOIN_EPOCH,
    HeartbeatReply,
    HeartbeatRequest,
    Topics,
)
from broker.coordinator.record_format import KeyValue, MalformedRecord
from broker.coordinator.record_store import RecordStore
from broker.coordinator.record_writer import APPEND_ERRORS
from broker.coordinator.sharded_coordinator import ShardedCoordinator
from broker.coordinator.share_group_state import ShareGroup
from broker.coordinator.topic_pattern import TopicPattern
from broker.errors import BrokerError, ErrorCode
from broker.net.delayed_answer import DelayedAnswer
from broker.protocol.topic_partition import TopicPartition

_Answer = TypeVar("_Answer", JoinReply, SyncReply)

# A client's error when its offsets cannot be stored. Every other code is passed on.
_COMMIT_ERRORS = {
    **APPEND_ERRORS,
    ErrorCode.request_timed_out: ErrorCode.coordinator_not_available,
    ErrorCode.message_too_large: ErrorCode.invalid_commit_offset_size,
    ErrorCode.record_list_too_large: ErrorCode.invalid_commit_offset_size,
}


def _commit_error(code: ErrorCode) -> ErrorCode:
    return _COMMIT_ERRORS.get(code, code)


class GroupCoordinator(ShardedCoordinator[GroupShard]):
    """All groups whose partitions this broker leads."""

    def __init__(
        self,
        store: RecordStore,
        clock: Clock,
        config: GroupSettings,
        partitions: int,
        *,
        leads: Callable[[int], Awaitable[bool | None]] | None = None,
        topics: Callable[[], Topics] = dict,
        config_of: Callable[[str], GroupConfig] = lambda _: GroupConfig(),
    ) -> None:
        """`leads(partition)`: whether this broker led a partition at a moment after the call (read_index.py).
        None: it always does. `topics`: those of the cluster. `config_of`: the settings in force of a group."""
        self._config = config
        self._leads = leads
        self._refreshes_regexes = False
        self._kinds = GroupKinds(config, topics, config_of)
        super().__init__(
            lambda partition, timer: GroupShard(partition, store, clock, self._kinds, timer),
            clock,
            partitions,
            expiry_interval_ms=config.offsets_retention_check_interval_ms,
            invalid_id=ErrorCode.invalid_group_id,
        )

    # --- membership ------------------------------------------------------------------------------

    async def join(self, request: JoinRequest) -> JoinReply:
        """JoinGroup. Returns when the generation is complete, or at once with an error."""
        shard = self._shard_of(request.group_id)
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
        now = shard.now()
        if isinstance(group, ConsumerGroup) and group.is_empty:
            group = group_migration.empty_as_classic(group, now)
        if isinstance(group, ConsumerGroup):
            shard.perform(group, group_migration.join(group, request, new_id, waiter, now))
            return await waiter
        if not isinstance(group, ClassicGroup):
            return JoinReply(ErrorCode.inconsistent_group_protocol, request.member_id)
        effects = group_requests.join(group, request, new_id, waiter, now)
        if shard.groups.get(request.group_id) is not group and (group.member_count or group.roster.pending):
            shard.groups[request.group_id] = group
        shard.perform(group, effects)
        knows_its_id = bool(request.member_id) or request.group_instance_id is not None
        return await self._wait(shard, group, waiter, can_return=knows_its_id)

    async def sync(self, request: SyncRequest) -> SyncReply:
        """SyncGroup. Returns when the leader's assignment is stored, or at once with an error."""
        shard = self._shard_of(request.group_id)
        if isinstance(shard, ErrorCode):
            # The rebalance was lost with the old coordinator. The member must join again.
            loading = shard is ErrorCode.coordinator_load_in_progress
            return SyncReply(ErrorCode.rebalance_in_progress if loading else shard)
        group = shard.groups.get(request.group_id)
        if isinstance(group, ConsumerGroup):
            reply = group_migration.sync(group, request, shard.now())
            shard.perform(group, Effects())  # it may have set a deadline
            return reply
        if not isinstance(group, ClassicGroup):
            return SyncReply(ErrorCode.unknown_member_id)
        waiter: asyncio.Future[SyncReply] = asyncio.get_running_loop().create_future()
        shard.perform(group, group_requests.sync(group, request, waiter, shard.now()))
        return await self._wait(shard, group, waiter, can_return=True)

    async def _wait(
        self, shard: GroupShard, group: ClassicGroup, waiter: asyncio.Future[_Answer], *, can_return: bool
    ) -> _Answer:
        try:
            return await waiter
        except asyncio.CancelledError:
            shard.perform(group, group_requests.abandon(group, waiter, can_return=can_return, now=shard.now()))
            raise

    async def heartbeat(
        self, group_id: str, generation_id: int, member_id: str, group_instance_id: str | None = None
    ) -> ErrorCode:
        """Heartbeat. Never waits."""
        shard = self._shard_of(group_id)
        if isinstance(shard, ErrorCode):
            # No session can end while the groups are loaded.
            return ErrorCode.none if shard is ErrorCode.coordinator_load_in_progress else shard
        group = shard.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            code = group_migration.heartbeat(group, member_id, group_instance_id, generation_id, shard.now())
            shard.perform(group, Effects())  # it may have set a deadline
            return code
        if not isinstance(group, ClassicGroup):
            return ErrorCode.unknown_member_id
        return group_requests.heartbeat(group, member_id, group_instance_id, generation_id, shard.now())

    async def leave(self, group_id: str, members: Sequence[LeavingMember]) -> LeaveReply:
        """LeaveGroup of one or several members. Waits only in a consumer group, until it is stored."""
        shard = self._shard_of(group_id)
        if isinstance(shard, ErrorCode):
            return LeaveReply(shard)
        group = shard.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            waiter: asyncio.Future[LeaveReply] = asyncio.get_running_loop().create_future()
            shard.perform(group, group_migration.leave(group, members, waiter, shard.now()))
            return await waiter
        if not isinstance(group, ClassicGroup):
            return LeaveReply(ErrorCode.none, tuple((member, ErrorCode.unknown_member_id) for member in members))
        if group.is_dead:
            return LeaveReply(ErrorCode.coordinator_not_available)
        effects, results = group_requests.leave(group, members, shard.now())
        shard.perform(group, effects)
        return LeaveReply(ErrorCode.none, results)

    # --- groups to which the coordinator assigns -----------------------------------------------------

    def quiet_heartbeat(self, request: HeartbeatRequest) -> HeartbeatReply | None:
        """The reply to a ConsumerGroupHeartbeat that changes nothing; None for all others (`consumer_heartbeat`)."""
        shard = self._shard_of(request.group_id)
        if isinstance(shard, ErrorCode) or not isinstance(group := shard.groups.get(request.group_id), ConsumerGroup):
            return None
        return consumer_group_requests.unchanged(group, request, shard.now())

    def consumer_heartbeat(self, request: HeartbeatRequest) -> Awaitable[HeartbeatReply]:
        """ConsumerGroupHeartbeat: a DelayedAnswer, if no pattern must be checked. Complete when what it changes is
        stored, or at once."""
        return self._checked_heartbeat(request) if request.topic_regex else self._consumer_heartbeat(request)

    async def _checked_heartbeat(self, request: HeartbeatRequest) -> HeartbeatReply:
        try:
            consumer_group_requests.check(request, self._config.group_consumer_assignors)
            await asyncio.to_thread(TopicPattern, request.topic_regex or "")  # the check of a long one takes a while
        except BrokerError as error:
            return HeartbeatReply(error.code, error.message)
        return await self._consumer_heartbeat(request)

    def _consumer_heartbeat(self, request: HeartbeatRequest) -> DelayedAnswer[HeartbeatReply]:
        answer: DelayedAnswer[HeartbeatReply] = DelayedAnswer()
        group_id = request.group_id
        try:
            consumer_group_requests.check(request, self._config.group_consumer_assignors)
            shard = self._shard_of(group_id)
            if isinstance(shard, ErrorCode):
                raise BrokerError(shard)
            group, before = self._consumer_group(shard, request)
        except BrokerError as error:
            answer.complete(HeartbeatReply(error.code, error.message))
            return answer
        if request.member_epoch == JOIN_EPOCH:
            shard.await_joins(group)
        effects = consumer_group_requests.heartbeat(group, request, answer, shard.now())
        if before.stores or not group.is_empty:
            shard.groups[group_id] = group
        shard.perform(group, before)
        shard.perform(group, effects)
        return answer

    def _consumer_group(self, shard: GroupShard, request: HeartbeatRequest) -> tuple[ConsumerGroup, Effects]:
        """The group of a heartbeat, with the effects of its event before that. For a first heartbeat the group may be
        new, or an upgraded classic group. Raises BrokerError."""
        group_id, group = request.group_id, shard.groups.get(request.group_id)
        if isinstance(group, ConsumerGroup):
            return group, Effects()
        if group is not None and group.is_dead:
            raise BrokerError(ErrorCode.coordinator_not_available, f"Group {group_id} is being deleted.")
        if request.member_epoch != JOIN_EPOCH or not isinstance(group, ClassicGroup | None):
            raise _not_found(group_id, group, "consumer")
        made, begun = self._kinds.consumer(group_id, None if group is None else group.offsets), Effects()
        if group is not None:
            ended, begun = group_migration.upgrade(group, request, made, shard.now())
            shard.perform(group, ended)
        return made, begun

    def topics_changed(self, names: Collection[str]) -> None:
        """Topics were created, deleted, or have other partitions."""
        for shard in self._shards.values():
            if shard.loaded:
                shard.topics_changed(names)

    def consumer_group(self, group_id: str) -> ConsumerGroup:
        """Raises BrokerError as `share_group` does."""
        group = self._known(group_id)
        if not isinstance(group, ConsumerGroup):
            raise _not_found(group_id, group, "consumer")
        return group

    def share_group(self, group_id: str) -> ShareGroup:
        """Raises BrokerError: `group_id_not_found`, or why the group is not known here."""
        group = self._known(group_id)
        if not isinstance(group, ShareGroup):
            raise _not_found(group_id, group, "share")
        return group

    def _known(self, group_id: str) -> Group | None:
        shard = self._shard_of(group_id)
        if isinstance(shard, ErrorCode):
            raise BrokerError(shard)
        return shard.groups.get(group_id)

    async def change_share_group(
        self, group_id: str, event: Callable[[ShareGroup, Waiter, Now], Effects], *, may_create: bool = False
    ) -> Any:
        """The answer to an event of a share group (`ShareGroup.heartbeat` and its others), once it is stored.

        Raises BrokerError as `share_group` does, unless the group does not exist and may be created.
        """
        shard = self._shard_of(group_id)
        if may_create and not isinstance(shard, ErrorCode) and group_id not in shard.groups:
            shard.groups[group_id] = self._kinds.share(group_id)
        group = self.share_group(group_id)
        assert isinstance(shard, GroupShard)
        if group.is_dead:
            raise BrokerError(ErrorCode.coordinator_not_available, f"share group {group_id} is being deleted")
        waiter: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if may_create:
            shard.await_joins(group)
        shard.perform(group, event(group, waiter, shard.now()))
        return await waiter

    def _schedule_expiry(self) -> None:
        super()._schedule_expiry()
        if not self._refreshes_regexes:
            self._refreshes_regexes = True
            self._refresh_regexes()

    def _refresh_regexes(self) -> None:
        interval_s = self._config.group_consumer_regex_refresh_interval_ms / 1000
        self._timer.at(self._clock.monotonic() + interval_s, self._refresh_regexes)
        for shard in self._shards.values():
            for group in tuple(shard.groups.values()):
                if isinstance(group, ConsumerGroup):
                    shard.perform(group, group.refresh_regexes(shard.now()))

    # --- offsets ---------------------------------------------------------------------------------

    async def commit_offsets(self, request: CommitRequest) -> dict[TopicPartition, ErrorCode]:
        """OffsetCommit or, with `request.producer`, TxnOffsetCommit: a result per partition.

        Returns once the offsets are stored. Those of a transaction are pending until `transaction_ended`.
        """
        transactional = request.producer is not None
        shard = self._shard_of(request.group_id, may_be_empty=not transactional)
        if isinstance(shard, ErrorCode):
            return dict.fromkeys(request.offsets, shard)
        group = shard.groups.get(request.group_id)
        if group is None:
            if request.generation_id >= 0:
                gone = ErrorCode.group_id_not_found if request.knows_epochs else ErrorCode.illegal_generation
                return dict.fromkeys(request.offsets, gone)
            group = shard.create(request.group_id)
        now = shard.now()
        error = self._commit_error(group, request, now)
        if error is not ErrorCode.none:
            return dict.fromkeys(request.offsets, error)
        return await self._store_offsets(shard, group, request, now.wall_ms)

    @staticmethod
    def _commit_error(group: Group, request: CommitRequest, now: Now) -> ErrorCode:
        """Why the offsets may not be committed. As in Kafka, one partition that may not be refuses all."""
        generation, transactional = request.generation_id, request.producer is not None
        if isinstance(group, ClassicGroup):
            member = request.member_id, request.group_instance_id
            return group_requests.check_commit(group, *member, generation, now, transactional=transactional)
        if group.is_dead:
            return ErrorCode.coordinator_not_available
        if not isinstance(group, ConsumerGroup):
            return ErrorCode.group_id_not_found
        return consumer_group_requests.commit_error(group, request)

    async def _store_offsets(
        self, shard: GroupShard, group: Group, request: CommitRequest, now_ms: int
    ) -> dict[TopicPartition, ErrorCode]:
        results: dict[TopicPartition, ErrorCode] = {}
        records: list[KeyValue] = []
        committed: dict[TopicPartition, OffsetAndMetadata] = {}
        expire_at = -1 if request.retention_time_ms < 0 else now_ms + request.retention_time_ms
        for partition, wanted in request.offsets.items():
            if len(wanted.metadata) > self._config.offset_metadata_max_bytes:
                results[partition] = ErrorCode.offset_metadata_too_large
                continue
            committed_ms = now_ms if wanted.commit_timestamp == -1 else wanted.commit_timestamp
            value = OffsetAndMetadata(wanted.offset, wanted.leader_epoch, wanted.metadata, committed_ms, expire_at)
            try:
                records.append((encode_offset_key(group.group_id, *partition), encode_offset(value)))
            except MalformedRecord:
                results[partition] = ErrorCode.invalid_commit_offset_size
                continue
            committed[partition] = value
        if committed:
            code = _commit_error(await shard.commit(group, records, committed, request.producer))
            results.update(dict.fromkeys(committed, code))
        return results

    def transaction_ended(
        self, partition: int, producer_id: int, commit: bool, waiting: Awaitable[object] | None = None
    ) -> None:
        """A transaction's marker is in a partition of `__consumer_offsets` or, with `waiting`, is being appended.

        The producer's pending offsets there take effect, or are dropped.
        """
        shard = self._shards.get(partition)
        if shard is not None:
            shard.transaction_ended(producer_id, commit=commit, waiting=waiting)

    async def fetch_offsets(
        self,
        group_id: str,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        require_stable: bool = False,
        member: FetchingMember = NO_MEMBER,
    ) -> FetchReply:
        """OffsetFetch of some partitions, or (None) of all that have a committed offset.

        With `require_stable` the offsets are at least as new as when the request came: who copies in transactions
        continues from them. Without it they are read from memory, as in Kafka.
        """
        leads: bool | None = True
        if require_stable and self._leads is not None and self.coordinates(partition := self.partition_for(group_id)):
            leads = await self._leads(partition)
            if leads is False or (leads is None and partitions is None):
                return FetchReply(ErrorCode.not_coordinator, {})
        shard = self._shard_of(group_id, may_be_empty=True)
        if isinstance(shard, ErrorCode):
            return FetchReply(shard, {})
        group = shard.groups.get(group_id)
        if group is None:
            group = ClassicGroup(group_id, self._config, 0)  # an empty group without offsets
        if isinstance(group, ConsumerGroup):
            refused = consumer_group_requests.fetch_error(group, *member)
            if refused is not ErrorCode.none:
                return FetchReply(refused, {})
        offsets = group.offsets.all() if partitions is None else group.offsets.of(partitions)
        if not require_stable:
            return FetchReply(ErrorCode.none, offsets)
        # Clients ask again for what is not stable. After NOT_COORDINATOR librdkafka never reads these partitions.
        unstable = frozenset(offsets if leads is None else filter(group.offsets.is_unstable, offsets))
        if unstable:
            offsets = {tp: NO_OFFSET if tp in unstable else offset for tp, offset in offsets.items()}
        return FetchReply(ErrorCode.none, offsets, unstable)

    async def delete_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition]
    ) -> tuple[ErrorCode, dict[TopicPartition, ErrorCode]]:
        """OffsetDelete: an error for the whole group, or one result per partition."""
        shard = self._shard_of(group_id)
        if isinstance(shard, ErrorCode):
            return shard, {}
        group = shard.groups.get(group_id)
        if group is None or group.is_dead or isinstance(group, ShareGroup):
            return ErrorCode.group_id_not_found, {}
        results = group.deletable_offsets(partitions)
        if results is None:
            return ErrorCode.non_empty_group, {}
        known = group.offsets.known(tp for tp, error in results.items() if error is ErrorCode.none)
        if known:
            code = await shard.delete_offsets(group, known)
            results.update(dict.fromkeys(known, _commit_error(code)))
        return ErrorCode.none, results

    async def forget_partitions(self, deleted: Collection[TopicPartition]) -> None:
        """Topics were deleted: drop the offsets of their partitions in every group, pending ones too, and what share
        groups know of them."""
        gone, names = set(deleted), {tp.topic for tp in deleted}
        alive = {topic.topic_id for topic in self._kinds.topics().values()}
        writes = []
        for shard in tuple(self._shards.values()):
            for group in shard.groups.values():
                known = group.offsets.any_of(gone)
                if known:
                    writes.append(shard.delete_offsets(group, known))
                if isinstance(group, ShareGroup) and (ids := group.states_of(names) - alive):
                    shard.perform(group, group.forget(ids, None, shard.now(), deleted=True))
            await asyncio.sleep(0)  # let other requests run: there may be many groups
        for write in writes:
            await write

    # --- administration --------------------------------------------------------------------------

    async def describe(self, group_id: str) -> GroupDescription:
        """DescribeGroups of one group. A group that does not exist is Dead."""
        shard = self._shard_of(group_id, may_be_empty=True)
        if isinstance(shard, ErrorCode):
            return GroupDescription(shard, group_id)
        group = shard.groups.get(group_id)
        if not isinstance(group, ClassicGroup):
            why = f"Group {group_id} not found." if group is None else f"Group {group_id} is not a classic group."
            return GroupDescription(ErrorCode.none, group_id, GroupState.DEAD.value, message=why)
        return group_requests.describe(group)

    async def list_groups(self, states: Collection[str] = ()) -> tuple[ErrorCode, list[Group]]:
        """ListGroups: the groups of the loaded partitions in one of `states` (in any case), or all of them."""
        wanted = {state.casefold() for state in states}
        listed = [group for group in self.all_groups() if not wanted or group.state_name.casefold() in wanted]
        return self._loading_error(), listed

    def all_groups(self) -> list[Group]:
        """Every group of the loaded partitions. Do not change them."""
        return [group for shard in self._shards.values() for group in shard.groups.values()]

    async def delete_groups(self, group_ids: Iterable[str]) -> dict[str, ErrorCode]:
        """DeleteGroups: empty groups with all their offsets."""
        return {group_id: await self._delete_group(group_id) for group_id in dict.fromkeys(group_ids)}

    async def _delete_group(self, group_id: str) -> ErrorCode:
        shard = self._shard_of(group_id, may_be_empty=True)
        if isinstance(shard, ErrorCode):
            return shard
        group = shard.groups.get(group_id)
        if group is None or group.is_dead:
            return ErrorCode.group_id_not_found
        if not group.is_empty:
            return ErrorCode.non_empty_group
        if group.offsets.in_flight:
            return ErrorCode.coordinator_not_available  # retriable: offsets are being stored
        return _commit_error(await shard.delete_group(group))


def _not_found(group_id: str, group: Group | None, kind: str) -> BrokerError:
    why = "not found" if group is None else f"is not a {kind} group"
    return BrokerError(ErrorCode.group_id_not_found, f"Group {group_id} {why}.")

"""What the fetch of a follower reads of one partition. fetch.py does the rest, as for consumers.

A follower reads up to the log end. The offset that it asks for says that it has all records below, which may move the
high watermark (replica/in_sync_state.py). So its fetch must prove by leader epochs that its log is a prefix of this one
(KIP-320, KIP-595). Where it is not, the answer says where to cut it. A follower counts once for each request, and not
again in the read after the wait: it may have been restarted meanwhile. Thousands of these reads are done in a second,
so this calls little.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from broker.api.context import ApiContext, Request
from broker.errors import BrokerError, ErrorCode
from broker.log.segment_file import FileSlice
from broker.protocol.messages import field
from broker.protocol.topic_partition import TopicPartition
from broker.replica.partition import Partition

_FIRST_WITH_LAST_EPOCH = 12


class FollowerId(NamedTuple):
    """Who fetches: a broker and the epoch of its registration (KIP-903), or a consumer with a `broker_id` below 0."""

    broker_id: int
    broker_epoch: int


class ReadForFollower(NamedTuple):
    """`diverging` is where the follower has to cut its log, as (leader epoch, end offset). `archived_end`: the follower
    may delete archived records before it."""

    partition: Partition
    records: FileSlice | None
    diverging: tuple[int, int] | None
    archived_end: int = 0


def follower_of(body: Any) -> FollowerId:
    """Version notes: from 15 the broker id is in another field, with the broker epoch, which is -1 before that."""
    state = field(body, "replica_state")
    if state is None:
        return FollowerId(int(field(body, "replica_id", -1)), -1)
    return FollowerId(state.replica_id, state.replica_epoch)


def read_for_follower(
    context: ApiContext,
    request: Request,
    tp: TopicPartition,
    asked: Any,
    follower: FollowerId,
    limit: int,
    *,
    is_first_with_records: bool,
    counts: bool,
) -> ReadForFollower:
    """Read at most `limit` bytes; only the first partition with records may exceed it. `counts`: whether the offset
    that is asked for counts as the follower's position.

    Raises BrokerError, also unless the fetch can prove that the follower's log is a prefix.
    """
    if request.version < _FIRST_WITH_LAST_EPOCH or asked.current_leader_epoch < 0:
        raise BrokerError(ErrorCode.not_leader_or_follower, f"a follower of {tp} has to name leader epochs")
    replica, broker_epoch = follower
    partition = context.topics.partition(tp, asked.current_leader_epoch)
    partition.check_replica(replica, broker_epoch)
    offset, records = asked.fetch_offset, None
    diverging = None
    if asked.last_fetched_epoch >= 0:
        diverging = partition.diverging_epoch(asked.last_fetched_epoch, offset)
    throttled = partition.log.config.leader_replication_throttled_replicas
    if diverging is not None:
        return ReadForFollower(partition, None, diverging)
    if offset < partition.log.local_start_offset and offset >= partition.log.log_start_offset:
        text = f"offset {offset} of {tp} is in the archive only: a follower begins at the local start"
        raise BrokerError(ErrorCode.offset_moved_to_tiered_storage, text)
    if offset != partition.log.log_end_offset and not (throttled and _is_throttled(context, partition, replica)):
        limit = max(min(asked.partition_max_bytes, limit), 0)
        records = partition.log.read(offset, limit)
        if records is not None and records.length > limit and not is_first_with_records:
            records = None
        if records is not None and throttled:
            _count_throttled(context, partition, throttled, records.length)
    if counts:
        partition.fetched_by(replica, offset, broker_epoch, asked.log_start_offset)
    archived = partition.log.archived
    return ReadForFollower(partition, records, None, 0 if archived is None else archived.end)


def _is_throttled(context: ApiContext, partition: Partition, replica: int) -> bool:
    """Whether a follower has to wait, because it is not in sync and the rate for such replicas is exceeded (KIP-73)."""
    quota = context.topics.replicas.leader_quota
    if not quota.applies_to(partition.log.config.leader_replication_throttled_replicas, partition.tp.partition):
        return False
    return not partition.is_in_sync(replica) and quota.is_exceeded


def _count_throttled(context: ApiContext, partition: Partition, throttled: Sequence[str], size: int) -> None:
    if context.topics.replicas.leader_quota.applies_to(throttled, partition.tp.partition):
        context.topics.replicas.leader_quota.record(size)

"""ListOffsets: the earliest and latest offset, or the first at or after a timestamp.

Negative timestamps have a special meaning: -1 latest, -2 earliest, -3 the record with the largest timestamp (KIP-734),
-4 the earliest on this broker's disk (KIP-405), -5 the last that was ever archived (KIP-1005), -6 the earliest that is
not archived yet (KIP-1023), if there is one and the topic has an archive (A11). With isolation level read_committed the
latest offset is the last stable offset, and no later offset is returned (KIP-98). A new leader of several replicas
answers OFFSET_NOT_AVAILABLE where an earlier leader may have shown a later offset (KIP-207). Replica id -1 is a
consumer's; to any other one the log end offset is the latest, and with -2 followers answer, too: tools compare replicas
so. Pages that a look-up by time needs and that are not in the page cache are read by a thread, so that other
connections are served meanwhile. What it needs of the archive is waited for up to
remote.list.offsets.request.timeout.ms.
The leader epoch of an answer is that of the record, and the present one for the latest offset (KIP-320).
Version notes: 0 asks for up to `max_num_offsets` offsets, the latest first: those at which segments begin, and the
end. A segment counts for a timestamp at which it was no longer written to (Kafka's `legacyFetchOffsetsBefore`). Clients
before 5 get LEADER_NOT_AVAILABLE for OFFSET_NOT_AVAILABLE; -5 is new in 9, -6 in 11. Other negative timestamps get
UNSUPPORTED_VERSION, as in Kafka 4.
"""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from broker.api.context import ApiContext, Client, Fields, Request
from broker.api.serving import serves
from broker.errors import BrokerError, ErrorCode
from broker.log.leader_epochs import NO_EPOCH
from broker.log.log import Log
from broker.log.segment_file import ColdRead, unless_cold
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import field, to_ms
from broker.protocol.permissions import LIST_OFFSETS_TOPIC
from broker.protocol.topic_partition import TopicPartition
from broker.replica.cold_reads import warmed
from broker.replica.partition import Partition
from broker.replica.replica import Replica

Answer: TypeAlias = Fields

_CONSUMER, _ANY_REPLICA = -1, -2
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING = -1, -2, -3, -4, -5, -6
_OLD_STYLE = 0
_FIRST_VERSION = {LATEST_TIERED: 9, EARLIEST_PENDING: 11}
_FIRST_WITH_NOT_AVAILABLE = 5


@serves(ApiKey.LIST_OFFSETS, 0, 11)
def handle(context: ApiContext, request: Request, client: Client) -> Answer | Awaitable[Answer]:
    """An offset or an error for each partition. A partition that is twice in the request is refused."""
    topics = request.body.topics
    times = Counter((topic.name, asked.partition_index) for topic in topics for asked in topic.partitions)
    found: list[Answer] = []
    cold: list[tuple[int, Awaitable[Answer]]] = []
    for topic in topics:
        for asked in topic.partitions:
            tp = TopicPartition(topic.name, asked.partition_index)
            attempt = functools.partial(_partition, context, request, client, tp, asked, times)
            try:
                found.append(unless_cold(attempt))
            except ColdRead as missed:
                cold.append((len(found), _warmed(context, request, asked, attempt, missed)))
                found.append({})
    return _warmed_answer(topics, found, cold) if cold else _answer(topics, found)


async def _warmed(
    context: ApiContext, request: Request, asked: Any, attempt: Callable[[], Answer], cold: ColdRead
) -> Answer:
    most_ms = context.config.remote_list_offsets_request_timeout_ms
    timeout = field(request.body, "timeout")
    if timeout is not None and to_ms(timeout) > 0:
        most_ms = min(most_ms, to_ms(timeout))
    try:
        return await warmed(attempt, cold, store_s=most_ms / 1000)
    except BrokerError as error:
        return _answered(asked, error.code)


async def _warmed_answer(
    topics: Sequence[Any], found: list[Answer], cold: Sequence[tuple[int, Awaitable[Answer]]]
) -> Answer:
    answers = await asyncio.gather(*(answer for _, answer in cold))  # the archive's store answers many at once
    for (number, _), answer in zip(cold, answers, strict=True):
        found[number] = answer
    return _answer(topics, found)


def _answer(topics: Sequence[Any], found: Iterable[Answer]) -> Answer:
    answers = iter(found)
    named = [{"name": topic.name, "partitions": [next(answers) for _ in topic.partitions]} for topic in topics]
    return {"topics": named}


def _partition(
    context: ApiContext,
    request: Request,
    client: Client,
    tp: TopicPartition,
    asked: Any,
    times: Mapping[tuple[str, int], int],
) -> Answer:
    try:
        context.check(client, LIST_OFFSETS_TOPIC, tp.topic)
        if times[tp] > 1 and request.version > _OLD_STYLE:
            raise BrokerError(ErrorCode.invalid_request, f"{tp} is in the request more than once")
        if request.version > _OLD_STYLE and not _has_meaning(asked.timestamp, request.version):
            raise BrokerError(ErrorCode.unsupported_version, f"timestamp {asked.timestamp} has no meaning here")
        replica_id, epoch = request.body.replica_id, field(asked, "current_leader_epoch", -1)
        topics = context.topics
        replica = topics.replica(tp, epoch) if replica_id == _ANY_REPLICA else topics.partition(tp, epoch)
        if replica_id != _CONSUMER:
            end = replica.log.log_end_offset
        elif field(request.body, "isolation_level", 0) == 1:
            end = replica.last_stable_offset
        else:
            end = replica.high_watermark
        if request.version == _OLD_STYLE:
            return _answered(asked, old_style_offsets=_old_style(context, replica, asked, end))
        offset, timestamp = _find(replica, asked.timestamp, end)
    except BrokerError as error:
        code = error.code
        if code is ErrorCode.offset_not_available and request.version < _FIRST_WITH_NOT_AVAILABLE:
            code = ErrorCode.leader_not_available
        return _answered(asked, code)
    return _answered(
        asked, timestamp=timestamp, offset=offset, leader_epoch=_epoch_of(replica, asked.timestamp, offset)
    )


def _answered(asked: Any, code: ErrorCode = ErrorCode.none, **found: Any) -> Answer:
    return {"partition_index": asked.partition_index, "error_code": code, "timestamp": -1, "offset": -1, **found}


def _has_meaning(timestamp: int, version: int) -> bool:
    return timestamp >= EARLIEST_PENDING and version >= _FIRST_VERSION.get(timestamp, 0)


def _old_style(context: ApiContext, replica: Replica, asked: Any, end: int) -> list[int]:
    """The offsets of version 0, in descending order; none above `end`, which stands for all that are."""
    log, timestamp = replica.log, asked.timestamp
    if timestamp == LATEST:
        _check_caught_up(replica, end)
    begins = [(max(segment.base_offset, log.log_start_offset), segment) for segment in log.segments]
    offsets = [offset for offset, _ in begins]
    if timestamp == EARLIEST:
        offsets[0] = log.log_start_offset  # its segment may be archived; those that are do not count
    if begins[-1][1].size > 0:
        offsets.append(log.log_end_offset)
    if timestamp == EARLIEST:
        del offsets[1:]
    elif timestamp != LATEST and not (len(offsets) > len(begins) and context.clock.now_ms() <= timestamp):
        counted = next((n for n in range(len(begins), 0, -1) if begins[n - 1][1].modified_ms() <= timestamp), 0)
        del offsets[counted:]
    latest_first = offsets[: -max(asked.max_num_offsets, 0) - 1 : -1]
    return list(dict.fromkeys(min(offset, end) for offset in latest_first))


def _epoch_of(replica: Replica, timestamp: int, offset: int) -> int:
    if offset < 0:
        return NO_EPOCH
    if timestamp == LATEST or offset >= replica.log.log_end_offset:
        return replica.leader_epoch
    return replica.log.epochs.epoch_of(offset)


def _find(replica: Replica, timestamp: int, end: int) -> tuple[int, int]:
    """(offset, timestamp) of what is asked for and below `end`, each -1 for none."""
    if timestamp == LATEST:
        _check_caught_up(replica, end)
        return end, -1
    log = replica.log
    if timestamp == EARLIEST:
        return log.log_start_offset, -1
    if timestamp == EARLIEST_LOCAL:
        return log.local_start_offset, -1
    found: tuple[int, int] | None
    if timestamp == LATEST_TIERED:
        found = log.last_archived, -1
    elif timestamp == EARLIEST_PENDING:
        found = _earliest_pending(log), -1
    else:
        found = log.max_timestamp() if timestamp == MAX_TIMESTAMP else log.offset_for_timestamp(timestamp)
    if found is None or found[0] < end:
        return found or (-1, -1)
    _check_caught_up(replica, end)
    return -1, -1


def _earliest_pending(log: Log) -> int:
    """The first record that the archive lacks; -1 without an archive, or before this broker knows what is in it."""
    if log.last_archived >= 0:
        return max(log.last_archived + 1, log.log_start_offset)
    is_known = log.config.remote_storage_enable and log.local_start_offset == log.log_start_offset
    return log.log_start_offset if is_known else -1


def _check_caught_up(replica: Replica, end: int) -> None:
    """Raise BrokerError while an answer could be an offset before one that an earlier leader gave (KIP-207)."""
    if end < replica.log.log_end_offset and isinstance(replica, Partition) and replica.is_catching_up:
        raise BrokerError(
            ErrorCode.offset_not_available, f"the high watermark of {replica.tp} is below the start of its epoch"
        )

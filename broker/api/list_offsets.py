"""ListOffsets: the earliest and latest offset, or the first at or after a timestamp.

Negative timestamps have a special meaning: -1 latest, -2 earliest, -3 the record with the largest timestamp (KIP-734),
-4 earliest local (here: earliest), -5 latest tiered (here: none). With isolation level read_committed the latest offset
is the last stable offset, and no later offset is returned (KIP-98). A new leader of several replicas answers
OFFSET_NOT_AVAILABLE where an earlier leader may have shown a later offset (KIP-207). Pages that a look-up by time needs
and that are not in the page cache are read by a thread, so that other connections are served meanwhile.
Version notes: -5 is new in 9. Other negative timestamps get UNSUPPORTED_VERSION, as in Kafka 4.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from broker.api.cold_reads import warmed
from broker.api.context import ApiContext, Client, Fields, Request
from broker.errors import BrokerError, ErrorCode
from broker.log.segment_file import ColdRead, unless_cold
from broker.protocol.messages import field
from broker.protocol.topic_partition import TopicPartition
from broker.replica.partition import Partition

__all__ = ["handle"]

Answer: TypeAlias = Fields

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5
_FIRST_TIERED = 9


def handle(context: ApiContext, request: Request, client: Client) -> Answer | Awaitable[Answer]:
    """An offset or an error for each partition. A partition that is twice in the request is refused."""
    topics = request.body.topics
    times = Counter((topic.name, asked.partition_index) for topic in topics for asked in topic.partitions)
    found: list[Answer] = []
    cold: list[tuple[int, Awaitable[Answer]]] = []
    for topic in topics:
        for asked in topic.partitions:
            tp = TopicPartition(topic.name, asked.partition_index)
            attempt = functools.partial(_partition, context, request, tp, asked, times)
            try:
                found.append(unless_cold(attempt))
            except ColdRead as missed:
                cold.append((len(found), warmed(attempt, missed)))
                found.append({})
    return _warmed_answer(topics, found, cold) if cold else _answer(topics, found)


async def _warmed_answer(
    topics: Sequence[Any], found: list[Answer], cold: Sequence[tuple[int, Awaitable[Answer]]]
) -> Answer:
    for number, answer in cold:
        found[number] = await answer
    return _answer(topics, found)


def _answer(topics: Sequence[Any], found: Iterable[Answer]) -> Answer:
    answers = iter(found)
    named = [{"name": topic.name, "partitions": [next(answers) for _ in topic.partitions]} for topic in topics]
    return {"topics": named}


def _partition(
    context: ApiContext, request: Request, tp: TopicPartition, asked: Any, times: Mapping[tuple[str, int], int]
) -> Answer:
    try:
        if times[tp] > 1:
            raise BrokerError(ErrorCode.invalid_request, f"{tp} is in the request more than once")
        if asked.timestamp < LATEST_TIERED or (asked.timestamp == LATEST_TIERED and request.version < _FIRST_TIERED):
            raise BrokerError(ErrorCode.unsupported_version, f"timestamp {asked.timestamp} has no meaning here")
        partition = context.topics.partition(tp)
        partition.check_epoch(field(asked, "current_leader_epoch", -1))
        committed_only = field(request.body, "isolation_level", 0) == 1
        offset, timestamp = _find(partition, asked.timestamp, committed_only)
    except BrokerError as error:
        return {"partition_index": tp.partition, "error_code": error.code, "timestamp": -1, "offset": -1}
    return {
        "partition_index": tp.partition,
        "error_code": ErrorCode.none,
        "timestamp": timestamp,
        "offset": offset,
        "leader_epoch": partition.leader_epoch if offset >= 0 else -1,
    }


def _find(partition: Partition, timestamp: int, committed_only: bool) -> tuple[int, int]:
    end = partition.last_stable_offset if committed_only else partition.high_watermark
    if timestamp == LATEST:
        _check_caught_up(partition)
        return end, -1
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return partition.log.log_start_offset, -1
    if timestamp == LATEST_TIERED:
        return -1, -1
    found = (
        partition.log.max_timestamp() if timestamp == MAX_TIMESTAMP else partition.log.offset_for_timestamp(timestamp)
    )
    if found is None or found[0] < end:
        return found or (-1, -1)
    _check_caught_up(partition)
    return -1, -1


def _check_caught_up(partition: Partition) -> None:
    """Raise BrokerError while an answer could be an offset before one that an earlier leader gave (KIP-207)."""
    if partition.is_catching_up:
        raise BrokerError(
            ErrorCode.offset_not_available, f"the high watermark of {partition.tp} is below the start of its epoch"
        )

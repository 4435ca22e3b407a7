"""DeleteRecords: delete the records of partitions below an offset, which becomes the log start offset.

Behaviour: -1 stands for the high watermark. An offset below the log start offset changes nothing. The answer comes once
the new start is on disk, so that a crash does not bring records back, and once all followers whose brokers are alive
have deleted these records, too. So a later leader does not bring them back either. After the request's timeout the
answer is REQUEST_TIMED_OUT, and the followers may still delete them. `low_watermark` is the lowest start of these
replicas. As in Kafka, internal topics are refused, and topics whose cleanup.policy lacks delete get POLICY_VIOLATION.
All versions are alike.
"""

from __future__ import annotations

import asyncio
from typing import Any

from broker.api.context import ApiContext, Client, Fields, Request
from broker.errors import BrokerError, ErrorCode
from broker.protocol.messages import to_ms
from broker.protocol.permissions import DELETE_RECORDS_TOPIC
from broker.protocol.topic_names import INTERNAL_TOPICS
from broker.protocol.topic_partition import TopicPartition
from broker.replica.partition import Partition

HIGH_WATERMARK = -1
NO_OFFSET = -1

_Deleted = tuple[dict[str, Any], Partition, int]
"""The answer for a partition, and the offset at which all of its replicas shall begin."""


async def handle(context: ApiContext, request: Request, client: Client) -> Fields:
    """Each partition succeeds or fails alone."""
    topics = []
    deleted: list[_Deleted] = []
    for topic in request.body.topics:
        answers = []
        for asked in topic.partitions:
            answer: dict[str, Any] = {"partition_index": asked.partition_index, "low_watermark": NO_OFFSET}
            try:
                context.check(client, DELETE_RECORDS_TOPIC, topic.name)
                partition, before = _delete(context, TopicPartition(topic.name, asked.partition_index), asked.offset)
            except BrokerError as error:
                answer["error_code"] = error.code
            else:
                deleted.append((answer, partition, before))
            answers.append(answer)
        topics.append({"name": topic.name, "partitions": answers})
    if deleted:
        await _finish(context, deleted, to_ms(request.body.timeout) / 1000)
    return {"topics": topics}


def _delete(context: ApiContext, tp: TopicPartition, before: int) -> tuple[Partition, int]:
    if tp.topic in INTERNAL_TOPICS:
        raise BrokerError(ErrorCode.invalid_topic_exception, f"{tp.topic} is internal")
    partition = context.topics.partition(tp)
    if "delete" not in partition.log.config.cleanup_policy:
        raise BrokerError(ErrorCode.policy_violation, f"cleanup.policy of {tp.topic} lacks delete")
    if before == HIGH_WATERMARK:
        before = partition.high_watermark
    if not 0 <= before <= partition.high_watermark:
        raise BrokerError(ErrorCode.offset_out_of_range, f"{before} is not in [0, {partition.high_watermark}]")
    partition.delete_records(before)
    return partition, before


async def _finish(context: ApiContext, deleted: list[_Deleted], timeout_s: float) -> None:
    """Write the new starts to disk, wait for the followers, and complete the answers."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    try:
        await asyncio.to_thread(context.logs.write_log_starts)
    except BrokerError as error:
        for answer, _, _ in deleted:
            answer["error_code"] = error.code
        return
    outcomes = await asyncio.gather(*(_outcome(partition, before, deadline) for _, partition, before in deleted))
    for (answer, _, _), outcome in zip(deleted, outcomes, strict=True):
        answer.update(outcome)


async def _outcome(partition: Partition, before: int, deadline: float) -> dict[str, Any]:
    code = ErrorCode.none
    try:
        wait = partition.until_deleted(before)
        if wait is not None:
            async with asyncio.timeout_at(deadline):
                await wait
    except TimeoutError:
        code = ErrorCode.request_timed_out
    except BrokerError as error:
        return {"error_code": error.code}
    return {"low_watermark": partition.low_watermark, "error_code": code}

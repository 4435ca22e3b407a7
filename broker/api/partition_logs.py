"""What is asked of a partition's log beside its records: DeleteRecords, OffsetForLeaderEpoch, DescribeProducers."""

from __future__ import annotations

import asyncio
from typing import Any

from broker.api.context import ApiContext, Client, Fields, Request, outcome
from broker.api.serving import serves
from broker.errors import BrokerError, ErrorCode
from broker.log.producer_state import ProducerEntry
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import field, to_ms
from broker.protocol.permissions import (
    DELETE_RECORDS_TOPIC,
    DESCRIBE_PRODUCERS_TOPIC,
    END_OF_EPOCH_AS_BROKER,
    END_OF_EPOCH_TOPIC,
)
from broker.protocol.topic_names import INTERNAL_TOPICS, check_topic_name
from broker.protocol.topic_partition import TopicPartition
from broker.replica.partition import Partition

HIGH_WATERMARK = -1
NO_OFFSET = -1

_Deleted = tuple[dict[str, Any], Partition, int]
"""The answer for a partition, and the offset at which all of its replicas shall begin."""


@serves(ApiKey.DELETE_RECORDS, 0, 2)
async def delete_records(context: ApiContext, request: Request, client: Client) -> Fields:
    """DeleteRecords: delete the records of partitions below an offset, which becomes the log start offset.

    Each partition succeeds or fails alone. -1 stands for the high watermark. An offset below the log start
    offset changes nothing. The answer comes once the new start is on disk, so that a crash does not bring records back,
    and once all followers whose brokers are alive have deleted these records, too. So a later leader does not bring
    them back either. After the request's timeout the answer is REQUEST_TIMED_OUT, and the followers may still delete
    them. `low_watermark` is the lowest start of these replicas. As in Kafka, internal topics are refused, and topics
    whose cleanup.policy lacks delete get POLICY_VIOLATION. All versions are alike.
    """
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
    results = await asyncio.gather(*(_when_deleted(partition, before, deadline) for _, partition, before in deleted))
    for (answer, _, _), result in zip(deleted, results, strict=True):
        answer.update(result)


async def _when_deleted(partition: Partition, before: int, deadline: float) -> dict[str, Any]:
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


@serves(ApiKey.OFFSET_FOR_LEADER_EPOCH, 0, 4)
def offset_for_leader_epoch(context: ApiContext, request: Request, client: Client) -> Fields:
    """OffsetForLeaderEpoch: the end offset of a leader epoch, so that a client can detect truncation (KIP-320)."""
    is_broker = context.allows(client, END_OF_EPOCH_AS_BROKER, asked=False)
    return {
        "topics": [
            {
                "topic": topic.topic,
                "partitions": [
                    _end_of_epoch(context, None if is_broker else client, topic.topic, asked)
                    for asked in topic.partitions
                ],
            }
            for topic in request.body.topics
        ]
    }


def _end_of_epoch(context: ApiContext, client: Client | None, topic: str, asked: Any) -> Fields:
    """`client` is None for a broker, which may ask about every topic."""
    try:
        if client is not None:
            context.check(client, END_OF_EPOCH_TOPIC, topic)
        partition = context.topics.partition(
            TopicPartition(topic, asked.partition), field(asked, "current_leader_epoch", -1)
        )
    except BrokerError as error:
        return {"error_code": error.code, "partition": asked.partition, "leader_epoch": -1, "end_offset": -1}
    epoch, end = partition.end_offset_for_epoch(asked.leader_epoch)
    return {"error_code": ErrorCode.none, "partition": asked.partition, "leader_epoch": epoch, "end_offset": end}


@serves(ApiKey.DESCRIBE_PRODUCERS, 0, 0)
def describe_producers(context: ApiContext, request: Request, client: Client) -> Fields:
    """DescribeProducers: the producer state of partitions, to find hanging transactions (KIP-664).

    Every replica answers, as in Kafka, so that the states of a leader and its followers can be compared.
    """
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    _producers(context, client, TopicPartition(topic.name, index)) for index in topic.partition_indexes
                ],
            }
            for topic in request.body.topics
        ]
    }


def _producers(context: ApiContext, client: Client, tp: TopicPartition) -> Fields:
    try:
        check_topic_name(tp.topic)
        context.check(client, DESCRIBE_PRODUCERS_TOPIC, tp.topic)
        producers = context.topics.replica(tp).log.producers
    except BrokerError as error:
        return {"partition_index": tp.partition, **outcome(error), "active_producers": ()}
    active = [_producer(entry) for entry in producers]
    return {"partition_index": tp.partition, **outcome(), "active_producers": active}


def _producer(entry: ProducerEntry) -> Fields:
    return {
        "producer_id": entry.producer_id,
        "producer_epoch": entry.epoch,
        "last_sequence": entry.last_sequence,
        "last_timestamp": entry.batches[-1].timestamp if entry.batches else entry.last_seen_ms,
        "coordinator_epoch": entry.coordinator_epoch,
        "current_txn_start_offset": entry.transaction_first_offset,
    }

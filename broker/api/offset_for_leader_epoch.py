"""OffsetForLeaderEpoch: the end offset of a leader epoch, so that a client can detect truncation (KIP-320)."""

from __future__ import annotations

from typing import Any

from broker.api.context import ApiContext, Client, Fields, Request
from broker.errors import BrokerError, ErrorCode
from broker.protocol.messages import field
from broker.protocol.permissions import END_OF_EPOCH_AS_BROKER, END_OF_EPOCH_TOPIC
from broker.protocol.topic_partition import TopicPartition


def handle(context: ApiContext, request: Request, client: Client) -> Fields:
    is_broker = context.allows(client, END_OF_EPOCH_AS_BROKER, asked=False)
    return {
        "topics": [
            {
                "topic": topic.topic,
                "partitions": [
                    _partition(context, None if is_broker else client, topic.topic, asked) for asked in topic.partitions
                ],
            }
            for topic in request.body.topics
        ]
    }


def _partition(context: ApiContext, client: Client | None, topic: str, asked: Any) -> Fields:
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

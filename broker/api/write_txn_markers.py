"""WriteTxnMarkers: end transactions in partitions that this broker leads.

Transaction coordinators send it, and admins to end a hanging transaction.
Version notes: 2 has the protocol version of the transaction, which is ignored.
"""

from __future__ import annotations

from typing import Any

from broker.api.context import ApiContext, Client, Fields, Request
from broker.errors import BrokerError, ErrorCode
from broker.protocol.topic_partition import TopicPartition
from broker.records.control import ControlType, EndMarker

__all__ = ["handle"]


async def handle(context: ApiContext, request: Request, client: Client) -> Fields:
    return {"markers": [await _write_all(context, marker) for marker in request.body.markers]}


async def _write_all(context: ApiContext, asked: Any) -> Fields:
    how = ControlType(asked.transaction_result)
    marker = EndMarker(asked.producer_id, asked.producer_epoch, how, asked.coordinator_epoch)
    return {
        "producer_id": asked.producer_id,
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {
                        "partition_index": index,
                        "error_code": await _write(context, TopicPartition(topic.name, index), marker),
                    }
                    for index in topic.partition_indexes
                ],
            }
            for topic in asked.topics
        ],
    }


async def _write(context: ApiContext, tp: TopicPartition, marker: EndMarker) -> ErrorCode:
    try:
        unsafe = context.markers.write(tp, marker)
        if unsafe is not None:
            await unsafe
    except BrokerError as error:
        return error.code
    return ErrorCode.none

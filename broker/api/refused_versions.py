"""Answers to requests from before record batches (KIP-98): UNSUPPORTED_VERSION for each partition.

Apache Kafka 4 hangs up instead. Then clients show a lost connection and try again for ever, and nobody learns why.
Called by the router for the versions of Produce and Fetch below those in api/table.py.
"""

from __future__ import annotations

from broker.api.context import Client, Fields, Request
from broker.errors import ErrorCode


def refuse_produce(request: Request, client: Client) -> Fields:
    refused = {"error_code": ErrorCode.unsupported_version, "base_offset": -1, "log_append_time": -1}
    return {
        "responses": [
            {
                "name": topic.name,
                "partition_responses": [{"index": data.index, **refused} for data in topic.partition_data],
            }
            for topic in request.body.topic_data
        ]
    }


def refuse_fetch(request: Request, client: Client) -> Fields:
    refused = {"error_code": ErrorCode.unsupported_version, "high_watermark": -1, "records": b""}
    return {
        "responses": [
            {
                "topic": topic.topic,
                "partitions": [{"partition_index": asked.partition, **refused} for asked in topic.partitions],
            }
            for topic in request.body.topics
        ]
    }

"""CreatePartitions: more partitions for a topic; never fewer (KIP-195)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from broker.api.context import ApiContext
from broker.errors import BrokerError, ErrorCode
from broker.net.router import Client
from broker.protocol.messages import Request

__all__ = ["handle"]


async def handle(context: ApiContext, request: Request, client: Client) -> Mapping[str, Any]:
    """Bring each topic to its new count; each succeeds or fails alone. What stands there twice is refused, once."""
    times = Counter(topic.name for topic in request.body.topics)
    results = []
    for topic in {topic.name: topic for topic in request.body.topics}.values():
        assignments = None if topic.assignments is None else [tuple(a.broker_ids) for a in topic.assignments]
        code, message = ErrorCode.none, None
        try:
            if times[topic.name] > 1:
                raise BrokerError(ErrorCode.invalid_request, "the topic stands in the request more than once")
            await context.topics.add_partitions(
                topic.name, topic.count, assignments, validate_only=request.body.validate_only
            )
        except BrokerError as error:
            code, message = error.code, error.message or None
        results.append({"name": topic.name, "error_code": code, "error_message": message})
    return {"results": results}

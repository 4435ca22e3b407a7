"""DeleteTopics: by name, from version 6 also by topic id. The files go a little later, as retention's do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker.api.context import ApiContext
from broker.errors import BrokerError, ErrorCode
from broker.net.router import Client
from broker.protocol.messages import Request, field

__all__ = ["handle"]


async def handle(context: ApiContext, request: Request, client: Client) -> Mapping[str, Any]:
    """Delete each topic; each succeeds or fails alone."""
    asked = field(request.body, "topics")
    if asked is None:
        return {"responses": [await _delete(context, name, None) for name in request.body.topic_names]}
    return {"responses": [await _delete(context, topic.name, topic.topic_id) for topic in asked]}


async def _delete(context: ApiContext, name: str | None, topic_id: Any) -> Mapping[str, Any]:
    try:
        if not context.config.delete_topic_enable:
            raise BrokerError(ErrorCode.topic_deletion_disabled, "delete.topic.enable is false on this broker")
        if name is None:
            topic = context.topics.metadata.topic_by_id(topic_id)
            if topic is None:
                raise BrokerError(ErrorCode.unknown_topic_id, f"no topic has the id {topic_id}")
            name = topic.name
        topic_id = await context.topics.delete(name)
    except BrokerError as error:
        return {"name": name, "topic_id": topic_id, "error_code": error.code, "error_message": error.message or None}
    return {"name": name, "topic_id": topic_id, "error_code": ErrorCode.none, "error_message": None}

"""DeleteTopics: by name, from version 6 also by topic id. The files go a little later, as retention's do.

Version notes: that topics may not be deleted has an error code of its own from version 3.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Mapping
from typing import Any

from broker.api.context import ApiContext
from broker.errors import BrokerError, ErrorCode
from broker.net.router import Client
from broker.protocol.messages import Request, field

__all__ = ["handle"]

_NO_ID = uuid.UUID(int=0)
_FIRST_WITH_DISABLED = 3

Named = tuple[str | None, uuid.UUID]


async def handle(context: ApiContext, request: Request, client: Client) -> Mapping[str, Any]:
    """Delete each topic; each succeeds or fails alone. What stands twice in the request is refused, once."""
    topics = field(request.body, "topics")
    if topics is None:
        asked: list[Named] = [(name, _NO_ID) for name in request.body.topic_names]
    else:
        asked = [(topic.name, topic.topic_id or _NO_ID) for topic in topics]
    times = Counter(asked)
    responses = []
    for named in times:
        name, topic_id = named
        code, message = ErrorCode.none, None
        try:
            if not context.config.delete_topic_enable:
                disabled = request.version >= _FIRST_WITH_DISABLED
                raise BrokerError(
                    ErrorCode.topic_deletion_disabled if disabled else ErrorCode.invalid_request,
                    "delete.topic.enable is false on this broker",
                )
            if times[named] > 1:
                raise BrokerError(ErrorCode.invalid_request, "the topic stands in the request more than once")
            name = _name_of(context, named)
            topic_id = await context.topics.delete(name)
        except BrokerError as error:
            code, message = error.code, error.message or None
        responses.append({"name": name, "topic_id": topic_id, "error_code": code, "error_message": message})
    return {"responses": responses}


def _name_of(context: ApiContext, named: Named) -> str:
    name, topic_id = named
    if name is not None:
        if topic_id != _NO_ID:
            raise BrokerError(ErrorCode.invalid_request, "a topic is named by its name or by its id, not by both")
        return name
    if topic_id == _NO_ID:
        raise BrokerError(ErrorCode.invalid_request, "a topic is named by its name or by its id, not by neither")
    topic = context.topics.metadata.topic_by_id(topic_id)
    if topic is None:
        raise BrokerError(ErrorCode.unknown_topic_id, f"no topic has the id {topic_id}")
    return topic.name

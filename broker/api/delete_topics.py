"""DeleteTopics: delete topics by name, from version 6 also by topic id. Their files are deleted a little later.

Partitions count for the quota of controller mutations (KIP-599). Version notes: from 3 there is
TOPIC_DELETION_DISABLED; older versions get INVALID_REQUEST. 5 refuses topics above the quota.
"""

from __future__ import annotations

import uuid
from collections import Counter

from broker.api.context import ApiContext, Client, Fields, Request
from broker.api.controller_mutations import mutations_of
from broker.errors import BrokerError, ErrorCode
from broker.protocol.messages import field
from broker.protocol.permissions import DELETE_TOPICS_DESCRIBE, DELETE_TOPICS_TOPIC

_NO_ID = uuid.UUID(int=0)
_FIRST_WITH_DISABLED = 3
_FIRST_STRICT = 5

Named = tuple[str | None, uuid.UUID]


async def handle(context: ApiContext, request: Request, client: Client) -> Fields:
    """Each topic succeeds or fails alone. A topic that is twice in the request is refused."""
    topics = field(request.body, "topics")
    if topics is None:
        asked: list[Named] = [(name, _NO_ID) for name in request.body.topic_names]
    else:
        asked = [(topic.name, topic.topic_id or _NO_ID) for topic in topics]
    times = Counter(asked)
    mutations = mutations_of(context, request, client, strict_from=_FIRST_STRICT)
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
                raise BrokerError(ErrorCode.invalid_request, "the topic is in the request more than once")
            name = _name_of(context, client, named)
            context.check(client, DELETE_TOPICS_TOPIC, name)
            known = context.topics.metadata.topics.get(name)
            if known is not None:
                mutations.record(len(known.partitions))
            topic_id = await context.topic_changes.delete(name)
        except BrokerError as error:
            code, message = error.code, error.message or None
        responses.append({"name": name, "topic_id": topic_id, "error_code": code, "error_message": message})
    return {"responses": responses, "throttle_time": mutations.throttle_ms(context.clock.monotonic())}


def _name_of(context: ApiContext, client: Client, named: Named) -> str:
    name, topic_id = named
    if name is not None:
        if topic_id != _NO_ID:
            raise BrokerError(ErrorCode.invalid_request, "name a topic by its name or by its id, not by both")
        return name
    if topic_id == _NO_ID:
        raise BrokerError(ErrorCode.invalid_request, "name a topic by its name or by its id")
    topic = context.topics.metadata.topic_by_id(topic_id)
    if topic is None:
        raise BrokerError(ErrorCode.unknown_topic_id, f"no topic has the id {topic_id}")
    if not context.allows(client, DELETE_TOPICS_DESCRIBE, topic.name):
        raise BrokerError(DELETE_TOPICS_DESCRIBE.code, "Topic authorization failed.")  # without its name
    return topic.name

"""DeleteShareGroupOffsets: forget what a share group without members has of topics (KIP-932)."""

from __future__ import annotations

from broker.api.context import ApiContext, Client, Fields, Request, outcome
from broker.errors import BrokerError, ErrorCode
from broker.protocol.permissions import DELETE_SHARE_OFFSETS_GROUP, DELETE_SHARE_OFFSETS_TOPIC


async def handle(context: ApiContext, request: Request, client: Client) -> Fields:
    """Each topic succeeds or fails alone."""
    body, known = request.body, context.topics.metadata.topics
    names = [one.topic_name for one in body.topics]
    allowed = {name for name in names if context.allows(client, DELETE_SHARE_OFFSETS_TOPIC, name)}
    try:
        context.check(client, DELETE_SHARE_OFFSETS_GROUP, body.group_id)
        if not body.group_id:
            raise BrokerError(ErrorCode.invalid_group_id)
        topic_ids = [known[name].topic_id for name in names if name in known and name in allowed]
        results = await context.share.states.delete(body.group_id, topic_ids)
    except BrokerError as error:
        return outcome(error)

    def answer(name: str) -> Fields:
        topic = known.get(name)
        if name not in allowed:
            error = context.refusal(client, DELETE_SHARE_OFFSETS_TOPIC, name)
        elif topic is None:
            error = BrokerError(ErrorCode.unknown_topic_or_partition, f"there is no topic {name}")
        elif topic.topic_id not in results:
            error = BrokerError(ErrorCode.unknown_topic_or_partition, "There is no offset information to delete.")
        elif (failed := results[topic.topic_id]) is None:
            return {"topic_name": name, "topic_id": topic.topic_id}
        else:
            error = failed
        return {"topic_name": name, **outcome(error)}

    return {"responses": [answer(name) for name in names]}

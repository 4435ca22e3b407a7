"""AlterShareGroupOffsets: begin anew at other offsets, for a share group without members (KIP-932).

What its members had of these partitions is forgotten. The group is made if there is none.
"""

from __future__ import annotations

from broker.api.context import ApiContext, Client, Fields, Request, outcome
from broker.coordinator.modern_group_messages import TopicIdPartition
from broker.errors import BrokerError, ErrorCode
from broker.protocol.permissions import ALTER_SHARE_OFFSETS_GROUP, ALTER_SHARE_OFFSETS_TOPIC

_BELOW_0 = BrokerError(ErrorCode.invalid_request, "a share group cannot begin below offset 0")
_DONE = BrokerError(ErrorCode.none)


async def handle(context: ApiContext, request: Request, client: Client) -> Fields:
    """Each partition succeeds or fails alone."""
    body, known = request.body, context.topics.metadata.topics
    named = {asked.topic_name for asked in body.topics}
    allowed = {name for name in named if context.allows(client, ALTER_SHARE_OFFSETS_TOPIC, name)}
    topics = {name: known[name] for name in allowed & known.keys()}
    offsets = {
        TopicIdPartition(topics[asked.topic_name].topic_id, one.partition_index): one.start_offset
        for asked in body.topics
        for one in asked.partitions
        if asked.topic_name in topics and one.partition_index in topics[asked.topic_name].partitions
    }
    wanted = {one: offset for one, offset in offsets.items() if offset >= -1}
    names = {topic.topic_id: topic.name for topic in topics.values()}
    try:
        context.check(client, ALTER_SHARE_OFFSETS_GROUP, body.group_id)
        if not body.group_id:
            raise BrokerError(ErrorCode.invalid_group_id)
        results = await context.share.states.alter(body.group_id, wanted, {one: names[one] for one, _ in wanted})
    except BrokerError as error:
        return outcome(error)

    def answer(name: str, number: int) -> Fields:
        if name not in allowed:
            error = context.refusal(client, ALTER_SHARE_OFFSETS_TOPIC, name)
        elif name not in topics or (one := TopicIdPartition(topics[name].topic_id, number)) not in offsets:
            error = BrokerError(ErrorCode.unknown_topic_or_partition, f"there is no partition {number} of {name}")
        else:
            error = results.get(one, _BELOW_0) or _DONE
        return {"partition_index": number, **outcome(error)}

    return {
        "responses": [
            {
                "topic_name": asked.topic_name,
                "topic_id": topics[asked.topic_name].topic_id if asked.topic_name in topics else None,
                "partitions": [answer(asked.topic_name, one.partition_index) for one in asked.partitions],
            }
            for asked in body.topics
        ]
    }

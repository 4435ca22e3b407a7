"""AlterShareGroupOffsets: begin anew at other offsets, for a share group without members (KIP-932).

What its members had of these partitions is forgotten. The group is made if there is none.
"""

from __future__ import annotations

from uuid import UUID

from broker.api.context import ApiContext, Client, Fields, Request
from broker.coordinator.modern_group_messages import TopicIdPartition
from broker.errors import BrokerError, ErrorCode
from broker.protocol.permissions import ALTER_SHARE_OFFSETS_GROUP, ALTER_SHARE_OFFSETS_TOPIC
from broker.replica.cluster_metadata import Topic

_BELOW_0 = BrokerError(ErrorCode.invalid_request, "a share group cannot begin below offset 0")


async def handle(context: ApiContext, request: Request, client: Client) -> Fields:
    """Each partition succeeds or fails alone."""
    body, known = request.body, context.topics.metadata.topics
    offsets: dict[TopicIdPartition, int] = {}
    names: dict[UUID, str] = {}
    for asked in body.topics:
        topic = known.get(asked.topic_name)
        if topic is not None and context.allows(client, ALTER_SHARE_OFFSETS_TOPIC, topic.name):
            new = {
                p.partition_index: p.start_offset
                for p in asked.partitions
                if p.partition_index in topic.partitions and p.start_offset >= -1
            }
            offsets |= {TopicIdPartition(topic.topic_id, number): offset for number, offset in new.items()}
            names |= {topic.topic_id: topic.name} if new else {}
    try:
        context.check(client, ALTER_SHARE_OFFSETS_GROUP, body.group_id)
        if not body.group_id:
            raise BrokerError(ErrorCode.invalid_group_id)
        results = await context.share.states.alter(body.group_id, offsets, names)
    except BrokerError as error:
        return {"error_code": error.code, "error_message": error.message or None, "responses": ()}

    def answer(name: str, topic: Topic | None, number: int) -> Fields:
        error: BrokerError | None
        if not context.allows(client, ALTER_SHARE_OFFSETS_TOPIC, name):
            error = context.refusal(client, ALTER_SHARE_OFFSETS_TOPIC, name)
        elif topic is None or number not in topic.partitions:
            error = BrokerError(ErrorCode.unknown_topic_or_partition, f"there is no partition {number} of {name}")
        else:
            error = results.get(TopicIdPartition(topic.topic_id, number), _BELOW_0)
        if error is None:
            return {"partition_index": number}
        return {"partition_index": number, "error_code": error.code, "error_message": error.message}

    responses = []
    for asked in body.topics:
        topic = known.get(asked.topic_name)
        partitions = [answer(asked.topic_name, topic, one.partition_index) for one in asked.partitions]
        is_known = topic is not None and context.allows(client, ALTER_SHARE_OFFSETS_TOPIC, topic.name, asked=False)
        topic_id = topic.topic_id if topic is not None and is_known else None
        responses.append({"topic_name": asked.topic_name, "topic_id": topic_id, "partitions": partitions})
    return {"responses": responses}

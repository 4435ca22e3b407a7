"""ListPartitionReassignments: the replicas that running reassignments add and remove (KIP-455).

Only the controller answers. Partitions that are not being reassigned are left out.
"""

from __future__ import annotations

from broker.api.context import ApiContext, Client, Fields, Request
from broker.errors import ErrorCode
from broker.protocol.permissions import LIST_REASSIGNMENTS
from broker.protocol.topic_partition import TopicPartition, by_topic


def handle(context: ApiContext, request: Request, client: Client) -> Fields:
    if not context.allows(client, LIST_REASSIGNMENTS):
        refused = context.refusal(client, LIST_REASSIGNMENTS)
        return {"error_code": refused.code, "error_message": refused.message, "topics": ()}
    if context.controller.epoch is None:
        message = "this broker is not the controller"
        return {"error_code": ErrorCode.not_controller, "error_message": message, "topics": ()}
    running = context.reassignments.running()
    if request.body.topics is not None:
        asked = {
            TopicPartition(topic.name, index) for topic in request.body.topics for index in topic.partition_indexes
        }
        running = {tp: info for tp, info in running.items() if tp in asked}
    found = by_topic(
        (
            tp,
            {
                "partition_index": tp.partition,
                "replicas": info.replicas,
                "adding_replicas": info.adding,
                "removing_replicas": info.removing,
            },
        )
        for tp, info in running.items()
    )
    topics = [{"name": name, "partitions": partitions} for name, partitions in found.items()]
    return {"error_code": ErrorCode.none, "error_message": None, "topics": topics}

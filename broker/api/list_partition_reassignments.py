"""ListPartitionReassignments: the replicas that running reassignments add and remove (KIP-455).

Only the controller answers. Partitions that are not being reassigned are left out.
"""

from __future__ import annotations

from broker.api.context import ApiContext, Client, Fields, Request, outcome
from broker.errors import BrokerError, ErrorCode
from broker.protocol.permissions import LIST_REASSIGNMENTS
from broker.protocol.topic_partition import TopicPartition, topic_rows


def handle(context: ApiContext, request: Request, client: Client) -> Fields:
    if not context.allows(client, LIST_REASSIGNMENTS):
        return {**outcome(context.refusal(client, LIST_REASSIGNMENTS)), "topics": ()}
    if context.controller.epoch is None:
        error = BrokerError(ErrorCode.not_controller, "this broker is not the controller")
        return {**outcome(error), "topics": ()}
    running = context.reassignments.running()
    if request.body.topics is not None:
        asked = {
            TopicPartition(topic.name, index) for topic in request.body.topics for index in topic.partition_indexes
        }
        running = {tp: info for tp, info in running.items() if tp in asked}
    rows = {
        tp: {
            "partition_index": tp.partition,
            "replicas": info.replicas,
            "adding_replicas": info.adding,
            "removing_replicas": info.removing,
        }
        for tp, info in running.items()
    }
    return {**outcome(), "topics": topic_rows(rows.items())}

"""AlterPartitionReassignments: move replicas of partitions to other brokers, or cancel that (KIP-455, KIP-860).

Only the controller answers. The reassignment runs on after the answer; ListPartitionReassignments shows it.
"""

from __future__ import annotations

from collections.abc import Mapping

from broker.api.context import ApiContext, Client, Fields, Request, outcome
from broker.errors import BrokerError
from broker.protocol.messages import field
from broker.protocol.permissions import ALTER_REASSIGNMENTS
from broker.protocol.topic_partition import TopicPartition, topic_rows


async def handle(context: ApiContext, request: Request, client: Client) -> Fields:
    """Each partition has its own result."""
    may_change_factor = field(request.body, "allow_replication_factor_change", True)
    targets = {
        TopicPartition(topic.name, asked.partition_index): asked.replicas
        for topic in request.body.topics
        for asked in topic.partitions
    }
    failed: BrokerError | None = None
    results: Mapping[TopicPartition, BrokerError | None] = {}
    try:
        if context.allows(client, ALTER_REASSIGNMENTS):
            results = await context.reassignments.alter(targets, may_change_factor=may_change_factor)
        else:
            results = dict.fromkeys(targets, refused := context.refusal(client, ALTER_REASSIGNMENTS))
            raise refused
    except BrokerError as error:
        failed = error
    rows = ((tp, {"partition_index": tp.partition, **outcome(error)}) for tp, error in results.items())
    return {
        "allow_replication_factor_change": may_change_factor,
        **outcome(failed),
        "responses": topic_rows(rows),
    }

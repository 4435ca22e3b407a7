"""CreatePartitions: raise the partition count of topics (KIP-195).

New partitions count for the quota of controller mutations (KIP-599). Version note: 3 refuses topics above the quota.
"""

from __future__ import annotations

from collections import Counter

from broker.api.context import ApiContext, Client, Fields, Request
from broker.api.controller_mutations import mutations_of
from broker.errors import BrokerError, ErrorCode
from broker.protocol.permissions import CREATE_PARTITIONS_TOPIC
from broker.quotas.client_quotas import UNLIMITED_MUTATIONS

_FIRST_STRICT = 3


async def handle(context: ApiContext, request: Request, client: Client) -> Fields:
    """Each topic succeeds or fails alone. A topic that is twice in the request is refused."""
    times = Counter(topic.name for topic in request.body.topics)
    mutations = mutations_of(context, request, client, strict_from=_FIRST_STRICT)
    results = []
    for topic in {topic.name: topic for topic in request.body.topics}.values():
        assignments = None if topic.assignments is None else [tuple(a.broker_ids) for a in topic.assignments]
        code, message = ErrorCode.none, None
        try:
            context.check(client, CREATE_PARTITIONS_TOPIC, topic.name)
            if times[topic.name] > 1:
                raise BrokerError(ErrorCode.invalid_request, "the topic is in the request more than once")
            if not request.body.validate_only and mutations is not UNLIMITED_MUTATIONS:
                await context.topic_changes.add_partitions(topic.name, topic.count, assignments, validate_only=True)
                mutations.record(topic.count - len(context.topics.metadata.topics[topic.name].partitions))
            await context.topic_changes.add_partitions(
                topic.name, topic.count, assignments, validate_only=request.body.validate_only
            )
        except BrokerError as error:
            code, message = error.code, error.message or None
        results.append({"name": topic.name, "error_code": code, "error_message": message})
    return {"results": results, "throttle_time": mutations.throttle_ms(context.clock.monotonic())}

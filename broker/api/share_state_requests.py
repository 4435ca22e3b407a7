"""InitializeShareGroupState, ReadShareGroupState, WriteShareGroupState, DeleteShareGroupState and
ReadShareGroupStateSummary: what leaders of partitions ask the share coordinator (KIP-932).

Only brokers ask; others get CLUSTER_AUTHORIZATION_FAILED. A change is answered once all in-sync replicas of
`__share_group_state` have it. Each share partition succeeds or fails alone.
Version notes: 1 — the delivery complete count (KIP-1226).
"""

from __future__ import annotations

import asyncio
from typing import Any

from broker.api.context import ApiContext, Client, Fields, Request, outcome
from broker.errors import BrokerError, ErrorCode
from broker.protocol.permissions import SHARE_STATE_AS_BROKER
from broker.share.persister import STATE_APIS, SharePartitionKey, ShareState, from_fields, to_fields

_NO_STATE = ShareState(start_offset=0)


async def handle(context: ApiContext, request: Request, client: Client) -> Fields:
    kind, _ = STATE_APIS[request.api]

    async def answer(topic: Any, row: Any) -> Fields:
        state, error = _NO_STATE, BrokerError(ErrorCode.none)
        try:
            context.check(client, SHARE_STATE_AS_BROKER[request.api])
            asked = from_fields(kind, row)
            if topic.topic_id is None or row.partition < 0:
                raise BrokerError(ErrorCode.invalid_request, "a share partition has a topic id and a number")
            if any(not 0 <= first <= last for first, last, *_ in getattr(asked, "state_batches", ())):
                raise BrokerError(ErrorCode.invalid_request, "a state batch ends before it begins")
            key = SharePartitionKey(request.body.group_id, topic.topic_id, row.partition)
            state = await context.share.coordinator.ask(key, asked)
        except BrokerError as refused:
            error = refused
        told = {"partition": row.partition, **outcome(error)}
        return {**told, **to_fields(state)}

    async def answers(topic: Any) -> Fields:
        rows = await asyncio.gather(*(answer(topic, row) for row in topic.partitions))
        return {"topic_id": topic.topic_id, "partitions": rows}

    return {"results": await asyncio.gather(*map(answers, request.body.topics))}

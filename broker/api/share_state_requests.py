"""InitializeShareGroupState, ReadShareGroupState, WriteShareGroupState, DeleteShareGroupState and
ReadShareGroupStateSummary: what leaders of partitions ask the share coordinator (KIP-932).

Only brokers ask; others get CLUSTER_AUTHORIZATION_FAILED. A change is answered once all in-sync replicas of
`__share_group_state` have it. Each share partition succeeds or fails alone.
Version notes: 1 — the delivery complete count (KIP-1226).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from broker.api.context import ApiContext, Client, Fields, Request
from broker.errors import BrokerError, ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import field
from broker.protocol.permissions import SHARE_STATE_AS_BROKER
from broker.share.persister import Persister, SharePartitionKey, ShareWrite, StateBatch

_Act = Callable[[Persister, SharePartitionKey, Any], Awaitable[Fields]]


async def _initialize(local: Persister, key: SharePartitionKey, asked: Any) -> Fields:
    await local.initialize(key, asked.state_epoch, asked.start_offset)
    return {}


async def _read(local: Persister, key: SharePartitionKey, asked: Any) -> Fields:
    state = await local.read(key, asked.leader_epoch)
    batches = [batch._asdict() for batch in state.state_batches]
    return {"state_epoch": state.state_epoch, "start_offset": state.start_offset, "state_batches": batches}


async def _write(local: Persister, key: SharePartitionKey, asked: Any) -> Fields:
    batches = [
        StateBatch(one.first_offset, one.last_offset, one.delivery_state, one.delivery_count)
        for one in asked.state_batches
    ]
    if any(not 0 <= batch.first_offset <= batch.last_offset for batch in batches):
        raise BrokerError(ErrorCode.invalid_request, "a state batch ends before it begins")
    count = field(asked, "delivery_complete_count", -1)
    await local.write(key, ShareWrite(asked.state_epoch, asked.leader_epoch, asked.start_offset, count, batches))
    return {}


async def _delete(local: Persister, key: SharePartitionKey, asked: Any) -> Fields:
    await local.delete(key)
    return {}


async def _summary(local: Persister, key: SharePartitionKey, asked: Any) -> Fields:
    return (await local.summary(key))._asdict()


_NO_STATE = {"state_epoch": 0, "start_offset": 0}
_ACTS: dict[ApiKey, tuple[_Act, Fields]] = {
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: (_initialize, {}),
    ApiKey.READ_SHARE_GROUP_STATE: (_read, {**_NO_STATE, "state_batches": ()}),
    ApiKey.WRITE_SHARE_GROUP_STATE: (_write, {}),
    ApiKey.DELETE_SHARE_GROUP_STATE: (_delete, {}),
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: (_summary, {**_NO_STATE, "leader_epoch": 0}),
}
"""What each does, and the other fields of its errors."""


async def handle(context: ApiContext, request: Request, client: Client) -> Fields:
    act, others = _ACTS[request.api]

    async def answer(topic: Any, asked: Any) -> Fields:
        row = {"partition": asked.partition, "error_code": ErrorCode.none, "error_message": None}
        try:
            context.check(client, SHARE_STATE_AS_BROKER[request.api])
            if topic.topic_id is None or asked.partition < 0:
                raise BrokerError(ErrorCode.invalid_request, "a share partition has a topic id and a number")
            key = SharePartitionKey(request.body.group_id, topic.topic_id, asked.partition)
            return {**row, **await act(context.share.coordinator, key, asked)}
        except BrokerError as error:
            return {**row, **others, "error_code": error.code, "error_message": error.message}

    async def answers(topic: Any) -> Fields:
        rows = await asyncio.gather(*(answer(topic, asked) for asked in topic.partitions))
        return {"topic_id": topic.topic_id, "partitions": rows}

    return {"results": await asyncio.gather(*map(answers, request.body.topics))}

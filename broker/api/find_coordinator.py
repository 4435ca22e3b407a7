"""FindCoordinator: the broker that coordinates a group or a transactional id.

The id is hashed to a partition of an internal topic, and the leader of that partition is the coordinator. The topic is
created when it is first needed.
Version notes: 1 — transactions (key type 1). 4 — several keys at once (KIP-699). 6 — share partitions (key type 2), for
brokers (KIP-932).
"""

from __future__ import annotations

import asyncio
from typing import Any

from broker.api.context import ApiContext, Client, Fields, Request, outcome
from broker.api.serving import serves
from broker.coordinator.sharded_coordinator import ShardedCoordinator
from broker.errors import BrokerError, ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import field
from broker.protocol.permissions import FIND_GROUP, FIND_SHARE, FIND_TRANSACTION
from broker.protocol.topic_names import GROUP_OFFSETS_TOPIC, SHARE_STATE_TOPIC, TRANSACTION_STATE_TOPIC
from broker.replica.cluster_metadata import BrokerInfo
from broker.security.acl_types import CLUSTER_NAME
from broker.share.persister import SharePartitionKey

GROUP = 0
TRANSACTION = 1
SHARE = 2
_KINDS = {
    GROUP: (FIND_GROUP, GROUP_OFFSETS_TOPIC),
    TRANSACTION: (FIND_TRANSACTION, TRANSACTION_STATE_TOPIC),
    SHARE: (FIND_SHARE, SHARE_STATE_TOPIC),
}
"""The right on the key, or on the cluster for a share partition, and where the coordinators store."""
_FIRST_WITH_SHARE = 6

LOAD_WAIT_S = 0.25
"""How long a request waits for the loads of partitions. If they end within this time, the client need not retry its
first request."""


@serves(ApiKey.FIND_COORDINATOR, 0, 6)
async def handle(context: ApiContext, request: Request, client: Client) -> Fields:
    kind = field(request.body, "key_type", GROUP)
    if kind == SHARE and request.version < _FIRST_WITH_SHARE:
        kind = -1
    keys = field(request.body, "coordinator_keys")
    deadline = asyncio.get_running_loop().time() + LOAD_WAIT_S
    if keys is None:
        return await _find(context, client, kind, request.body.key, deadline)
    return {"coordinators": [await _find(context, client, kind, key, deadline) for key in keys]}


async def _find(context: ApiContext, client: Client, kind: int, key: str, deadline: float) -> Fields:
    try:
        if kind not in _KINDS:
            text = f"key type {kind} is no group (0), transaction (1) or share partition (2)"
            raise BrokerError(ErrorCode.invalid_request, text)
        context.check(client, _KINDS[kind][0], CLUSTER_NAME if kind == SHARE else key)
        broker = await _coordinator(context, kind, key, deadline)
        at = broker.endpoint(client.listener)
        if at is None:
            raise _unavailable(f"broker {broker.broker_id} has no listener {client.listener}")
    except BrokerError as error:
        return {**outcome(error), "key": key, "node_id": -1, "host": "", "port": -1}
    return {**outcome(), "key": key, "node_id": broker.broker_id, "host": at.host, "port": at.port}


async def _coordinator(context: ApiContext, kind: int, key: str, deadline: float) -> BrokerInfo:
    topic = _KINDS[kind][1]
    coordinators: dict[int, ShardedCoordinator[Any]] = {GROUP: context.groups, TRANSACTION: context.transactions}
    coordinator = coordinators.get(kind, context.share.coordinator)
    if kind == SHARE:
        key = SharePartitionKey.parse(key).coordinator_key
    if topic not in context.topics.metadata.topics:
        try:
            await context.topic_changes.create_default(topic)
        except BrokerError as error:
            if error.code is not ErrorCode.topic_already_exists:
                raise _unavailable(error.message) from error
    partition = coordinator.partition_for(key)
    metadata = context.topics.metadata
    found = metadata.topics[topic].partitions.get(partition)
    if found is None:
        raise _unavailable(f"there is no partition {topic}-{partition}")
    leader = found.leader
    if leader == context.broker_id:
        left = deadline - asyncio.get_running_loop().time()
        if left > 0:
            await coordinator.wait_for_load(partition, left)
    if leader not in metadata.brokers:
        raise _unavailable(f"broker {leader} is not alive")
    if leader == context.broker_id and not coordinator.coordinates(partition):
        raise _unavailable(f"{topic}-{partition} is still being loaded")
    return metadata.brokers[leader]


def _unavailable(reason: str) -> BrokerError:
    return BrokerError(ErrorCode.coordinator_not_available, reason)

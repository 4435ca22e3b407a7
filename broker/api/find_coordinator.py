"""FindCoordinator: which broker keeps a group. Creates __consumer_offsets when it is first needed.

The coordinator of a group is the leader of the partition of __consumer_offsets its name hashes to.
Version notes: 4 — several keys at once (KIP-699). Transactional ids (key type 1) are not served yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker.api.context import ApiContext
from broker.cluster.topic_names import GROUP_OFFSETS_TOPIC
from broker.errors import BrokerError, ErrorCode
from broker.net.router import Client
from broker.protocol.messages import Request, field

__all__ = ["handle"]

GROUP = 0


async def handle(context: ApiContext, request: Request, client: Client) -> Mapping[str, Any]:
    """Find each key's coordinator."""
    kind = field(request.body, "key_type", GROUP)
    keys = field(request.body, "coordinator_keys")
    if keys is None:
        return await _find(context, kind, request.body.key)
    return {"coordinators": [await _find(context, kind, key) for key in keys]}


async def _find(context: ApiContext, kind: int, key: str) -> Mapping[str, Any]:
    answer = {"key": key, "node_id": -1, "host": "", "port": -1}
    try:
        broker = await _coordinator(context, kind, key)
    except BrokerError as error:
        return {**answer, "error_code": error.code, "error_message": error.message}
    return {
        **answer,
        "node_id": broker.broker_id,
        "host": broker.host,
        "port": broker.port,
        "error_code": ErrorCode.none,
        "error_message": None,
    }


async def _coordinator(context: ApiContext, kind: int, key: str) -> Any:
    if kind != GROUP:
        raise BrokerError(ErrorCode.invalid_request, "this version of pykafka serves groups, not transactions")
    if GROUP_OFFSETS_TOPIC not in context.topics.metadata.topics:
        try:
            await context.topics.create_default(GROUP_OFFSETS_TOPIC)
        except BrokerError as error:
            if error.code is not ErrorCode.topic_already_exists:
                raise BrokerError(ErrorCode.coordinator_not_available, error.message) from error
    metadata = context.topics.metadata
    partitions = metadata.topics[GROUP_OFFSETS_TOPIC].partitions
    found = partitions.get(context.groups.partition_for(key))
    if found is None:
        raise BrokerError(
            ErrorCode.coordinator_not_available,
            f"{GROUP_OFFSETS_TOPIC} has {len(partitions)} partitions; start every broker with the same "
            "offsets.topic.num.partitions",
        )
    leader = found.leader
    if leader not in metadata.brokers:
        raise BrokerError(ErrorCode.coordinator_not_available, f"broker {leader} is not up")
    return metadata.brokers[leader]

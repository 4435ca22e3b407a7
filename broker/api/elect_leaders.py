"""ElectLeaders: elect the preferred replica, or in an unclean election any live replica (KIP-183, KIP-460).

The controller elects. A partition that needs no election gets ELECTION_NOT_NEEDED.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from broker.api.context import ApiContext, Client, Fields, Request, outcome
from broker.errors import BrokerError, ErrorCode
from broker.protocol.messages import field
from broker.protocol.permissions import ELECT_LEADERS
from broker.protocol.topic_partition import TopicPartition, topic_rows
from broker.replica.cluster_metadata import ClusterMetadata

PREFERRED, UNCLEAN = 0, 1

Elected: TypeAlias = Mapping[TopicPartition, BrokerError | None]
"""Why a partition has no other leader now; None if it has."""


async def handle(context: ApiContext, request: Request, client: Client) -> Fields:
    """Each partition has its own result. If all are requested, those that need no election are left out."""
    metadata = context.topics.metadata
    kind = field(request.body, "election_type", PREFERRED)
    asked = request.body.topic_partitions
    if not context.allows(client, ELECT_LEADERS):
        refused = context.refusal(client, ELECT_LEADERS)
        return _answer(refused.code, {TopicPartition(t.topic, i): refused for t in asked or () for i in t.partitions})
    if kind not in (PREFERRED, UNCLEAN):
        refused = BrokerError(ErrorCode.invalid_request, f"there is no election type {kind}")
        return _answer(refused.code, {TopicPartition(t.topic, i): refused for t in asked or () for i in t.partitions})
    if asked is None:
        every = (TopicPartition(topic.name, index) for topic in metadata.topics.values() for index in topic.partitions)
        errors = {tp: error for tp in every if (error := _refusal(metadata, tp, kind)).code is not _NOT_NEEDED}
    else:
        named = (TopicPartition(topic.topic, index) for topic in asked for index in topic.partitions)
        errors = {tp: _refusal(metadata, tp, kind) for tp in named}
    return _answer(ErrorCode.none, {**errors, **await _elect(context, errors, kind)})


async def _elect(context: ApiContext, errors: Mapping[TopicPartition, BrokerError], kind: int) -> Elected:
    """The results of the partitions that have a candidate."""
    candidates = [
        tp for tp, error in errors.items() if error.code in _NOT_AVAILABLE and _has_candidate(context, tp, kind)
    ]
    if not candidates:
        return {}
    try:
        elected = await context.controller.elect(candidates, prefer=kind == PREFERRED, unclean=kind == UNCLEAN)
    except BrokerError as error:
        return dict.fromkeys(candidates, error)
    await context.topics.refresh({tp.topic for tp in elected})
    return dict.fromkeys(elected)


def _answer(code: ErrorCode, errors: Elected) -> Fields:
    rows = ((tp, {"partition_id": tp.partition, **outcome(error)}) for tp, error in errors.items())
    return {
        "error_code": code,
        "replica_election_results": topic_rows(rows, topic="topic", partitions="partition_result"),
    }


_NOT_NEEDED = ErrorCode.election_not_needed
_NOT_AVAILABLE = (ErrorCode.eligible_leaders_not_available, ErrorCode.preferred_leader_not_available)


def _has_candidate(context: ApiContext, tp: TopicPartition, kind: int) -> bool:
    metadata = context.topics.metadata
    info = metadata.partition(tp)
    if info is None:
        return False
    if kind == UNCLEAN:
        return any(replica in metadata.brokers for replica in info.replicas)
    return info.replicas[0] in info.isr and info.replicas[0] in metadata.brokers


def _refusal(metadata: ClusterMetadata, tp: TopicPartition, kind: int) -> BrokerError:
    """The reason why no other leader is elected, if the controller elects none."""
    info = metadata.partition(tp)
    if info is None:
        return BrokerError(ErrorCode.unknown_topic_or_partition, f"there is no partition {tp}")
    leads = info.leader in metadata.brokers
    if leads and (kind == UNCLEAN or info.leader == info.replicas[0]):
        return BrokerError(_NOT_NEEDED, f"{tp} is already led by broker {info.leader}")
    if kind == UNCLEAN:
        return BrokerError(ErrorCode.eligible_leaders_not_available, f"no replica of {tp} is alive")
    return BrokerError(
        ErrorCode.preferred_leader_not_available,
        f"broker {info.replicas[0]}, preferred for {tp}, is not alive or not in sync",
    )

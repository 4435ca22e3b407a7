"""ElectLeaders: elect the preferred replica, or in an unclean election any live replica (KIP-183, KIP-460).

A partition has one replica, which leads it. So there is nothing to elect while that broker lives (ELECTION_NOT_NEEDED),
and no candidate while it does not.
"""

from __future__ import annotations

from collections.abc import Mapping

from broker.api.context import ApiContext, Client, Fields, Request
from broker.errors import BrokerError, ErrorCode
from broker.protocol.messages import field
from broker.protocol.topic_partition import TopicPartition, by_topic
from broker.zookeeper.cluster_metadata import ClusterMetadata

__all__ = ["handle"]

PREFERRED, UNCLEAN = 0, 1


def handle(context: ApiContext, request: Request, client: Client) -> Fields:
    """Each partition has its own result. If all are requested, those that need no election are left out."""
    metadata = context.topics.metadata
    kind = field(request.body, "election_type", PREFERRED)
    asked = request.body.topic_partitions
    if kind not in (PREFERRED, UNCLEAN):
        refused = BrokerError(ErrorCode.invalid_request, f"there is no election type {kind}")
        return _answer(refused.code, {TopicPartition(t.topic, i): refused for t in asked or () for i in t.partitions})
    if asked is None:
        every = (TopicPartition(topic.name, index) for topic in metadata.topics.values() for index in topic.partitions)
        errors = {tp: error for tp in every if (error := _elect(metadata, tp, kind)).code is not _NOT_NEEDED}
    else:
        named = (TopicPartition(topic.topic, index) for topic in asked for index in topic.partitions)
        errors = {tp: _elect(metadata, tp, kind) for tp in named}
    return _answer(ErrorCode.none, errors)


def _answer(code: ErrorCode, errors: Mapping[TopicPartition, BrokerError]) -> Fields:
    results = by_topic(
        (tp, {"partition_id": tp.partition, "error_code": error.code, "error_message": error.message})
        for tp, error in errors.items()
    )
    return {
        "error_code": code,
        "replica_election_results": [{"topic": name, "partition_result": found} for name, found in results.items()],
    }


_NOT_NEEDED = ErrorCode.election_not_needed


def _elect(metadata: ClusterMetadata, tp: TopicPartition, kind: int) -> BrokerError:
    """The reason why no other leader is elected."""
    info = metadata.partition(tp)
    if info is None:
        return BrokerError(ErrorCode.unknown_topic_or_partition, f"there is no partition {tp}")
    leads = info.leader in metadata.brokers
    if leads and (kind == UNCLEAN or info.leader == info.replicas[0]):
        return BrokerError(_NOT_NEEDED, f"{tp} is already led by broker {info.leader}")
    if kind == UNCLEAN:
        return BrokerError(ErrorCode.eligible_leaders_not_available, f"no replica of {tp} is alive")
    return BrokerError(
        ErrorCode.preferred_leader_not_available, f"broker {info.replicas[0]}, preferred for {tp}, is not alive"
    )

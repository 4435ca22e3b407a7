"""AlterPartitionReassignments: assign a partition's replicas to brokers (KIP-455, KIP-860).

A request that names the present replicas succeeds. Moving replicas to other brokers is not supported yet, so no
reassignment is ever in progress and none can be cancelled.
"""

from __future__ import annotations

from collections.abc import Sequence

from broker.api.context import ApiContext, Client, Fields, Request
from broker.cluster.assignment import check_replication_factor
from broker.errors import BrokerError, ErrorCode
from broker.protocol.messages import field
from broker.protocol.topic_partition import TopicPartition
from broker.zookeeper.cluster_metadata import ClusterMetadata

__all__ = ["handle"]


def handle(context: ApiContext, request: Request, client: Client) -> Fields:
    """Each partition has its own result."""
    may_change_factor = field(request.body, "allow_replication_factor_change", True)
    responses = []
    for topic in request.body.topics:
        partitions = []
        for asked in topic.partitions:
            tp = TopicPartition(topic.name, asked.partition_index)
            code, message = ErrorCode.none, None
            try:
                _assign(context.topics.metadata, tp, asked.replicas, may_change_factor)
            except BrokerError as error:
                code, message = error.code, error.message
            partitions.append({"partition_index": tp.partition, "error_code": code, "error_message": message})
        responses.append({"name": topic.name, "partitions": partitions})
    return {
        "allow_replication_factor_change": may_change_factor,
        "error_code": ErrorCode.none,
        "error_message": None,
        "responses": responses,
    }


def _assign(
    metadata: ClusterMetadata, tp: TopicPartition, replicas: Sequence[int] | None, may_change_factor: bool
) -> None:
    """Raise BrokerError unless these are the brokers of the partition already."""
    info = metadata.partition(tp)
    if info is None:
        raise BrokerError(ErrorCode.unknown_topic_or_partition, f"there is no partition {tp}")
    if replicas is None:
        raise BrokerError(ErrorCode.no_reassignment_in_progress, f"no reassignment of {tp} is in progress")
    if not replicas or len(set(replicas)) != len(replicas):
        raise _refused(f"{tp} cannot be on brokers {list(replicas)}: name at least one, and each only once")
    if unknown := sorted(set(replicas) - set(metadata.brokers)):
        raise _refused(f"{tp} cannot be on brokers that are not registered: {unknown}")
    if len(replicas) != len(info.replicas) and not may_change_factor:
        raise BrokerError(
            ErrorCode.invalid_replication_factor, f"{tp} has {len(info.replicas)} replicas, asked for {len(replicas)}"
        )
    if set(replicas) != set(info.replicas):
        check_replication_factor(len(replicas), f"{tp} on brokers {list(replicas)}")
        raise _refused(f"{tp} stays on brokers {list(info.replicas)}: moving replicas is not supported")


def _refused(reason: str) -> BrokerError:
    return BrokerError(ErrorCode.invalid_replica_assignment, reason)

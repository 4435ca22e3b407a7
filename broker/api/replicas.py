"""Where replicas lie and which of them lead: reassignments, elections and the data directories of this broker."""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from broker.api.context import ApiContext, Client, Fields, Request, outcome
from broker.api.serving import serves
from broker.errors import BrokerError, ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import field
from broker.protocol.permissions import (
    ALTER_LOG_DIRS,
    ALTER_REASSIGNMENTS,
    DESCRIBE_LOG_DIRS,
    ELECT_LEADERS,
    LIST_REASSIGNMENTS,
)
from broker.protocol.topic_partition import TopicPartition, topic_rows
from broker.replica.cluster_metadata import ClusterMetadata

logger = logging.getLogger(__name__)

PREFERRED, UNCLEAN = 0, 1
UNKNOWN_BYTES = -1
_NOT_NEEDED = ErrorCode.election_not_needed
_NOT_AVAILABLE = (ErrorCode.eligible_leaders_not_available, ErrorCode.preferred_leader_not_available)

Elected: TypeAlias = Mapping[TopicPartition, BrokerError | None]
"""Why a partition has no other leader now; None if it has."""


@serves(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, 1, changes_metadata=True)
async def alter_partition_reassignments(context: ApiContext, request: Request, client: Client) -> Fields:
    """AlterPartitionReassignments: move replicas of partitions to other brokers, or cancel that (KIP-455, KIP-860).

    Each partition has its own result. Only the controller answers. The reassignment runs on after the answer;
    ListPartitionReassignments shows it.
    """
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


@serves(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, 0)
def list_partition_reassignments(context: ApiContext, request: Request, client: Client) -> Fields:
    """ListPartitionReassignments: the replicas that running reassignments add and remove (KIP-455).

    Only the controller answers. Partitions that are not being reassigned are left out.
    """
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


@serves(ApiKey.ELECT_LEADERS, 0, 2, changes_metadata=True)
async def elect_leaders(context: ApiContext, request: Request, client: Client) -> Fields:
    """ElectLeaders: elect the preferred replica, or in an unclean election any live replica (KIP-183, KIP-460).

    Each partition has its own result. If all are requested, those that need no election are left out. The controller
    elects. A partition that needs no election gets ELECTION_NOT_NEEDED.
    """
    metadata = context.topics.metadata
    kind = field(request.body, "election_type", PREFERRED)
    asked = request.body.topic_partitions
    named = [TopicPartition(topic.topic, index) for topic in asked or () for index in topic.partitions]
    refused = None
    if not context.allows(client, ELECT_LEADERS):
        refused = context.refusal(client, ELECT_LEADERS)
    elif kind not in (PREFERRED, UNCLEAN):
        refused = BrokerError(ErrorCode.invalid_request, f"there is no election type {kind}")
    if refused is not None:
        return _election_results(refused.code, dict.fromkeys(named, refused))
    if asked is None:
        every = (TopicPartition(topic.name, index) for topic in metadata.topics.values() for index in topic.partitions)
        errors = {tp: error for tp in every if (error := _why_not_elected(metadata, tp, kind)).code is not _NOT_NEEDED}
    else:
        errors = {tp: _why_not_elected(metadata, tp, kind) for tp in named}
    return _election_results(ErrorCode.none, {**errors, **await _elect(context, errors, kind)})


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


def _election_results(code: ErrorCode, errors: Elected) -> Fields:
    rows = ((tp, {"partition_id": tp.partition, **outcome(error)}) for tp, error in errors.items())
    return {
        "error_code": code,
        "replica_election_results": topic_rows(rows, topic="topic", partitions="partition_result"),
    }


def _has_candidate(context: ApiContext, tp: TopicPartition, kind: int) -> bool:
    metadata = context.topics.metadata
    info = metadata.partition(tp)
    if info is None:
        return False
    if kind == UNCLEAN:
        return any(replica in metadata.brokers for replica in info.replicas)
    return info.replicas[0] in info.isr and info.replicas[0] in metadata.brokers


def _why_not_elected(metadata: ClusterMetadata, tp: TopicPartition, kind: int) -> BrokerError:
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


@serves(ApiKey.ALTER_REPLICA_LOG_DIRS, 0, 2)
def alter_replica_log_dirs(context: ApiContext, request: Request, client: Client) -> Fields:
    """AlterReplicaLogDirs: move a partition to another data directory of this broker (KIP-113).

    Each partition has its own result. A request that names the present directory succeeds. Moving is not supported and
    gets INVALID_REQUEST. The answer has no field for a reason, so that goes to the broker's log.
    """
    allowed = context.allows(client, ALTER_LOG_DIRS)
    asked = [
        (TopicPartition(topic.name, index), directory.path)
        for directory in request.body.dirs
        for topic in directory.topics
        for index in topic.partitions
    ]
    codes = ((tp, _move(context, tp, path) if allowed else ALTER_LOG_DIRS.code) for tp, path in asked)
    rows = ((tp, {"partition_index": tp.partition, "error_code": code}) for tp, code in codes)
    return {"results": topic_rows(rows, topic="topic_name")}


def _move(context: ApiContext, tp: TopicPartition, wanted: str) -> ErrorCode:
    if Path(wanted) not in [path.absolute() for path in context.logs.directories]:
        return ErrorCode.log_dir_not_found
    log = context.logs.get(tp)
    if log is None:
        known = context.topics.metadata.partition(tp) is not None
        return ErrorCode.replica_not_available if known else ErrorCode.unknown_topic_or_partition
    if log.directory.parent.absolute() == Path(wanted):
        return ErrorCode.none
    logger.warning("%s stays in %s: moving it to %s is not supported", tp, log.directory.parent, wanted)
    return ErrorCode.invalid_request


@serves(ApiKey.DESCRIBE_LOG_DIRS, 0, 5)
def describe_log_dirs(context: ApiContext, request: Request, client: Client) -> Fields:
    """DescribeLogDirs: the partitions in each of this broker's data directories, with their sizes (KIP-113, KIP-827).

    Every directory, with the requested partitions in it. Null means all partitions.
    Version notes: from 3 the answer has an error code, from 4 each directory has its total and usable bytes.
    """
    if not context.allows(client, DESCRIBE_LOG_DIRS):
        return {"error_code": DESCRIBE_LOG_DIRS.code, "results": ()}
    asked = request.body.topics
    wanted = None if asked is None else {(topic.topic, index) for topic in asked for index in topic.partitions}
    sizes: dict[Path, dict[str, list[Fields]]] = defaultdict(lambda: defaultdict(list))
    for tp, log in context.logs.logs().items():
        if wanted is None or tp in wanted:
            described = {"partition_index": tp.partition, "partition_size": log.size, "offset_lag": 0}
            sizes[log.directory.parent][tp.topic].append(described)
    results = [
        _directory(path, sizes[path], is_offline=path in context.logs.failures) for path in context.logs.directories
    ]
    return {"error_code": ErrorCode.none, "results": results}


def _directory(path: Path, topics: Mapping[str, list[Fields]], *, is_offline: bool) -> Fields:
    total = usable = UNKNOWN_BYTES
    if is_offline:
        topics = {}
    else:
        with contextlib.suppress(OSError):
            total, _, usable = shutil.disk_usage(path)
    return {
        "error_code": ErrorCode.kafka_storage_error if is_offline else ErrorCode.none,
        "log_dir": str(path.absolute()),
        "topics": [{"name": name, "partitions": partitions} for name, partitions in topics.items()],
        "total_bytes": total,
        "usable_bytes": usable,
    }

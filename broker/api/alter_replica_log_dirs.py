"""AlterReplicaLogDirs: move a partition to another data directory of this broker (KIP-113).

A request that names the present directory succeeds. Moving is not supported and gets INVALID_REQUEST. The answer has no
field for a reason, so that goes to the broker's log.
"""

from __future__ import annotations

import logging
from pathlib import Path

from broker.api.context import ApiContext, Client, Fields, Request
from broker.errors import ErrorCode
from broker.protocol.permissions import ALTER_LOG_DIRS
from broker.protocol.topic_partition import TopicPartition, topic_rows

logger = logging.getLogger(__name__)


def handle(context: ApiContext, request: Request, client: Client) -> Fields:
    """Each partition has its own result."""
    allowed = context.allows(client, ALTER_LOG_DIRS)
    asked = [
        (TopicPartition(topic.name, index), directory.path)
        for directory in request.body.dirs
        for topic in directory.topics
        for index in topic.partitions
    ]
    codes = ((tp, _place(context, tp, path) if allowed else ALTER_LOG_DIRS.code) for tp, path in asked)
    rows = ((tp, {"partition_index": tp.partition, "error_code": code}) for tp, code in codes)
    return {"results": topic_rows(rows, topic="topic_name")}


def _place(context: ApiContext, tp: TopicPartition, wanted: str) -> ErrorCode:
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

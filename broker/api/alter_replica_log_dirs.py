"""AlterReplicaLogDirs: into which of this broker's data directories a partition belongs (KIP-113).

Where a partition lies already it may be told to be. Moving one to another directory is not supported: INVALID_REQUEST,
and the broker's log says so, for the answer has no room for words.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from broker.api.context import ApiContext
from broker.errors import ErrorCode
from broker.net.router import Client
from broker.protocol.messages import Request
from broker.protocol.topic_partition import TopicPartition

__all__ = ["handle"]

logger = logging.getLogger(__name__)


def handle(context: ApiContext, request: Request, client: Client) -> Mapping[str, Any]:
    """Each partition is answered for itself."""
    results: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for directory in request.body.dirs:
        for topic in directory.topics:
            for index in topic.partitions:
                code = _place(context, TopicPartition(topic.name, index), directory.path)
                results[topic.name].append({"partition_index": index, "error_code": code})
    return {"results": [{"topic_name": name, "partitions": partitions} for name, partitions in results.items()]}


def _place(context: ApiContext, tp: TopicPartition, wanted: str) -> ErrorCode:
    if Path(wanted) not in [path.absolute() for path in context.logs.directories]:
        return ErrorCode.log_dir_not_found
    log = context.logs.get(tp)
    if log is None:
        known = context.topics.metadata.partition(tp) is not None
        return ErrorCode.replica_not_available if known else ErrorCode.unknown_topic_or_partition
    if log.directory.parent.absolute() == Path(wanted):
        return ErrorCode.none
    logger.warning("%s lies in %s and is not moved to %s: that is not supported", tp, log.directory.parent, wanted)
    return ErrorCode.invalid_request

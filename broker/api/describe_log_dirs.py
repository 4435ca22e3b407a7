"""DescribeLogDirs: the partitions in each of this broker's data directories, with their sizes (KIP-113, KIP-827).

Version notes: from 3 the answer has an error code, from 4 each directory has its total and usable bytes.
"""

from __future__ import annotations

import contextlib
import shutil
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from broker.api.context import ApiContext, Client, Fields, Request
from broker.errors import ErrorCode
from broker.protocol.permissions import DESCRIBE_LOG_DIRS

UNKNOWN = -1


def handle(context: ApiContext, request: Request, client: Client) -> Fields:
    """Every directory, with the requested partitions in it. Null means all partitions."""
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
    total = usable = UNKNOWN
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

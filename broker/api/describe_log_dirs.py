"""DescribeLogDirs: the partitions in each of this broker's data directories, with their sizes (KIP-113, KIP-827).

Version notes: from 3 the answer has an error code, from 4 each directory has its total and usable bytes.
"""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from broker.api.context import ApiContext, Client, Fields, Request
from broker.errors import ErrorCode

__all__ = ["handle"]

UNKNOWN = -1


def handle(context: ApiContext, request: Request, client: Client) -> Fields:
    """Every directory, with the requested partitions in it. Null means all partitions."""
    asked = request.body.topics
    wanted = None if asked is None else {(topic.topic, index) for topic in asked for index in topic.partitions}
    sizes: dict[Path, dict[str, list[Fields]]] = defaultdict(lambda: defaultdict(list))
    for tp, log in context.logs.logs().items():
        if wanted is None or tp in wanted:
            described = {"partition_index": tp.partition, "partition_size": log.size, "offset_lag": 0}
            sizes[log.directory.parent][tp.topic].append(described)
    failures = context.logs.failures
    results = [
        _directory(path, sizes[path]) if path not in failures else _offline(path) for path in context.logs.directories
    ]
    return {"error_code": ErrorCode.none, "results": results}


def _directory(path: Path, topics: Mapping[str, list[Fields]]) -> Fields:
    try:
        usage = shutil.disk_usage(path)
        total, usable = usage.total, usage.free
    except OSError:
        total = usable = UNKNOWN
    return {
        "error_code": ErrorCode.none,
        "log_dir": str(path.absolute()),
        "topics": [{"name": name, "partitions": partitions} for name, partitions in topics.items()],
        "total_bytes": total,
        "usable_bytes": usable,
    }


def _offline(path: Path) -> Fields:
    return {
        "error_code": ErrorCode.kafka_storage_error,
        "log_dir": str(path.absolute()),
        "topics": [],
        "total_bytes": UNKNOWN,
        "usable_bytes": UNKNOWN,
    }

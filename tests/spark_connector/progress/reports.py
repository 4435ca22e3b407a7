"""Progress reports as Spark 4.3 makes them, for the tests of lag."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from broker.protocol.topic_partition import TopicPartition
from spark_connector.read.stream_offset import StreamOffset

Where = Mapping[str, Mapping[int, int]]


def offset(where: Where, init: Where | None = None, **skipped: int) -> dict[str, Any]:
    """Our document; `where` and `init` are topic → partition → offset, `skipped` topic → offsets."""
    return StreamOffset(_flat(where), init=None if init is None else _flat(init), skipped=skipped).to_json()


def report(*sources: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """The report of a query with these sources."""
    return {
        "id": "7996f153-3c67-44a9-919c-ce73a9e4dacb",
        "runId": "run-1",
        "name": None,
        "timestamp": "2026-11-21T19:03:45.000Z",
        "batchId": 3,
        "numInputRows": 20,
        "sources": list(sources),
        **changes,
    }


def source(start: Any, end: Any, latest: Any = None, **changes: Any) -> dict[str, Any]:
    """One source; what is None is left out, as Spark does."""
    offsets = {"startOffset": start, "endOffset": end, "latestOffset": latest}
    return {
        "description": "PythonMicroBatchStreamWithTriggerAvailableNow@2811d7fa",
        **{name: value for name, value in offsets.items() if value is not None},
        "numInputRows": 20,
        "inputRowsPerSecond": 10.5,
        "processedRowsPerSecond": 24.25,
        **changes,
    }


def as_text(document: Any) -> str:
    """The other way Spark reports an offset."""
    return json.dumps(document)


def _flat(where: Where) -> dict[TopicPartition, int]:
    return {TopicPartition(topic, p): value for topic, partitions in where.items() for p, value in partitions.items()}

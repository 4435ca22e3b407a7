"""The lag of streams: Spark's progress report in, lag per query, source, topic and partition out. Pure.

listener.py calls it with the parsed `StreamingQueryProgress.json`. The figures and their names are those of Spark's own
Kafka source (`minOffsetsBehindLatest` …), which the Python Data Source API does not let a source report. Offsets count
as in Kafka, including transaction markers and gaps. Sources of other formats are left out. If the report has no latest
offset (Spark repeats a batch after a crash without asking for one), lag is unknown, which is not 0: such a source has
no topics.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from broker.protocol.topic_partition import TopicPartition
from spark_connector.errors import ConnectorError
from spark_connector.offset_store.base import Offsets
from spark_connector.read.stream_offset import StreamOffset, plan_start
from spark_connector.stored_json import parsed

SizeEstimate = Callable[[Offsets, Offsets], Mapping[TopicPartition, float]]
"""(offsets read, ends of partitions) → average bytes of the offsets between, where known (listener.RecordSizes)."""


@dataclass(frozen=True)
class TopicLag:
    """The lag of one topic, in offsets by partition (never negative, never empty).

    `bytes_behind`: their estimated size in the log, compressed; None if unknown.
    """

    topic: str
    offsets_behind: Mapping[int, int]
    bytes_behind: int | None = None

    @property
    def total(self) -> int:
        """Lag in offsets over all partitions."""
        return sum(self.offsets_behind.values())


@dataclass(frozen=True)
class SourceLag:
    """One source of a query after a batch; `index` is its number in the report. Rows and rows/s are Spark's own.

    `start` and `end`: the offsets of the batch. `skipped`: offsets skipped since the query first began, by topic
    (failOnDataLoss=false). `topic_ids`: those of the topics that were read, where they are known.
    """

    index: int
    topics: tuple[TopicLag, ...]
    start: Offsets
    end: Offsets
    num_input_rows: int
    input_rows_per_second: float
    processed_rows_per_second: float
    skipped: Mapping[str, int]
    topic_ids: Mapping[str, str] = field(default_factory=dict)

    @property
    def total(self) -> int | None:
        """Lag in offsets over all partitions; None if unknown."""
        return sum(topic.total for topic in self.topics) if self.topics else None

    @property
    def bytes_behind(self) -> int | None:
        """Lag in bytes over all topics; None if it is unknown for any topic."""
        sizes = [topic.bytes_behind for topic in self.topics]
        known = [size for size in sizes if size is not None]
        return sum(known) if sizes and len(known) == len(sizes) else None

    def metrics(self) -> dict[str, float]:
        """The known figures by the names of Spark's own Kafka source (bytes: by Databricks' name)."""
        behind = [offsets for topic in self.topics for offsets in topic.offsets_behind.values()]
        if not behind:
            return {}
        found: dict[str, float] = {
            "minOffsetsBehindLatest": min(behind),
            "maxOffsetsBehindLatest": max(behind),
            "avgOffsetsBehindLatest": sum(behind) / len(behind),
        }
        if self.bytes_behind is not None:
            found["estimatedTotalBytesBehindLatest"] = self.bytes_behind
        return found


@dataclass(frozen=True)
class QueryLag:
    """One query after a batch. `id` survives restarts, `run_id` does not. `timestamp`: begin of the batch, ISO 8601.

    `duration_ms`: of the batch; None if Spark does not tell.
    """

    id: str
    run_id: str
    name: str | None
    batch_id: int
    timestamp: str
    sources: tuple[SourceLag, ...] = ()
    duration_ms: int | None = None

    @property
    def label(self) -> str:
        """The query's name, or its id if it has no name."""
        return self.name or self.id


def query_lag(progress: Mapping[str, Any], estimate: SizeEstimate | None = None) -> QueryLag:
    """The lag by `progress` (Spark's JSON). Without `estimate` there is no lag in bytes."""
    sources = (_source_lag(index, source, estimate) for index, source in enumerate(progress.get("sources") or ()))
    return QueryLag(
        id=str(progress.get("id")),
        run_id=str(progress.get("runId")),
        name=progress.get("name"),
        batch_id=int(progress.get("batchId") or 0),
        timestamp=str(progress.get("timestamp") or ""),
        sources=tuple(source for source in sources if source is not None),
        duration_ms=None if (took := progress.get("batchDuration")) is None else int(took),
    )


def _source_lag(index: int, source: Mapping[str, Any], estimate: SizeEstimate | None) -> SourceLag | None:
    end = _offset(source.get("endOffset"))
    if end is None:
        return None
    start = _offset(source.get("startOffset")) or StreamOffset({})
    latest = _offset(source.get("latestOffset"))
    # Spark 4.0 and 4.1 report the end of the batch as latest offset; there our document holds the ends of partitions.
    ends = {} if latest is None else latest.latest or latest.offsets
    # A partition that no batch has read yet counts from 0, as in Spark. A log may end before the offset read.
    read = {tp: min(end.offsets.get(tp, 0), offset) for tp, offset in ends.items()}
    sizes = estimate(read, ends) if estimate is not None and ends else None
    behind: dict[str, dict[int, int]] = {}
    for tp, offset in sorted(ends.items()):
        behind.setdefault(tp.topic, {})[tp.partition] = offset - read[tp]
    return SourceLag(
        index=index,
        topics=tuple(TopicLag(topic, offsets, _bytes(topic, offsets, sizes)) for topic, offsets in behind.items()),
        start=plan_start(start, end),
        end=end.offsets,
        num_input_rows=int(source.get("numInputRows") or 0),
        input_rows_per_second=float(source.get("inputRowsPerSecond") or 0),
        processed_rows_per_second=float(source.get("processedRowsPerSecond") or 0),
        skipped=end.skipped,
        topic_ids=end.topic_ids,
    )


def _offset(value: Any) -> StreamOffset | None:
    """Parse our document, which Spark reports as JSON text or as an object; None for anything else."""
    try:
        return StreamOffset.from_json(parsed(value) if isinstance(value, str) else value)
    except (ConnectorError, ValueError, RecursionError):
        return None


def _bytes(topic: str, behind: Mapping[int, int], sizes: Mapping[TopicPartition, float] | None) -> int | None:
    """Lag in bytes; None if the size of a partition with lag is unknown."""
    found = [(offsets, (sizes or {}).get(TopicPartition(topic, p))) for p, offsets in behind.items() if offsets]
    known = [offsets * size for offsets, size in found if size is not None]
    return round(sum(known)) if sizes is not None and len(known) == len(found) else None

"""What the demo reports of its stream, when batches end between two reports."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

from broker.protocol.topic_partition import TopicPartition
from pykafka_demo import steps
from spark_connector.read.stream_offset import StreamOffset

TOTAL = 336_776


class Query:
    """A streaming query that ends by itself after some looks; a batch may be reported only at its end, or never."""

    def __init__(self, *looks: list[int], active: int = 1_000) -> None:
        self._looks = list(looks)
        self._active = active

    @property
    def recentProgress(self) -> list[Any]:  # noqa: N802
        ends = self._looks.pop(0) if len(self._looks) > 1 else self._looks[0]
        return [report(max(end - steps.STREAM_BATCH, 0), end) for end in ends]

    @property
    def isActive(self) -> bool:  # noqa: N802
        self._active -= 1
        return self._active >= 0

    def exception(self) -> None:
        return None

    def stop(self) -> None:
        pass

    def awaitTermination(self) -> None:  # noqa: N802
        pass


def report(start: int, end: int) -> SimpleNamespace:
    source = {"startOffset": document(start), "endOffset": document(end), "numInputRows": end - start}
    return SimpleNamespace(numInputRows=end - start, json=json.dumps({"batchId": 0, "sources": [source]}))


def document(rows: int) -> dict[str, Any]:
    """Rows of four partitions."""
    shares = {TopicPartition("flights", n): rows // 4 + (n < rows % 4) for n in range(4)}
    return StreamOffset(shares).to_json()


def streamed(first: Query, second: Query, tmp_path: Path) -> tuple[int, list[int]]:
    spark, seen = MagicMock(), list[int]()
    writer = spark.readStream.format().option().option().option().option().load().writeStream.format().option()
    writer.start.return_value = first
    writer.trigger().start.return_value = second
    return steps.stream_in_two_runs(spark, "host:9092", tmp_path, tmp_path, seen.append), seen


def test_the_bar_ends_at_all_rows_though_a_batch_was_never_reported(tmp_path: Path) -> None:
    """The third batch of the first run was committed when the query was stopped."""
    before, seen = streamed(
        Query([], [40_000], [40_000, 80_000]),
        Query([], [160_000], [160_000, 200_000], [160_000, 200_000, TOTAL], active=3),
        tmp_path,
    )
    assert before == 120_000
    assert seen[-1] == TOTAL
    assert seen == sorted(seen)


def test_the_bar_ends_at_all_rows_though_the_last_batch_is_reported_late(tmp_path: Path) -> None:
    before, seen = streamed(Query([40_000, 80_000]), Query([120_000, TOTAL], active=0), tmp_path)
    assert (before, seen[-1]) == (80_000, TOTAL)


def test_all_may_have_been_read_in_the_first_run(tmp_path: Path) -> None:
    assert streamed(Query([40_000, TOTAL]), Query([], active=0), tmp_path) == (TOTAL, [TOTAL])

"""A topic and a partition number: the key of most maps in this project."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


class TopicPartition(NamedTuple):
    """A partition of a topic; its text, and the name of its directory, is `topic-0`."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def by_topic(rows: Iterable[tuple[TopicPartition, T]]) -> dict[str, list[T]]:
    """The rows of each topic, in order: requests name a topic once, above the rows of its partitions."""
    topics: dict[str, list[T]] = defaultdict(list)
    for tp, row in rows:
        topics[tp.topic].append(row)
    return topics


def topic_rows(
    rows: Iterable[tuple[TopicPartition, Any]], *, topic: str = "name", partitions: str = "partitions"
) -> list[dict[str, Any]]:
    """Rows of a request or an answer, grouped by topic. `topic` and `partitions` are the fields of a topic's row."""
    return [{topic: name, partitions: of_topic} for name, of_topic in by_topic(rows).items()]


def some_of(partitions: Sequence[TopicPartition]) -> str:
    """The first ten in order, and how many more there are, for a line of a log."""
    shown = ", ".join(map(str, sorted(partitions)[:10]))
    return f"{shown} and {len(partitions) - 10} more" if len(partitions) > 10 else shown

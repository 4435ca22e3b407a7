"""How far a group's loads are behind their topics, asked of the brokers at any moment.

Used by the service `pykafka load --watch --metrics`: a scrape asks, in a thread of its own, so the figure grows while
loads fail. Raises nothing: what cannot be found out is not known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from broker.errors import PykafkaError
from broker.protocol.topic_partition import TopicPartition
from spark_connector.options.range_limit import Position
from spark_connector.options.read_options import SourceOptions
from spark_connector.read.offset_reader import OffsetReader

__all__ = ["LoadLag"]

_PATIENCE_MS = 3_000  # no scrape waits longer for brokers


class LoadLag:
    """Of one group. Any thread may ask."""

    def __init__(self, source: SourceOptions) -> None:
        """`source`: what the loads read."""
        self._source = replace(
            source, num_retries=1, client=replace(source.client, default_api_timeout_ms=_PATIENCE_MS)
        )
        self._loaded: Mapping[TopicPartition, int] | None = None

    def loaded(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Where the group stands, from now on."""
        self._loaded = offsets

    def behind(self) -> dict[str, int]:
        """Offsets by topic that the log has and no load yet; without what is not known. Offsets that have left the log
        are not counted: no load can catch up on them."""
        loaded = self._loaded
        if loaded is None:
            return {}
        reader = OffsetReader(self._source)
        try:
            assigned = reader.assigned()
            earliest = reader.earliest(assigned.partitions)
            latest = reader.resolve(Position.LATEST, assigned, which="end")
        except PykafkaError:
            return {}
        finally:
            reader.close()
        total: Counter[str] = Counter()
        for tp, end in latest.items():
            total[tp.topic] += max(end - max(loaded.get(tp, 0), earliest[tp]), 0)
        return dict(total)

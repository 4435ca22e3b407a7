"""The offsets of the rows that a verification finds at a destination. Shared by all destinations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute

from broker.protocol.topic_partition import TopicPartition

Offsets = npt.NDArray[np.int64]


@dataclass(frozen=True)
class HeldRows:
    """The rows that a destination has of one load: sorted offsets per partition, duplicates included.

    `offsets` is None when they cannot be read; then `problems` or `notes` say why. `notes` do not fail a verification.
    """

    offsets: Mapping[TopicPartition, Offsets] | None
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class RowOffsets:
    """Offsets per partition, collected part by part. Memory: 8 bytes a row."""

    def __init__(self) -> None:
        self._parts: dict[TopicPartition, list[Offsets]] = {}

    def add(self, part: pa.Table) -> None:
        """Add rows with the columns topic, partition and offset. Raises ValueError for a null."""
        if part.num_rows == 0:
            return
        topics = pa.compute.dictionary_encode(part.column("topic").combine_chunks())
        topics = topics.combine_chunks() if isinstance(topics, pa.ChunkedArray) else topics
        if topics.null_count or part.column("partition").null_count or part.column("offset").null_count:
            raise ValueError("a row has no topic, partition or offset")
        partitions = part.column("partition").to_numpy().astype(np.int64)
        offsets = part.column("offset").to_numpy().astype(np.int64)
        keys = topics.indices.to_numpy().astype(np.int64) << 32 | partitions
        for key in np.unique(keys):
            tp = TopicPartition(topics.dictionary[int(key) >> 32].as_py(), int(key) & 0xFFFFFFFF)
            self.append(tp, offsets[keys == key])

    def append(self, tp: TopicPartition, offsets: Offsets) -> None:
        self._parts.setdefault(tp, []).append(offsets)

    def extend(self, other: RowOffsets) -> None:
        for tp, parts in other._parts.items():
            self._parts.setdefault(tp, []).extend(parts)

    def sorted(self) -> dict[TopicPartition, Offsets]:
        """The offsets of every partition, duplicates included."""
        return {tp: np.sort(np.concatenate(parts)) for tp, parts in self._parts.items()}

"""The offset of a stream, as it stands in Spark's checkpoint.

stream_reader.py makes these, Spark stores them as JSON and compares them **as text**, so a document is
canonical: keys sorted, partitions in numeric order, nothing optional written when empty. Offsets are the
NEXT to read. One document:

    {"v": 1,
     "topics": {"t": {"0": 23, "1": 7}},     end of the batch, start of the next one
     "ids":    {"t": "uuid"},                 topic ids, where the broker has them: a recreated topic shows
     "init":   {"t": {"0": 3, "1": 0}},       first batch only: where the query started
     "added":  {"t": {"1": 0}},               partitions that do not go on where the batch before ended, for they are
                                              new or their next records are gone: where they start
     "selects": {"subscribe": "t"},           the options that selected the partitions
     "skipped": {"t": 120},                   offsets passed over since the query began (failOnDataLoss=false)
     "latest": {"t": {"0": 90, "1": 7}}}      where partitions ended, if a limit ended the batch before; for lag, on
                                              Spark 4.0 and 4.1, which do not ask for it

The last three came later: they are optional, and who does not know them loses only them, so the version is the same.

Spark calls `initialOffset` twice for batch 0 and once more after a crash, and a start like `latest`
moves in between. So the resolved start travels inside the first END offset, which is logged before the
batch runs; `plan_start` reads it back. The same holds for partitions that appear later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from broker.protocol.topic_partition import TopicPartition
from spark_connector.errors import ConnectorError

__all__ = ["Offsets", "StreamOffset", "plan_start"]

_VERSION = 1

Offsets = Mapping[TopicPartition, int]


@dataclass(frozen=True)
class StreamOffset:
    """One such document. `init` is None in all but the first end offset of a query."""

    offsets: Offsets
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    init: Offsets | None = None
    added: Offsets = field(default_factory=dict)
    skipped: Mapping[str, int] = field(default_factory=dict)
    selects: Mapping[str, str] = field(default_factory=dict)
    latest: Offsets | None = None

    def to_json(self) -> dict[str, Any]:
        """The canonical document; equal offsets give equal JSON text."""
        document: dict[str, Any] = {}
        if self.added:
            document["added"] = _to_json(self.added)
        if self.topic_ids:
            document["ids"] = dict(sorted(self.topic_ids.items()))
        if self.init is not None:
            document["init"] = _to_json(self.init)
        if self.latest is not None:
            document["latest"] = _to_json(self.latest)
        if self.selects:
            document["selects"] = dict(sorted(self.selects.items()))
        if skipped := {topic: count for topic, count in sorted(self.skipped.items()) if count}:
            document["skipped"] = skipped
        document["topics"] = _to_json(self.offsets)
        document["v"] = _VERSION
        return document

    @classmethod
    def from_json(cls, document: Any) -> StreamOffset:
        """Read a document back from the checkpoint. Raises ConnectorError when this source did not write it."""
        try:
            if document["v"] != _VERSION:
                raise ConnectorError(
                    "PYKAFKA_CHECKPOINT_VERSION",
                    f"The checkpoint was written in format {document['v']}, this version of the connector reads "
                    f"{_VERSION}. Use the version that wrote it, or a new checkpoint.",
                )
            return cls(
                offsets=_from_json(document["topics"]),
                topic_ids={str(topic): str(value) for topic, value in document.get("ids", {}).items()},
                init=_from_json(document["init"]) if "init" in document else None,
                added=_from_json(document.get("added", {})),
                skipped={str(topic): int(count) for topic, count in document.get("skipped", {}).items()},
                latest=_from_json(document["latest"]) if "latest" in document else None,
                selects={str(name): str(value) for name, value in document.get("selects", {}).items()},
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConnectorError(
                "PYKAFKA_CHECKPOINT_UNREADABLE",
                f"The checkpoint holds an offset that format pykafka did not write: {document!r} "
                f"({type(error).__name__}: {error}). Use a new checkpoint.",
            ) from error


def plan_start(start: StreamOffset, end: StreamOffset) -> dict[TopicPartition, int]:
    """Where the batch that ends at `end` begins: what `end` carries wins over what Spark hands in as `start`."""
    base = start.offsets if end.init is None else end.init
    return {**base, **end.added}


def _to_json(offsets: Offsets) -> dict[str, dict[str, int]]:
    document: dict[str, dict[str, int]] = {}
    for tp in sorted(offsets):
        document.setdefault(tp.topic, {})[str(tp.partition)] = offsets[tp]
    return document


def _from_json(document: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic, int(partition)): int(offset)
        for topic, partitions in document.items()
        for partition, offset in partitions.items()
    }

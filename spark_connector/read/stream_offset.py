"""The offset of a stream, as Spark's checkpoint stores it.

Spark stores these documents as JSON and compares them **as text**, so a document is canonical: keys sorted, partitions
in numeric order, empty optional fields left out. Each offset is the NEXT one to read. One document:

    {"added":  {"t": {"1": 0}},               partitions that do not continue where the last batch ended: new ones, and
                                              those whose next records are gone; where they start
     "epochs": {"t": {"0": 4, "1": 6}},       leader epochs of the logs that reached the offsets in `topics`, if the
                                              brokers have them: they reveal a truncated log (KIP-320)
     "ids":    {"t": "uuid"},                 topic ids, if the broker has them: they reveal a recreated topic
     "init":   {"t": {"0": 3, "1": 0}},       first batch only: where the query started
     "latest": {"t": {"0": 90, "1": 7}},      ends of the partitions, if a limit ended the batch earlier; to compute
                                              lag on Spark 4.0 and 4.1, which do not ask for it
     "selects": {"subscribe": "t"},           the options that selected the partitions
     "skipped": {"t": 120},                   offsets skipped since the query began (failOnDataLoss=false)
     "topics": {"t": {"0": 23, "1": 7}},      end of the batch, start of the next one
     "v": 1}

`epochs`, `latest`, `selects` and `skipped` were added later. They are optional, and a reader that does not know them
loses nothing else, so the version is the same.

Spark calls `initialOffset` twice for batch 0 and once more after a crash, and a start like `latest` moves in between.
So the first END offset, which Spark logs before the batch runs, carries the resolved start (S2); `plan_start` reads it.
The same holds for partitions that appear later.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from broker.protocol.topic_partition import TopicPartition
from spark_connector.errors import ConnectorError
from spark_connector.offset_store.base import Offsets, offsets_from_json, offsets_to_json
from spark_connector.stored_json import mapping, text, whole, words

T = TypeVar("T")

_VERSION = 1
_UNREADABLE = "PYKAFKA_CHECKPOINT_UNREADABLE"

Document = dict[str, Any]
"""A stream offset as Spark passes it: JSON objects only."""


@dataclass(frozen=True)
class StreamOffset:
    """One such document. `init` is None except in the first end offset of a query."""

    offsets: Offsets
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    init: Offsets | None = None
    added: Offsets = field(default_factory=dict)
    skipped: Mapping[str, int] = field(default_factory=dict)
    selects: Mapping[str, str] = field(default_factory=dict)
    latest: Offsets | None = None
    epochs: Offsets = field(default_factory=dict)

    def to_json(self) -> Document:
        """The canonical document; equal offsets give equal JSON text."""
        document: Document = {
            "added": offsets_to_json(self.added) or None,
            "epochs": offsets_to_json(self.epochs) or None,
            "ids": dict(sorted(self.topic_ids.items())) or None,
            "init": None if self.init is None else offsets_to_json(self.init),
            "latest": None if self.latest is None else offsets_to_json(self.latest),
            "selects": dict(sorted(self.selects.items())) or None,
            "skipped": {topic: count for topic, count in sorted(self.skipped.items()) if count} or None,
            "topics": offsets_to_json(self.offsets),
            "v": _VERSION,
        }
        return {name: value for name, value in document.items() if value is not None}

    @classmethod
    def from_json(cls, document: Any) -> StreamOffset:
        """Parse a document of a checkpoint. Raises ConnectorError when this source did not write it."""
        try:
            document = mapping(document, "the offset")
            if document["v"] != _VERSION:
                raise ConnectorError(
                    "PYKAFKA_CHECKPOINT_VERSION",
                    f"The checkpoint was written in format {document['v']!r:.60}, this version of the connector "
                    f"reads {_VERSION}. Use the version that wrote it, or a new checkpoint.",
                )
            return cls(
                offsets=offsets_from_json(document["topics"]),
                topic_ids=_by_name(document, "ids", text),
                init=offsets_from_json(document["init"]) if "init" in document else None,
                added=offsets_from_json(document.get("added", {})),
                skipped=_by_name(document, "skipped", whole),
                latest=offsets_from_json(document["latest"]) if "latest" in document else None,
                selects=_by_name(document, "selects", words),
                epochs=offsets_from_json(document.get("epochs", {})),
            )
        except (KeyError, TypeError, ValueError) as error:
            if _is_of_spark(document):
                raise ConnectorError(_UNREADABLE, _continue_at(document)) from error
            raise ConnectorError(
                _UNREADABLE,
                f"The checkpoint holds an offset that format pykafka did not write: {document!r:.300} "
                f"({type(error).__name__}: {error}). Use a new checkpoint.",
            ) from error


def _by_name(document: Document, name: str, check: Callable[[object, str], T]) -> dict[str, T]:
    return {key: check(value, name) for key, value in mapping(document.get(name, {}), name).items()}


def batch_of(start: Document, end: Document) -> tuple[StreamOffset, StreamOffset]:
    """Both offsets of a batch. Raises ConnectorError as `from_json`; a batch is continued where it starts."""
    first = StreamOffset.from_json(start)
    if _is_of_spark(end):  # its first batch: the start is what our own source has found
        raise ConnectorError(
            _UNREADABLE,
            "The checkpoint holds an offset that format pykafka did not write, but Spark's own kafka source, whose "
            "first batch did not finish. Use a new checkpoint, and the startingOffsets of the old query; sources/0/0 "
            "of the old checkpoint has them resolved. Other offsets would lose or repeat records.",
        )
    return first, StreamOffset.from_json(end)


def _is_of_spark(document: Any) -> bool:
    """Whether it is an offset of Spark's own kafka source: `{"topic": {"0": 12}}`."""
    if not (isinstance(document, dict) and document and all(isinstance(value, dict) for value in document.values())):
        return False
    return all(
        partition.isdecimal() and isinstance(offset, int)
        for offsets in document.values()
        for partition, offset in offsets.items()
    )


def _continue_at(document: Document) -> str:
    offsets = json.dumps(document, separators=(",", ":"), sort_keys=True)
    return (
        "The checkpoint holds an offset that format pykafka did not write, but Spark's own kafka source. Use a new "
        f"checkpoint, and begin where the old query has finished: .option(\"startingOffsets\", '{offsets}'). Without "
        "it a query begins at latest, and the records in between are lost."
    )


def plan_start(start: StreamOffset, end: StreamOffset) -> dict[TopicPartition, int]:
    """Where the batch that ends at `end` begins: starts recorded in `end` win over the `start` that Spark passes."""
    base = start.offsets if end.init is None else end.init
    return {**base, **end.added}

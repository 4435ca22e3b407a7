"""Bad records as rows: of a table of dead letters, and counted for a limit (`max_bad`).

A load gives one `BadRecordRows` to the task that decodes its ranges (read/fetch.py, record_decoder.py). It has the
place of `BadRecordsTopic`: the decoder hands over the bad records of a batch with their reasons, and good records never
come here. Keys, values and headers are kept as Kafka has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from broker.protocol.topic_partition import TopicPartition
from broker.records.columns import HEADERS_TYPE, TIMESTAMP_TYPE
from spark_connector.formats.field_presence import FieldsSeen, FieldWatch
from spark_connector.formats.frames import id_header
from spark_connector.formats.value_decoder import ValueDecoder
from spark_connector.formats.value_format import REGISTERED, ReadFormats, framed_id

BAD_RECORD_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", TIMESTAMP_TYPE),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS_TYPE),
        ("reason", pa.string()),
        ("schema_id", pa.int32()),
    ]
)
"""The rows of a table of dead letters, without the column that names their load."""

_KEPT = ("offset", "timestamp", "key", "value", "headers")
_LARGEST = (1 << 31) - 1


@dataclass(frozen=True)
class BadCount:
    """The bad records of one partition: how many, the offset of the first, and its reason."""

    topic: str
    partition: int
    rows: int
    first: int
    reason: str

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class BadRecordRows:
    """Collects the bad records of one task, and notes which fields its records have."""

    def __init__(
        self, formats: ReadFormats, write: Callable[[pa.RecordBatch], None] | None = None, *, quiet: bool = False
    ) -> None:
        """`write` gets batches of BAD_RECORD_SCHEMA; None only counts, and unless `quiet` the log is told of them."""
        self.needs = _KEPT if write is not None else ("offset",)
        """The source columns that `write` expects."""
        self._framed = tuple(
            name
            for name in ("value", "key")
            if formats.registry is not None
            and formats.registry.type == "confluent"
            and name in formats.columns
            and formats.columns[name].name in REGISTERED
        )
        self._write = write
        self.is_quiet = quiet or write is not None
        self._fields = FieldWatch(formats)
        self._counts: dict[TopicPartition, BadCount] = {}

    @property
    def counts(self) -> tuple[BadCount, ...]:
        """One for each partition that has bad records."""
        return tuple(self._counts.values())

    @property
    def seen(self) -> FieldsSeen:
        """The fields that some record has."""
        return self._fields.seen

    def look(self, name: str, raw: pa.Array, column: pa.Array, decoder: ValueDecoder) -> None:
        """Note the fields that a batch has."""
        self._fields.look(name, raw, column, decoder)

    def write(self, tp: TopicPartition, records: pa.RecordBatch, reasons: Sequence[str]) -> None:
        """Take the bad records of a batch (columns `needs`), in order of offset, and why each is bad."""
        count = BadCount(*tp, len(reasons), records["offset"][0].as_py(), reasons[0])
        self._counts[tp] = _sum(self._counts[tp], count) if tp in self._counts else count
        if self._write is not None:
            self._write(self._rows(tp, records, reasons))

    def _rows(self, tp: TopicPartition, records: pa.RecordBatch, reasons: Sequence[str]) -> pa.RecordBatch:
        made = {
            "topic": pa.array([tp.topic] * len(reasons), pa.string()),
            "partition": pa.array([tp.partition] * len(reasons), pa.int32()),
            **{name: records[name] for name in _KEPT},
            "reason": pa.array([_text(why) for why in reasons], pa.string()),
            "schema_id": pa.array(self._schema_ids(records), pa.int32()),
        }
        return pa.RecordBatch.from_arrays([made[name] for name in BAD_RECORD_SCHEMA.names], schema=BAD_RECORD_SCHEMA)

    def _schema_ids(self, records: pa.RecordBatch) -> list[int | None]:
        """The id of the writer's schema in the prefix of the value or, where that has none, of the key. None for one
        that is in a header, which may be a GUID; the prefix is data then."""
        found: list[int | None] = [None] * len(records)
        for name in reversed(self._framed):
            rows = zip(records[name].to_pylist(), records["headers"].to_pylist(), found, strict=True)
            found = [
                before if id_ is None or any(one["key"] == id_header(name) for one in headers or ()) else id_
                for id_, headers, before in ((schema_id_of(raw), headers, before) for raw, headers, before in rows)
            ]
        return found


def schema_id_of(raw: bytes | None) -> int | None:
    """The id of the writer's schema, if the bytes begin as those of a schema registry's client do."""
    found = None if raw is None else framed_id(raw)
    return None if found is None or found > _LARGEST else found  # no registry gives such an id


def sum_bad(counts: Iterable[BadCount]) -> Mapping[TopicPartition, BadCount]:
    """Counts of tasks, added up by partition."""
    total: dict[TopicPartition, BadCount] = {}
    for count in counts:
        total[count.tp] = _sum(total[count.tp], count) if count.tp in total else count
    return total


def _sum(one: BadCount, other: BadCount) -> BadCount:
    first = min(one, other, key=lambda count: count.first)
    return BadCount(one.topic, one.partition, one.rows + other.rows, first.first, first.reason)


def _text(why: str) -> str:
    """Without halves of surrogate pairs, which a reason may quote and UTF-8 cannot hold."""
    return why.encode("utf-8", "replace").decode()

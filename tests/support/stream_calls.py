"""A stream reader called as Spark calls it, without Spark: what the tests of tests/spark_connector/read share.

The tests are written as Spark 4.2 and newer call. On an older PySpark the same calls are brought into the form and the
order in which Spark 4.0 and 4.1 make them (observed: OlderStreamReader), where they can be.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql.datasource import InputPartition

from spark_connector.options.read_options import Mode, parse_options
from spark_connector.read.readers import OlderStreamReader, make_reader
from spark_connector.spark_versions import ADMISSION_CONTROL

if TYPE_CHECKING or ADMISSION_CONTROL:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows, ReadMinRows

    from spark_connector.read.readers import LimitedStreamReader as Reader
else:
    Reader = Any

    @dataclass(frozen=True)
    class ReadLimit:
        """What such a Spark cannot say."""

        amount: int = 0

    ReadAllAvailable = ReadMaxBytes = ReadMaxRows = ReadMinRows = ReadLimit

__all__ = [
    "ALL", "Document", "OlderCalls", "ReadLimit", "ReadMaxBytes", "ReadMaxRows", "ReadMinRows", "Reader", "ReaderOf",
    "as_spark_does", "planned", "ranges_of", "reader", "values",
]  # fmt: skip

Document = dict[str, Any]
ReaderOf = Callable[..., Reader]
ALL = ReadAllAvailable()


class OlderCalls:
    """An OlderStreamReader under the calls of newer Sparks, one process of one query; it limits by its options."""

    def __init__(self, reader: OlderStreamReader) -> None:
        self._reader = reader
        self._initial: Document | None = None
        self._batch: tuple[Document, Document] | None = None

    def initialOffset(self) -> Document:  # noqa: N802
        self._initial = self._reader.initialOffset()
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ALL

    def latestOffset(self, start: Document, limit: ReadLimit) -> Document:  # noqa: N802
        """Whoever asks at the end of the last batch has run that; any other start is a checkpoint's."""
        if self._batch is not None and start == self._batch[1]:
            self._reader.partitions(*self._batch)
        elif self._initial is None or start != self._initial:
            self._reader.partitions(start, start)
        end = self._reader.latestOffset()
        self._batch = (start, end)
        return start if end == start else end

    def partitions(self, start: Document, end: Document) -> list[InputPartition]:
        return self._reader.partitions(start, end)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)  # pickle asks before there is a reader
        return getattr(self._reader, name)


def reader(options: dict[str, str]) -> Reader:
    """The reader that this PySpark gets. Raises ConfigError."""
    made = make_reader(parse_options(options, Mode.STREAM))
    return cast(Reader, OlderCalls(made) if isinstance(made, OlderStreamReader) else made)


def as_spark_does(document: Document) -> Document:
    """Through Spark's hands and back: JSON text, as in the offset log."""
    result: Document = json.loads(json.dumps(document))
    return result


def planned(reader: Reader, start: Document, end: Document) -> list[tuple[int, int, int]]:
    """(partition, from, until) of each range of the tasks."""
    return ranges_of(reader.partitions(as_spark_does(start), as_spark_does(end)))


def ranges_of(tasks: Iterable[InputPartition]) -> list[tuple[int, int, int]]:
    """(partition, from, until) of each range of the tasks."""
    return [(one.tp.partition, one.from_offset, one.until_offset) for task in tasks for one in task.value]


def values(reader: Reader, start: Document, end: Document) -> list[bytes]:
    """What the tasks of a batch read."""
    tasks = reader.partitions(start, end)
    return [value.as_py() for task in tasks for batch in reader.read(task) for value in batch["value"]]

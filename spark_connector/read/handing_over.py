"""How a stream reader gives Spark the rows of a micro-batch together with its plan, so that no Python task runs for it.

PySpark does that for readers of the simple kind only, which it tells by their private class: after `partitions`, which
must give one, it calls `getCache` on them and stores the rows in Spark's block manager, where the task, and the one
that repeats it, finds them. So a reader becomes one of those for that moment, and is itself again when the rows are
taken: other calls (limits, the latest offset for progress reports) are not what simple readers offer. Where PySpark
has no such class the rows stay here and the task reads them itself.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import datasource_internal
from pyspark.sql.datasource import DataSourceStreamReader

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["can_hand_over", "hand_over"]

_ROWS = "_rows_to_hand_over"
_KIND = "_kind_without_rows"


def can_hand_over(reader: DataSourceStreamReader) -> bool:
    """Whether this PySpark takes rows from such a reader."""
    return _handing_over(_kind_of(reader)) is not None


def hand_over(reader: DataSourceStreamReader, rows: Sequence[pa.RecordBatch]) -> None:
    """Have Spark take `rows`, at least one batch, for the one partition that `partitions` is about to give."""
    kind = _handing_over(_kind_of(reader))
    assert kind is not None, "asked can_hand_over"
    reader.__dict__[_ROWS] = rows
    reader.__class__ = kind


def _kind_of(reader: DataSourceStreamReader) -> type[DataSourceStreamReader]:
    kind: type[DataSourceStreamReader] = getattr(type(reader), _KIND, type(reader))
    return kind


@functools.cache
def _handing_over(kind: type[DataSourceStreamReader]) -> type[DataSourceStreamReader] | None:
    simple = getattr(datasource_internal, "_SimpleStreamReaderWrapper", None)
    if not isinstance(simple, type) or not callable(getattr(simple, "getCache", None)):
        return None

    def take(reader: DataSourceStreamReader, _start: Any, _end: Any) -> Iterator[pa.RecordBatch]:
        reader.__class__ = kind
        return iter(reader.__dict__.pop(_ROWS))

    return type(f"{kind.__name__}WithRows", (kind, simple), {"getCache": take, _KIND: kind})

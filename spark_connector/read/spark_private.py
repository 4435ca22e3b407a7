"""What we use of PySpark's private parts, in one place: rows of a micro-batch that go to Spark with its plan.

PySpark takes rows only from instances of a private class for simple readers. After `partitions`, which must return one
partition, it calls `getCache` and stores the rows in Spark's block manager, where the task and its retries find them,
so no Python task runs. A simple reader offers no limits and no latest offset. So a reader of ours has that class only
from `hand_over` until Spark has taken the rows.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import datasource_internal
from pyspark.sql.datasource import DataSourceStreamReader

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS = "_prefetched_rows"


def takes_rows(reader: DataSourceStreamReader) -> bool:
    """Whether this PySpark takes rows with the plan. Otherwise tasks read them."""
    return _class_with_rows(_plain_class(reader)) is not None


def hand_over(reader: DataSourceStreamReader, rows: Sequence[pa.RecordBatch]) -> None:
    """Let Spark take `rows` from `reader` after `partitions`, once."""
    reader.__dict__[_ROWS] = rows
    reader.__class__ = _class_with_rows(_plain_class(reader)) or reader.__class__


def _plain_class(reader: DataSourceStreamReader) -> type[DataSourceStreamReader]:
    return getattr(type(reader), "class_without_rows", type(reader))


@functools.cache
def _class_with_rows(plain: type[DataSourceStreamReader]) -> type[DataSourceStreamReader] | None:
    simple = getattr(datasource_internal, "_SimpleStreamReaderWrapper", None)
    if not isinstance(simple, type) or not callable(getattr(simple, "getCache", None)):
        return None

    def take(reader: DataSourceStreamReader, _start: Any, _end: Any) -> Iterator[pa.RecordBatch]:
        reader.__class__ = plain
        return iter(reader.__dict__.pop(_ROWS))

    return type(f"{plain.__name__}WithRows", (plain, simple), {"getCache": take, "class_without_rows": plain})

"""Reading a load's ranges from a session that has given up looking for Python data sources."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast
from unittest.mock import MagicMock

import pytest

from pyspark_pykafka import DefaultSource
from spark_connector.loads.record import LoadRange, LoadRecord
from spark_connector.loads.write import read_ranges

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECORD = LoadRecord("g-000001-abc", "file:///out", "parquet", "files", 0, (LoadRange("t", 0, 0, 5, None),))


class Session:
    """Answers `read.format(…).options(…).load()` by failing until the source is registered."""

    def __init__(self, failure: str) -> None:
        self.read = MagicMock()
        self.read.format.return_value.options.return_value.load.side_effect = self._load
        self.dataSource = MagicMock()
        self.frame = MagicMock()
        self._failure = failure

    def _load(self) -> Any:
        if not self.dataSource.register.called:
            raise RuntimeError(self._failure)
        return self.frame


def test_a_session_that_cannot_find_the_source_is_told_of_it() -> None:
    session = Session("org.apache.spark.SparkClassNotFoundException: [DATA_SOURCE_NOT_FOUND] Failed to find …")
    frame = read_ranges(cast("SparkSession", session), RECORD, {})
    session.dataSource.register.assert_called_once_with(DefaultSource)
    assert cast("object", frame) is session.frame


def test_any_other_failure_is_raised_as_it_is() -> None:
    session = Session("no broker of bootstrap.servers could be reached")
    with pytest.raises(RuntimeError, match="no broker"):
        read_ranges(cast("SparkSession", session), RECORD, {})
    session.dataSource.register.assert_not_called()

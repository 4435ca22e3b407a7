"""Fields of a struct that differ only in case, which Spark reads only with spark.sql.caseSensitive. Without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.errors import ConfigError
from tests.support.kafka import Kafka
from tests.support.small_loads import SmallLoads
from tests.support.topics import Topic

ALIKE = {"valueFormat": "json", "valueSchema": "n STRUCT<id: BIGINT, ID: BIGINT>"}


@pytest.fixture
def records(broker: Kafka, topic: str) -> Topic:
    return Topic(broker.bootstrap, topic)


@pytest.mark.parametrize("format", ["parquet", "json", "delta", "iceberg"])
def test_fields_that_spark_would_not_tell_apart_are_refused_before_anything_is_written(
    records: Topic, tmp_path: Path, format: str
) -> None:
    records.produce([b'{"n": {"id": 1, "ID": 2}}'])
    loads = SmallLoads(records, tmp_path, format)
    with pytest.raises(ConfigError, match="'value.n' has the fields 'id' and 'ID', which are one name to Spark"):
        loads.load(ALIKE)
    assert not list(tmp_path.glob("out/**/*.parquet")) + list(tmp_path.glob("out/**/*.json"))
    if format in ("parquet", "json"):
        assert loads.load(ALIKE, case_sensitive=True).rows == 1


def test_a_database_has_them_in_a_document(records: Topic, tmp_path: Path) -> None:
    records.produce([b'{"n": {"id": 1, "ID": 2}}'])
    assert SmallLoads(records, tmp_path, "sql").load(ALIKE).rows == 1

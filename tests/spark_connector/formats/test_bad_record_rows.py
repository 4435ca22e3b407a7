"""The id of the writer's schema in the rows of bad records."""

from __future__ import annotations

import pyarrow as pa
import pytest

from broker.protocol.topic_partition import TopicPartition
from broker.records.columns import HEADERS_TYPE, TIMESTAMP_TYPE
from spark_connector.formats.bad_record_rows import BadRecordRows
from spark_connector.formats.value_format import AvroSchema, ColumnFormat, ReadFormats, RegistrySettings

FRAMED = b"\0\0\0\0\7x"


@pytest.mark.parametrize(("kind", "expected"), [("confluent", [7, None, 7]), ("apicurio", [None] * 3)])
def test_an_id_in_a_header_is_not_that_in_the_first_bytes(kind: str, expected: list[int | None]) -> None:
    """Data may begin as a prefix does: the first field of the record is zero."""
    avro = ColumnFormat("avro", AvroSchema('"int"'))
    batches: list[pa.RecordBatch] = []
    registry = RegistrySettings(("http://r",), type=kind)
    rows = BadRecordRows(ReadFormats(value=avro, registry=registry), batches.append)
    headers = [None, [{"key": "__value_schema_id", "value": b"\1"}], [{"key": "__key_schema_id", "value": b"\1"}]]
    batch = pa.record_batch(
        {
            "offset": pa.array([0, 1, 2]),
            "timestamp": pa.array([0, 0, 0], TIMESTAMP_TYPE),
            "key": pa.nulls(3, pa.binary()),
            "value": pa.array([FRAMED] * 3),
            "headers": pa.array(headers, HEADERS_TYPE),
        }
    )
    rows.write(TopicPartition("t", 0), batch, ["bad"] * 3)
    assert batches[0]["schema_id"].to_pylist() == expected

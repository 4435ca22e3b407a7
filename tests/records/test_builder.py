"""broker/records/builder.py"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given

from broker.records.batch import parse_header, verify_batch
from broker.records.builder import BatchBuilder
from broker.records.compression import Codec
from broker.records.record import decode_records
from tests.support.record_batches import NOW, PARSERS, Row, build, parse, rows


@pytest.mark.parametrize("codec", Codec)
@given(rows)
def test_what_is_built_is_what_three_parsers_read(codec: Codec, rows: Sequence[Row]) -> None:
    batch = build(rows, codec=codec)
    records = list(decode_records(batch))
    assert [record[1:5] for record in records] == rows
    assert [record.offset for record in records] == list(range(len(rows)))
    for parser in PARSERS:
        assert parse(parser, batch) == records


def test_a_full_batch_takes_no_more_and_keeps_its_size() -> None:
    builder = BatchBuilder(max_bytes=500)
    taken = 0
    while builder.append(NOW, b"key", b"v" * 50):
        taken += 1
    assert builder.record_count == taken > 3
    batch = builder.build()
    assert len(batch) == builder.size <= 500
    assert parse_header(batch).record_count == taken


def test_a_record_larger_than_a_batch_travels_alone() -> None:
    builder = BatchBuilder(max_bytes=500)
    assert builder.append(NOW, None, b"v" * 10_000)
    assert not builder.append(NOW, None, b"")
    assert [len(record.value or b"") for record in decode_records(builder.build())] == [10_000]


def test_timestamps_may_go_backwards() -> None:
    batch = build([Row(NOW, None, b""), Row(NOW - 10_000, None, b""), Row(NOW + 1, None, b"")])
    header = parse_header(batch)
    assert (header.base_timestamp, header.max_timestamp) == (NOW, NOW + 1)
    assert [record.timestamp for record in decode_records(batch)] == [NOW, NOW - 10_000, NOW + 1]


def test_building_twice_gives_the_same_batch() -> None:
    builder = BatchBuilder(codec=Codec.ZSTD, producer_id=3, producer_epoch=0, base_sequence=5)
    builder.append(NOW, b"k", b"v", [("h", None)])
    assert builder.build() == builder.build()
    verify_batch(builder.build(), 0, parse_header(builder.build()))

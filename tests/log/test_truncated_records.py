"""Counting what a truncation drops: records, not markers, by the headers of their batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker.errors import CorruptBatch
from broker.log.log_config import LogConfig
from broker.log.truncated_records import TruncatedRecords, records_from
from broker.records.control import ControlType
from tests.support.batches import append, append_marker, batch, open_log

PRODUCER: dict[str, Any] = {"producer_id": 5, "producer_epoch": 0, "sequence": 0, "transactional": True}


def test_the_records_from_an_offset_on_are_counted_over_segments_and_within_a_batch(tmp_path: Path) -> None:
    """Offsets 0 to 2 are one batch of epoch 1, 3 and 4 of epoch 2, 5 is a marker, 6 is of epoch 4."""
    log = open_log(tmp_path / "t-0", LogConfig(segment_bytes=100))
    append(log, batch(b"a", b"b", b"c"), leader_epoch=1)
    append(log, batch(b"d", b"e", **PRODUCER), leader_epoch=2)
    append_marker(log, 5, 0, ControlType.ABORT, 0, leader_epoch=2)
    append(log, batch(b"g"), leader_epoch=4)
    assert len(log.segments) > 2, "the test needs several"
    cases = {
        0: TruncatedRecords(6, 1, 4),
        1: TruncatedRecords(5, 1, 4),
        2: TruncatedRecords(4, 1, 4),
        3: TruncatedRecords(3, 2, 4),
        4: TruncatedRecords(2, 2, 4),
        5: TruncatedRecords(1, 2, 4),
        6: TruncatedRecords(1, 4, 4),
        7: TruncatedRecords(0, -1, -1),
    }
    assert {offset: records_from(log.segments, offset) for offset in cases} == cases


def test_a_file_that_cannot_be_read_is_no_file_without_records(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0")
    append(log, batch(b"a"), leader_epoch=1)
    segments, path = log.segments, log.segments[0].path()
    path.write_bytes(bytes(segments[0].size))
    with pytest.raises(CorruptBatch):
        records_from(segments, 0)
    path.unlink()
    with pytest.raises(OSError):
        records_from(segments, 0)

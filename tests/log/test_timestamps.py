"""Records found by time, against a plain walk over all of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.clock import ManualClock
from broker.log.log import Log
from broker.log.log_config import LogConfig
from broker.log.segment import Segment
from broker.records.batch import BatchHeader
from broker.records.compression import Codec
from tests.support.batches import NOW, append, batch, open_log

SMALL = LogConfig(segment_bytes=700, index_interval_bytes=100)


@settings(max_examples=50, deadline=None)
@given(
    batches=st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=5), min_size=1, max_size=25),
    codec=st.sampled_from([Codec.NONE, Codec.GZIP]),
    start=st.floats(0, 1),
    reopen=st.booleans(),
)
def test_the_first_record_that_is_new_enough(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[int]], codec: int, start: float, reopen: bool
) -> None:
    directory = tmp_path_factory.mktemp("log") / "t-0"
    log = open_log(directory, SMALL)
    times = [timestamp for each in batches for timestamp in each]
    for each in batches:
        append(log, batch(*[b"x" * 20] * len(each), timestamps=each, codec=codec))
    if reopen:
        log.close()
        log = open_log(directory, SMALL)
    begin = int(start * (len(times) - 1))
    log.delete_records(begin)
    for wanted in range(-1, 52):
        expected = next(((o, t) for o, t in enumerate(times) if t >= wanted and o >= begin), None)
        assert log.offset_for_timestamp(wanted) == expected
    if begin == 0:
        assert log.max_timestamp() == (times.index(max(times)), max(times))


def test_what_lies_before_the_start_is_not_walked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DeleteRecords leaves it in the segment that holds the start, which may have a gigabyte."""
    log = open_log(tmp_path / "t-0", LogConfig(index_interval_bytes=1000))
    for number in range(1000):
        append(log, batch(b"x", timestamp=number))
    walked = 0
    walk = Segment.batches

    def counted(segment: Segment, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
        nonlocal walked
        for found in walk(segment, position):
            walked += 1
            yield found

    monkeypatch.setattr(Segment, "batches", counted)
    log.delete_records(990)
    assert (log.offset_for_timestamp(0), log.max_timestamp()) == ((990, 990), (999, 999))
    log.delete_records(1000)
    assert log.offset_for_timestamp(0) is log.max_timestamp() is None
    assert walked < 50


def test_an_empty_log_has_no_times(log: Log) -> None:
    assert log.offset_for_timestamp(0) is None
    assert log.max_timestamp() is None


def test_records_without_time_are_not_found(log: Log) -> None:
    append(log, batch(b"x", timestamp=-1))
    assert log.offset_for_timestamp(0) is None
    assert log.max_timestamp() is None


def test_append_time_is_the_batchs(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    log = open_log(tmp_path / "t-0", LogConfig(message_timestamp_type="LogAppendTime"), clock)
    append(log, batch(b"a", b"b", timestamp=1))
    clock.advance(10)
    append(log, batch(b"c", b"d", timestamp=1))
    assert log.offset_for_timestamp(NOW + 1) == (2, NOW + 10)
    assert log.max_timestamp() == (2, NOW + 10)

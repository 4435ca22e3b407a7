"""When segments are rolled and when they go."""

from __future__ import annotations

import errno
import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from broker.clock import ManualClock
from broker.errors import BrokerError, ErrorCode
from broker.log import producer_snapshot, segments
from broker.log.log import Log
from broker.log.log_config import LogConfig
from broker.log.producer_snapshot import snapshot_offsets
from broker.log.segment import Segment
from tests.support.batches import NOW, append, batch, fill, open_log, read_all

HOUR = 3_600_000
ANY_TIME = 2**63 - 1
THREE_PER_SEGMENT = LogConfig(segment_bytes=600)  # of `fill`'s batches


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW)


def bases(log: Log) -> list[int]:
    return [segment.base_offset for segment in log.segments]


def _no_room(*_: object) -> NoReturn:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class TestRoll:
    def test_by_size(self, tmp_path: Path) -> None:
        log = open_log(tmp_path / "t-0", THREE_PER_SEGMENT)
        fill(log, 8)
        assert bases(log) == [0, 3, 6]
        assert all(segment.size <= 600 for segment in log.segments)

    def test_waits_for_no_fsync(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The event loop rolls; snapshots of the producers are written with the next flush."""
        log = open_log(tmp_path / "t-0", THREE_PER_SEGMENT)
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", lambda fd: pytest.fail("an fsync"))
            fill(log, 8)
        assert bases(log) == [0, 3, 6]
        log.flush()
        assert snapshot_offsets(log.directory) == [3, 6]

    def test_a_snapshot_that_cannot_be_written_holds_up_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log = open_log(tmp_path / "t-0", THREE_PER_SEGMENT)
        fill(log, 8)
        with monkeypatch.context() as patched:
            patched.setattr(producer_snapshot, "write_atomically", _no_room)
            log.flush()
            assert log.recovery_point == 8
            assert log.delete_records(6) == 6
            assert bases(log) == [6]
        fill(log, 1)
        log.flush()
        assert snapshot_offsets(log.directory)[-1:] == [6]

    def test_one_that_is_refused_takes_no_snapshot(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A producer tries again and again while a disk is full."""
        log = open_log(tmp_path / "t-0", THREE_PER_SEGMENT)
        fill(log, 3)
        with monkeypatch.context() as patched:
            patched.setattr(segments, "new_segment", _no_room)
            for _ in range(5):
                with pytest.raises(BrokerError, match="No space left"):
                    fill(log, 1)
        fill(log, 1)
        written: list[Path] = []
        monkeypatch.setattr(producer_snapshot, "write_atomically", lambda path, data: written.append(path))
        log.flush()
        assert len(written) == 1

    def test_by_the_records_own_time(self, tmp_path: Path, clock: ManualClock) -> None:
        """A replay of old data gets segments by its own time, in however short a while."""
        log = open_log(tmp_path / "t-0", LogConfig(segment_ms=HOUR), clock)
        for minutes in (0, 30, 60, 61, 100, 122):
            append(log, batch(b"x", timestamp=NOW - 999 * HOUR + minutes * 60_000))
        assert bases(log) == [0, 3, 5]

    def test_by_the_clock_when_nothing_comes(self, tmp_path: Path, clock: ManualClock) -> None:
        log = open_log(tmp_path / "t-0", LogConfig(segment_ms=HOUR), clock)
        fill(log, 1)
        clock.advance(HOUR)
        log.roll_if_aged()
        assert bases(log) == [0]
        clock.advance(1)
        log.roll_if_aged()
        assert bases(log) == [0, 1]
        clock.advance(5 * HOUR)
        log.roll_if_aged()
        assert bases(log) == [0, 1], "an empty segment is not rolled"

    def test_records_without_time_roll_by_the_clock(self, tmp_path: Path, clock: ManualClock) -> None:
        log = open_log(tmp_path / "t-0", LogConfig(segment_ms=HOUR), clock)
        append(log, batch(b"x", timestamp=-1))
        clock.advance(HOUR + 1)
        append(log, batch(b"x", timestamp=-1))
        assert bases(log) == [0, 1]

    def test_by_a_full_index(self, tmp_path: Path) -> None:
        log = open_log(tmp_path / "t-0", LogConfig(segment_index_bytes=36, index_interval_bytes=0))
        for number in range(8):
            append(log, batch(b"x", timestamp=NOW + number))
        assert bases(log) == [0, 4]

    def test_jitter_is_the_same_at_every_look_and_not_the_same_everywhere(
        self, tmp_path: Path, clock: ManualClock
    ) -> None:
        config = LogConfig(segment_ms=HOUR, segment_jitter_ms=HOUR)
        logs = [open_log(tmp_path / f"t-{number}", config, clock) for number in range(20)]
        for log in logs:
            fill(log, 1)
        rolled = []
        for _ in range(60):
            clock.advance(60_001)
            for log in logs:
                log.roll_if_aged()
            rolled.append(sum(len(log.segments) - 1 for log in logs))
        assert rolled[-1] == 20
        assert len(set(rolled)) > 5

    def test_new_settings_hold_from_the_next_append(self, log: Log) -> None:
        fill(log, 4)
        log.update_config(THREE_PER_SEGMENT)
        fill(log, 1)
        assert bases(log) == [0, 4]


class TestRetention:
    def test_by_time(self, tmp_path: Path, clock: ManualClock) -> None:
        log = open_log(tmp_path / "t-0", replace(THREE_PER_SEGMENT, retention_ms=HOUR), clock)
        for number in range(9):
            append(log, batch(b"x" * 100, timestamp=NOW + number * 60_000))
        clock.advance(HOUR + 5 * 60_000)
        assert log.apply_retention() == 1
        assert (log.log_start_offset, bases(log)) == (3, [3, 6])
        clock.advance(60_000)
        assert log.apply_retention() == 1

    def test_by_time_takes_the_active_segment_too(self, tmp_path: Path, clock: ManualClock) -> None:
        log = open_log(tmp_path / "t-0", LogConfig(retention_ms=HOUR), clock)
        fill(log, 2)
        clock.advance(HOUR + 1)
        assert log.apply_retention() == 1
        assert (log.log_start_offset, log.log_end_offset, log.size) == (2, 2, 0)
        assert log.apply_retention() == 0
        fill(log, 1)
        assert [offset for offset, _ in read_all(log)] == [2]

    def test_a_producer_outlives_its_records_in_a_crash(self, tmp_path: Path, clock: ManualClock) -> None:
        config = LogConfig(retention_ms=HOUR)
        log = open_log(tmp_path / "t-0", config, clock)
        append(log, batch(b"a", producer_id=7, producer_epoch=0, sequence=0))
        clock.advance(2 * HOUR)
        assert log.apply_retention() == 1
        crashed = open_log(tmp_path / "t-0", config, clock, clean=False, log_start_offset=1)
        assert crashed.producers.get(7) is not None

    def test_one_new_record_protects_its_segment_and_all_after_it(self, tmp_path: Path, clock: ManualClock) -> None:
        log = open_log(tmp_path / "t-0", replace(THREE_PER_SEGMENT, retention_ms=HOUR), clock)
        for number in range(9):
            append(log, batch(b"x" * 100, timestamp=NOW + (number == 4) * HOUR))
        clock.advance(HOUR + 1)
        assert log.apply_retention() == 1
        assert bases(log) == [3, 6]

    def test_records_without_time_count_by_their_file(self, tmp_path: Path, clock: ManualClock) -> None:
        log = open_log(tmp_path / "t-0", replace(THREE_PER_SEGMENT, retention_ms=HOUR), clock)
        for _ in range(4):
            append(log, batch(b"x" * 100, timestamp=-1))
        for segment, age_ms in zip(log.segments, (HOUR + 1000, 0), strict=True):
            os.utime(segment.path(), (0, (NOW - age_ms) / 1000))
        assert log.apply_retention() == 1

    def test_by_size_keeps_at_least_so_much(self, tmp_path: Path) -> None:
        log = open_log(tmp_path / "t-0", THREE_PER_SEGMENT)
        fill(log, 9)
        total, each = log.size, log.segments[0].size
        for keep, count in ((total, 0), (total - each + 1, 0), (total - each, 1), (0, 1)):
            log.update_config(replace(THREE_PER_SEGMENT, retention_bytes=keep))
            assert log.apply_retention() == count
        assert bases(log) == [6], "the active segment stays"

    def test_what_is_deleted_is_told_once_with_the_reason(
        self, tmp_path: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO, "broker.log")
        log = open_log(tmp_path / "t-0", replace(THREE_PER_SEGMENT, retention_ms=HOUR), clock)
        fill(log, 16)
        each = log.segments[0].size
        assert log.apply_retention() == 0
        log.delete_records(4)
        log.update_config(replace(log.config, retention_bytes=log.size - 2 * each))
        log.apply_retention()
        rest = log.size
        clock.advance(HOUR + 1)
        log.apply_retention()
        log.apply_retention()
        by_size = f"retention.bytes is {log.config.retention_bytes}"
        assert [record.getMessage().removeprefix(f"{log.directory}: ") for record in caplog.records] == [
            f"deleting offsets 0 to 2 (segments: 1, bytes: {each}): the log starts at offset 4",
            f"deleting offsets 3 to 8 (segments: 2, bytes: {2 * each}): {by_size}",
            f"deleting offsets 9 to 15 (segments: 3, bytes: {rest}): retention.ms is {HOUR}",
        ]

    def test_a_compacted_log_keeps_old_segments(self, tmp_path: Path, clock: ManualClock) -> None:
        log = open_log(tmp_path / "t-0", THREE_PER_SEGMENT, clock)
        fill(log, 9)
        log.update_config(replace(THREE_PER_SEGMENT, retention_ms=HOUR, cleanup_policy=("compact",)))
        clock.advance(2 * HOUR)
        assert log.apply_retention() == 0

    def test_offsets_before_the_start_are_out_of_range(self, tmp_path: Path) -> None:
        log = open_log(tmp_path / "t-0", replace(THREE_PER_SEGMENT, retention_bytes=0))
        fill(log, 9)
        log.apply_retention()
        with pytest.raises(BrokerError, match=r"not in \[6, 9\]"):
            log.read(5, 100)
        assert [offset for offset, _ in read_all(log)] == [6, 7, 8]

    def test_files_are_unlinked_after_the_delay(self, tmp_path: Path, clock: ManualClock) -> None:
        log = open_log(tmp_path / "t-0", replace(THREE_PER_SEGMENT, retention_bytes=0), clock)
        fill(log, 4)
        log.apply_retention()
        clock.advance(59_999)
        assert log.take_deleted() == []
        clock.advance(1)
        assert {path.name for path in log.take_deleted()} == {
            f"00000000000000000000{suffix}.deleted" for suffix in (".log", ".index", ".timeindex")
        }
        assert log.take_deleted() == []

    def test_a_failing_disk_leaves_no_hole(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(segment: Segment) -> list[Path]:
            raise OSError("read-only")

        log = open_log(tmp_path / "t-0", replace(THREE_PER_SEGMENT, retention_bytes=0))
        fill(log, 9)
        monkeypatch.setattr(Segment, "mark_deleted", refuse)
        with pytest.raises(BrokerError, match="KAFKA_STORAGE_ERROR"):
            log.apply_retention()
        with pytest.raises(BrokerError, match=r"not in \[6, 9\]"):
            log.read(0, 100)
        assert [offset for offset, _ in read_all(log)] == [6, 7, 8]

    def test_a_restart_knows_what_was_deleted(self, tmp_path: Path) -> None:
        log = open_log(tmp_path / "t-0", replace(THREE_PER_SEGMENT, retention_bytes=0))
        fill(log, 9)
        log.apply_retention()
        log.close()
        assert open_log(tmp_path / "t-0").log_start_offset == 6


class TestDeleteRecords:
    def test_the_start_moves_into_a_segment(self, tmp_path: Path) -> None:
        log = open_log(tmp_path / "t-0", THREE_PER_SEGMENT)
        fill(log, 9)
        assert log.delete_records(4) == 4
        assert (log.log_start_offset, bases(log)) == (4, [3, 6])
        assert log.delete_records(2) == 4, "it never moves back"

    def test_past_the_end_is_refused(self, log: Log) -> None:
        fill(log, 2)
        with pytest.raises(BrokerError, match="the log ends at 2") as caught:
            log.delete_records(3)
        assert caught.value.code is ErrorCode.offset_out_of_range

    def test_to_the_end_leaves_nothing_to_read(self, tmp_path: Path) -> None:
        log = open_log(tmp_path / "t-0", THREE_PER_SEGMENT)
        fill(log, 8)
        log.delete_records(8)
        assert read_all(log) == []
        assert log.epochs.entries == [(0, 8)]


class TestTruncation:
    @pytest.fixture
    def log(self, tmp_path: Path) -> Log:
        log = open_log(tmp_path / "t-0", THREE_PER_SEGMENT)
        for epoch in range(9):
            append(log, batch(b"x" * 100, producer_id=1, producer_epoch=0, sequence=epoch), leader_epoch=epoch // 2)
        return log

    @pytest.mark.parametrize("offset", range(10))
    def test_what_is_left_ends_at_the_offset(self, log: Log, offset: int) -> None:
        held = read_all(log)
        log.flush()
        log.truncate_to(offset)
        assert log.log_end_offset == offset
        assert log.recovery_point == offset
        assert read_all(log) == held[:offset]
        assert all(start < offset for _, start in log.epochs.entries)
        result = append(log, batch(b"new", producer_id=1, producer_epoch=0, sequence=offset), leader_epoch=9)
        assert (result.base_offset, result.duplicate) == (offset, False)

    def test_inside_a_batch_drops_all_of_it(self, tmp_path: Path) -> None:
        log = open_log(tmp_path / "u-0")
        append(log, batch(b"a", b"b", b"c"))
        append(log, batch(b"d", b"e", b"f"))
        log.truncate_to(4)
        assert log.log_end_offset == 3

    def test_a_truncated_log_closes_cleanly(self, log: Log, tmp_path: Path) -> None:
        held = read_all(log)
        log.close()
        log = open_log(tmp_path / "t-0", THREE_PER_SEGMENT)
        log.truncate_to(5)
        log.close()
        log = open_log(tmp_path / "t-0", THREE_PER_SEGMENT)
        assert read_all(log) == held[:5]


def test_a_segment_that_a_record_of_the_future_keeps_is_named_once(
    tmp_path: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    log = open_log(
        tmp_path / "t-0", replace(THREE_PER_SEGMENT, retention_ms=HOUR, message_timestamp_after_max_ms=ANY_TIME), clock
    )
    fill(log, 4)
    append(log, batch(b"x", timestamp=NOW + 100 * HOUR))
    fill(log, 4)
    clock.advance(2 * HOUR)
    for _ in range(3):
        log.apply_retention()
    assert bases(log)[0] == 3
    (told,) = [one for one in caplog.records if one.levelname == "WARNING"]
    assert "t-0: the segment at offset 3 has a record of the future" in told.message
    clock.advance(100 * HOUR)
    log.apply_retention()
    assert log.held == ""
    assert bases(log)[0] > 3

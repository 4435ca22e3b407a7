"""Appending to a log and reading it back."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.clock import ManualClock
from broker.errors import BrokerError, CorruptBatch, ErrorCode
from broker.log.log import Log
from broker.log.log_config import LogConfig
from broker.records.batch import HEADER_SIZE, build_batch, parse_header, patch_log_append_time, walk_batches
from broker.records.compression import Codec
from broker.records.control import ControlType, end_transaction_marker
from broker.records.record import decode_records
from tests.support.batches import NOW, append, append_as_coordinator, batch, fill, open_log, read_all

SMALL = LogConfig(segment_bytes=1000, index_interval_bytes=200)


def test_a_new_log_is_empty(log: Log) -> None:
    assert (log.log_start_offset, log.log_end_offset, log.size) == (0, 0, 0)
    assert log.read(0, 100) is None


def test_records_come_back_as_they_went_in(log: Log) -> None:
    append(log, batch(b"a", b"b"))
    append(log, batch(b"c"))
    assert read_all(log) == [(0, b"a"), (1, b"b"), (2, b"c")]


def test_the_stored_bytes_are_the_sent_ones_but_for_offset_and_epoch(log: Log) -> None:
    fill(log, 1)
    sent = batch(b"value" * 100, codec=Codec.GZIP)
    append(log, sent, leader_epoch=7)
    piece = log.read(1, 1 << 20)
    assert piece is not None
    stored = piece.read()
    header = parse_header(stored)
    assert (header.base_offset, header.leader_epoch) == (1, 7)
    assert stored[8:12] + stored[16:] == sent[8:12] + sent[16:]


def test_the_result_tells_the_offsets(log: Log) -> None:
    fill(log, 3)
    result = append_as_coordinator(log, batch(b"a") + batch(b"b", b"c"))
    assert result == (3, 5, -1, 0, False)
    assert log.log_end_offset == 6


@pytest.mark.parametrize("wrap", [bytearray, lambda data: memoryview(bytearray(data))])
def test_a_writable_buffer_is_patched_in_place(log: Log, wrap: type[bytearray]) -> None:
    fill(log, 2)
    buffer = wrap(batch(b"a"))
    append_as_coordinator(log, buffer, leader_epoch=3)
    assert parse_header(buffer).base_offset == 2
    assert [value for _, value in read_all(log, 2)] == [b"a"]


@pytest.mark.parametrize("wrap", [bytes, memoryview])
def test_a_read_only_buffer_is_left_alone(log: Log, wrap: type[bytes]) -> None:
    fill(log, 2)
    sent = batch(b"a")
    buffer = wrap(bytes(sent))
    append_as_coordinator(log, buffer, leader_epoch=3)
    assert bytes(buffer) == sent


def test_log_append_time_stamps_every_batch(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", LogConfig(message_timestamp_type="LogAppendTime"), ManualClock(NOW + 5))
    result = append_as_coordinator(log, batch(b"a", timestamp=1) + batch(b"b", timestamp=2))
    piece = log.read(0, 1 << 20)
    assert piece is not None
    assert result.log_append_time == NOW + 5
    assert [(r.timestamp, r.timestamp_type) for r in decode_records(piece.read())] == [(NOW + 5, 1)] * 2


class TestRefusal:
    """Each names its Kafka code, and leaves the log as it was."""

    def refused(
        self, log: Log, records: bytes, code: ErrorCode, act: Callable[[Log, bytes], object] = append
    ) -> BrokerError:
        fill(log, 1)
        before = (log.log_end_offset, log.size, read_all(log))
        with pytest.raises(BrokerError) as caught:
            act(log, records)
        assert caught.value.code is code
        assert (log.log_end_offset, log.size, read_all(log)) == before
        return caught.value

    def test_a_flipped_bit(self, tmp_path: Path) -> None:
        damaged = bytearray(batch(b"value"))
        damaged[-1] ^= 1
        error = self.refused(open_log(tmp_path / "t-0"), bytes(damaged), ErrorCode.corrupt_message)
        assert isinstance(error, CorruptBatch)

    def test_a_sound_batch_before_a_damaged_one_is_not_written_either(self, tmp_path: Path) -> None:
        damaged = bytearray(batch(b"value"))
        damaged[-1] ^= 1
        self.refused(
            open_log(tmp_path / "t-0"), batch(b"sound") + damaged, ErrorCode.corrupt_message, append_as_coordinator
        )

    @pytest.mark.parametrize("cut", [1, HEADER_SIZE - 1, HEADER_SIZE, HEADER_SIZE + 3])
    def test_a_cut_batch(self, tmp_path: Path, cut: int) -> None:
        self.refused(
            open_log(tmp_path / "t-0"),
            batch(b"whole") + batch(b"value")[:cut],
            ErrorCode.corrupt_message,
            append_as_coordinator,
        )

    def test_an_old_magic(self, tmp_path: Path) -> None:
        old = bytearray(batch(b"value"))
        old[16] = 1
        self.refused(open_log(tmp_path / "t-0"), bytes(old), ErrorCode.corrupt_message)

    def test_nothing(self, tmp_path: Path) -> None:
        self.refused(open_log(tmp_path / "t-0"), b"", ErrorCode.invalid_record, append_as_coordinator)

    def test_a_batch_above_max_message_bytes(self, tmp_path: Path) -> None:
        log = open_log(tmp_path / "t-0", LogConfig(max_message_bytes=300))
        error = self.refused(log, batch(b"x" * 300), ErrorCode.message_too_large)
        assert "max.message.bytes is 300" in str(error)

    def test_records_that_fit_in_no_segment(self, tmp_path: Path) -> None:
        log = open_log(tmp_path / "t-0", LogConfig(segment_bytes=400))
        self.refused(log, batch(b"x" * 200) * 2, ErrorCode.record_list_too_large, append_as_coordinator)

    def test_a_record_count_that_is_not_the_offsets(self, tmp_path: Path) -> None:
        self.refused(open_log(tmp_path / "t-0"), build_batch(b"r", 3, last_offset_delta=1), ErrorCode.invalid_record)

    def test_a_batch_without_records(self, tmp_path: Path) -> None:
        self.refused(open_log(tmp_path / "t-0"), build_batch(b"", 0, last_offset_delta=0), ErrorCode.invalid_record)

    def test_a_control_batch_of_a_client(self, tmp_path: Path) -> None:
        marker = end_transaction_marker(1, 0, ControlType.COMMIT, 0, NOW)
        self.refused(open_log(tmp_path / "t-0"), marker, ErrorCode.invalid_record)

    @pytest.mark.parametrize(("key", "at"), [("after", NOW + 1001), ("before", NOW - 1001)])
    def test_a_timestamp_too_far_from_now(self, tmp_path: Path, key: str, at: int) -> None:
        config = LogConfig.from_properties({f"message.timestamp.{key}.max.ms": "1000"})
        error = self.refused(open_log(tmp_path / "t-0", config), batch(b"a", timestamp=at), ErrorCode.invalid_timestamp)
        assert f"message.timestamp.{key}.max.ms is 1000" in str(error)

    def test_a_client_that_sets_log_append_time_where_the_broker_does(self, tmp_path: Path) -> None:
        config = LogConfig(message_timestamp_type="LogAppendTime")
        stamped = bytearray(batch(b"a"))
        patch_log_append_time(stamped, 0, parse_header(stamped), NOW)
        self.refused(open_log(tmp_path / "t-0", config), bytes(stamped), ErrorCode.invalid_timestamp)


class TestReading:
    """Whole batches, at least one, none past the bound."""

    @pytest.fixture
    def log(self, tmp_path: Path) -> Log:
        log = open_log(tmp_path / "t-0", SMALL)
        for _ in range(10):
            fill(log, 3)
            append(log, batch(b"1", b"2", b"3"))
        assert len(log.segments) > 3
        return log

    def test_from_every_offset_the_first_batch_holds_it(self, log: Log) -> None:
        for offset in range(log.log_end_offset):
            piece = log.read(offset, 1)
            assert piece is not None
            [(_, header)] = walk_batches(piece.read())
            assert header.base_offset <= offset <= header.last_offset
            assert piece.length == header.size

    def test_as_many_whole_batches_as_fit(self, log: Log) -> None:
        for max_bytes in range(1, 1200, 7):
            piece = log.read(0, max_bytes)
            assert piece is not None
            sizes = [header.size for _, header in walk_batches(piece.read())]
            assert sum(sizes) == piece.length
            assert piece.length <= max(max_bytes, sizes[0])
            longer = log.read(0, max_bytes + 400)
            assert longer is not None
            assert longer.length >= piece.length

    def test_nothing_at_the_end(self, log: Log) -> None:
        assert log.read(log.log_end_offset, 1000) is None

    @pytest.mark.parametrize("offset", [-1, 61])
    def test_an_offset_out_of_range_is_refused(self, log: Log, offset: int) -> None:
        assert log.log_end_offset == 60
        with pytest.raises(BrokerError, match=r"not in \[0, 60\]") as caught:
            log.read(offset, 1000)
        assert caught.value.code is ErrorCode.offset_out_of_range

    def test_no_batch_that_reaches_the_bound(self, log: Log) -> None:
        for up_to in range(log.log_end_offset + 2):
            for offset in range(0, min(up_to + 2, 60), 5):
                piece = log.read(offset, 1 << 20, up_to=up_to)
                if piece is not None:
                    assert all(header.next_offset <= up_to for _, header in walk_batches(piece.read()))

    def test_all_up_to_the_bound_is_readable(self, log: Log) -> None:
        offset, seen = 0, 0
        while (piece := log.read(offset, 1 << 20, up_to=33)) is not None:
            seen += sum(header.record_count for _, header in walk_batches(piece.read()))
            offset = seen
        assert seen == 33

    def test_a_slice_outlives_roll_deletion_and_close(self, log: Log) -> None:
        first = log.read(0, 1 << 20)
        last = log.read(log.log_end_offset - 1, 1 << 20)
        assert first is not None
        assert last is not None
        expected = (first.read(), last.read())
        log.delete_records(log.log_end_offset)
        log.roll()
        for path in log.directory.glob("*.deleted"):
            path.unlink()
        log.delete()
        assert (first.read(), last.read()) == expected

    def test_the_last_reference_closes_the_file(self, log: Log) -> None:
        piece = log.read(0, 1000)
        assert piece is not None
        fd = piece.file.fileno()
        log.delete_records(20)
        os.fstat(fd)
        del piece
        gc.collect()
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


class TestDiskErrors:
    """A full disk, by way of a limit on the file size."""

    def test_nothing_half_written_stays(self, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
        fill(log, 3)
        real = os.pwrite

        def full_after_ten_bytes(fd: int, data: bytes, position: int) -> int:
            real(fd, bytes(data)[:10], position)
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "pwrite", full_after_ten_bytes)
        with pytest.raises(BrokerError, match="No space left on device") as caught:
            append(log, batch(b"lost"))
        monkeypatch.setattr(os, "pwrite", real)
        assert caught.value.code is ErrorCode.kafka_storage_error
        [path] = log.directory.glob("*.log")
        assert path.stat().st_size == log.size
        append(log, batch(b"after"))
        assert read_all(log)[3:] == [(3, b"after")]

    def test_a_short_write_is_continued(self, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
        real = os.pwrite
        monkeypatch.setattr(os, "pwrite", lambda fd, data, position: real(fd, bytes(data)[:7], position))
        append(log, batch(b"in pieces"))
        assert read_all(log) == [(0, b"in pieces")]

    def test_after_a_failed_fsync_nothing_is_appended(self, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
        fill(log, 1)

        def fails(_: int) -> None:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(os, "fsync", fails)
        with pytest.raises(BrokerError, match="cannot flush"):
            log.flush()
        with pytest.raises(BrokerError, match="restart the broker") as caught:
            append(log, batch(b"a"))
        assert caught.value.code is ErrorCode.kafka_storage_error
        assert log.recovery_point == 0

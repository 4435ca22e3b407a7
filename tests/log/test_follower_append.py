"""What a follower appends, refuses and drops, and what bounds retention while a partition is replicated."""

from __future__ import annotations

import os
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from broker.errors import BrokerError, CorruptBatch, ErrorCode
from broker.log import flushing
from broker.log.cleaner import cleanable_part
from broker.log.inspection import check_partition
from broker.log.log import Log
from broker.log.log_config import LogConfig
from broker.log.producer_snapshot import snapshot_offsets
from broker.log.segment import ABORTED_SUFFIX, segment_path
from broker.records.batch import patch_base_offset
from broker.records.crc32c import crc32c
from tests.support.batches import NOW, append, batch, fill, open_log, read_all
from tests.support.compaction import EAGER, put
from tests.support.follower_log import copy, follow, state_of, stored
from tests.support.log_transactions import ALICE, BOB, Producers, refused

SMALL = LogConfig(segment_bytes=600)
FAR = 1 << 32


def at(offset: int, *values: bytes, epoch: int = 0, size: int = 0) -> bytearray:
    """A batch as the leader has it at `offset`."""
    data = bytearray(batch(*(values or (b"x" * size,))))
    patch_base_offset(data, 0, offset, epoch)
    return data


def with_counts(data: bytearray, *, records: int) -> bytearray:
    """The batch with another record count, and a CRC that matches."""
    struct.pack_into(">i", data, 57, records)
    struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
    return data


@pytest.fixture
def follower(tmp_path: Path) -> Log:
    return open_log(tmp_path / "f-0", SMALL)


class TestAppend:
    def test_keeps_offsets_and_epochs(self, follower: Log) -> None:
        assert follow(follower, at(0, b"a", b"b", epoch=3) + at(2, b"c", epoch=5)) == (0, 2, len(stored(follower)))
        assert read_all(follower) == [(0, b"a"), (1, b"b"), (2, b"c")]
        assert follower.epochs.entries == [(3, 0), (5, 2)]

    def test_ignores_a_cut_batch_at_the_end(self, follower: Log) -> None:
        assert follow(follower, at(0, b"a") + at(1, b"b")[:-1]).last_offset == 0
        assert follow(follower, at(1, b"b")[:-1]) == (1, 0, 0)
        assert follow(follower, b"") == (1, 0, 0)

    @pytest.mark.parametrize(
        ("data", "code"),
        [
            (at(2, b"x"), ErrorCode.offset_out_of_range),
            (at(3, b"x") + at(3, b"x"), ErrorCode.corrupt_message),
            (at(3, b"x", epoch=1), ErrorCode.corrupt_message),
            (at(3, b"x", epoch=4) + at(4, b"x", epoch=3), ErrorCode.corrupt_message),
            (at(3, b"x", epoch=4)[:-1] + b"?", ErrorCode.corrupt_message),
            (at(3, b"x", epoch=4) + at(4, b"x", epoch=4)[:-1] + b"?", ErrorCode.corrupt_message),
            (at((1 << 63) - 1, b"x", epoch=4), ErrorCode.corrupt_message),
            (at(-1, b"x", epoch=4), ErrorCode.corrupt_message),
            (with_counts(at(3, b"x", epoch=4), records=2), ErrorCode.corrupt_message),
        ],
    )
    def test_refuses_what_does_not_follow(self, follower: Log, data: bytearray, code: ErrorCode) -> None:
        follow(follower, at(0, b"a", b"b", b"c", epoch=2))
        before = stored(follower), state_of(follower)
        assert refused(lambda: follow(follower, data)) is code
        assert (stored(follower), state_of(follower)) == before

    @pytest.mark.parametrize(("position", "byte"), [(22, 0x31), (65, 0)], ids=["compressed", "without a key"])
    def test_refuses_a_control_batch_that_cannot_be_read(
        self, tmp_path: Path, follower: Log, position: int, byte: int
    ) -> None:
        """Its transaction would stay open on this replica alone."""
        leader = open_log(tmp_path / "l-0")
        Producers(leader).abort(ALICE)
        data = bytearray(stored(leader))
        follow(open_log(tmp_path / "sound-0"), with_counts(data, records=1))
        data[position] = byte
        with pytest.raises(CorruptBatch, match="control"):
            follow(follower, with_counts(data, records=1))

    def test_takes_batches_larger_than_a_segment_and_than_a_message(self, tmp_path: Path) -> None:
        follower = open_log(tmp_path / "f-0", LogConfig(segment_bytes=300, max_message_bytes=100))
        follow(follower, at(0, size=1000) + at(1, size=150) + at(2, size=150) + at(3, size=1000))
        assert [segment.base_offset for segment in follower.segments] == [0, 1, 2, 3]

    def test_gaps_survive_recovery_although_the_topic_is_not_compacted(self, tmp_path: Path, follower: Log) -> None:
        follow(follower, at(5, b"a") + at(9, b"b"))
        follow(follower, at(20, size=600) + at(30, size=600))
        before = stored(follower), state_of(follower)
        follower = open_log(tmp_path / "f-0", SMALL, clean=False)
        assert (stored(follower), state_of(follower)) == before
        assert read_all(follower)[0] == (5, b"a")
        assert follower.log_start_offset == 0, "a consumer at offset 3 may go on"
        assert check_partition(tmp_path / "f-0") == []

    def test_offsets_far_apart_get_segments_of_their_own(self, tmp_path: Path, follower: Log) -> None:
        follow(follower, at(FAR, b"a") + at(3 * FAR, b"b"))
        assert [segment.base_offset for segment in follower.segments] == [FAR, 3 * FAR]
        assert follower.log_start_offset == FAR
        assert read_all(follower) == [(FAR, b"a"), (3 * FAR, b"b")]
        follower = open_log(tmp_path / "f-0", SMALL, clean=False)
        assert read_all(follower, FAR) == [(FAR, b"a"), (3 * FAR, b"b")]

    @pytest.mark.parametrize("saved", [True, False])
    def test_an_epoch_begins_where_the_log_ended_not_behind_the_gap(
        self, tmp_path: Path, follower: Log, saved: bool
    ) -> None:
        """A replica with records of epoch 0 at 1 to 6, which compaction removed here, is told to drop them."""
        follow(follower, at(0, b"a", epoch=0))
        if saved:
            follower.save_epochs()
        follow(follower, at(7, b"b", epoch=2))
        for _ in range(2):
            assert follower.end_offset_for_epoch(0, 2) == (0, 1)
            assert follower.end_offset_for_epoch(1, 2) == (0, 1)
            follower = open_log(tmp_path / "f-0", SMALL, clean=False)

    def test_a_new_follower_of_a_log_that_starts_inside_a_batch(self, tmp_path: Path, follower: Log) -> None:
        leader = open_log(tmp_path / "l-0")
        append(leader, batch(b"a", b"b", b"c"))
        append(leader, batch(b"d"))
        leader.delete_records(1)
        follower.truncate_fully_and_start_at(1)
        copy(leader, follower)
        assert state_of(follower) == state_of(leader)
        assert stored(follower) == stored(leader)
        assert check_partition(tmp_path / "f-0") == []
        assert refused(lambda: follow(follower, at(1, b"b", b"c", b"d", b"e"))) is ErrorCode.offset_out_of_range
        follower = open_log(tmp_path / "f-0", SMALL, clean=False, log_start_offset=1)
        assert read_all(follower) == [(1, b"b"), (2, b"c"), (3, b"d")]

    def test_a_full_disk_leaves_the_log_as_it_was(self, follower: Log, monkeypatch: pytest.MonkeyPatch) -> None:
        follow(follower, at(0, b"a"))
        before = stored(follower), state_of(follower), follower.epochs.entries

        def full(fd: int, data: bytes, position: int) -> int:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(os, "pwrite", full)
            assert refused(lambda: follow(follower, at(FAR, b"b", epoch=1))) is ErrorCode.kafka_storage_error
        assert (stored(follower), state_of(follower), follower.epochs.entries) == before
        append(follower, batch(b"as a leader"), leader_epoch=2)
        assert read_all(follower) == [(0, b"a"), (1, b"as a leader")]

    def test_an_abort_that_cannot_be_noted_is_not_appended(
        self, tmp_path: Path, follower: Log, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        leader = open_log(tmp_path / "l-0")
        producers = Producers(leader)
        for _ in range(2):
            producers.send(ALICE)
            producers.send(BOB)
            producers.abort(ALICE)
            producers.commit(BOB)
        real, calls = os.write, iter([34, 5])
        with monkeypatch.context() as patched:
            patched.setattr(os, "write", lambda fd, data: real(fd, data[: next(calls)]))
            assert refused(lambda: follow(follower, stored(leader))) is ErrorCode.kafka_storage_error
        assert (follower.log_end_offset, follower.epochs.entries, list(follower.producers)) == (0, [], [])
        assert follower.aborted.between(0, 9) == []
        follow(follower, stored(leader))
        assert state_of(follower) == state_of(leader)


class TestTruncation:
    def test_records_of_an_older_epoch_may_follow_after_a_crash(self, tmp_path: Path, follower: Log) -> None:
        """A replica that led alone in epoch 3 follows one that has more records of epoch 2."""
        follow(follower, at(0, b"a", epoch=2) + at(1, b"b", epoch=3))
        follower.flush()
        follower.truncate_to(1)
        follow(follower, at(1, b"c", epoch=2) + at(2, b"d", epoch=4))
        for clean in (True, False):
            if clean:
                follower.close()
            follower = open_log(tmp_path / "f-0", SMALL, clean=clean, recovery_point=follower.recovery_point)
            assert follower.epochs.entries == [(2, 0), (4, 2)]

    def test_a_segment_that_comes_again_is_synced_again(self, follower: Log, monkeypatch: pytest.MonkeyPatch) -> None:
        fill(follower, 6)
        follower.flush()
        base = follower.active_base_offset
        follower.truncate_to(base - 1)
        fill(follower, 2)
        assert follower.active_base_offset == base
        synced: list[Path] = []
        monkeypatch.setattr(flushing, "sync_directory", synced.append)
        follower.flush()
        assert follower.directory in synced

    def test_snapshots_follow_the_new_end(self, tmp_path: Path, follower: Log) -> None:
        producers = Producers(follower)
        producers.send(ALICE)
        producers.send(BOB)
        follower.roll()  # takes a snapshot, for the next flush to write
        follower.truncate_to(1)
        fill(follower, 2)
        follower.flush()
        assert snapshot_offsets(follower.directory) == []
        follower.close()
        follower = open_log(tmp_path / "f-0", SMALL)
        follower.truncate_to(2)
        follower.close()
        assert snapshot_offsets(follower.directory) == [2]

    def test_newer_segments_go_first(self, follower: Log, monkeypatch: pytest.MonkeyPatch) -> None:
        fill(follower, 12)
        bases = [segment.base_offset for segment in follower.segments]
        unlinked: list[str] = []
        real = Path.unlink

        def unlink(path: Path) -> None:
            unlinked.append(path.name)
            real(path)

        monkeypatch.setattr(Path, "unlink", unlink)
        follower.truncate_to(1)
        monkeypatch.undo()
        logs = [name for name in unlinked if ".log" in name]
        assert logs == [f"{base:020d}.log.deleted" for base in reversed(bases[1:])]

    def test_one_that_is_cut_short_ends_all_appends_and_the_next_start_recovers(
        self, tmp_path: Path, follower: Log, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fill(follower, 6)
        held = read_all(follower)

        def fails(fd: int, size: int) -> None:
            raise OSError(5, "Input/output error")

        with monkeypatch.context() as patched:
            patched.setattr(os, "ftruncate", fails)
            assert refused(lambda: follower.truncate_to(1)) is ErrorCode.kafka_storage_error
        assert refused(lambda: follow(follower, at(6, b"x"))) is ErrorCode.kafka_storage_error
        assert refused(follower.close) is ErrorCode.kafka_storage_error
        follower = open_log(tmp_path / "f-0", SMALL, clean=False, recovery_point=follower.recovery_point)
        assert held[: follower.log_end_offset] == read_all(follower)

    @pytest.mark.parametrize("clean", [True, False])
    @pytest.mark.parametrize("offset", [0, 3, 12, 1000])
    def test_fully(self, tmp_path: Path, follower: Log, offset: int, clean: bool) -> None:
        producers = Producers(follower)
        for _ in range(4):
            producers.send(ALICE)
            producers.send(BOB)
            producers.abort(ALICE)
        follower.delete_records(2)
        follower.flush()
        follower.truncate_fully_and_start_at(offset)
        for _ in range(2):
            assert (follower.log_start_offset, follower.log_end_offset, follower.size) == (offset, offset, 0)
            assert (list(follower.producers), follower.epochs.entries) == ([], [])
            assert follower.first_unstable_offset is None
            assert follower.aborted.between(0, 2000) == []
            assert not segment_path(follower.directory, 0, ABORTED_SUFFIX).exists()
            assert all(taken == offset for taken in snapshot_offsets(follower.directory))
            assert follower.recovery_point <= offset
            if clean:
                follower.close()
            point = follower.recovery_point
            follower = open_log(tmp_path / "f-0", SMALL, clean=clean, recovery_point=point, log_start_offset=offset)
        follow(follower, at(offset, b"new", epoch=1))
        assert read_all(follower) == [(offset, b"new")]
        assert follower.epochs.entries == [(1, offset)]

    def test_fully_with_a_crash_before_the_new_segment(self, tmp_path: Path, follower: Log) -> None:
        producers = Producers(follower)
        for _ in range(9):
            producers.send(ALICE)
        follower.flush()
        for segment in follower.segments:
            segment.path().unlink()
        assert snapshot_offsets(follower.directory) != []
        follower = open_log(tmp_path / "f-0", SMALL, clean=False, log_start_offset=1000)
        assert (follower.log_start_offset, follower.log_end_offset) == (1000, 1000)
        assert (list(follower.producers), follower.epochs.entries) == ([], [])
        follow(follower, at(1000, b"x", epoch=0))

    def test_below_the_start_is_fully(self, follower: Log) -> None:
        fill(follower, 6)
        follower.delete_records(4)
        follower.truncate_to(3)
        assert (follower.log_start_offset, follower.log_end_offset, follower.size) == (3, 3, 0)

    def test_not_while_an_append_is_writing(self, follower: Log) -> None:
        fill(follower, 2)
        pending = follower.prepare_follower_append(at(2, b"a"))
        next(pending)
        for act in (lambda: follower.truncate_to(1), lambda: follower.truncate_fully_and_start_at(1)):
            assert refused(act) is ErrorCode.kafka_storage_error
        pending.close()
        assert follower.log_end_offset == 2


class TestCommitted:
    @pytest.mark.parametrize(("committed", "start"), [(None, 9), (9, 9), (8, 6), (6, 6), (5, 3), (2, 0), (0, 0)])
    def test_retention_stops_there(self, tmp_path: Path, committed: int | None, start: int) -> None:
        log = open_log(tmp_path / "t-0", replace(SMALL, retention_ms=0))
        for _ in range(9):
            append(log, batch(b"x" * 100, timestamp=NOW - 10))
        log.committed = committed
        log.apply_retention()
        assert log.log_start_offset == start
        assert log.active_base_offset == (9 if start == 9 else 6)

    def test_delete_records_stops_there(self, follower: Log) -> None:
        fill(follower, 6)
        follower.committed = 4
        with pytest.raises(BrokerError, match="cannot delete before 5: the high watermark is at 4") as caught:
            follower.delete_records(5)
        assert caught.value.code is ErrorCode.offset_out_of_range
        assert follower.delete_records(4) == 4

    @pytest.mark.parametrize(("committed", "segments"), [(None, 3), (3, 3), (2, 2), (1, 1)])
    def test_compaction_stops_there(self, tmp_path: Path, committed: int | None, segments: int) -> None:
        log = open_log(tmp_path / "t-0", EAGER)
        for _ in range(3):
            put(log, (b"k", b"v"), roll=True)
        log.committed = committed
        state = cleanable_part(log, None, NOW)
        assert state is not None
        assert len(state.segments) == segments
        log.committed = 0
        assert cleanable_part(log, None, NOW) is None

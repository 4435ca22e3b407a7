"""A log whose first records are in the archive only: what readers see, what leaves the disk, and what starts it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from broker.archive.manifest import Entry, Manifest, Start, Truncate
from broker.clock import ManualClock
from broker.errors import BrokerError, ErrorCode
from broker.log.archived_log import ArchivedState
from broker.log.checkpoints import LOG_START_OFFSETS, read_offsets
from broker.log.log import Log
from broker.log.log_config import LogConfig
from broker.log.manager import LogManager
from broker.log.segment_file import ColdRead
from broker.protocol.topic_partition import TopicPartition
from broker.records.control import ControlType
from broker.records.record import decode_records
from tests.support.archiving import ArchiveOfLog
from tests.support.batches import NOW, append, append_marker, batch, fill, open_log, read_all

T = TypeVar("T")
HOUR = 3_600_000
TP = TopicPartition("t", 0)
ARCHIVED = LogConfig(segment_bytes=600, remote_storage_enable=True, retention_ms=-1, local_retention_bytes=0)
"""Three of `fill`'s batches a segment; what is archived leaves the disk."""


def patiently(attempt: Callable[[], T]) -> T:
    """As replica/cold_reads.py, but in this thread."""
    while True:
        try:
            return attempt()
        except ColdRead as missed:
            missed.warm()
            missed.keep()


def read_patiently(log: Log, start: int | None = None) -> list[tuple[int, bytes]]:
    """(offset, value) of every record from `start`."""
    offset = log.log_start_offset if start is None else start
    found: list[tuple[int, bytes]] = []
    while (piece := patiently(partial(log.read, offset, 1 << 20))) is not None:
        records = [record for record in decode_records(piece.read()) if record.offset >= offset]
        found += [(record.offset, record.value or b"") for record in records]
        offset = records[-1].offset + 1
    return found


def bases(log: Log) -> list[int]:
    return [segment.base_offset for segment in log.segments]


def code_of(error: pytest.ExceptionInfo[BrokerError]) -> ErrorCode:
    return error.value.code


class Archived:
    """A log of ten batches in segments of three, of which all closed ones are archived and gone from the disk."""

    def __init__(self, directory: Path, config: LogConfig = ARCHIVED) -> None:
        self.clock = ManualClock(NOW)
        self.log = open_log(directory / "t-0", config, self.clock)
        fill(self.log, 10)
        self.before = read_all(self.log)
        self.archive = ArchiveOfLog(self.log, directory)
        self.take_over()

    def take_over(self) -> None:
        """As the archive's manager does after each change of the manifest."""
        self.archive.partition.manifest = self.archive.manifest
        self.log.archived = self.archive.partition
        self.log.follow_archive(self.archive.manifest.start)

    def start_at(self, offset: int) -> None:
        """The leader commits where the log starts."""
        manifest = self.archive.manifest
        self.archive.manifest = manifest.apply(Entry(manifest.next_number, 9, 0, Start(offset)))
        self.take_over()


@pytest.fixture
def archived(tmp_path: Path) -> Archived:
    found = Archived(tmp_path)
    assert found.log.apply_retention() == 3
    assert bases(found.log) == [9]
    return found


class TestReading:
    def test_readers_see_one_log(self, archived: Archived) -> None:
        log = archived.log
        assert (log.log_start_offset, log.local_start_offset, log.log_end_offset) == (0, 9, 10)
        assert read_patiently(log) == archived.before
        assert [read_patiently(log, start)[0][0] for start in range(10)] == list(range(10))

    def test_what_is_in_both_is_read_from_the_disk(self, tmp_path: Path) -> None:
        archived = Archived(tmp_path, replace(ARCHIVED, local_retention_bytes=-1))
        assert read_all(archived.log) == archived.before
        assert not archived.archive.store.asked

    def test_an_offset_below_the_start_is_out_of_range(self, archived: Archived) -> None:
        archived.start_at(4)
        with pytest.raises(BrokerError) as error:
            archived.log.read(3, 100)
        assert code_of(error) is ErrorCode.offset_out_of_range

    def test_before_the_manifest_is_read_a_client_shall_ask_again(self, archived: Archived) -> None:
        archived.log.archived = None
        for attempt in (
            lambda: archived.log.read(0, 100),
            lambda: archived.log.offset_for_timestamp(NOW),
            archived.log.max_timestamp,
        ):
            with pytest.raises(BrokerError, match="its archive is not read yet") as error:
                attempt()
            assert code_of(error) is ErrorCode.kafka_storage_error
        assert [offset for offset, _ in read_all(archived.log, 9)] == [9], "what is here is read as ever"

    def test_what_lies_between_an_old_manifest_and_the_disk_is_not_skipped(self, archived: Archived) -> None:
        """A follower deletes what its leader says is archived, and reads the manifest later."""
        log, manifest = archived.log, archived.archive.manifest
        archived.archive.partition.manifest = manifest.apply(Entry(manifest.next_number, 9, 0, Truncate(6)))
        found = patiently(partial(log.read, 0, 1 << 20))
        assert found is not None, "what the old manifest has is read"
        for attempt in (
            lambda: patiently(partial(log.read, 6, 100)),
            lambda: log.read(8, 100, up_to=9),
            lambda: log.aborted_in(0, found, 10),
            lambda: log.offset_for_timestamp(NOW + HOUR),
            log.max_timestamp,
        ):
            with pytest.raises(BrokerError, match="its archive is not read yet") as error:
                attempt()
            assert code_of(error) is ErrorCode.kafka_storage_error
        archived.archive.partition.manifest = manifest
        assert read_patiently(log, 6) == archived.before[6:]

    def test_times_are_found_in_both_parts(self, tmp_path: Path) -> None:
        log = open_log(tmp_path / "t-0", ARCHIVED)
        times = [10, 40, 20, 30, 50, 60, 50, 55, 40, 60]
        for at in times:
            append(log, batch(bytes(100), timestamp=NOW + at))
        expected = {ms: log.offset_for_timestamp(NOW + ms) for ms in range(0, 70, 5)}
        newest = log.max_timestamp()
        log.archived = ArchiveOfLog(log, tmp_path).partition
        log.follow_archive(0)
        log.apply_retention()
        assert log.local_start_offset == 9
        assert {ms: patiently(partial(log.offset_for_timestamp, NOW + ms)) for ms in expected} == expected
        assert patiently(log.max_timestamp) == newest == (5, NOW + 60)

    def test_the_newest_time_is_local_without_asking_the_store(self, tmp_path: Path) -> None:
        log = open_log(tmp_path / "t-0", ARCHIVED)
        for number in range(10):
            append(log, batch(bytes(100), timestamp=NOW + number))
        archive = ArchiveOfLog(log, tmp_path)
        log.archived = archive.partition
        log.follow_archive(0)
        log.apply_retention()
        assert log.max_timestamp() == (9, NOW + 9)
        assert not archive.store.asked


@pytest.mark.parametrize("kept", [0, -1], ids=["archive only", "in both"])
def test_aborted_transactions_whose_markers_are_later_are_known(tmp_path: Path, kept: int) -> None:
    """The marker may be in the same segment, in a later archived one, or in a local one."""
    log = open_log(tmp_path / "t-0", replace(ARCHIVED, local_retention_bytes=kept))
    sequences = dict.fromkeys((1, 2, 3), 0)

    def write(producer_id: int) -> None:
        sequence, sequences[producer_id] = sequences[producer_id], sequences[producer_id] + 1
        append(log, batch(bytes(100), producer_id=producer_id, producer_epoch=0, sequence=sequence, transactional=True))

    def abort(producer_id: int) -> None:
        append_marker(log, producer_id, 0, ControlType.ABORT, 0)

    for step in (write, write, abort, write, write, write, abort):
        step(1)
        step(2)
    write(3)
    log.roll()
    abort(3)
    offsets = range(log.log_end_offset)
    expected = {}
    for offset in offsets:
        found = log.read(offset, 1)
        assert found is not None
        expected[offset] = log.aborted_in(offset, found, log.log_end_offset)
    log.archived = ArchiveOfLog(log, tmp_path).partition
    log.follow_archive(0)
    log.apply_retention()
    for offset in offsets:

        def attempt(offset: int = offset) -> set[tuple[int, int]]:
            found = log.read(offset, 1)
            assert found is not None
            return set(log.aborted_in(offset, found, log.log_end_offset))

        assert set(expected[offset]) <= patiently(attempt)


class TestRetention:
    def test_nothing_that_is_not_archived_leaves_the_disk(self, tmp_path: Path) -> None:
        archived = Archived(tmp_path)
        log = archived.log
        log.archived = None
        assert log.apply_retention() == 0
        log.archived = archived.archive.partition
        fill(log, 6)
        assert bases(log) == [0, 3, 6, 9, 12, 15]
        assert log.apply_retention() == 3
        archived.clock.advance(1000 * HOUR)
        log.update_config(replace(ARCHIVED, local_retention_ms=1, retention_ms=1))
        assert log.apply_retention() == 0
        assert bases(log)[:3] == [9, 12, 15], "the store may be away"

    def test_a_follower_deletes_up_to_where_its_leader_has_archived(self, tmp_path: Path) -> None:
        log = open_log(tmp_path / "t-0", ARCHIVED)
        fill(log, 10)
        log.committed = 10
        assert log.apply_retention() == 0
        log.told_archived_end = 7
        assert log.apply_retention() == 2
        assert (bases(log), log.log_start_offset) == ([6, 9], 0)

    def test_the_whole_log_is_cut_by_size_and_by_age(self, archived: Archived) -> None:
        log, clock = archived.log, archived.clock
        log.update_config(replace(ARCHIVED, retention_bytes=2 * 600))
        wanted: list[int] = []
        log.start_wanted = lambda: wanted.append(log.wanted_start_offset)
        log.apply_retention()
        log.apply_retention()
        assert (wanted, log.log_start_offset) == ([3], 0), "first the archive has to know"
        archived.start_at(3)
        assert log.log_start_offset == 3
        log.apply_retention()
        assert wanted == [3]
        clock.advance(HOUR)
        log.update_config(replace(ARCHIVED, retention_ms=HOUR - 1))
        log.apply_retention()
        assert wanted == [3, 9], "what is not archived stays"

    def test_without_copies_retention_deletes_from_the_disk_what_the_log_start_has_passed(
        self, archived: Archived
    ) -> None:
        log, clock = archived.log, archived.clock
        fill(log, 5)
        log.update_config(replace(ARCHIVED, remote_log_copy_disable=True, local_retention_bytes=-2))
        assert log.apply_retention() == 0
        assert read_patiently(log)[:10] == archived.before, "it is still readable"
        clock.advance(HOUR)
        log.update_config(replace(log.config, retention_ms=HOUR - 1))
        assert log.apply_retention() == 0
        assert log.wanted_start_offset == 12
        archived.start_at(12)
        assert (bases(log), log.log_start_offset) == ([12, 15], 12)

    def test_compaction_never_changes_a_segment_that_may_be_archived(self, archived: Archived) -> None:
        fill(archived.log, 4)
        assert not archived.log.replace_segments(archived.log.segments[:1], archived.log.directory, 0)


class TestDeleteRecords:
    def test_the_archive_has_to_know_first(self, archived: Archived) -> None:
        log = archived.log
        calls: list[str] = []
        log.start_wanted = lambda: calls.append("wanted")
        log.archive_moved = lambda: calls.append("moved")
        assert log.delete_records(5) == 0
        archived.start_at(5)
        assert (log.log_start_offset, calls) == (5, ["wanted", "moved"])
        assert read_patiently(log) == archived.before[5:]

    def test_while_nothing_is_archived_it_is_done_at_once(self, tmp_path: Path) -> None:
        archived = Archived(tmp_path)
        archived.archive.partition.manifest = replace(archived.archive.manifest, segments=(), end=0)
        assert archived.log.delete_records(5) == 5
        assert archived.log.wanted_start_offset == 5, "and the archive will start there"

    def test_into_the_local_part(self, archived: Archived) -> None:
        archived.log.delete_records(10)
        archived.start_at(10)
        assert (archived.log.log_start_offset, archived.log.local_start_offset) == (10, 10)
        assert read_patiently(archived.log) == []

    def test_beyond_the_high_watermark_is_refused(self, archived: Archived) -> None:
        archived.log.committed = 9
        with pytest.raises(BrokerError) as error:
            archived.log.delete_records(10)
        assert code_of(error) is ErrorCode.offset_out_of_range


class TestStart:
    """The manifest is read some time after the log was opened."""

    def test_the_checkpoint_keeps_it_below_the_first_segment(self, archived: Archived) -> None:
        archived.start_at(4)
        archived.log.close()
        log = open_log(archived.log.directory, ARCHIVED, log_start_offset=4)
        assert (log.log_start_offset, log.local_start_offset) == (4, 9)

    def test_without_the_checkpoint_the_manifest_says_it(self, archived: Archived) -> None:
        archived.start_at(4)
        epochs = archived.log.epochs.entries
        archived.log.close()
        archived.log = log = open_log(archived.log.directory, ARCHIVED, clean=False)
        assert (log.log_start_offset, log.local_start_offset) == (0, 9)
        with pytest.raises(BrokerError, match="its archive is not read yet"):
            log.read(5, 100)  # it is not out of range, or a consumer would go on at offset 9
        archived.take_over()
        assert log.log_start_offset == 4
        assert log.epochs.entries == epochs

    def test_without_checkpoint_and_archive_it_is_where_the_local_part_begins(self, archived: Archived) -> None:
        archived.log.close()
        archived.log = log = open_log(archived.log.directory, ARCHIVED, clean=False)
        archived.archive.manifest = Manifest()
        archived.take_over()
        assert (log.log_start_offset, log.wanted_start_offset) == (9, 9)

    def test_a_start_that_is_not_known_is_not_written_and_cuts_no_archive(self, tmp_path: Path) -> None:
        """The store may be away for longer than until the next checkpoint, or the next start of the broker."""
        archived = Archived(tmp_path)
        archived.log.apply_retention()
        archived.log.close()
        for _ in range(2):
            manager = LogManager([tmp_path], archived.clock)
            manager.load(lambda topic: ARCHIVED)
            manager.write_log_starts()
            manager.close()
        manager = LogManager([tmp_path], archived.clock)
        manager.load(lambda topic: ARCHIVED)
        log = manager.get(TP)
        assert log is not None
        archived.log = log
        archived.take_over()
        assert (log.log_start_offset, log.local_start_offset, log.wanted_start_offset) == (0, 9, 0)
        manager.write_log_starts()
        manager.close()
        assert read_offsets(tmp_path / LOG_START_OFFSETS) == {TP: 0}

    def test_what_the_manifest_says_counts_more(self, archived: Archived) -> None:
        archived.log.close()
        archived.start_at(7)
        archived.log = log = open_log(archived.log.directory, ARCHIVED, log_start_offset=4)
        archived.take_over()
        assert log.log_start_offset == 7

    def test_but_deleted_records_do_not_come_back(self, archived: Archived) -> None:
        archived.log.close()
        archived.log = log = open_log(archived.log.directory, ARCHIVED, log_start_offset=4)
        archived.take_over()
        assert (log.log_start_offset, log.wanted_start_offset) == (4, 4)

    def test_a_log_manager_writes_the_start_of_every_archived_log(self, tmp_path: Path) -> None:
        clock, config = ManualClock(NOW), ARCHIVED
        manager = LogManager([tmp_path], clock)
        manager.load(lambda topic: config)
        log = manager.create(TP, config)
        fill(log, 10)
        log.told_archived_end = 9
        log.apply_retention()
        assert (log.log_start_offset, log.local_start_offset) == (0, 9)
        manager.close()
        again = LogManager([tmp_path], clock)
        again.load(lambda topic: config)
        found = again.get(TP)
        assert found is not None
        assert (found.log_start_offset, found.local_start_offset) == (0, 9)
        again.close()

    def test_an_archive_that_is_turned_off_leaves_the_local_part(self, archived: Archived) -> None:
        log = archived.log
        log.update_config(replace(ARCHIVED, remote_storage_enable=False, remote_log_delete_on_disable=True))
        assert (log.log_start_offset, log.archived, log.archived_end) == (9, None, 0)
        assert read_all(log) == archived.before[9:]
        log.close()
        again = open_log(log.directory, log.config, log_start_offset=0)
        assert again.log_start_offset == 9


class TestBeginAgain:
    def state(self, log: Log, offset: int) -> ArchivedState:
        snapshot = (log.directory / f"{offset:020}.snapshot").read_bytes()
        return ArchivedState(offset, 2, tuple(log.epochs.entries), snapshot)

    def test_an_idempotent_producer_goes_on(self, tmp_path: Path) -> None:
        first = open_log(tmp_path / "a" / "t-0", ARCHIVED)
        for number in range(6):
            records = batch(bytes(150), producer_id=7, producer_epoch=0, sequence=number)
            append(first, records, leader_epoch=number // 2)
        first.roll()
        first.flush()
        log = open_log(tmp_path / "b" / "t-0", ARCHIVED)
        fill(log, 2)
        log.begin_after_archive(self.state(first, 6))
        assert (log.log_start_offset, log.local_start_offset, log.log_end_offset) == (2, 6, 6)
        assert log.epochs.entries == [(1, 2), (2, 4)]
        assert log.end_offset_for_epoch(1, 3) == (1, 4)
        again = batch(bytes(150), producer_id=7, producer_epoch=0, sequence=5)
        assert append(log, again, leader_epoch=3).duplicate
        following = batch(bytes(150), producer_id=7, producer_epoch=0, sequence=6)
        assert append(log, following, leader_epoch=3).base_offset == 6
        with pytest.raises(BrokerError) as error:
            append(log, batch(b"", producer_id=7, producer_epoch=0, sequence=8), leader_epoch=3)
        assert code_of(error) is ErrorCode.out_of_order_sequence_number

        for clean in (True, False):
            log.close()
            log = open_log(log.directory, ARCHIVED, clean=clean, recovery_point=6, log_start_offset=2)
            assert (log.log_start_offset, log.local_start_offset, log.log_end_offset) == (2, 6, 7)
            assert log.epochs.entries == [(1, 2), (2, 4), (3, 6)]
            assert append(log, following).duplicate

    @pytest.mark.parametrize("cut", [5, 0])
    def test_an_archive_of_more_than_the_log_lets_nothing_leave_the_disk_after_a_cut(
        self, tmp_path: Path, cut: int
    ) -> None:
        """The leader of an unclean election may have truncated it; what comes instead is in no archive yet."""
        log = Archived(tmp_path, replace(ARCHIVED, local_retention_bytes=-1)).log
        log.told_archived_end = 9
        log.truncate_to(cut) if cut else log.truncate_fully_and_start_at(0)
        fill(log, 10)
        log.update_config(ARCHIVED)
        log.apply_retention()
        assert log.archived is None
        assert log.local_start_offset <= log.archived_end <= cut

    def test_a_state_that_cannot_be_read_changes_nothing(self, tmp_path: Path) -> None:
        log = open_log(tmp_path / "t-0", ARCHIVED)
        fill(log, 2)
        with pytest.raises(BrokerError, match="state of the producers before offset 9 cannot be read"):
            log.begin_after_archive(ArchivedState(9, 0, (), b"garbage"))
        assert len(read_all(log)) == 2

    def test_a_cut_below_the_local_part_begins_at_the_log_start(self, archived: Archived) -> None:
        """Where it begins again the leader says, and the archive what was before."""
        archived.log.truncate_to(5)
        assert (archived.log.log_start_offset, archived.log.log_end_offset) == (0, 0)
        assert (archived.log.size, archived.log.epochs.entries) == (0, [])

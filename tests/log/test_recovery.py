"""Opening a log after a crash: every whole batch before the damage stays, nothing after it does."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.clock import ManualClock
from broker.log.checkpoints import LEADER_EPOCHS
from broker.log.log import Log
from broker.log.log_config import LogConfig
from broker.log.producer_snapshot import snapshot_offsets
from broker.log.segment import segment_path
from broker.log.segment_file import SegmentFile, scan_headers
from broker.records.batch import build_batch, patch_base_offset
from broker.records.control import ControlType
from broker.records.record import encode_record
from tests.support.batches import NOW, append, append_marker, batch, fill, open_log, read_all
from tests.support.randomness import noise

SMALL = LogConfig(segment_bytes=1000, index_interval_bytes=200)


def log_path(directory: Path, base: int = 0) -> Path:
    return segment_path(directory, base, ".log")


def crashed(directory: Path, config: LogConfig | None = None, count: int = 5) -> list[tuple[int, bytes]]:
    """A log that was never closed; returns what it held."""
    log = open_log(directory, config)
    fill(log, count)
    return read_all(log)


class TestEveryByteOfTheLastBatch:
    """The sweep the design promises: damage anywhere in the last batch costs that batch and no other."""

    COUNT = 4

    @pytest.fixture
    def written(self, tmp_path: Path) -> tuple[Path, list[tuple[int, bytes]], bytes, int]:
        directory = tmp_path / "t-0"
        held = crashed(directory, count=self.COUNT)
        data = log_path(directory).read_bytes()
        *_, (last, _) = scan_headers(SegmentFile(log_path(directory)), 0, len(data))
        return directory, held, data, last

    def reopened(self, directory: Path, data: bytes) -> list[tuple[int, bytes]]:
        for name in (".index", ".timeindex"):
            segment_path(directory, 0, name).unlink(missing_ok=True)
        log_path(directory).write_bytes(data)
        log = open_log(directory, clean=False)
        found = read_all(log)
        assert log.log_end_offset == len(found)
        assert log_path(directory).stat().st_size == log.size
        append(log, batch(b"next"))
        assert read_all(log) == [*found, (len(found), b"next")]
        return found

    def test_torn_at_any_byte(self, written: tuple[Path, list[tuple[int, bytes]], bytes, int]) -> None:
        directory, held, data, last = written
        for cut in range(last, len(data)):
            assert self.reopened(directory, data[:cut]) == held[:-1], f"torn at byte {cut}"
        assert self.reopened(directory, data) == held

    def test_garbage_from_any_byte_on(self, written: tuple[Path, list[tuple[int, bytes]], bytes, int]) -> None:
        directory, held, data, last = written
        for start in range(last, len(data)):
            # Every byte from here on is wrong: a block of garbage, not one that happens to be right.
            damaged = data[:start] + bytes(byte ^ 0x5A for byte in data[start:])
            assert self.reopened(directory, damaged) == held[:-1], f"garbage from byte {start}"

    def test_any_single_byte_wrong(self, written: tuple[Path, list[tuple[int, bytes]], bytes, int]) -> None:
        directory, held, data, last = written
        leader_epoch = range(last + 12, last + 16)  # no part of the CRC: the records are sound
        for at in range(last, len(data)):
            damaged = data[:at] + bytes([data[at] ^ 0x01]) + data[at + 1 :]
            expected = held if at in leader_epoch else held[:-1]
            assert self.reopened(directory, damaged) == expected, f"byte {at}"

    def test_zeros_after_the_last_batch(self, written: tuple[Path, list[tuple[int, bytes]], bytes, int]) -> None:
        directory, held, data, _ = written
        for length in (1, 11, 12, 60, 61, 5000):
            assert self.reopened(directory, data + bytes(length)) == held


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 400), min_size=2, max_size=12),
    where=st.floats(0, 1, exclude_max=True),
    garbage=st.binary(min_size=1, max_size=300),
    torn=st.booleans(),
)
def test_damage_anywhere_keeps_what_stands_before_it(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], where: float, garbage: bytes, torn: bool
) -> None:
    directory = tmp_path_factory.mktemp("log") / "t-0"
    log = open_log(directory, SMALL)
    for size in sizes:
        append(log, batch(noise(size)))
    held = read_all(log)
    paths = sorted(directory.glob("*.log"))
    flat = [(path, at) for path in paths for at in range(path.stat().st_size)]
    path, at = flat[int(where * len(flat))]
    data = path.read_bytes()
    damaged = data[:at] if torn else data[:at] + garbage + data[at + len(garbage) :]
    path.write_bytes(damaged)
    whole = sum(record_count(other) for other in paths[: paths.index(path)])
    whole += sum(1 for position, size in batch_spans(data) if position + size <= at)

    reopened = open_log(directory, SMALL, clean=False)
    found = read_all(reopened)
    assert found[:whole] == held[:whole]
    assert len(found) >= whole
    assert found == held[: len(found)] or damaged == data
    shutil.rmtree(directory)


def batch_spans(data: bytes) -> list[tuple[int, int]]:
    spans, position = [], 0
    while position < len(data):
        size = int.from_bytes(data[position + 8 : position + 12], "big") + 12
        spans.append((position, size))
        position += size
    return spans


def record_count(path: Path) -> int:
    return len(batch_spans(path.read_bytes()))


def test_segments_after_the_damage_are_deleted(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    held = crashed(directory, SMALL, count=20)
    paths = sorted(directory.glob("*.log"))
    assert len(paths) >= 3
    data = bytearray(paths[1].read_bytes())
    data[len(data) // 2] ^= 0xFF
    paths[1].write_bytes(data)
    log = open_log(directory, SMALL, clean=False)
    found = read_all(log)
    assert caplog.messages == [
        f"{paths[1]} is cut at byte {paths[1].stat().st_size}: CRC of the batch at offset {len(found)} does not match",
        *(f"{path} is deleted: it follows a segment that was cut" for path in paths[2:]),
    ]
    assert found == held[: len(found)]
    assert log.log_end_offset == len(found) < 20
    assert len(list(directory.glob("*.log"))) == 2


def test_a_missing_segment_ends_the_log(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    held = crashed(directory, SMALL, count=20)
    paths = sorted(directory.glob("*.log"))
    paths[1].unlink()
    log = open_log(directory, SMALL, clean=False)
    assert read_all(log) == held[: int(paths[1].stem)]
    reason = f"it begins at offset {int(paths[2].stem)} instead of {int(paths[1].stem)}"
    assert caplog.messages == [f"{path} is deleted: {reason}" for path in paths[2:]]


def test_what_lies_before_the_recovery_point_is_trusted(directory: Path) -> None:
    """The cost of a start does not grow with the log: bytes that were fsynced are not read again."""
    crashed(directory, SMALL, count=20)
    paths = sorted(directory.glob("*.log"))
    data = bytearray(paths[0].read_bytes())
    data[-1] ^= 0xFF
    paths[0].write_bytes(data)
    log = open_log(directory, SMALL, clean=False, recovery_point=int(paths[-1].stem))
    assert (log.log_end_offset, log.recovery_point) == (20, int(paths[-1].stem))
    assert open_log(directory, SMALL, clean=False, recovery_point=99).recovery_point == 20


def test_a_clean_start_reads_only_the_tail(log: Log, directory: Path) -> None:
    append(log, batch(b"x", producer_id=9, producer_epoch=0, sequence=0))
    fill(log, 199)
    log.close()
    data = bytearray(log_path(directory).read_bytes())
    data[8] ^= 0xFF  # the first batch's length: what reads on from here fails
    log_path(directory).write_bytes(data)
    log = open_log(directory)
    assert (log.log_end_offset, log.recovery_point) == (200, 200)
    assert append(log, batch(b"x", producer_id=9, producer_epoch=0, sequence=0)).duplicate


@pytest.mark.parametrize("index", ["whole", "missing", "too long"])
def test_a_clean_mark_over_a_torn_tail_is_not_believed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, index: str
) -> None:
    directory = tmp_path / "t-0"
    log = open_log(directory, LogConfig(index_interval_bytes=1))
    fill(log, 5)
    held = read_all(log)
    log.close()
    cut = 1
    if index == "missing":
        segment_path(directory, 0, ".index").unlink()
    elif index == "too long":
        held, cut = held[:-1], 1 + log_path(directory).stat().st_size // 5
    os.truncate(log_path(directory), log_path(directory).stat().st_size - cut)
    log = open_log(directory)
    assert read_all(log) == held[:-1]
    append(log, batch(b"next"))
    assert read_all(log)[-1][1] == b"next"
    assert log.recovery_point == 0, "its bytes may not be on the disk yet"
    assert caplog.messages[0].startswith(f"{log_path(directory)} is not as a clean stop leaves it (")


def test_the_age_of_a_segment_without_timestamps_counts_from_the_start(tmp_path: Path) -> None:
    directory, config = tmp_path / "t-0", LogConfig(segment_ms=1000)
    log = open_log(directory, config)
    append(log, batch(b"x", timestamp=-1))
    log.close()
    clock = ManualClock(NOW + 5000)
    log = open_log(directory, config, clock)
    counts = []
    for passed in (1000, 1, 1000, 1):
        clock.advance(passed)
        append(log, batch(b"x", timestamp=-1))
        counts.append(len(log.segments))
    assert counts == [1, 2, 2, 3]


def test_a_recovered_log_that_closes_needs_no_recovery(directory: Path) -> None:
    crashed(directory)
    log = open_log(directory, clean=False)
    assert (log.log_end_offset, log.recovery_point) == (5, 0)
    log.close()
    assert snapshot_offsets(directory) == [5]
    assert open_log(directory).recovery_point == 5


def test_an_index_after_a_restart_is_as_dense_as_the_topic_says(tmp_path: Path) -> None:
    sizes = []
    for interval in (0, 4096):
        directory, config = tmp_path / f"{interval}-0", LogConfig(index_interval_bytes=interval)
        log = open_log(directory, config)
        fill(log, 1)
        log.close()
        log = open_log(directory, config)
        fill(log, 9)
        log.close()
        sizes.append(segment_path(directory, 0, ".index").stat().st_size)
    assert sizes[0] >= 8 * 9 > sizes[1]


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda path: path.unlink(), id="missing"),
        pytest.param(lambda path: path.write_bytes(b""), id="empty"),
        pytest.param(lambda path: path.write_bytes(path.read_bytes()[:-3]), id="cut"),
        pytest.param(lambda path: path.write_bytes(b"\xff" * 24), id="garbage"),
        pytest.param(lambda path: path.write_bytes(bytes(48)), id="zeros"),
    ],
)
def test_a_broken_index_is_made_anew(tmp_path: Path, suffix: str, damage: object) -> None:
    assert callable(damage)
    directory = tmp_path / "t-0"
    log = open_log(directory, SMALL)
    fill(log, 20)
    held, newest = read_all(log), log.max_timestamp()
    log.close()
    for path in directory.glob("*" + suffix):
        damage(path)
    log = open_log(directory, SMALL)
    assert read_all(log) == held
    assert [read_all(log, offset)[0][0] for offset in range(20)] == list(range(20))
    assert log.max_timestamp() == newest


def test_an_index_that_points_into_a_batch_is_made_anew(log: Log, directory: Path) -> None:
    fill(log, 200)
    held = read_all(log)
    log.close()
    path = segment_path(directory, 0, ".index")
    data = bytearray(path.read_bytes())
    data[7] += 3  # the first entry's position
    path.write_bytes(data)
    assert read_all(open_log(directory), 60) == held[60:]


def test_leftovers_of_a_crash_are_removed(directory: Path) -> None:
    crashed(directory)
    leftovers = ["00000000000000000003.log.deleted", LEADER_EPOCHS + ".tmp", "00000000000000000099.index"]
    for name in leftovers:
        (directory / name).write_bytes(b"left")
    open_log(directory, clean=False)
    assert not any((directory / name).exists() for name in leftovers)


def test_files_of_others_are_left_alone(directory: Path) -> None:
    crashed(directory)
    for name in ("notes.log", "notes.index", "7.txt"):
        (directory / name).write_bytes(b"mine")
    assert open_log(directory, clean=False).log_end_offset == 5
    assert all((directory / name).read_bytes() == b"mine" for name in ("notes.log", "notes.index", "7.txt"))


def test_a_repeated_offset_ends_the_log(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Base offsets lie outside the CRC: a batch that repeats one is sound by itself and wrong in its place."""
    held = crashed(directory, count=3)
    extra = bytearray(batch(b"stray"))
    patch_base_offset(extra, 0, 1, 0)
    with log_path(directory).open("ab") as file:
        file.write(extra)
    assert read_all(open_log(directory, clean=False)) == held
    (warning,) = caplog.messages
    assert warning.endswith(": offset 1 where 3 was expected")


def test_a_marker_that_cannot_be_read_is_reported_and_kept(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    crashed(directory, count=3)
    marker = build_batch(
        encode_record(0, 0, None, b""),
        1,
        base_offset=3,
        leader_epoch=0,
        base_timestamp=NOW,
        max_timestamp=NOW,
        producer_id=1,
        producer_epoch=0,
        transactional=True,
        control=True,
    )
    with log_path(directory).open("ab") as file:
        file.write(marker)
    assert open_log(directory, clean=False).log_end_offset == 4
    reason = "the control record at offset 3 has a key of -1 bytes"
    assert caplog.messages == [f"a control batch at offset 3 of 0: {reason}"]


@pytest.mark.parametrize(("offset", "end"), [(2**31 - 1, 2**31), (2**31, 3)])
def test_a_segment_holds_offsets_that_its_index_can_hold(
    tmp_path: Path, offset: int, end: int, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "t-0"
    crashed(directory, count=3)
    far = bytearray(batch(b"far"))
    patch_base_offset(far, 0, offset, 0)
    with log_path(directory).open("ab") as file:
        file.write(far)
    log = open_log(directory, LogConfig(cleanup_policy=("compact",)), clean=False)
    assert log.log_end_offset == end
    assert [message.rpartition(": ")[2] for message in caplog.messages] == (
        [] if end > 3 else [f"offset {offset} does not fit in the segment"]
    )


def test_a_gap_is_damage_unless_the_log_is_compacted(tmp_path: Path) -> None:
    later = bytearray(batch(b"later"))
    patch_base_offset(later, 0, 7, 0)
    for policy, end in (("delete", 3), ("compact", 8)):
        directory = tmp_path / f"{policy}-0"
        config = LogConfig(cleanup_policy=(policy,))
        crashed(directory, count=3)
        with log_path(directory).open("ab") as file:
            file.write(later)
        assert open_log(directory, config, clean=False).log_end_offset == end


def test_a_preallocated_segment_loses_only_its_zeros(tmp_path: Path) -> None:
    directory, config = tmp_path / "t-0", LogConfig(preallocate=True, segment_bytes=100_000)
    held = crashed(directory, config)
    assert log_path(directory).stat().st_size == 100_000
    log = open_log(directory, config, clean=False)
    assert read_all(log) == held
    assert log_path(directory).stat().st_size == log.size


def test_a_log_that_lost_what_its_start_says_begins_there(directory: Path) -> None:
    crashed(directory)
    log = open_log(directory, clean=False, log_start_offset=100)
    assert (log.log_start_offset, log.log_end_offset, log.size) == (100, 100, 0)
    fill(log, 1)
    assert log.log_end_offset == 101


@pytest.mark.parametrize("clean", [True, False])
def test_a_log_whose_records_are_all_deleted_still_knows_its_producers(log: Log, directory: Path, clean: bool) -> None:
    append(log, batch(b"x", producer_id=9, producer_epoch=0, sequence=0))
    if clean:
        log.close()
    log = open_log(directory, clean=clean, log_start_offset=1)
    assert (log.log_start_offset, log.log_end_offset) == (1, 1)
    assert append(log, batch(b"x", producer_id=9, producer_epoch=0, sequence=0)).duplicate


@pytest.mark.parametrize("clean", [True, False])
def test_leader_epochs_are_found_in_the_batches(log: Log, directory: Path, clean: bool) -> None:
    for epoch in (0, 0, 3, 4):
        append(log, batch(b"a"), leader_epoch=epoch)
    expected = log.epochs.entries
    if clean:
        log.close()
    (directory / LEADER_EPOCHS).unlink(missing_ok=True)
    assert open_log(directory, clean=clean).epochs.entries == expected == [(0, 0), (3, 2), (4, 3)]


def test_leader_epochs_of_records_that_are_gone_are_forgotten(log: Log, directory: Path) -> None:
    for epoch in (0, 0, 3, 3, 4):
        append(log, batch(b"a"), leader_epoch=epoch)
    log.close()
    os.truncate(log_path(directory), log_path(directory).stat().st_size - 1)
    assert open_log(directory, clean=False).epochs.entries == [(0, 0), (3, 2)]
    assert open_log(directory, clean=False, log_start_offset=3).epochs.entries == [(3, 3)]


class TestProducerState:
    """A retry after a restart finds its duplicate."""

    def send(self, directory: Path, sequences: range, *, config: LogConfig | None = None) -> None:
        log = open_log(directory, config)
        for sequence in sequences:
            append(log, batch(b"x" * 100, producer_id=9, producer_epoch=0, sequence=sequence))

    @pytest.mark.parametrize("config", [None, SMALL], ids=["one segment", "many segments"])
    def test_after_a_crash(self, directory: Path, config: LogConfig | None) -> None:
        self.send(directory, range(25), config=config)
        last = max(int(path.stem) for path in directory.glob("*.log"))
        log = open_log(directory, config, clean=False, recovery_point=last)
        for sequence in range(20, 25):
            again = batch(b"x" * 100, producer_id=9, producer_epoch=0, sequence=sequence)
            assert append(log, again)[::4] == (sequence, True)

    def test_after_a_clean_stop(self, log: Log, directory: Path) -> None:
        for sequence in range(8):
            append(log, batch(b"x", producer_id=9, producer_epoch=0, sequence=sequence))
        log.close()
        assert snapshot_offsets(directory) == [8]
        log = open_log(directory)
        for sequence in range(3, 8):
            again = batch(b"x", producer_id=9, producer_epoch=0, sequence=sequence)
            assert append(log, again).duplicate

    def test_a_batch_that_was_cut_is_not_remembered(self, directory: Path) -> None:
        self.send(directory, range(5))
        os.truncate(log_path(directory), log_path(directory).stat().st_size - 1)
        log = open_log(directory, clean=False)
        again = batch(b"x" * 100, producer_id=9, producer_epoch=0, sequence=4)
        assert append(log, again)[::4] == (4, False)

    @pytest.mark.parametrize("clean", [True, False])
    def test_each_producer_is_as_it_was_and_counts_as_seen_at_the_start(
        self, log: Log, directory: Path, clean: bool
    ) -> None:
        for producer, transactional in ((0, False), (1, True), (2, True)):
            for sequence in range(2):
                append(
                    log,
                    batch(b"x", producer_id=producer, producer_epoch=0, sequence=sequence, transactional=transactional),
                )
        append_marker(log, 1, 3, ControlType.ABORT, 7)
        before = list(log.producers)
        if clean:
            log.close()
        clock = ManualClock(NOW + 1000)
        log = open_log(directory, clock=clock, clean=clean)
        for entry in before:
            entry.last_seen_ms = NOW + 1000
            if clean:
                entry.last_marker_offset = -1  # snapshots do not have it
        assert list(log.producers) == before
        assert log.aborted.transactions_between(0, 99) == [(1, 2)]
        clock.advance(99)
        assert log.producers.expire(clock.now_ms(), 100) == 0
        clock.advance(1)
        assert log.producers.expire(clock.now_ms(), 100) == 2

    def test_a_snapshot_from_behind_the_end_is_dropped(self, directory: Path, tmp_path: Path) -> None:
        self.send(directory, range(3))
        shutil.copy(segment_path(directory, 0, ".log"), tmp_path / "kept")
        log = open_log(directory, clean=False)
        append(log, batch(b"x" * 100, producer_id=9, producer_epoch=0, sequence=3))
        log.close()
        assert snapshot_offsets(directory) == [4]
        shutil.copy(tmp_path / "kept", segment_path(directory, 0, ".log"))
        log = open_log(directory, clean=False)
        assert 4 not in snapshot_offsets(directory)
        again = batch(b"x" * 100, producer_id=9, producer_epoch=0, sequence=3)
        assert append(log, again)[::4] == (3, False)

    def test_a_broken_snapshot_is_replaced_by_the_log(self, directory: Path) -> None:
        self.send(directory, range(25), config=SMALL)
        for path in directory.glob("*.snapshot"):
            path.write_bytes(b"broken")
        log = open_log(directory, SMALL, clean=False)
        entry = log.producers.get(9)
        assert entry is not None
        assert entry.batches[-1].last_sequence == 24

    @pytest.mark.parametrize("kept", [0, 1, -1])
    def test_every_batch_after_a_snapshot_is_replayed(self, directory: Path, kept: int) -> None:
        log = open_log(directory, SMALL)
        for number in range(25):
            append(log, batch(b"x" * 100, producer_id=number, producer_epoch=0, sequence=0))
        last = max(int(path.stem) for path in directory.glob("*.log"))
        open_log(directory, SMALL, clean=False)  # recovery takes a snapshot at the begin of every segment
        snapshots = snapshot_offsets(directory)
        assert len(snapshots) >= 3
        for offset in snapshots:
            if offset != snapshots[kept]:
                segment_path(directory, offset, ".snapshot").unlink()
        states = open_log(directory, SMALL, clean=False, recovery_point=last).producers
        found = [states.get(number) for number in range(25)]
        assert [entry and entry.batches[-1].last_offset for entry in found] == list(range(25))
        assert {entry.last_seen_ms for entry in states} == {NOW}

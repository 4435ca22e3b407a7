"""All logs of a broker: start, restart, crash, background work, and who may use a directory."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker.clock import ManualClock
from broker.errors import BrokerError, ConfigError
from broker.log.checkpoints import HIGH_WATERMARKS, LOG_START_OFFSETS, RECOVERY_POINTS, read_offsets
from broker.log.log_config import LogConfig
from broker.log.log_directory import CLEAN_MARK
from broker.log.manager import LogManager
from broker.protocol.topic_partition import TopicPartition
from tests.support.batches import NOW, append, batch, fill, read_all

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u-x", 0)
SMALL = LogConfig(segment_bytes=600)

Start = Callable[..., LogManager]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW)


@pytest.fixture
def start(tmp_path: Path, clock: ManualClock) -> Iterator[Start]:
    """`start()` loads a manager on the same directory each time; one that still runs is crashed first."""
    running: list[LogManager] = []

    def start(*directories: Path, config: LogConfig = SMALL, **settings: Any) -> LogManager:
        crash(running)
        manager = LogManager(directories or [tmp_path / "data"], clock, **settings)
        manager.load(lambda topic: config)
        running.append(manager)
        return manager

    yield start
    crash(running)


@pytest.fixture
def manager(start: Start) -> LogManager:
    return start()


def crash(running: list[LogManager]) -> None:
    """Let go of the locks without closing anything."""
    for manager in running:
        for directory in manager._directories:
            directory.unlock()
    running.clear()


def held(manager: LogManager) -> dict[TopicPartition, list[tuple[int, bytes]]]:
    return {tp: read_all(log) for tp, log in manager.logs().items()}


@pytest.mark.parametrize("clean", [True, False], ids=["after a clean stop", "after a crash"])
def test_a_restart_finds_everything(manager: LogManager, start: Start, clean: bool) -> None:
    for tp in (T0, T1, U0):
        fill(manager.create(tp, SMALL), 7)
    before = held(manager)
    if clean:
        manager.close()
    again = start()
    assert held(again) == before
    assert set(again.logs()) == {T0, T1, U0}


def test_directories_are_named_by_topic_and_partition(start: Start, tmp_path: Path) -> None:
    start().create(U0, SMALL)
    assert (tmp_path / "data" / "u-x-0").is_dir()


def test_creating_twice_gives_the_same_log(manager: LogManager, start: Start) -> None:
    assert manager.create(T0, SMALL) is manager.create(T0, SMALL) is manager.get(T0)
    assert manager.get(T1) is None


def test_the_topic_id_is_kept(start: Start) -> None:
    topic_id = uuid.uuid4()
    start().create(T0, SMALL, topic_id)
    log = start().get(T0)
    assert log is not None
    assert log.topic_id == topic_id


def test_logs_are_spread_over_the_directories(start: Start, tmp_path: Path) -> None:
    manager = start(tmp_path / "a", tmp_path / "b")
    for partition in range(6):
        manager.create(TopicPartition("t", partition), SMALL)
    assert [len(list(path.glob("t-*"))) for path in manager.directories] == [3, 3]
    manager.close()
    assert len(start(tmp_path / "a", tmp_path / "b").logs()) == 6


def test_what_is_no_partition_is_left_alone(start: Start, tmp_path: Path) -> None:
    for name in ("lost+found", "zookeeper", "t-x"):
        (tmp_path / "data" / name).mkdir(parents=True)
    (tmp_path / "data" / "meta.properties").write_text("broker.id=0\n")
    assert not start().logs()
    assert (tmp_path / "data" / "lost+found").is_dir()


class TestCleanStop:
    def test_the_mark_stands_only_between_stop_and_start(
        self, manager: LogManager, start: Start, tmp_path: Path
    ) -> None:
        manager.create(T0, SMALL)
        mark = tmp_path / "data" / CLEAN_MARK
        assert not mark.exists()
        manager.close()
        assert mark.exists()
        start()
        assert not mark.exists()

    def test_a_log_that_cannot_be_closed_leaves_no_mark(
        self, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        manager = start()
        fill(manager.create(T0, SMALL), 1)

        def fails(_: int) -> None:
            raise OSError(5, "Input/output error")

        real = os.fsync
        monkeypatch.setattr(os, "fsync", fails)
        manager.close()
        monkeypatch.setattr(os, "fsync", real)
        assert not (tmp_path / "data" / CLEAN_MARK).exists()

    def test_closing_twice_is_harmless(self, manager: LogManager, start: Start) -> None:
        manager.close()
        manager.close()

    def test_no_append_after_it(self, manager: LogManager, start: Start) -> None:
        log = manager.create(T0, SMALL)
        manager.close()
        with pytest.raises(BrokerError, match="is closed"):
            append(log, batch(b"late"))


class TestDirectory:
    def test_a_second_broker_is_refused(self, start: Start, tmp_path: Path, clock: ManualClock) -> None:
        start()
        with pytest.raises(ConfigError, match=f"{tmp_path / 'data'} is in use by another broker"):
            LogManager([tmp_path / "data"], clock).load(lambda topic: SMALL)

    def test_also_one_in_another_process(self, start: Start, tmp_path: Path) -> None:
        start()
        program = (
            "import sys\nfrom pathlib import Path\n"
            "from broker.clock import SystemClock\nfrom broker.log.manager import LogManager\n"
            "LogManager([Path(sys.argv[1])], SystemClock()).load(lambda topic: None)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path / "data")], capture_output=True, text=True, check=False
        )
        assert "is in use by another broker" in done.stderr

    def test_a_refused_start_frees_what_it_had_locked(self, start: Start, tmp_path: Path, clock: ManualClock) -> None:
        start(tmp_path / "b")
        with pytest.raises(ConfigError):
            LogManager([tmp_path / "a", tmp_path / "b"], clock).load(lambda topic: SMALL)
        other = LogManager([tmp_path / "a"], clock)
        other.load(lambda topic: SMALL)
        other.close()

    def test_a_file_in_its_place_is_named(self, tmp_path: Path, clock: ManualClock) -> None:
        (tmp_path / "data").write_text("")
        with pytest.raises(ConfigError, match=f"log.dirs: cannot use {tmp_path / 'data'}"):
            LogManager([tmp_path / "data"], clock).load(lambda topic: SMALL)


def test_a_new_log_is_missed_when_it_goes_right_after_it_was_made(start: Start, tmp_path: Path) -> None:
    manager = start(tmp_path / "a", tmp_path / "b")
    logs = [manager.create(tp, SMALL) for tp in (T0, T1)]
    manager.note_new([T0, T1, U0])
    assert [read_offsets(tmp_path / name / RECOVERY_POINTS) for name in "ab"] == [{T0: 0}, {T1: 0}]
    fill(logs[0], 3)
    logs[0].flush()
    manager._write_checkpoints(manager._directories[0])
    manager.note_new([T0])
    assert read_offsets(tmp_path / "a" / RECOVERY_POINTS) == {T0: 3}, "what is known stays"
    for path in logs[1].directory.iterdir():
        path.unlink()
    again = start(tmp_path / "a", tmp_path / "b")
    assert set(again.logs()) == {T0}
    assert [again.may_have_had(tp) for tp in (T0, T1, U0)] == [True, True, False]
    assert again.create(T1, SMALL).log_end_offset == 0
    again.delete(T0)
    again.delete(T1)
    again.tick()
    assert [read_offsets(tmp_path / name / RECOVERY_POINTS) for name in "ab"] == [{}, {}], "it is forgotten at once"


def test_many_logs_are_flushed_at_once(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other, a thousand partitions would be seconds behind flush.ms."""
    together = threading.Barrier(4, timeout=60)
    fsync = os.fsync

    def held(fd: int) -> None:
        if os.readlink(f"/proc/self/fd/{fd}").endswith(".log"):
            together.wait()
        fsync(fd)

    manager = start(config=LogConfig(flush_ms=0))
    logs = [manager.create(TopicPartition("t", number), LogConfig(flush_ms=0)) for number in range(4)]
    for log in logs:
        fill(log, 1)
    monkeypatch.setattr(os, "fsync", held)
    manager.tick()
    assert [log.recovery_point for log in logs] == [1] * 4


class TestDelete:
    def test_the_files_go_after_the_delay(
        self, manager: LogManager, start: Start, tmp_path: Path, clock: ManualClock
    ) -> None:
        fill(manager.create(T0, SMALL), 5)
        manager.delete(T0)
        manager.delete(T0)
        assert manager.get(T0) is None
        [doomed] = (tmp_path / "data").glob("t-0.*-delete")
        clock.advance(59_999)
        manager.tick()
        assert doomed.exists()
        clock.advance(1)
        manager.tick()
        assert not doomed.exists()

    def test_the_name_is_free_at_once(self, manager: LogManager, start: Start) -> None:
        fill(manager.create(T0, SMALL), 5)
        manager.delete(T0)
        assert manager.create(T0, SMALL).log_end_offset == 0

    def test_a_restart_removes_what_waited(self, manager: LogManager, start: Start, tmp_path: Path) -> None:
        fill(manager.create(T0, SMALL), 5)
        manager.delete(T0)
        assert not start().logs()
        assert not list((tmp_path / "data").glob("*-delete"))

    def test_the_longest_topic_name_can_be_deleted(self, manager: LogManager, start: Start) -> None:
        tp = TopicPartition("n" * 249, 0)
        manager.create(tp, SMALL)
        manager.delete(tp)
        assert not manager.logs()


class TestTick:
    def test_retention_on_its_interval(self, start: Start, clock: ManualClock) -> None:
        manager = start(retention_check_interval_ms=1000)
        log = manager.create(T0, replace(SMALL, retention_bytes=0))
        fill(log, 7)
        manager.tick()
        assert log.log_start_offset == 0
        clock.advance(1000)
        manager.tick()
        assert log.log_start_offset == 6

    def test_deleted_segments_are_unlinked(self, start: Start, clock: ManualClock) -> None:
        manager = start(retention_check_interval_ms=1000)
        log = manager.create(T0, replace(SMALL, retention_bytes=0, file_delete_delay_ms=5000))
        fill(log, 7)
        clock.advance(1000)
        manager.tick()
        assert list(log.directory.glob("*.deleted"))
        clock.advance(5000)
        manager.tick()
        assert not list(log.directory.glob("*.deleted"))

    def test_idle_producers_are_forgotten(self, start: Start, clock: ManualClock) -> None:
        manager = start(retention_check_interval_ms=1000, producer_expiration_ms=5000)
        log = manager.create(T0, SMALL)
        append(log, batch(b"x", producer_id=1, producer_epoch=0, sequence=0))
        clock.advance(5000)
        manager.tick()
        assert len(log.producers) == 0

    def test_a_segment_is_rolled_by_time_and_then_synced(
        self, manager: LogManager, start: Start, clock: ManualClock
    ) -> None:
        log = manager.create(T0, replace(SMALL, segment_ms=1000))
        fill(log, 1)
        clock.advance(1001)
        manager.tick()
        assert len(log.segments) == 2
        assert log.recovery_point == 1

    def test_flush_by_time(self, manager: LogManager, start: Start, clock: ManualClock) -> None:
        log = manager.create(T0, replace(SMALL, flush_ms=100))
        fill(log, 1)
        manager.tick()
        assert log.recovery_point == 0
        clock.advance(100)
        manager.tick()
        assert log.recovery_point == 1

    def test_checkpoints_are_written(self, start: Start, tmp_path: Path, clock: ManualClock) -> None:
        manager = start(checkpoint_interval_ms=1000)
        log = manager.create(T0, SMALL)
        fill(log, 8)
        log.flush()
        log.delete_records(4)
        clock.advance(1000)
        manager.tick()
        assert read_offsets(tmp_path / "data" / RECOVERY_POINTS) == {T0: 8}
        assert read_offsets(tmp_path / "data" / LOG_START_OFFSETS) == {T0: 4}
        log = start().logs()[T0]
        assert (log.log_start_offset, log.recovery_point, log.log_end_offset) == (4, 8, 8)

    def test_blocking_work_is_handed_out_one_job_at_a_time(
        self, manager: LogManager, start: Start, clock: ManualClock
    ) -> None:
        log = manager.create(T0, replace(SMALL, flush_ms=0))
        jobs: list[Callable[[], None]] = []
        fill(log, 1)
        manager.tick(jobs.append)
        fill(log, 1)
        manager.tick(jobs.append)
        assert len(jobs) == 1
        assert log.recovery_point == 0
        jobs[0]()
        assert log.recovery_point == 2
        fill(log, 1)
        manager.tick(jobs.append)
        assert len(jobs) == 2

    def test_a_runner_that_fails_does_not_end_the_work(self, manager: LogManager, start: Start) -> None:
        log = manager.create(T0, replace(SMALL, flush_ms=0))
        fill(log, 1)

        def shut_down(_: Callable[[], None]) -> None:
            raise RuntimeError("cannot schedule new futures after shutdown")

        with pytest.raises(RuntimeError):
            manager.tick(shut_down)
        manager.tick()
        assert log.recovery_point == 1

    def test_one_log_in_trouble_does_not_stop_the_others(self, start: Start, clock: ManualClock) -> None:
        manager = start(retention_check_interval_ms=1000)
        broken, sound = (manager.create(tp, replace(SMALL, retention_bytes=0)) for tp in (T0, T1))
        fill(broken, 7)
        fill(sound, 7)
        for path in broken.directory.iterdir():
            path.unlink()
        broken.directory.rmdir()
        broken.directory.write_text("no directory any more")
        clock.advance(1000)
        manager.tick()
        assert sound.log_start_offset == 6

    def test_one_log_with_a_fault_of_ours_does_not_stop_the_others(
        self, start: Start, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        manager = start(retention_check_interval_ms=1000)
        broken, sound = (manager.create(tp, replace(SMALL, retention_bytes=0, flush_ms=0)) for tp in (T0, T1))
        fill(broken, 7)
        fill(sound, 7)

        def fail() -> None:
            raise ValueError("a bug")

        monkeypatch.setattr(broken, "apply_retention", fail)
        clock.advance(1000)
        manager.tick()
        assert sound.log_start_offset == 6
        assert [log.recovery_point for log in (broken, sound)] == [7, 7]
        [record] = [record for record in caplog.records if record.levelname == "ERROR"]
        assert record.getMessage() == "t-0: a bug"
        assert record.exc_info


def test_new_settings_reach_every_partition(manager: LogManager, start: Start) -> None:
    logs = [manager.create(tp, SMALL) for tp in (T0, T1, U0)]
    manager.update_config("t", LogConfig(retention_ms=5))
    assert [log.config.retention_ms == 5 for log in logs] == [True, True, False]


def test_many_partitions_stay_within_the_descriptors(start: Start, clock: ManualClock) -> None:
    manager = start(max_open_segments=8)
    before = len(os.listdir("/proc/self/fd"))
    logs = [manager.create(TopicPartition("many", number), SMALL) for number in range(60)]
    for _ in range(3):
        for log in logs:
            fill(log, 3)
    assert all(len(read_all(log)) == 9 for log in logs)
    assert len(os.listdir("/proc/self/fd")) <= before + 8
    manager.close()
    again = start(max_open_segments=8)
    assert all(len(records) == 9 for records in held(again).values())


class TestHighWatermarks:
    """`replication-offset-checkpoint`, in Kafka's format."""

    def path(self, manager: LogManager) -> Path:
        return manager.directories[0] / HIGH_WATERMARKS

    def test_there_is_no_file_before_a_partition_is_replicated(self, manager: LogManager, start: Start) -> None:
        fill(manager.create(T0, SMALL), 3)
        assert manager.high_watermark(T0) == 0
        manager.close()
        assert not self.path(manager).exists()

    @pytest.mark.parametrize("clean", [True, False])
    def test_they_are_known_after_a_start(
        self, manager: LogManager, start: Start, clock: ManualClock, clean: bool
    ) -> None:
        for tp in (T0, T1):
            fill(manager.create(tp, SMALL), 7)
        manager.high_watermarks = lambda: {T0: 5, T1: 99}
        if clean:
            manager.close()
        else:
            clock.advance(60_000)
            manager.tick()
        again = start()
        assert [again.high_watermark(tp) for tp in (T0, T1, U0)] == [5, 7, 0]
        clock.advance(60_000)
        again.tick()  # nobody says anything about T0 and T1 yet, as without ZooKeeper
        assert read_offsets(self.path(again)) == {T0: 5, T1: 99}

    def test_a_damaged_file_counts_as_none(self, manager: LogManager, start: Start) -> None:
        fill(manager.create(T0, SMALL), 3)
        manager.high_watermarks = lambda: {T0: 2}
        manager.close()
        self.path(manager).write_text("?")
        assert start().high_watermark(T0) == 0

    def test_a_new_partition_does_not_inherit_that_of_a_deleted_one(self, manager: LogManager, start: Start) -> None:
        fill(manager.create(T0, SMALL), 7)
        manager.high_watermarks = lambda: {T0: 5}
        manager.close()
        manager = start()
        manager.delete(T0)
        fill(manager.create(T0, SMALL), 7)
        assert manager.high_watermark(T0) == 0
        manager = start()
        assert manager.high_watermark(T0) == 0


def test_a_truncation_lowers_every_checkpoint_first(manager: LogManager, start: Start, clock: ManualClock) -> None:
    """After a crash, records appended there later would count as flushed, committed or compacted."""
    log, other = manager.create(T0, SMALL), manager.create(T1, SMALL)
    for one in (log, other):
        fill(one, 9)
        one.flush()
        one.delete_records(2)
    manager.high_watermarks = lambda: {T0: 8, T1: 8}
    clock.advance(60_000)
    manager.tick()
    root = manager.directories[0]
    names = (RECOVERY_POINTS, LOG_START_OFFSETS, HIGH_WATERMARKS)

    def offsets(tp: TopicPartition) -> list[int]:
        return [read_offsets(root / name)[tp] for name in names]

    assert offsets(T0) == offsets(T1) == [9, 2, 8]
    log.truncate_to(5)
    assert offsets(T0) == [5, 2, 5]
    log.truncate_fully_and_start_at(1)
    assert offsets(T0) == [1, 1, 1]
    assert offsets(T1) == [9, 2, 8]
    fill(log, 9)
    again = start()
    assert again.high_watermark(T0) == 1
    assert (again.logs()[T0].log_start_offset, again.logs()[T0].log_end_offset) == (1, 10)


def test_a_truncation_inside_a_batch_lowers_them_to_its_start(
    manager: LogManager, start: Start, clock: ManualClock
) -> None:
    log = manager.create(T0, SMALL)
    fill(log, 2)
    append(log, batch(b"a", b"b", b"c"))
    log.flush()
    manager.high_watermarks = lambda: {T0: 5}
    clock.advance(60_000)
    manager.tick()
    log.truncate_to(4)
    assert log.recovery_point == 2
    fill(log, 3)
    assert manager.high_watermark(T0) == 2
    assert start().high_watermark(T0) == 2


def test_a_truncation_that_cannot_lower_the_checkpoints_drops_nothing(
    start: Start, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = start()
    log = manager.create(T0, SMALL)
    fill(log, 9)
    log.flush()
    clock.advance(60_000)
    manager.tick()

    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("broker.log.log_directory.write_offsets", fails)
        with pytest.raises(BrokerError, match="No space left"):
            log.truncate_to(5)
    assert (log.log_end_offset, log.failure) == (9, "")
    log.truncate_to(5)
    assert log.log_end_offset == 5

"""What is on disk: the flush policy, and flushing in another thread."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from broker.clock import ManualClock
from broker.errors import BrokerError
from broker.log.log import Log
from broker.log.log_config import LogConfig
from tests.support.batches import NOW, fill, open_log, read_all
from tests.support.waiting import eventually

SMALL = LogConfig(segment_bytes=600)


def test_by_default_the_os_decides(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    log = open_log(tmp_path / "t-0", clock=clock)
    fill(log, 100)
    clock.advance(10**9)
    assert not log.flush_due()
    assert log.recovery_point == 0


def test_every_so_many_records(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", LogConfig(flush_messages=3))
    fill(log, 2)
    assert not log.flush_due()
    fill(log, 1)
    assert log.flush_due()
    log.flush()
    assert log.recovery_point == 3
    assert not log.flush_due()


def test_every_so_many_ms(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    log = open_log(tmp_path / "t-0", LogConfig(flush_ms=100), clock)
    clock.advance(1000)
    assert not log.flush_due(), "there is nothing to flush"
    fill(log, 1)
    assert log.flush_due()
    log.flush()
    fill(log, 1)
    clock.advance(99)
    assert not log.flush_due()
    clock.advance(1)
    assert log.flush_due()


def test_every_so_many_ms_also_when_the_wall_clock_is_set_back(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    log = open_log(tmp_path / "t-0", LogConfig(flush_ms=100), clock)
    clock.set_wall(NOW - 3_600_000)
    fill(log, 1)
    assert not log.flush_due()
    clock.advance(100)
    assert log.flush_due()


def test_after_a_roll_but_nobody_waits_for_it(tmp_path: Path) -> None:
    """A gigabyte may take the disk seconds, and nothing promised that it is there before the acknowledgement."""
    log = open_log(tmp_path / "t-0", SMALL)
    fill(log, 3)
    assert not log.needs_background_flush()
    fill(log, 1)
    assert log.needs_background_flush()
    assert not log.flush_due()
    log.flush()
    assert not log.needs_background_flush()


def test_only_what_is_not_yet_on_disk_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(tmp_path / "t-0", SMALL)
    fill(log, 7)
    log.flush()
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
    fill(log, 1)
    log.flush()
    assert [Path(path).name for path in synced] == ["00000000000000000006.log"]


def test_a_rolled_segment_is_synced_with_its_indexes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(tmp_path / "t-0", SMALL)
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(Path(os.readlink(f"/proc/self/fd/{fd}")).name))
    fill(log, 4)
    synced.clear()
    log.flush()
    closed, active = "0" * 20, f"{3:020d}"
    assert synced[:4] == [f"{closed}.log", f"{closed}.index", f"{closed}.timeindex", f"{active}.log"]
    assert synced[4:6] == ["t-0", tmp_path.name], "the names of the files are on disk, too"


def test_appends_rolls_and_deletes_go_on_meanwhile(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", replace(SMALL, retention_bytes=2000))
    stop, errors = threading.Event(), []

    def flusher() -> None:
        try:
            while not stop.is_set():
                log.flush()
                assert log.recovery_point <= log.log_end_offset
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=flusher)
    thread.start()
    for _ in range(100):
        fill(log, 5)
        log.apply_retention()
    stop.set()
    thread.join()
    assert not errors
    log.flush()
    assert log.recovery_point == log.log_end_offset == 500


@pytest.mark.parametrize("made_anew", [False, True])
def test_a_log_that_is_deleted_meanwhile_needs_none(log: Log, tmp_path: Path, *, made_anew: bool) -> None:
    """The topic may be made anew at once, in the same place."""
    fill(log, 1)
    log.roll()
    assert not log.epochs.is_saved
    log.delete()
    if made_anew:
        (tmp_path / "t-0").mkdir()
    log.flush()
    log.save_epochs()
    assert [path.name for path in tmp_path.glob("t-0/*")] == []


def test_a_truncation_is_not_overtaken(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """The records that a running flush has synced may be gone before it ends."""
    fill(log, 10)
    began, go_on = threading.Event(), threading.Event()
    real = os.fsync

    def slow(fd: int) -> None:
        began.set()
        assert go_on.wait(60)
        real(fd)

    monkeypatch.setattr(os, "fsync", slow)
    thread = threading.Thread(target=log.flush)
    thread.start()
    eventually(began.is_set)
    log.truncate_to(4)
    go_on.set()
    thread.join()
    assert log.recovery_point <= 4


def test_a_failed_fsync_is_not_made_good_by_the_next(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel reports lost pages once, and then forgets them."""
    fill(log, 1)

    def fails(_: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fails)
        with pytest.raises(BrokerError, match="Input/output error"):
            log.flush()
    for again in (log.flush, log.close):
        with pytest.raises(BrokerError, match="an earlier fsync failed"):
            again()
    assert log.recovery_point == 0


def test_close_writes_nothing_when_nothing_was_appended(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(log, 3)
    log.close()
    log = open_log(tmp_path / "t-0")
    assert len(read_all(log)) == 3

    def unexpected(_: int) -> None:
        raise AssertionError

    monkeypatch.setattr(os, "fsync", unexpected)
    before = {path.name: path.stat().st_mtime_ns for path in log.directory.iterdir()}
    log.close()
    assert {path.name: path.stat().st_mtime_ns for path in log.directory.iterdir()} == before

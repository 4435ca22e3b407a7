"""What a start concludes from the mark of a clean stop and the machine's boot."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker import boot_id
from broker.boot_id import are_those_of_last_start, may_have_lost_records, record_boot

MARK = ".clean"


@pytest.fixture
def boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which the kernel names its boot."""
    current = tmp_path / "boot"
    current.write_text("first\n")
    monkeypatch.setattr(boot_id, "_CURRENT", current)
    return current


def test_a_killed_process_loses_nothing_and_a_rebooted_machine_may(tmp_path: Path, boot: Path) -> None:
    directories = [tmp_path / "a", tmp_path / "b"]
    for directory in directories:
        directory.mkdir()
    assert may_have_lost_records(directories, MARK)  # nothing is known
    record_boot(directories)
    assert not may_have_lost_records(directories, MARK)
    boot.write_text("second\n")
    assert may_have_lost_records(directories, MARK)
    (directories[0] / MARK).touch()
    assert may_have_lost_records(directories, MARK)  # one directory was not closed cleanly


def test_a_clean_stop_loses_nothing_whatever_boot_comes_next(tmp_path: Path, boot: Path) -> None:
    record_boot([tmp_path])
    boot.write_text("second\n")
    (tmp_path / MARK).touch()
    assert not may_have_lost_records([tmp_path], MARK)


def test_a_loss_is_remembered_until_the_broker_has_left_the_isrs(tmp_path: Path, boot: Path) -> None:
    """The start that noticed it may fail, and a failed start closes the logs cleanly."""
    assert may_have_lost_records([tmp_path], MARK)
    (tmp_path / MARK).touch()
    assert may_have_lost_records([tmp_path], MARK)
    record_boot([tmp_path])
    assert not may_have_lost_records([tmp_path], MARK)


def test_without_a_boot_id_only_a_clean_stop_is_trusted(tmp_path: Path, boot: Path) -> None:
    boot.unlink()
    record_boot([tmp_path])
    (tmp_path / MARK).touch()
    assert not may_have_lost_records([tmp_path], MARK)
    (tmp_path / MARK).unlink()
    assert may_have_lost_records([tmp_path], MARK)


def test_a_directory_that_was_emptied_or_taken_out_of_log_dirs_is_missed(tmp_path: Path, boot: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    for directory in (a, b):
        directory.mkdir()
        assert not are_those_of_last_start([directory], [directory])
    record_boot([a, b], [a, b])
    assert are_those_of_last_start([a, b], [a, b])
    assert are_those_of_last_start([a], [a, b]), "the other is offline, which others tell"
    assert are_those_of_last_start([a, b], [a, b, tmp_path / "new"])
    assert not are_those_of_last_start([a], [a])
    (b / "boot.id").unlink()
    assert not are_those_of_last_start([a, b], [a, b])
    record_boot([a], [a])
    assert are_those_of_last_start([a], [a])
    assert may_have_lost_records([a, b], MARK)
    assert not are_those_of_last_start([a], [a]), "a start that noticed a loss has not come to its end"


def test_log_dirs_are_known_where_no_boot_is(tmp_path: Path, boot: Path) -> None:
    boot.unlink()
    record_boot([tmp_path], [tmp_path])
    assert are_those_of_last_start([tmp_path], [tmp_path])
    assert not are_those_of_last_start([tmp_path], [tmp_path / "other"])

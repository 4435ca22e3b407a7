"""What a start concludes from the mark of a clean stop and the machine's boot."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker import boot_id
from broker.boot_id import may_have_lost_records, record_boot

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
